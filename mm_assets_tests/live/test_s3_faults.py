"""Conversion, graph, proof, sensor and Lance commits on a store that spoils every fifth request, or refuses.

``python -m benchmarks faults`` runs many more of these rounds.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from unittest.mock import patch

import dagster as dg
import fsspec
import pytest

from mm_assets.definitions import build_definitions
from mm_assets.graph.resources import resources_from_environment
from mm_assets_tests.cli.commands import run
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.fault_rounds import CONVERSIONS, FaultRounds, complaints
from mm_assets_tests.live.faulty_proxy import (
    DOWN,
    EXPIRED,
    MISSING,
    READ_ONLY,
    SLOW_DOWN,
    Faults,
    Refusal,
)
from mm_assets_tests.live.faulty_runs import FaultyStore, Ran, faulty_store
from mm_assets_tests.live.lance_committers import commit_rounds
from mm_assets_tests.live.s3_server import S3Server

pytestmark = pytest.mark.clients

CONVERTED = 1  # of the conversions, one seed each
COMMITS = 4  # rounds of two processes
EXPIRED_LINE = (
    "the credentials have expired: get new ones (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN)"
)
_KEYS = "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or [stores] in the settings file)"
DENIED_LINE = f"permission denied: the credentials do not allow it, or are wrong {_KEYS}"


def _here(words: Sequence[object], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A command in this process, for which fsspec reads its variables anew."""
    with patch.dict(fsspec.config.conf):
        fsspec.config.set_conf_env(fsspec.config.conf, dict(env))
        return run(*words, **{"MM_WORKERS": "1", **env})


@pytest.fixture(scope="module")
def store(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    with faulty_store(s3, tmp_path_factory.mktemp("faults"), members=1, runner=_here) as store:
        yield store


@pytest.fixture(scope="module")
def rounds(store: FaultyStore) -> FaultRounds:
    return FaultRounds(store)


@pytest.mark.parametrize(("source", "kind"), CONVERSIONS[:CONVERTED])
def test_conversions(rounds: FaultRounds, source: str, kind: str) -> None:
    found = rounds.convert(source, kind, seed=1)
    assert found.faults and found.problems == ()


def test_graph_and_proof(rounds: FaultRounds) -> None:
    found = rounds.graph(seed=1)
    assert sum(found.faults.values()) > 50 and found.problems == ()


def _refused(store: FaultyStore, refusal: Refusal, *command: object, **settings: str) -> Ran:
    store.proxy.reset()
    store.proxy.refusal = refusal
    return store.run_as_it_is(*command, **settings)


@pytest.mark.parametrize(("refusal", "line"), [(EXPIRED, EXPIRED_LINE), (READ_ONLY, DENIED_LINE)])
def test_refusals_are_one_line(store: FaultyStore, refusal: Refusal, line: str) -> None:
    place = store.new_place()
    named = store.raw if refusal == EXPIRED else place
    for source, told in ((store.raw, named), (store.folder / "raw", place)):
        ran = _refused(store, refusal, "convert", source, place, "--to", "lance")
        assert (ran.code, ran.err) == (1, f"mm-assets: {told}: {line}\n")
        assert ran.total < 10
    ran = _refused(store, refusal, "run", **store.graph_settings(place))
    assert (ran.code, ran.err) == (1, f"mm-assets: {place}: {line}\n")
    assert store.contents(place) == {}


def test_a_bucket_that_is_missing_is_one_line(store: FaultyStore) -> None:
    place = "s3://no-such-bucket/out"
    for kind in ("parquet", "lance"):
        ran = _refused(store, MISSING, "convert", store.raw, place, "--to", kind)
        assert (ran.code, ran.err) == (1, f"mm-assets: {place}: no such bucket\n")
    ran = _refused(store, MISSING, "run", **store.graph_settings(place))
    assert (ran.code, ran.err) == (1, f"mm-assets: {place}: no such bucket\n")


def test_a_proof_without_an_answer_damages_nothing(rounds: FaultRounds, store: FaultyStore) -> None:
    place = rounds.sound_graph().place
    of_outputs = r"/out/(filtered|webdataset|lance)/.*[a-z]$"
    store.proxy.reset(Faults(1.0, (SLOW_DOWN,), frozenset(["GET"]), of_outputs))
    ran = store.run_as_it_is("prove", AWS_MAX_ATTEMPTS="1", **store.graph_settings(place))
    told = complaints(ran)
    assert ran.code == 1 and len(told) >= 3
    assert all("the store asks for fewer requests" in line for line in told)
    again = store.run_graph(place)
    assert again.code == 0 and "proven: every item of 2 shards is in 5 outputs" in again.out
    assert {asset for asset in ASSETS if not re.search(rf"^{asset} +2 +2 ", again.out, re.M)} == set()


@pytest.fixture
def location(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's sensors in this process, on the store behind the proxy."""
    store.proxy.reset()
    for name, value in {**store.through_proxy.env, **store.graph_settings(store.new_place())}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "8")


@pytest.mark.parametrize("pattern", ["/", "/*.tar", "/**/*.tar"])
def test_the_sensor_finds_all_shards_or_none(
    store: FaultyStore, location: None, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setenv("MM_RAW_SHARDS", f"{store.raw}{pattern}")
    with dg.DagsterInstance.ephemeral() as instance:
        tick = _ticks(instance)
        for seed in range(5):
            store.proxy.reset(Faults(0.2, seed=seed))
            found = tick()
            assert isinstance(found, dg.SensorResult) and found.dynamic_partitions_requests is not None
            (request,) = found.dynamic_partitions_requests
            assert request.partition_keys == ["pdf-00000", "web-00000"]
        instance.add_dynamic_partitions("shards", request.partition_keys)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
        for refusal, line in ((DOWN, "the store asks for fewer requests"), (EXPIRED, EXPIRED_LINE)):
            store.proxy.reset()
            store.proxy.refusal = refusal
            skipped = tick()
            told = skipped if isinstance(skipped, dg.SkipReason) else skipped.skip_reason
            assert told is not None and told.skip_message is not None
            assert line in told.skip_message and "s3://" in told.skip_message
            assert "gone" not in told.skip_message


def _ticks(instance: dg.DagsterInstance) -> Callable[[], dg.SensorResult | dg.SkipReason]:
    definitions = build_definitions()

    def tick() -> dg.SensorResult | dg.SkipReason:
        context = dg.build_sensor_context(
            instance=instance,
            repository_def=definitions.get_repository_def(),
            resources={"raw": resources_from_environment()["raw"]},
        )
        return definitions.resolve_sensor_def("new_shards")(context)

    return tick


def test_two_processes_commit_to_one_lance_table(store: FaultyStore) -> None:
    store.proxy.reset(Faults(0.2, seed=1))
    uri = f"{store.new_place()}/items.lance"
    for found in commit_rounds(uri, store.server, store.through_proxy, COMMITS):
        assert found.problems == ()
