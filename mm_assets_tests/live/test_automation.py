"""Shards are made without a click: they arrive, change, are mended, a run is killed, under a real daemon."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.automation.backfills import STARTED_BY
from mm_assets.demo.shards import make_shards
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.daemon import REPOSITORY, DagsterDev, wait_for

pytestmark = pytest.mark.live

BROKEN = b"no tar" * 100
SECONDS = 240  # two ticks of the sensor, two rounds of the backfill daemon, on a busy machine


@dataclass
class Storage:
    """Raw shards and the outputs of a graph that makes them by itself."""

    folder: Path

    @property
    def raw(self) -> Path:
        return self.folder / "raw"

    def dev(self, **environment: str) -> DagsterDev:
        variables = {"MM_RAW_SHARDS": str(self.raw), "MM_STORAGE": str(self.folder / "storage")}
        yaml = (REPOSITORY / "dagster.yaml").read_text()
        return DagsterDev(
            "mm_assets.definitions", self.folder / "home", variables | {"MM_WORKERS": "1"} | environment, yaml
        )

    def tars(self) -> set[str]:
        return {path.stem for path in (self.folder / "storage" / "webdataset").glob("*.tar")}


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    yield Storage(tmp_path)


def backfills(dev: DagsterDev) -> list[tuple[str, str]]:
    """Status and title, the latest first."""
    with dev.instance() as instance:
        return [(each.status.value, each.title or "") for each in instance.get_backfills()]


def ended(dev: DagsterDev, count: int) -> Callable[[], list[str]]:
    """Titles of that many backfills, once they have all ended."""

    def find() -> list[str]:
        found = backfills(dev)
        done = [title for status, title in found if status.startswith("COMPLETED")]
        return done if len(done) == len(found) == count else []

    return find


def test_shards_that_arrive_in_waves(storage: Storage) -> None:
    """All good ones are in every asset, in one run a wave; bad ones fail alone and are not tried again."""
    with storage.dev(MM_AUTOMATION="new") as dev:
        for wave, (count, bad) in enumerate([(5, 1), (9, 6), (12, 10)], start=1):
            make_shards(storage.raw, members=count, pdf=0, samples=1)
            (storage.raw / f"web-{bad:05d}.tar").write_bytes(BROKEN)
            wait_for(ended(dev, wave), SECONDS, f"the backfill of wave {wave}")
        with dev.instance() as instance:
            runs = instance.get_runs()
        assert len(runs) == 3
        assert {run.tags[STARTED_BY] for run in runs} == {"sensor automation"}
        good = {f"web-{n:05d}" for n in range(12)} - {f"web-{n:05d}" for n in (1, 6, 10)}
        assert storage.tars() == good
        for asset in ASSETS:
            assert set(dev.partitions(asset)["materialized"]) == good
            assert set(dev.partitions(asset)["failed"]) == {"web-00001", "web-00006", "web-00010"}


def test_what_changes_is_made_again_and_a_killed_run_is_completed(storage: Storage) -> None:
    """A mended shard, a replaced one, a changed bound; then the run's process is killed in the middle."""
    make_shards(storage.raw, members=4, pdf=0, samples=2)
    bad = storage.raw / "web-00003.tar"
    whole = bad.read_bytes()
    bad.write_bytes(BROKEN)
    with storage.dev(MM_AUTOMATION="all") as dev:
        wait_for(ended(dev, 1), SECONDS, "the first backfill")
        assert storage.tars() == {"web-00000", "web-00001", "web-00002"}
        bad.write_bytes(whole)
        (storage.raw / "web-00001.tar").unlink()
        make_shards(storage.raw, members=2, pdf=0, samples=2, seed="other")
        titles = wait_for(ended(dev, 2), SECONDS, "the second backfill")
        assert titles[0] == "2 shards: 1 the raw shard has changed, 1 failed before"
        assert storage.tars() == {f"web-{n:05d}" for n in range(4)}
    with storage.dev(MM_AUTOMATION="all", MM_MIN_ASPECT_RATIO="1.0") as dev:
        kill_run(dev)
        wait_for(ended(dev, 3), SECONDS + 120, "the backfill whose run was killed")
        with dev.instance() as instance:
            statuses = sorted(run.status.value for run in instance.get_runs(limit=2))
        assert statuses == ["FAILURE", "SUCCESS"]
        for asset in ASSETS:
            assert len(dev.partitions(asset)["materialized"]) == 4


def kill_run(dev: DagsterDev) -> None:
    """Kill the process of the next run that is at work."""

    def find() -> int | None:
        with dev.instance() as instance:
            for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
                for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
                    data = entry.get_dagster_event().event_specific_data
                    pid = getattr(data, "metadata", {}).get("pid")
                    if pid is not None:
                        return int(str(pid.value))
        return None

    os.kill(wait_for(find, SECONDS, "the run"), signal.SIGKILL)


def test_a_server_that_was_killed_completes_what_it_had_begun(storage: Storage) -> None:
    """Every process dies in the middle of a run; after a restart it is found out and made again, once."""
    make_shards(storage.raw, members=20, pdf=0, samples=3)
    keys = {f"web-{n:05d}" for n in range(20)}

    def is_started() -> bool:
        with dev.instance() as instance:
            return bool(instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])))

    with storage.dev(MM_AUTOMATION="new") as dev:
        wait_for(is_started, SECONDS, "the run")
        for pid in dev.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert storage.tars() != keys
    with storage.dev(MM_AUTOMATION="new") as dev:
        wait_for(ended(dev, 1), SECONDS, "the backfill whose server was killed")
        for asset in ASSETS:
            assert set(dev.partitions(asset)["materialized"]) == keys
        with dev.instance() as instance:
            assert [run.status.value for run in instance.get_runs()] == ["SUCCESS", "FAILURE"]
