"""Shards are made without a click: they arrive, change, are mended, a run is killed, under a real daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from mm_assets.automation.backfills import STARTED_BY
from mm_assets.demo.shards import make_shards
from mm_assets.formats.lance.table import LanceTable
from mm_assets_tests.automation.alerts.receivers import webhook
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.daemon import REPOSITORY, DagsterDev, wait_for
from mm_assets_tests.live.s3_server import S3Server
from mm_assets_tests.live.services import Services
from mm_assets_tests.postgres_server import PostgresServer

pytestmark = pytest.mark.live

BROKEN = b"no tar" * 100
SECONDS = 240  # two ticks of the sensor, two rounds of the backfill daemon, on a busy machine


@dataclass
class Storage:
    """Raw shards and the outputs of a graph that makes them by itself, in one of the profiles.

    ``serve`` makes the server of a home with variables of the environment; it is given so many ``shards``.
    """

    folder: Path
    serve: Callable[[Path, Mapping[str, str]], DagsterDev]
    shards: int

    @property
    def raw(self) -> Path:
        return self.folder / "raw"

    def dev(self, **environment: str) -> DagsterDev:
        variables = {"MM_RAW_SHARDS": str(self.raw), "MM_STORAGE": str(self.folder / "storage")}
        return self.serve(self.folder / "home", variables | {"MM_WORKERS": "1"} | environment)

    def tars(self) -> set[str]:
        return {path.stem for path in (self.folder / "storage" / "webdataset").glob("*.tar")}

    def rows(self) -> tuple[dict[str, int], dict[str, int]]:
        """Rows of each shard in the filtered Parquet and in the Lance table."""
        root = self.folder / "storage"
        parquet = {
            path.stem: pq.read_metadata(path).num_rows for path in (root / "filtered").glob("*.parquet")
        }
        table = LanceTable(root / "lance" / "items.lance").partitions()
        return parquet, {name: facts.rows for name, facts in table.items()}


def in_sqlite(home: Path, variables: Mapping[str, str]) -> DagsterDev:
    """A server of `mm-assets ui` with the project's `dagster.yaml`."""
    return DagsterDev("mm_assets.definitions", home, variables, (REPOSITORY / "dagster.yaml").read_text())


@pytest.fixture
def sqlite(tmp_path: Path) -> Storage:
    return Storage(tmp_path, in_sqlite, 12)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.clients)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "sqlite":
        yield Storage(tmp_path, in_sqlite, 12)
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    s3: S3Server = request.getfixturevalue("s3")

    def in_postgres(home: Path, variables: Mapping[str, str]) -> DagsterDev:
        return Services(home, postgres, "automation", s3, variables)

    with postgres.database("automation"):
        yield Storage(tmp_path, in_postgres, 40)


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
    """All good ones are in every asset, in three runs a wave at most; bad ones fail alone, are told of once
    and are not tried again.
    """
    spare = storage.folder / "spare"
    tars = make_shards(spare, members=storage.shards, pdf=0, samples=1)
    third = storage.shards // 3
    bad = {tars[number].stem for number in (1, third + 1, 3 * third - 2)}
    storage.raw.mkdir()
    with webhook() as hook, storage.dev(MM_AUTOMATION="new", MM_ALERTS=hook.url()) as dev:
        for wave, until in enumerate((third, 2 * third, storage.shards), start=1):
            for tar in tars[:until]:
                if tar.exists():
                    if tar.stem in bad:
                        tar.write_bytes(BROKEN)
                    tar.rename(storage.raw / tar.name)
            wait_for(ended(dev, wave), SECONDS, f"the backfill of wave {wave}")
        with dev.instance() as instance:
            runs = instance.get_runs()
        of_waves = Counter(run.tags["dagster/backfill"] for run in runs)
        assert len(of_waves) == 3 and max(of_waves.values()) <= 3
        assert {run.tags[STARTED_BY] for run in runs} == {"sensor automation"}
        good = {tar.stem for tar in tars} - bad
        assert storage.tars() == good
        for asset in ASSETS:
            assert set(dev.partitions(asset)["materialized"]) == good
            assert set(dev.partitions(asset)["failed"]) == bad
        for shard in bad:

            def messages(shard: str = shard) -> list[str]:
                missing = [each for each in hook.received if "did not land" in each["title"]]
                return [each["title"] for each in missing if f"- {shard}: " in each["message"]]

            wait_for(messages, SECONDS, f"a message about {shard}")
            assert len(messages()) == 1


def test_the_schedule_makes_what_is_due_and_then_nothing(sqlite: Storage) -> None:
    """One shard is missing, one has failed and was mended, one has changed; the others are as they were."""
    sqlite_tars = make_shards(sqlite.raw, members=6, pdf=0, samples=2)
    late, failed, changed = (tar.stem for tar in sqlite_tars[3:])
    whole = {key: (sqlite.raw / f"{key}.tar").read_bytes() for key in (late, failed)}
    (sqlite.raw / f"{late}.tar").unlink()
    (sqlite.raw / f"{failed}.tar").write_bytes(BROKEN)
    server = sqlite.dev(MM_REFRESH_CRON="* * * * *")
    command = [sys.executable, "-m", "mm_assets.cli", "run"]
    first = subprocess.run(command, env=server.environment, cwd=server.home, capture_output=True, check=False)
    assert first.returncode == 1 and len(sqlite.tars()) == 4, first.stderr
    for key, content in whole.items():
        (sqlite.raw / f"{key}.tar").write_bytes(content)
    (sqlite.raw / f"{changed}.tar").unlink()
    make_shards(sqlite.raw, members=6, pdf=0, samples=2, seed="other")
    with server as dev:
        titles = wait_for(ended(dev, 1), SECONDS, "the backfill of the first tick")
        (title,) = titles
        assert title.startswith("3 shards: ")
        reasons = {"1 never made", "1 failed before", "1 the raw shard has changed"}
        assert set(title.removeprefix("3 shards: ").split(", ")) == reasons
        with dev.instance() as instance:
            made = {
                str(record.partition_key)
                for asset in ASSETS
                for record in instance.fetch_materializations(dg.AssetKey(asset), limit=100).records
                if "dagster/backfill" in _tags(instance, record.run_id)
            }
            assert made == {late, failed, changed}
        before = refreshes(dev)
        wait_for(
            lambda: refreshes(dev) >= before + 2, SECONDS, "two more ticks, one of them after the backfill"
        )
        assert backfills(dev) == [("COMPLETED_SUCCESS", title)], "the later ticks had nothing to do"


def refreshes(dev: DagsterDev) -> int:
    """How many runs of the job `refresh` have succeeded."""
    with dev.instance() as instance:
        statuses = [dg.DagsterRunStatus.SUCCESS]
        return instance.get_runs_count(dg.RunsFilter(job_name="refresh", statuses=statuses))


def _tags(instance: dg.DagsterInstance, run_id: str) -> Mapping[str, str]:
    run = instance.get_run_by_id(run_id)
    return {} if run is None else run.tags


def test_what_changes_is_made_again_and_a_killed_run_is_completed(sqlite: Storage) -> None:
    """A mended shard, a replaced one, a changed bound; then the run's process is killed in the middle."""
    storage = sqlite
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
        in_parquet, in_table = storage.rows()
        assert in_parquet == in_table and in_parquet.keys() == keys, "nothing is lost, nothing is there twice"
        with dev.instance() as instance:
            assert [run.status.value for run in instance.get_runs()] == ["SUCCESS", "FAILURE"]
