"""How long pages of the UI take with thousands of shards, over events copied from a real run."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT, Work, measure
from benchmarks.orchestration import small_shards
from benchmarks.page_timer import TimedPage, timed_pages
from benchmarks.results import Results
from benchmarks.workbench import fresh_output

_CHUNK = 100
_REAL = 20  # shards of the run that is copied
_ASSET = "filtered_parquet"
_GROUPS = "%2C".join(f"global%40global%3A{group}" for group in ("ingest", "quality", "curate", "deliver"))
# Address, and a text with the number of shards that the page must show; {} stands for it.
_PAGES = {
    "lineage, all groups": (f"asset-groups?expanded={_GROUPS}", f"^{_ASSET}$"),
    "catalog": ("assets", "^{} partitions$"),
    "asset": (f"assets/{_ASSET}", "^dagster/uri$|^Latest materialization$"),
    "its partitions": (f"assets/{_ASSET}?view=partitions", r"Materialized \({}\)"),
    "its events": (f"assets/{_ASSET}?view=events", "^Events$"),
    "its checks": (f"assets/{_ASSET}?view=checks", "ledger_balance"),
    "raw shards": ("assets/raw_shards", "Latest observation"),
    "runs": ("runs", "all_assets"),
}


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("pages", help="seconds until pages of the UI have their data, in chromium")
    parser.add_argument(
        "--shards", type=int, nargs="+", default=[2000], help="default: 2000; published: 20 2000 10000"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make an instance for each number of shards, and open the pages twice."""
    results = Results(f"pages-{max(options.shards)}", "How long pages of the UI take")
    results.say(
        f"Events of a run of {_REAL} small shards, copied to runs of {_CHUNK} on SQLite; `dagster-webserver` "
        "without a daemon; chromium without cache. Seconds until a page shows a text that it must show, and "
        "no query has been under way for a second: for the first time, when Dagster makes its partition "
        "cache, and again. The slowest query is that of the second time."
    )
    rows, figures = [], []
    for count in options.shards:
        with fresh_output() as output:
            environment = _environment(output)
            seeded = measure("benchmarks.pages:prepare_seed", environment=environment, shards=count)
            print(f"{count} shards: {seeded.wall:.0f} s to copy {seeded.result['events']} events", flush=True)
            with _webserver(environment) as url:
                number = f"{count}|{count:,}"
                addresses = {
                    name: (f"{url}/{path}", text.replace("{}", f"(?:{number})"))
                    for name, (path, text) in _PAGES.items()
                }
                first, again = timed_pages(addresses), timed_pages(addresses)
        for cold, warm in zip(first, again, strict=True):
            rows.append(_row(count, cold, warm))
            print(" ".join(rows[-1]), flush=True)
        figures.append(
            {"shards": count, "first": [p.__dict__ for p in first], "again": [p.__dict__ for p in again]}
        )
    header = ("shards", "page", "first s", "again s", "slowest query", "its s", "its KB")
    results.table(header, rows)
    results.keep({"runs": figures})
    results.publish()
    return 0


def _row(count: int, first: TimedPage, again: TimedPage) -> tuple[str, ...]:
    return (
        str(count),
        first.name,
        f"{first.seconds:.1f}",
        f"{again.seconds:.1f}",
        again.query,
        f"{again.query_seconds:.1f}",
        f"{again.query_bytes / 1000:.0f}",
    )


def _environment(output: Path) -> dict[str, str]:
    home = output.with_name("home")
    home.mkdir()
    shutil.copyfile(ROOT / "dagster.yaml", home / "dagster.yaml")
    return {
        "DAGSTER_HOME": str(home),
        "MM_RAW_SHARDS": str(small_shards(_REAL)),
        "MM_STORAGE": str(output),
        "MM_MIN_ASPECT_RATIO": "1",
        "PYTHONPATH": str(ROOT),
    }


def prepare_seed(shards: int) -> Work:
    """Make the real shards, and copy the events of their run until there are ``shards`` partitions."""
    import dagster as dg

    from mm_assets.graph.dagster_internals import SHARDS

    instance = dg.DagsterInstance.get()
    real, run_id = made_shards(instance, _REAL)

    def work() -> dict[str, Any]:
        template = instance.get_run_by_id(run_id)
        assert template is not None
        events = [r.event_log_entry for r in instance.get_records_for_run(run_id).records]
        copies = [f"shard-{number:06d}" for number in range(shards - len(real))]
        stored = 0
        for start in range(0, len(copies), _CHUNK):
            keys = copies[start : start + _CHUNK]
            instance.add_dynamic_partitions(str(SHARDS.name), keys)
            stored += _copy_run(instance, template, events, real, keys)
        instance.event_log_storage.dispose()
        return {"events": stored}

    return work


def made_shards(instance: Any, count: int) -> tuple[list[str], str]:
    """Make all assets of the first raw shards in one run; return their partitions, and the run's id."""
    from mm_assets.definitions import defs
    from mm_assets.graph.dagster_internals import SHARDS
    from mm_assets.graph.resources import resources_from_environment

    real = list(resources_from_environment()["raw"].listing())[:count]
    instance.add_dynamic_partitions(str(SHARDS.name), real)
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    done = defs.resolve_job_def("all_assets").execute_in_process(
        instance=instance, tags=_range(real), run_config=quiet
    )
    return real, done.run_id


def _copy_run(instance: Any, template: Any, events: list[Any], real: list[str], keys: list[str]) -> int:
    """Store a run of ``keys`` with the events of another one; those of a partition once for each key."""
    from dagster._core.utils import make_new_run_id
    from dagster._serdes import deserialize_value, serialize_value

    run_id = make_new_run_id()
    instance.add_run(template._replace(run_id=run_id, tags={**template.tags, **_range(keys)}))
    stored = 0
    for entry in events:
        text = serialize_value(entry).replace(template.run_id, run_id)
        of = next((key for key in real if f'"partition": "{key}"' in text), None)
        at = real.index(of) if of is not None else 0
        for key in keys[at :: len(real)] if of is not None else keys[:1]:
            copied = text if of is None else text.replace(of, key)
            instance.event_log_storage.store_event(deserialize_value(copied))
            stored += 1
    return stored


def _range(keys: list[str]) -> dict[str, str]:
    return {
        "dagster/asset_partition_range_start": keys[0],
        "dagster/asset_partition_range_end": keys[-1],
    }


@contextmanager
def _webserver(environment: dict[str, str]) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "dagster_webserver", "-m", "mm_assets.definitions"]
    process = subprocess.Popen(
        [*command, "-h", "127.0.0.1", "-p", str(port)],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/server_info")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for(url: str, seconds: float = 120) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + seconds
    while True:
        try:
            with opener.open(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
