"""Canaries: what the seam relies on in Dagster 1.13.27 beyond its documentation. Run these first after an
upgrade.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution import context_creation_job

from mm_assets.graph import Shard, dagster_internals, instance_queries
from mm_assets_tests.event_log.databases import OURS, open_instance
from mm_assets_tests.kept_dagster import kept_engines

PARTS = dg.StaticPartitionsDefinition([f"p{n}" for n in range(5)])
KEYS = list(PARTS.get_partition_keys())
KEY = dg.AssetKey("probe")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with kept_engines(), dg.instance_for_test(temp_dir=str(tmp_path)) as sqlite:
        yield sqlite


class Discard(dg.IOManager):
    def handle_output(self, context: dg.OutputContext, obj: object) -> None: ...
    def load_input(self, context: dg.InputContext) -> None: ...


def run_probe(
    instance: dg.DagsterInstance, logged: list[str], mark: bool = True
) -> dg.ExecuteInProcessResult:
    """One run over p0..p3 that logs an event for some of its partitions."""

    @dg.asset(name="probe", partitions_def=PARTS)
    def probe(context: dg.AssetExecutionContext) -> Iterator[dg.Output[None]]:
        for key in logged:
            tags = dagster_internals.provenance(
                f"version of {key}",
                "7",
                {"up/stream": Shard(key, "", "u1", 12), "other": Shard(key, "", "o1")},
            )
            metadata = {dagster_internals.URI: f"/out/{key}"}
            context.log_event(dg.AssetMaterialization(KEY, partition=key, tags=tags, metadata=metadata))
        yield dg.Output(None, metadata={dagster_internals.MARK: True} if mark else {})

    tags = {"dagster/asset_partition_range_start": "p0", "dagster/asset_partition_range_end": "p3"}
    return dg.materialize(
        [probe], instance=instance, tags=tags, resources={"io_manager": Discard()}, raise_on_error=False
    )


def count(instance: dg.DagsterInstance) -> int:
    return len(instance.fetch_materializations(KEY, limit=100).records)


@pytest.mark.parametrize(("level", "prints"), [("debug", True), ("warning", False)])
def test_runs_print_from_a_level_and_log_everything(
    instance: dg.DagsterInstance,
    level: str,
    prints: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = "default_system_loggers"
    monkeypatch.setattr(context_creation_job, name, getattr(context_creation_job, name))
    dagster_internals.set_console_level(level)
    result = run_probe(instance, KEYS[:1])
    assert (" - DEBUG - " in capfd.readouterr().err) == prints
    assert any(entry.level == logging.DEBUG for entry in instance.all_logs(result.run_id))


def test_what_no_logger_prints_is_logged_as_what_one_prints(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`event_logger` gives the event log, and who watches the run, the events of Dagster's own method."""

    @dg.op
    def probe(context: dg.OpExecutionContext) -> None:
        log_event = dagster_internals.event_logger(context)
        log_event(dg.AssetMaterialization(KEY, partition="p0", metadata={"rows": 1}, tags={"a": "b"}))
        log_event(dg.AssetObservation(KEY, partition="p1", description="words"))
        log_event(dg.AssetCheckEvaluation(KEY, "sound", False, partition="p0", blocking=True))

    @dg.job
    def probes() -> None:
        probe()

    kinds = ("ASSET_MATERIALIZATION", "ASSET_OBSERVATION", "ASSET_CHECK_EVALUATION")
    name = "default_system_loggers"
    monkeypatch.setattr(context_creation_job, name, getattr(context_creation_job, name))
    seen = []
    for level in ("debug", "warning"):
        dagster_internals.set_console_level(level)
        result = probes.execute_in_process(instance=instance)
        is_printed = "ASSET_CHECK_EVALUATION" in capfd.readouterr().err
        entries = [
            e
            for e in instance.all_logs(result.run_id)
            if e.dagster_event and e.dagster_event.event_type_value in kinds
        ]
        streamed = [event for event in result.all_events if event.event_type_value in kinds]
        assert [entry.dagster_event for entry in entries] == streamed and len(streamed) == 3
        assert [entry.timestamp for entry in entries] == sorted(entry.timestamp for entry in entries)
        plain = []
        for entry in entries:
            event = entry.get_dagster_event()
            event = event._replace(logging_tags={**event.logging_tags, "run_id": ""})
            plain.append(entry._replace(run_id="", timestamp=0.0, dagster_event=event))
        seen.append((is_printed, plain))
    (printed, first), (quiet, second) = seen
    assert (printed, quiet) == (True, False)
    assert first == second


def test_mark_keeps_builtin_events_away(instance: dg.DagsterInstance) -> None:
    assert run_probe(instance, ["p0", "p1", "p2"]).success
    assert count(instance) == 3


def test_without_the_mark_there_would_be_duplicates(instance: dg.DagsterInstance) -> None:
    """If this fails, Dagster has learned it by itself and the mark may go."""
    assert run_probe(instance, ["p0", "p1", "p2"], mark=False).success
    assert count(instance) == 3 + 4


def test_provenance_is_what_dagster_reads(instance: dg.DagsterInstance) -> None:
    from dagster._core.definitions.data_version import (
        extract_data_provenance_from_entry,
        extract_data_version_from_entry,
    )

    run_probe(instance, ["p1"])
    (record,) = instance.fetch_materializations(KEY, limit=1).records
    provenance = extract_data_provenance_from_entry(record.event_log_entry)
    assert extract_data_version_from_entry(record.event_log_entry) == dg.DataVersion("version of p1")
    assert provenance is not None and provenance.code_version == "7" and provenance.is_user_provided
    upstream, other = dg.AssetKey(["up", "stream"]), dg.AssetKey("other")
    assert provenance.input_data_versions == {upstream: dg.DataVersion("u1"), other: dg.DataVersion("o1")}
    assert provenance.input_storage_ids == {upstream: 12, other: None}


def test_latest_events_of_many_partitions(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dagster_internals, "_BATCH", 2)
    run_probe(instance, ["p0", "p1"])
    second = run_probe(instance, ["p1", "p2"])
    found = dagster_internals.latest_materializations(instance, KEY, ["p0", "p1", "p2", "p4"])
    assert {key: (event.version, event.uri) for key, event in found.items()} == {
        key: (f"version of {key}", f"/out/{key}") for key in ("p0", "p1", "p2")
    }
    assert [key for key, event in sorted(found.items()) if event.run_id == second.run_id] == ["p1", "p2"]
    by_pointer = {
        r.storage_id: r.partition_key for r in instance.fetch_materializations(KEY, limit=100).records
    }
    assert all(by_pointer[event.pointer] == key for key, event in found.items())
    assert dagster_internals.latest_materializations(instance, KEY, []) == {}


def test_latest_observations(instance: dg.DagsterInstance) -> None:
    for version in ("1", "2"):
        instance.report_runless_asset_event(
            dg.AssetObservation(KEY, partition="p1", tags=dagster_internals.observed_version(version))
        )
    found = dagster_internals.latest_observations(instance, KEY, ["p1", "p2"])
    assert {key: event.version for key, event in found.items()} == {"p1": "2"}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_checks_name_no_materialization_of_before_a_wipe(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        url = None
        if database == "postgres":
            url = stack.enter_context(request.getfixturevalue("postgres").database("wiped"))
        instance = stack.enter_context(open_instance(tmp_path, OURS, url))
        run_probe(instance, ["p0", "p1"])
        before = dagster_internals.targets(instance, KEY, KEYS)
        assert before.keys() == {"p0", "p1"}
        instance.wipe_assets([KEY])
        assert dagster_internals.targets(instance, KEY, KEYS) == {}
        run_probe(instance, ["p1"])
        named = dagster_internals.targets(instance, KEY, KEYS)
        latest = dagster_internals.latest_materializations(instance, KEY, KEYS)
        assert named.keys() == latest.keys() == {"p1"}
        assert (named["p1"].storage_id, named["p1"].run_id) == (latest["p1"].pointer, latest["p1"].run_id)
        assert named["p1"].run_id != before["p1"].run_id


def test_wiped_events_are_gone(instance: dg.DagsterInstance) -> None:
    run_probe(instance, ["p0"])
    instance.wipe_assets([KEY])
    assert dagster_internals.latest_materializations(instance, KEY, ["p0"]) == {}


def test_attempts_without_materialization(instance: dg.DagsterInstance) -> None:
    def tried(keys: list[str] | None = None, *runs: str) -> list[str]:
        found = dagster_internals.attempts_without_result(instance, KEY, keys, runs or None)
        return sorted(found)

    first = run_probe(instance, ["p0", "p2"])
    assert tried(KEYS, first.run_id) == tried() == ["p1", "p3"]
    assert tried(["p0", "p1"], first.run_id) == ["p1"]
    assert tried(KEYS, "another run") == []
    assert dagster_internals.not_landed(instance, KEY) == ["p1", "p3"]
    second = run_probe(instance, ["p0", "p1"])
    assert tried(KEYS, second.run_id) == ["p2", "p3"]
    assert tried(KEYS, first.run_id) == ["p3"]  # also where another has planned it since
    but_the_second = dagster_internals.attempts_without_result(instance, KEY, but=[second.run_id])
    assert but_the_second == {"p3": first.run_id}
    run_probe(instance, KEYS[:4])
    assert tried() == dagster_internals.not_landed(instance, KEY) == []


def test_a_wiped_attempt_is_none(instance: dg.DagsterInstance) -> None:
    run_probe(instance, ["p0"])
    instance.wipe_assets([KEY])
    assert dagster_internals.attempts_without_result(instance, KEY) == {}


def test_an_evaluation_counts_while_it_names_the_latest_materialization(instance: dg.DagsterInstance) -> None:
    check = dg.AssetCheckKey(KEY, "sound")

    def evaluate(found: dict[str, dagster_internals.Latest], passed: bool) -> None:
        @dg.asset
        def examiner(context: dg.AssetExecutionContext) -> None:
            for key, latest in sorted(found.items()):
                judged = dagster_internals.target(latest)
                context.log_event(
                    dg.AssetCheckEvaluation(
                        KEY, "sound", passed, partition=key, target_materialization_data=judged
                    )
                )

        assert dg.materialize([examiner], instance=instance, resources={"io_manager": Discard()}).success

    run_probe(instance, ["p0", "p1"])
    first = dagster_internals.latest_materializations(instance, KEY, ["p0", "p1"])
    evaluate(first, False)
    assert sorted(instance_queries.failing_shards(instance, check, 10)) == ["p0", "p1"]
    assert sorted(instance_queries.failing_shards(instance, check, 1)) == [
        "p1"
    ]  # of the latest failures only
    run_probe(instance, ["p1"])
    assert sorted(instance_queries.failing_shards(instance, check, 10)) == ["p0"]
    evaluate({"p1": first["p1"]}, False)  # of the one before
    assert sorted(instance_queries.failing_shards(instance, check, 10)) == ["p0"]
    evaluate({"p0": first["p0"]}, True)
    assert instance_queries.failing_shards(instance, check, 10) == {}
    assert dagster_internals.target(None) is None
    last = dagster_internals.latest_of_asset(instance, KEY)
    assert last == dagster_internals.latest_materializations(instance, KEY, ["p1"])["p1"]
    assert dagster_internals.latest_of_asset(instance, dg.AssetKey("unknown")) is None


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_what_was_planned_and_not_evaluated_reads_failed_unless_withdrawn(
    instance: dg.DagsterInstance, is_withdrawn: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        spec = dg.AssetCheckSpec("sound", asset=KEY, partitions_def=PARTS)

    @dg.asset(name="probe", partitions_def=PARTS, check_specs=[spec])
    def probe(context: dg.AssetExecutionContext) -> Iterator[dg.Output[None]]:
        context.log_event(dg.AssetMaterialization(KEY, partition="p0"))
        latest = dagster_internals.latest_materializations(context.instance, KEY, ["p0"])["p0"]
        context.log_event(
            dg.AssetCheckEvaluation(
                KEY,
                "sound",
                True,
                partition="p0",
                target_materialization_data=dagster_internals.target(latest),
            )
        )
        if is_withdrawn:
            instance_queries.withdraw_planned(context.instance, context.run_id, [spec.key])
        yield dg.Output(None, output_name=spec.get_python_identifier())
        raise dg.Failure("as a run with failed shards ends")

    tags = {"dagster/asset_partition_range_start": "p0", "dagster/asset_partition_range_end": "p2"}
    assert not dg.materialize([probe], instance=instance, tags=tags, raise_on_error=False).success
    state = instance.event_log_storage.get_asset_check_state([(spec.key, PARTS)])[spec.key]
    seen = {
        status.value: set(subset.subset_value.get_partition_keys())
        for status, subset in state.subsets.items()
        if not subset.is_empty
    }
    assert seen == {"SUCCEEDED": {"p0"}} | ({} if is_withdrawn else {"EXECUTION_FAILED": {"p1", "p2"}})


def test_keys_of_a_run(instance: dg.DagsterInstance) -> None:
    def keys(**tags: str) -> list[str]:
        run = dg.DagsterRun("job", tags={f"dagster/{name}": value for name, value in tags.items()})
        return dagster_internals.keys_of_run(run, PARTS, instance)

    assert keys(asset_partition_range_start="p1", asset_partition_range_end="p3") == ["p1", "p2", "p3"]
    assert keys(partition="p2") == ["p2"]
    assert keys() == []


def test_family_of_a_run_alone(instance: dg.DagsterInstance) -> None:
    run = run_probe(instance, ["p0"]).dagster_run
    assert [r.run_id for r in dagster_internals.family(instance, run)] == [run.run_id]


def test_contexts_outside_of_a_run() -> None:
    assert dagster_internals.asset_step() is None
    assert dagster_internals.run_of(dg.build_input_context()) is None


def test_own_code_location_loads_without_preview_warnings() -> None:
    from mm_assets.graph import ShardCheck
    from mm_assets.graph.assets import landed_checks, sharded
    from mm_assets_tests.graph.io_manager import toy_job
    from mm_assets_tests.graph.io_manager.toy import curated

    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @sharded(code_version="1", checks=[ShardCheck("c", toy_job.not_empty)])
        def quiet(curated):  # type: ignore[no-untyped-def]
            raise NotImplementedError

        landed_checks([curated, quiet])
