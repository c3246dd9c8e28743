"""What a tick of the sensors costs with many raw shards, a few of which are new."""

from __future__ import annotations

import argparse
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import Work, cpu_seconds, measure
from benchmarks.orchestration import small_shards
from benchmarks.pages import made_shards
from benchmarks.results import Results
from benchmarks.workbench import fresh_output

_REAL = 20  # shards of the run that is copied; a file system takes 65,000 links to a file
_KINDS = ("ASSET_MATERIALIZATION", "ASSET_MATERIALIZATION_PLANNED", "ASSET_OBSERVATION")


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("ticks", help="seconds and memory of the sensors' ticks")
    parser.add_argument("--shards", type=int, default=10_000, help="default: 10000; published: 100000")
    parser.add_argument("--new", type=int, default=1_000, help="how many of them are new (default: 1000)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the shards and the events of those that are known, and tick."""
    results = Results(f"ticks-{options.shards}", "What a tick of the sensors costs")
    results.say(
        f"{options.shards:,} raw shards in a local folder, {options.new:,} of which are new. The others have "
        "been made: materializations, their plans and observations are copied from a run of "
        f"{_REAL} small shards, on SQLite. One process evaluates the sensors as the daemon would."
    )
    with fresh_output() as output:
        home, raw = output.with_name("home"), output.with_name("raw")
        home.mkdir()
        raw.mkdir()
        environment = {"DAGSTER_HOME": str(home), "MM_STORAGE": str(output), "MM_AUTOMATION": "new"}
        first = {**environment, "MM_RAW_SHARDS": str(small_shards(_REAL))}
        _link(small_shards(_REAL), raw, options.shards)
        measure(
            "benchmarks.ticks:prepare_state",
            environment=first,
            raw=str(raw),
            known=options.shards - options.new,
        )
        found = measure(
            "benchmarks.ticks:prepare_ticks", environment={**environment, "MM_RAW_SHARDS": str(raw)}
        )
    header = ("tick", "wall s", "CPU s", "says")
    rows = [
        (t["name"], f"{t['wall']:.1f}", f"{t['cpu']:.1f}", t["says"][:100]) for t in found.result["ticks"]
    ]
    results.table(header, rows)
    results.say(f"Peak memory of the process, above what it takes to load the graph: {found.peak:.0f} MiB.")
    results.keep({"new": options.new, "peak": found.peak, "ticks": found.result["ticks"]})
    results.publish()
    return 0


def prepare_state(raw: str, known: int) -> Work:
    """Make the real shards, and copy what the event log's index knows of them to the first ``known``."""
    import dagster as dg

    from mm_assets.formats.raw_shards import RawLocations

    instance = dg.DagsterInstance.get()
    real, _ = made_shards(instance, _REAL)

    def work() -> dict[str, Any]:
        listing = RawLocations(raw).shards()
        keys = sorted(listing.keys() - set(real))[: known - len(real)]
        instance.add_dynamic_partitions("shards", keys)
        instance.event_log_storage.dispose()
        home = Path(os.environ["DAGSTER_HOME"])
        (index,) = home.rglob("index.db")
        with sqlite3.connect(index) as database:
            _copy_events(database, real, {key: listing[key].version for key in keys})
        return {}

    return work


def _copy_events(database: sqlite3.Connection, real: Sequence[str], versions: Mapping[str, str]) -> None:
    database.execute("CREATE TEMP TABLE copies (source TEXT, key TEXT PRIMARY KEY, version TEXT)")
    copies = [(real[n % len(real)], key, version) for n, (key, version) in enumerate(versions.items())]
    database.executemany("INSERT INTO copies VALUES (?, ?, ?)", copies)
    database.execute(
        f"""
        INSERT INTO event_logs (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
        SELECT run_id, replace(event, '"' || source || '"', '"' || copies.key || '"'), dagster_event_type,
               timestamp, step_key, asset_key, copies.key
        FROM event_logs JOIN copies ON source = partition
        WHERE dagster_event_type IN {_KINDS} ORDER BY event_logs.id
        """
    )
    database.execute(
        """
        INSERT INTO asset_event_tags (asset_key, key, value, event_id, event_timestamp)
        SELECT made.asset_key, tags.key,
               CASE WHEN made.dagster_event_type = 'ASSET_OBSERVATION' AND tags.key = 'dagster/data_version'
                    THEN copies.version ELSE tags.value END,
               made.id, made.timestamp
        FROM copies
        JOIN event_logs AS made ON made.partition = copies.key
        JOIN event_logs AS other ON other.partition = copies.source AND other.asset_key = made.asset_key
             AND other.dagster_event_type = made.dagster_event_type
        JOIN asset_event_tags AS tags ON tags.event_id = other.id
        """
    )


def _link(source: Path, target: Path, count: int) -> None:
    """Make ``count`` shards of the real ones, with links to them under other names."""
    files = sorted(source.glob("*.tar"))[:_REAL]
    for number in range(count):
        file = files[number % len(files)]
        os.link(file, target / (file.name if number < len(files) else f"shard-{number:06d}.tar"))


def prepare_ticks() -> Work:
    """Evaluate the sensors one after the other, and do what they ask for."""
    import dagster as dg

    from mm_assets.definitions import build_definitions
    from mm_assets.graph.resources import resources_from_environment

    definitions = build_definitions()
    repository, raw = definitions.get_repository_def(), resources_from_environment()["raw"]
    instance = dg.DagsterInstance.get()
    cursor: str | None = None

    def new_shards() -> str:
        found = _evaluate("new_shards", None)
        for request in found.dynamic_partitions_requests or ():
            instance.add_dynamic_partitions("shards", list(request.partition_keys))
        for event in found.asset_events:
            instance.report_runless_asset_event(event)
        return _told(found)

    def automation() -> str:
        nonlocal cursor
        found = _evaluate("automation", cursor)
        cursor = found.cursor
        return _told(found)

    def _evaluate(name: str, before: str | None) -> Any:
        context = dg.build_sensor_context(
            instance=instance, cursor=before, repository_def=repository, resources={"raw": raw}
        )
        found = definitions.resolve_sensor_def(name)(context)
        assert isinstance(found, dg.SensorResult), found
        return found

    def work() -> dict[str, Any]:
        return {
            "ticks": [
                _timed("new_shards", new_shards),
                _timed("automation, first", automation),
                _timed("automation, second: launches", automation),
                _timed("automation, nothing new", automation),
            ]
        }

    return work


def _timed(name: str, tick: Callable[[], str]) -> dict[str, Any]:
    began, cpu = time.perf_counter(), cpu_seconds()
    says = tick()
    return {"name": name, "wall": time.perf_counter() - began, "cpu": cpu_seconds() - cpu, "says": says}


def _told(found: Any) -> str:
    return str(found.skip_reason.skip_message if found.skip_reason else "")
