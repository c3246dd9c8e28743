"""Content that is erased from Dagster's databases: no byte of it is left, and all else is as it was."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as db
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluation
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.scheduler.instigation import TickData, TickStatus
from dagster._core.storage.compute_log_manager import ComputeIOType
from dagster._core.test_utils import create_run_for_test

from mm_assets.accounting.needles import Needles
from mm_assets.event_log import erasure
from mm_assets.event_log.erasure import VacuumBlocked, erase_events, event_texts
from mm_assets_tests.event_log.databases import OURS, STOCK, open_instance
from mm_assets_tests.event_log.view import run_view, view
from mm_assets_tests.graph.deployment import FILTERED, Deployment
from tools.demo import make_shards

SECRET = 'a text of "Größe" that must go, <b>all</b> of it'
URL = "https://example.org/of/somebody?who=they&what=image.jpg"
ID = "an-id-that-is-longer-than-most"
REASON = "erased on request 20261127T143000Z-0a1b2c3d"
TAG = "erased-on-request-20261127T143000Z-0a1b2c3d"
KEY, SHARD, OTHER = dg.AssetKey("curated_parquet"), "web-00000", "web-00001"
# As they lie in files: as they are, or as JSON has them, once and twice.
SPELT = [
    text.encode()
    for text in (SECRET[-20:], "that must go", "somebody?who=they", ID, f"UklG{SHARD}", "UklGNone")
]


def is_trace(text: str) -> bool:
    return any(trace in text for trace in (SECRET, URL, ID))


def erase(instance: dg.DagsterInstance, *partitions: str) -> int:
    return erase_events(
        instance, partitions or [SHARD], is_trace, {ID: "erased:0123"}, reason=REASON, begun=time.time()
    )


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    make_shards(folder, members=2, pdf=0, samples=2)
    return folder


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    with ExitStack() as databases:
        server = None if request.param == "sqlite" else request.getfixturevalue("postgres")
        yield databases.enter_context(server.database("erased")) if server else None


def _deployment(folder: Path, raw: Path, instance: Any) -> Deployment:
    return Deployment(str(raw), str(folder / "storage"), instance, {"MM_WORKERS": "2"})


def _quote(instance: dg.DagsterInstance, run_id: str) -> None:
    """Have every place quote what is to be erased."""
    metadata = {
        "text": SECRET,
        "number": 7,
        "first": [{"sample_id": ID, "url": URL, "text": SECRET}],
        "page": dg.MarkdownMetadataValue(f"| {ID} | {SECRET} |\n| other | stays |"),
        "chart": dg.MarkdownMetadataValue("![](data:image/svg+xml;base64,AAAA)"),
    }
    for partition in (SHARD, OTHER, None):
        picture = dg.MarkdownMetadataValue(f"![](data:image/webp;base64,UklG{partition})")
        told = {
            "metadata": {**metadata, "picture": picture},
            "partition": partition,
            "description": f"of {SECRET}",
        }
        instance.report_runless_asset_event(dg.AssetObservation(dg.AssetKey("told"), **told))
        tags = {"dagster/data_version": "1", "note": ID}
        instance.report_runless_asset_event(dg.AssetMaterialization(dg.AssetKey("told"), tags=tags, **told))
        evaluation = AssetCheckEvaluation(dg.AssetKey("told"), "sound", False, **told)
        instance.report_runless_asset_event(evaluation)
    run = instance.get_run_by_id(run_id)
    assert run is not None
    instance.report_engine_event(f"first line\nsample {ID} is lost", run)
    instance.report_engine_event(f"first line\nsample {ID} is lost\nof {SECRET}", run)
    instance.add_run_tags(run_id, {"why": f"for {SECRET}", "dagster/kept": "1"})
    instance.run_storage.set_cursor_values({"mm_assets/state": f'{{"seen": "{ID}", "{URL}": 1}}', "k": "v"})
    backfill = PartitionBackfill(
        "backfill", BulkActionStatus.COMPLETED_SUCCESS, False, {"why": SECRET}, 1.0, title=ID
    )
    instance.add_backfill(backfill)
    tick = TickData(
        "origin",
        "sensor",
        InstigatorType.SENSOR,
        TickStatus.SUCCESS,
        1.0,
        selector_id="selector",
        cursor=ID,
        run_ids=[],
    )
    instance.create_tick(tick)
    with instance.compute_log_manager.open_log_stream(
        [run_id, "compute_logs", "step"], ComputeIOType.STDERR
    ) as log:
        assert log is not None
        log.write(f"before\nsample {ID}: {URL}\n{SECRET}\nafter\n")


@contextmanager
def _opened(folder: Path, kind: str, url: str | None) -> Iterator[dg.DagsterInstance]:
    """All storages in the server, if there is one."""
    settings: dict[str, Any] = {}
    if url is not None:
        for name in ("run", "schedule"):
            settings[f"{name}_storage"] = {
                "module": f"dagster_postgres.{name}_storage",
                "class": f"Postgres{name.title()}Storage",
                "config": {"postgres_url": url},
            }
    with open_instance(folder / "home", kind, url, **settings) as instance:
        yield instance


def _left(folder: Path, url: str | None) -> set[str]:
    """Files with a byte of what is erased: those of the home and of the server, but for its log."""
    folders = [folder / "home"]
    if url is not None:
        with closing(_engine(url).connect()) as connection:
            connection.exec_driver_sql("CHECKPOINT")
            data = Path(connection.exec_driver_sql("SHOW data_directory").scalar_one())
            number = connection.exec_driver_sql(
                "SELECT oid FROM pg_database WHERE datname = current_database()"
            )
            folders.append(data / "base" / str(number.scalar_one()))
    files = [path for each in folders for path in each.rglob("*") if path.is_file()]
    return {path.name for path in files if any(map(path.read_bytes().__contains__, SPELT))}


def _engine(url: str) -> db.Engine:
    return db.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=db.NullPool)


def _bare(seen: dict[str, Any]) -> dict[str, Any]:
    """A view without metadata of the partition that is erased that are no numbers."""

    def numbers(metadata: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in metadata.items()
            if isinstance(getattr(value, "value", value), int | float) or name.startswith("dagster/")
        }

    for shards in seen["latest"].values():
        if SHARD in shards:
            metadata, *others = shards[SHARD]
            shards[SHARD] = (numbers(metadata), *others)
    for place, (*state, metadata, is_latest) in seen["evaluations"].items():
        if place.endswith(f" {SHARD}"):
            seen["evaluations"][place] = (*state, numbers(metadata), is_latest)
    return seen


@pytest.mark.parametrize("kind", [STOCK, OURS])
def test_no_byte_is_left_and_all_else_is_as_it_was(
    tmp_path: Path, raw: Path, url: str | None, kind: str
) -> None:
    with _opened(tmp_path, kind, url) as instance:
        run = _deployment(tmp_path, raw, instance).run(assets=FILTERED).run_id
        _quote(instance, run)
    assert _left(tmp_path, url)

    def seen() -> tuple[dict[str, Any], Any]:
        with _opened(tmp_path, STOCK, url) as instance:
            deployment = _deployment(tmp_path, raw, instance)
            return view(deployment), run_view(deployment, run)

    before, run_before = seen()
    with _opened(tmp_path, kind, url) as instance:
        assert erase(instance) > 20
        assert erase(instance) == 0
        assert not any(is_trace(text) for _, text in event_texts(instance))
        assert bool(list(event_texts(instance))) == (url is not None)
    assert _left(tmp_path, url) == set()
    after, run_after = seen()
    assert run_after == run_before
    assert after["latest"]["image_scores"][SHARD][0]["erased"] == REASON
    assert after["latest"]["image_scores"][OTHER][0]["measured"] == "headers"
    assert _bare(after) == _bare(before)
    for file in (tmp_path / "home").rglob("*.db"):
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("kind", [STOCK, OURS])
def test_what_stays_of_events(tmp_path: Path, url: str | None, kind: str) -> None:
    with _opened(tmp_path, kind, url) as instance:
        run_id = create_run_for_test(instance).run_id
        _quote(instance, run_id)
        erase(instance)
        told = dg.AssetKey("told")
        records = instance.fetch_materializations(told, limit=10, ascending=True).records
        made = {record.partition_key: record.asset_materialization for record in records}
        assert [made[key].tags for key in (SHARD, OTHER, None)] == [
            {"dagster/data_version": "1", "note": TAG}
        ] * 3
        kept = made[SHARD]
        assert {name: value.value for name, value in kept.metadata.items()} == {"number": 7, "erased": REASON}
        assert kept.description == REASON
        assert {name: value.value for name, value in made[OTHER].metadata.items()} == {
            "text": REASON,
            "number": 7,
            "first": [{"sample_id": "erased:0123", "url": REASON, "text": REASON}],
            "page": REASON,
            "picture": f"![](data:image/webp;base64,UklG{OTHER})",
            "chart": "![](data:image/svg+xml;base64,AAAA)",
        }
        whole = made[None].metadata
        assert "picture" not in whole and whole["chart"].value and whole["erased"].value == REASON
        for partition in (SHARD, OTHER, None):
            history = instance.event_log_storage.get_asset_check_execution_history(
                dg.AssetCheckKey(told, "sound"), limit=10
            )
            (record,) = [each for each in history if each.partition == partition]
            assert record.status.value == "FAILED" and record.evaluation.metadata["number"].value == 7
            assert record.evaluation.description == REASON
        entries = instance.all_logs(run_id)
        assert "first line\nsample erased:0123 is lost" in [entry.message for entry in entries]
        run = instance.get_run_by_id(run_id)
        assert run is not None and run.tags["why"] == TAG and run.tags["dagster/kept"] == "1"
        assert instance.run_storage.get_cursor_values({"mm_assets/state", "k"}) == {
            "mm_assets/state": f'{{"seen":"erased:0123","{REASON}":1}}',
            "k": "v",
        }
        (backfill,) = instance.get_backfills()
        assert backfill.title == "erased:0123" and backfill.status == BulkActionStatus.COMPLETED_SUCCESS
        (tick,) = instance.get_ticks("origin", "selector")
        assert tick.cursor == "erased:0123"
        printed = instance.compute_log_manager.get_log_data([run_id, "compute_logs", "step"])
        assert printed.stderr == f"before\n{REASON}\n{REASON}\nafter\n".encode()


def _told(key: str, partition: str | None = SHARD, **metadata: Any) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(dg.AssetKey(key), partition=partition, metadata=metadata)


def test_what_was_logged_after_the_erasure_began_stays(tmp_path: Path) -> None:
    begun = time.time() - 60
    with open_instance(tmp_path / "home", OURS) as instance:
        instance.report_runless_asset_event(_told("told", text="another", quote=SECRET))
        erase_events(instance, [SHARD], is_trace, {}, reason=REASON, begun=begun)
        (record,) = instance.fetch_materializations(dg.AssetKey("told"), limit=10).records
        made = record.asset_materialization
        assert made is not None
        assert {name: value.value for name, value in made.metadata.items()} == {
            "text": "another",
            "quote": REASON,
        }


def test_names_stay_where_a_trace_is_one_too(tmp_path: Path) -> None:
    with open_instance(tmp_path / "home", OURS) as instance:
        instance.report_runless_asset_event(_told(ID, partition=ID, shards={ID: "of it", OTHER: ID}))
        erase(instance, SHARD, ID)
        (record,) = instance.fetch_materializations(dg.AssetKey(ID), limit=10).records
        assert record.partition_key == ID and record.asset_materialization.partition == ID
        instance.report_runless_asset_event(_told("all", partition=None, shards={ID: f"of {ID}", OTHER: "x"}))
        erase(instance, SHARD, ID)
        (record,) = instance.fetch_materializations(dg.AssetKey("all"), limit=10).records
        assert record.asset_materialization.metadata["shards"].value == {ID: "of erased:0123", OTHER: "x"}


def test_examples_that_are_named_as_fields_of_dagster_are_content(tmp_path: Path) -> None:
    first = [{"label": SECRET, "partition": URL, "path": [ID], "n": "[" * 100_000 + ID}]
    with open_instance(tmp_path / "home", OURS) as instance:
        instance.report_runless_asset_event(_told("all", partition=None, first=first))
        erase(instance)
        (record,) = instance.fetch_materializations(dg.AssetKey("all"), limit=10).records
        (found,) = record.asset_materialization.metadata["first"].value
        assert found["n"].endswith("[erased:0123")
        assert found == {"label": REASON, "partition": REASON, "path": ["erased:0123"], "n": found["n"]}


def test_short_ids_go_where_they_are_a_text_of_their_own(tmp_path: Path) -> None:
    needles = Needles.of_values([], ["000000013", "13"])
    first = [{"sample_id": "13"}, {"sample_id": "000000013"}, "000000013.7.png", "2000000013", "13", 13]
    lines = json.dumps(
        [
            {"sample_id": "000000013"},
            "sample '13'",
            "sample '000000013', position 13",
            "first in '000000013.json'",
        ]
    )
    with open_instance(tmp_path / "home", OURS) as instance:
        instance.report_runless_asset_event(_told("000000013", None, first=first, lines=lines))
        texts = [str(row) for row in _rows_of(instance)]
        assert any(map(needles.is_in, texts))
        aliases = {"000000013": "erased:a", "13": "erased:b"}
        sizes = {"reason": REASON, "begun": time.time()}
        assert erase_events(instance, [], needles.is_in, aliases, **sizes) > 0
        assert erase_events(instance, [], needles.is_in, aliases, **sizes) == 0
        (record,) = instance.fetch_materializations(dg.AssetKey("000000013"), limit=10).records
        metadata = record.asset_materialization.metadata
        named = [
            {"sample_id": "erased:b"},
            {"sample_id": "erased:a"},
            "erased:a.7.png",
            "2000000013",
            "13",
            13,
        ]
        assert metadata["first"].value == named
        of_lines = [
            {"sample_id": "erased:a"},
            REASON,
            "sample 'erased:a', position 13",
            "first in 'erased:a.json'",
        ]
        assert json.loads(metadata["lines"].value) == of_lines
        assert not any(map(needles.is_in, (str(row) for row in _rows_of(instance))))


def _rows_of(instance: dg.DagsterInstance) -> list[str]:
    with instance.event_log_storage.index_connection() as connection:
        return list(connection.execute(db.text("SELECT event FROM event_logs")).scalars())


def test_each_text_of_dagsters_tables_is_known() -> None:
    """After an upgrade: a column that may quote data belongs to `_TEXTS`, any other here."""
    names = (
        "asset_key check_name concurrency_key daemon_id dagster_event_type job_name key mode name partition"
    )
    names += " partition_set partitions_def_name pipeline_name run_id run_storage_id selector_id step_key"
    found = {
        f"{table.name}.{column.name}"
        for table in erasure._TABLES.values()
        for column in table.columns
        if isinstance(column.type, db.Text) and column.name not in erasure._TEXTS.get(table.name, ())
    }
    assert {name.partition(".")[2] for name in found} <= set(names.split()), found


@contextmanager
def _reader(engine: db.Engine, level: str) -> Iterator[db.Connection]:
    """Somebody who has read the log and keeps the transaction open."""
    with engine.connect().execution_options(isolation_level=level) as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        assert connection.exec_driver_sql("SELECT count(*) FROM event_logs").scalar_one() > 0
        yield connection


def test_it_waits_for_a_reader_and_tells_of_one_that_stays(
    tmp_path: Path, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _opened(tmp_path, OURS, url) as instance:
        instance.report_runless_asset_event(_told("told", first=SECRET))
        file = f"sqlite:///{tmp_path}/home/history/runs/index.db"
        other = db.create_engine(url or file, poolclass=db.NullPool)
        monkeypatch.setattr(erasure, "_PATIENCE", 0.5)
        with _reader(other, "REPEATABLE READ" if url else "AUTOCOMMIT"):
            with pytest.raises(VacuumBlocked, match=r"open transaction|index\.db: another process"):
                erase(instance)
            assert _left(tmp_path, url)
            monkeypatch.setattr(erasure, "_PATIENCE", 30.0)
            done = threading.Thread(target=erase, args=(instance,))
            done.start()
            time.sleep(1)
            assert done.is_alive()
        done.join()
        assert _left(tmp_path, url) == set()


def test_it_is_finished_after_any_number_of_kills(tmp_path: Path, url: str | None) -> None:
    shards = [f"shard-{number}" for number in range(200)]
    with _opened(tmp_path, OURS, url) as instance:
        for shard in shards:
            instance.report_runless_asset_event(_told("told", shard, first=[SECRET] * 20, number=1))

    def work() -> None:
        with _opened(tmp_path, OURS, url) as instance:
            erase(instance, *shards[::2])

    for number in range(10):
        process = get_context("fork").Process(target=work)
        process.start()
        process.join(0.05 * (number + 1))
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    work()
    assert _left(tmp_path, url) == set()
    with _opened(tmp_path, STOCK, url) as instance:
        records = instance.fetch_materializations(dg.AssetKey("told"), limit=1000).records
        assert {record.partition_key for record in records} == set(shards) and len(records) == len(shards)
        assert all(record.asset_materialization.metadata["number"].value == 1 for record in records)
