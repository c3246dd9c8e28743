"""`mm-assets status`: its figures are those that are counted apart from it, and it changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.compute as pc
import pytest
from dagster._core.scheduler.instigation import InstigatorStatus
from dagster._daemon.types import DaemonHeartbeat

from mm_assets.accounting.erasures import Entry, Erasure, ErasureStore
from mm_assets.automation.sensors import report_sensor
from mm_assets.definitions import build_definitions
from mm_assets.graph.instance_queries import PROCESS, evaluation_before, failing_shards, process_tag
from mm_assets.graph.raw import GATE_CHECKS, RAW_SHARDS
from mm_assets.graph.resources import resources_from_environment
from mm_assets_tests.automation.alerts.event_writer import Writer
from mm_assets_tests.cli.commands import environment, fine, only_line
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.published import table
from mm_assets_tests.headless.conftest import ASSETS, Project

PROVEN = ["curated_parquet", "filtered_parquet", "arrow_cache", "final_tars", "lance_table"]


def status(project: Project, **settings: str) -> dict[str, Any]:
    done = project.command("status", "--json", **settings)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def digests(folder: Path) -> dict[str, tuple[str, int]]:
    """All that is below a folder: of files a digest, and when they have changed.

    SQLite's files for open connections are none of it, unless they have rows: readers have them, too.
    """
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        if path.is_file()
        else ("", 0)
        for path in folder.rglob("*")
        if not path.name.endswith("-shm") and not (path.name.endswith("-wal") and not path.stat().st_size)
    }


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Shards a and b are made, of b a document is in quarantine; c has failed since it was made, d is
    outdated, e and f were never made, and g is gone.
    """
    project = Project(tmp_path_factory.mktemp("mixed"))
    project.shards("acdg")
    make_tar(
        project.raw / "b.tar",
        [
            ("one.json", {"texts": ["x", None], "images": [None, "one.png"]}),
            ("one.png", picture(0)[1]),
            ("two.json", b'{"texts": ["cut'),
        ],
    )
    fine(project.run())
    project.broken("c")
    assert project.run("c").returncode == 1
    project.shard("d", "another text")
    project.shards("ef")
    (project.raw / "g.tar").unlink()
    return project


def copied(project: Project, folder: Path) -> Project:
    """The same in a folder of its own, to change it."""
    shutil.copytree(project.folder, folder, dirs_exist_ok=True)
    return Project(folder)


def asked_of_dagster(project: Project, asset: str) -> dict[str, set[str]]:
    """The shards of an asset, by what Dagster's own interface says of them."""
    key, raw = dg.AssetKey(asset), {path.stem for path in project.raw.iterdir()}
    with project.instance() as instance:
        made = set(instance.get_materialized_partitions(key))
        log = instance.event_log_storage
        failed = set(log.get_latest_asset_partition_materialization_attempts_without_materializations(key))
    return {"missing": raw - made - failed, "failed": failed & raw, "made or stale": (made - failed) & raw}


def test_figures_are_those_that_are_counted_otherwise(mixed: Project) -> None:
    found = status(mixed)
    assert (found["raw_shards"], found["gone"]) == (len(list(mixed.raw.iterdir())), 1) == (6, 1)
    assert list(found["assets"]) == ASSETS
    for asset in ASSETS:
        counts, shards = found["assets"][asset], asked_of_dagster(mixed, asset)
        assert shards == {"missing": {"e", "f"}, "failed": {"c"}, "made or stale": {"a", "b", "d"}}
        assert counts["missing"] == 2 and counts["failed"] == 1 and counts["running"] == 0
        assert counts["stale"] == 1, "d"
        assert counts["made"] == 2
        # Also g, whose raw shard is gone, and what was made of c and d before.
        assert counts["proven"] == (5 if asset in PROVEN else None)
    lost = table(mixed.storage, "ledger/accounts/curated_parquet")
    quarantined = pc.sum(lost.filter(pc.equal(lost["outcome"], "quarantined"))["items"]).as_py()
    rows = table(mixed.storage, "curated").num_rows
    assert found["quarantine"] == {"items": quarantined, "of_items": rows + quarantined, "shards": 5}
    assert quarantined == 1
    assert found["next"]["due_shards"] == 4, "c, d, e, f"


def test_the_oldest_failure_and_the_last_proof(mixed: Project, tmp_path: Path) -> None:
    with mixed.instance() as instance:
        last, _ = instance.get_run_records()
    found = status(mixed)
    failure, proof = found["oldest_failure"], found["last_proof"]
    assert (failure["shard"], failure["asset"]) == ("c", "curated_parquet")
    assert failure["run"] == last.dagster_run.run_id
    assert failure["reason"].startswith("100% of it would be lost, and MM_MAX_LOSS is 0.5")
    assert last.start_time is not None and last.end_time is not None
    began, ended = (datetime.fromtimestamp(moment, UTC) for moment in (last.start_time, last.end_time))
    second = timedelta(seconds=1)  # it is told without fractions
    assert began - second <= datetime.fromisoformat(failure["since"]) <= ended + second
    assert proof["run"] == last.dagster_run.run_id and proof["by"] == "mm-assets run"

    project = copied(mixed, tmp_path)
    project.broken("a")
    assert project.run("a", "c").returncode == 1
    again = status(project)["oldest_failure"]
    assert (again["shard"], again["since"]) == ("c", failure["since"]), "since it failed first"
    assert again["run"] != failure["run"], "with the reason of the last run"

    (project.storage / "filtered" / "b.parquet").write_bytes(b"not what was written")
    assert project.command("prove").returncode == 1
    with project.instance() as instance:
        keys = [dg.AssetCheckKey(dg.AssetKey(asset), "zero_loss") for asset in PROVEN]
        (run,) = instance.get_runs(limit=1)
        history = instance.event_log_storage.get_asset_check_execution_history
        records = [each for key in keys for each in history(key, limit=100) if each.run_id == run.run_id]
    passed = [each.status.value == "SUCCEEDED" for each in records if each.partition is not None]
    found = status(project)
    assert found["assets"]["filtered_parquet"]["proven"] == 4
    assert found["assets"]["filtered_parquet"]["stale"] == 2, "b and d"
    proof = found["last_proof"]
    assert (proof["by"], proof["run"]) == ("mm-assets prove", run.run_id)
    assert (proof["read"], proof["differing"]) == (len(passed), passed.count(False)) == (25, 1)
    assert (proof["shards"], proof["outputs"]) == (5, 5)
    told = fine(project.command("status"))
    assert "by mm-assets prove (run" in told and "5 shards in 5 outputs, 1 of 25 not as written" in told


def test_it_changes_nothing(mixed: Project, tmp_path: Path) -> None:
    """Neither on the disk, nor for the next look: also where code or settings are seen for the first time."""
    project = copied(mixed, tmp_path)
    (tmp_path / "rest").mkdir()
    before = digests(tmp_path)
    found = status(project)
    bounded = status(project, MM_MIN_ASPECT_RATIO="1", MM_MAX_LOSS="0.9")
    assert bounded["assets"]["curated_parquet"] == found["assets"]["curated_parquet"]
    for asset in ("filtered_parquet", "lance_table"):
        counts = bounded["assets"][asset]
        assert (counts["made"], counts["stale"], counts["failed"], counts["missing"]) == (0, 3, 1, 2), asset
    assert status(project) == found
    assert digests(tmp_path) == before


def test_what_is_unchanged_by_the_file_system_is_not_read(mixed: Project, tmp_path: Path) -> None:
    """As if d had been observed an hour after it was changed: only its bytes could tell."""
    project = copied(mixed, tmp_path)
    assert status(project)["assets"]["curated_parquet"]["stale"] == 1
    with closing(sqlite3.connect(project.home / "history" / "runs" / "index.db")) as database, database:
        database.execute(
            "UPDATE event_logs SET timestamp = datetime(timestamp, '+1 hour') || '.000000' "
            "WHERE dagster_event_type = 'ASSET_OBSERVATION'"
        )
    counts = status(project)["assets"]["curated_parquet"]
    assert (counts["made"], counts["stale"]) == (3, 0)


def test_a_home_that_is_not_there_is_not_made(project_on_disk: Project) -> None:
    project = project_on_disk
    project.shards("ab")
    for _ in ("no folder", "an empty one"):
        before = digests(project.folder)
        done = project.command("status", "--json")
        assert done.returncode == 0
        line = "no database of Dagster is there, so nothing is known to be made"
        assert done.stderr == f"mm-assets: warning: {project.home}: {line}\n"
        counts = {"made": 0, "failed": 0, "stale": 0, "missing": 2, "running": 0}
        found = json.loads(done.stdout)
        for asset in ASSETS:
            assert found["assets"][asset] == counts | {"proven": 0 if asset in PROVEN else None}
        assert found["quarantine"] is found["oldest_failure"] is found["last_proof"] is None
        assert digests(project.folder) == before
        project.home.mkdir(exist_ok=True)


def test_a_home_of_an_older_version_is_not_migrated(mixed: Project, tmp_path: Path) -> None:
    project = copied(mixed, tmp_path)
    with closing(sqlite3.connect(project.home / "history" / "runs.db")) as database:
        database.execute("DROP TABLE instance_info")
    before = digests(tmp_path)
    line = "of an older version, or half made: mm-assets run mends it (BEGIN IMMEDIATE)"
    assert only_line(project.command("status")) == f"DAGSTER_HOME {project.home}: {line}"
    assert digests(tmp_path) == before


def planned(project: Project, state: dg.DagsterRunStatus, tags: dict[str, str]) -> None:
    """A run of all assets for a and b that does nothing."""
    with project.configured(), project.instance() as instance:
        job = build_definitions().resolve_job_def("all_assets")
        keys = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
        instance.create_run_for_job(job, tags={**keys, **tags}, status=state)


def test_while_runs_are_under_way(mixed: Project, tmp_path: Path) -> None:
    project = copied(mixed, tmp_path)
    counts = status(project)["assets"]["final_tars"]
    with project.instance() as instance, process_tag(instance) as alive:
        planned(project, dg.DagsterRunStatus.STARTED, alive)
        planned(project, dg.DagsterRunStatus.NOT_STARTED, {})
        found = status(project)
        for asset in ASSETS:
            now = found["assets"][asset]
            assert (now["running"], now["made"]) == (2, 0), "a and b"
            assert [now[name] for name in ("failed", "stale", "missing")] == [1, 1, 2]
        assert (found["next"]["working_runs"], found["next"]["queued_runs"]) == (1, 1)
    assert counts["running"] == 0

    other = copied(mixed, tmp_path / "other")
    before = status(other)
    planned(other, dg.DagsterRunStatus.STARTED, {PROCESS: dead_process(other)})
    after = status(other)
    assert after["next"] == before["next"] | {"due_shards": 6}, "its run is lost"
    assert [after["assets"]["final_tars"][name] for name in ("made", "running", "failed")] == [0, 0, 3]
    assert before["oldest_failure"] == after["oldest_failure"]


def dead_process(project: Project) -> str:
    """The tag of a run whose process has died."""
    code = (
        "import os, dagster as dg\n"
        "from mm_assets.graph.instance_queries import process_tag\n"
        f"with dg.DagsterInstance.from_config({str(project.home)!r}) as instance:\n"
        "    with process_tag(instance) as tags:\n"
        "        print(*tags.values(), flush=True)\n"
        "        os._exit(1)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(), check=False
    ).stdout.strip()


def test_raw_shards_that_cannot_be_listed_are_those_that_were_known(mixed: Project) -> None:
    done = mixed.command("status", "--json", MM_RAW_SHARDS=str(mixed.folder / "nowhere"))
    assert done.returncode == 0
    found = json.loads(done.stdout)
    (line,) = found["warnings"]
    assert line.startswith(f"no raw shards: {mixed.folder}/nowhere: no such file")
    assert line.endswith("; raw shards are those that were known before")
    assert (found["raw_shards"], found["gone"]) == (5, 0), "nobody knows whether g is gone"
    assert found["assets"]["curated_parquet"]["failed"] == 1
    assert found["assets"]["curated_parquet"]["made"] == 4, "nobody knows that d has changed"
    told = mixed.command("status", MM_RAW_SHARDS=str(mixed.folder / "nowhere"))
    assert told.stderr == f"mm-assets: warning: {line}\n"


def test_erasures_that_nobody_has_finished_are_named(mixed: Project, tmp_path: Path) -> None:
    assert status(mixed)["unfinished_erasures"] == []
    assert "erasure" not in fine(mixed.command("status"))
    project, erasure = copied(mixed, tmp_path), Erasure.begin([Entry.of("sample_id", "x")])
    store = ErasureStore(str(project.storage))
    store.write(erasure)
    store.write(replace(Erasure.begin([Entry.of("sample_id", "y")]), finished="2026-01-01T00:00:00+00:00"))
    assert status(project)["unfinished_erasures"] == [erasure.id]
    (line,) = (line for line in fine(project.command("status")).splitlines() if "erasure" in line)
    assert line == f"unfinished erasures: {erasure.id}; mm-assets erase goes on with them"
    Path(store.folder, f"{erasure.id}.json").write_text("{}")
    found = json.loads(project.command("status", "--json").stdout)
    (warning,) = found["warnings"]
    assert f"{erasure.id}.json: damaged" in warning and found["unfinished_erasures"] == []


def test_a_storage_that_does_not_answer_leaves_open_what_is_in_it(mixed: Project, tmp_path: Path) -> None:
    project = copied(mixed, tmp_path)
    proof = project.storage / "proof" / "proof.json"
    proof.unlink()
    proof.mkdir()
    expected, found = status(mixed), status(project)
    (line,) = found["warnings"]
    assert line.startswith(f"{proof}: ") and line.endswith(
        "; what is proven, and in quarantine, is not known"
    )
    assert found["quarantine"] is None
    for asset in ASSETS:
        assert found["assets"][asset] == expected["assets"][asset] | {"proven": None}


def test_what_it_prints_is_what_the_report_shows(mixed: Project) -> None:
    """And what it gives as JSON."""
    found = status(mixed)
    header, *printed = fine(mixed.command("status")).splitlines()
    assert header == "6 raw shards; 1 more gone (mm-assets retire)"
    assert printed[0].split() == ["asset", *next(iter(found["assets"].values()))]
    rows = {cells[0]: cells[1:] for cells in map(str.split, printed[1 : 1 + len(ASSETS)])}
    assert rows == {
        asset: [str(value) for value in counts.values() if value is not None]
        for asset, counts in found["assets"].items()
    }
    told = dict(line.split(": ", 1) for line in printed[1 + len(ASSETS) :])
    assert told["in quarantine"] == "1 of 16 items (6.25%) of 5 proven shards"
    assert told["oldest failure"].startswith("c in curated_parquet, since 20")
    assert told["oldest failure"].endswith(f"UTC: {found['oldest_failure']['reason']}")
    assert told["last proof"].endswith(": 1 shard in 5 outputs, all as written"), "c, as it was made before"
    assert told["checks failed"] == "quarantine.empty of 1 shard, raw_shards.integrity of 2 shards"
    assert told["due"] == "4 shards; MM_AUTOMATION=off here"

    with mixed.configured(), mixed.instance() as instance:
        given = resources_from_environment()
        context = dg.build_sensor_context(
            instance,
            repository_def=build_definitions().get_repository_def(),
            resources={"maintained": given["maintained"], "raw": given["raw"]},
        )
        ticked = report_sensor(context)
    assert isinstance(ticked, dg.SensorResult)
    (event,) = ticked.asset_events
    shown = {name: value.value for name, value in event.metadata.items()}
    assert {name: shown[name] for name in ("in quarantine", "oldest failure", "last proof")} == {
        name: told[name] for name in ("in quarantine", "oldest failure", "last proof")
    }
    table_rows = [line.strip("|").split("|") for line in str(shown["shards by asset"]).splitlines()]
    assert {asset: [cell for cell in cells if cell] for asset, *cells in table_rows[2:]} == rows
    assert shown["items in quarantine"] == found["quarantine"]["items"]


def test_a_shard_that_is_what_it_was_before_it_was_damaged_is_judged_again(made: Project) -> None:
    """Nothing is made of it, as its outputs are of this version."""
    project = made
    path, whole = project.raw / "b.tar", project.folder / "b.tar"
    shutil.copy2(path, whole)
    project.broken("b")
    assert project.run().returncode == 1
    shutil.copy2(whole, path)
    first = fine(project.run())
    assert project.made() == {asset: ["[a]", "[b]"] for asset in ASSETS}
    second = fine(project.run())
    assert second.startswith("nothing to do: 2 shards up to date")
    for told in (first, second):
        assert "shard 'b'" not in told and "; checks failed: 0" in told
    with project.instance() as instance:
        for key in (dg.AssetCheckKey(RAW_SHARDS, name) for name in GATE_CHECKS):
            found = evaluation_before(instance, key, ())
            assert found is not None and found[1].passed, key
            assert failing_shards(instance, key, 9) == {}, key


@pytest.mark.parametrize("was_made", [False, True])
def test_checks_of_a_retired_shard_are_gone(project_on_disk: Project, was_made: bool) -> None:
    """Of one that never landed, and of one whose outputs are removed."""
    project = project_on_disk
    project.shards("ab")
    document = {"texts": ["x", None], "images": [None, "one.png"]}
    make_tar(project.raw / "c.tar", [("one.json", document), ("one.png", picture(0)[1]), ("two.json", b"{")])
    if was_made:
        documents = [("j.json", document | {"images": [None, "j.png"]}), ("j.png", picture(1)[1])]
        make_tar(project.raw / "junk.tar", [*documents, ("k.json", b"{")])
    else:
        project.broken("junk")
    assert project.run().returncode == (0 if was_made else 1)
    (project.raw / "junk.tar").unlink()
    shown = status(project)
    assert (shown["gone"], shown["failing_checks"]["raw_shards.integrity"]) == (1, 2)
    assert fine(project.command("retire")).startswith("retiring junk\n")
    expected = {"quarantine.empty": 1, "raw_shards.integrity": 1}
    assert status(project)["failing_checks"] == expected
    fine(project.run())
    assert status(project)["failing_checks"] == expected


@pytest.mark.parametrize(("zone", "hour"), [("UTC", 2), ("Asia/Tokyo", 17)])
def test_the_next_tick_of_schedules(mixed: Project, zone: str, hour: int) -> None:
    """At two o'clock in the time zone of schedules, told as UTC."""

    def at_two() -> str:
        now = datetime.now(UTC)
        today = now.replace(hour=hour, minute=0, second=0, microsecond=0)
        return (today if today >= now else today + timedelta(days=1)).isoformat()

    settings = {"MM_REFRESH_CRON": "0 2 * * *", "MM_TIMEZONE": zone}
    expected = {at_two()}
    found = status(mixed, **settings)["next"]
    assert found["ticks"]["refresh"] in expected | {at_two()}
    assert (found["ticks"]["prove"], found["ticks"]["maintenance"]) == (None, None)
    assert found["daemon"] is False
    told = fine(mixed.command("status", **settings))
    assert "schedules: refresh at 20" in told and "prove is stopped" in told
    assert "(no daemon is running)" in told


@pytest.mark.parametrize(
    ("in_ui", "setting", "is_running"),
    [(InstigatorStatus.STOPPED, "0 2 * * *", False), (InstigatorStatus.RUNNING, "", True)],
)
def test_a_schedule_that_was_started_or_stopped_in_the_ui(
    mixed: Project, tmp_path: Path, in_ui: InstigatorStatus, setting: str, is_running: bool
) -> None:
    project = copied(mixed, tmp_path)
    with project.instance() as instance:
        Writer(instance).switched("refresh", in_ui)
        heartbeat = DaemonHeartbeat(datetime.now(UTC).timestamp(), "SCHEDULER", "d", [])
        instance.add_daemon_heartbeat(heartbeat)
    found = status(project, **({"MM_REFRESH_CRON": setting} if setting else {}))["next"]
    assert (found["ticks"]["refresh"] is not None) is is_running
    assert found["daemon"] is True
