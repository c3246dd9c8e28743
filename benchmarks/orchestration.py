"""What Dagster adds to a shard: all assets for many small shards in one run, beside the same conversions by
the bare library.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import project
from benchmarks.measuring import Measurement, Work, measure
from benchmarks.results import Results
from benchmarks.workbench import DATA, fresh_output

_SAMPLES = 2  # of a shard: next to nothing, so that what is left is what a shard costs


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("orchestration", help="seconds and CPU per shard that Dagster adds")
    parser.add_argument(
        "--shards",
        type=int,
        nargs="+",
        default=[10, 100],
        help="of each run (default: 10 100; published: 10 100 1000)",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--postgres", metavar="URL", help="an empty database instead of SQLite; needs dagster-postgres"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the graph once for each number of shards."""
    storage = "postgres" if options.postgres else "sqlite"
    results = Results(
        f"orchestration-{storage}-{max(options.shards)}", f"What Dagster adds to a shard, {storage}"
    )
    results.say(
        f"Shards of {_SAMPLES} samples, all assets in one run, {options.workers} workers; "
        f"milliseconds a shard. Orchestrator: CPU of the "
        "process that runs Dagster, which is what orchestration adds. Jobs: CPU of the work in the "
        "workers, with survey, ledger and proof. "
        "Bare library: the same four conversions alone, one after the other in one process."
    )
    rows, figures = [], []
    for count in options.shards:
        raw = small_shards(count)
        with fresh_output() as output:
            graph = _measure_graph(raw, output, options.workers, options.postgres)
        with fresh_output() as output:
            bare = measure("benchmarks.orchestration:prepare_bare", raw=str(raw), output=str(output))
        rows.append(_row(count, graph, bare))
        figures.append({"shards": count, "graph": graph.__dict__, "bare": bare.__dict__})
        print(f"{count} shards: {graph.wall:.1f} s", flush=True)
    header = (
        "wall",
        "orchestrator, CPU",
        "jobs, CPU",
        "start of workers, CPU",
        "bare library, CPU",
        "bare library, wall",
        "events",
        "MiB",
    )
    results.table(("shards", *header), rows)
    results.keep({"workers": options.workers, "runs": figures})
    results.publish()
    return 0


def _row(count: int, graph: Measurement, bare: Measurement) -> tuple[str, ...]:
    found = graph.result
    jobs = sum(job["cpu"] for job in found["jobs"].values())
    start = graph.cpu - found["orchestrator"] - jobs
    seconds = (graph.wall, found["orchestrator"], jobs, start, bare.cpu, bare.wall)
    return (
        str(count),
        *(f"{1000 * each / count:.1f}" for each in seconds),
        f"{found['events'] / count:.1f}",
        f"{graph.peak:.0f}",
    )


def small_shards(count: int) -> Path:
    """A folder of ``count`` shards to measure, and one more."""
    from tools.demo import make_shards

    folder = DATA / f"small-{count}x{_SAMPLES}"
    make_shards(folder, members=count - count // 2, pdf=count // 2 + 1, samples=_SAMPLES)
    return folder


def _measure_graph(raw: Path, output: Path, workers: int, postgres: str | None) -> Measurement:
    home = output.with_name("home")
    home.mkdir()
    storage = {"storage": {"postgres": {"postgres_url": postgres}}} if postgres else {}
    (home / "dagster.yaml").write_text(
        json.dumps({"telemetry": {"enabled": False}, **storage})
    )  # JSON is YAML
    environment = {
        "DAGSTER_HOME": str(home),
        "MM_RAW_SHARDS": str(raw),
        "MM_STORAGE": str(output),
        "MM_WORKERS": str(workers),
    }
    return measure("benchmarks.orchestration:prepare_graph", environment=environment)


def prepare_graph() -> Work:
    """Materialize all assets for all raw shards but the first in one run, as the environment says; that one
    warms up.
    """
    import dagster as dg

    from benchmarks.timed_jobs import timed_jobs
    from mm_assets.definitions import defs
    from mm_assets.graph.dagster_internals import SHARDS
    from mm_assets.graph.resources import resources_from_environment

    job = defs.resolve_job_def("all_assets")
    instance = dg.DagsterInstance.get()
    first, *keys = resources_from_environment()["raw"].listing()
    instance.add_dynamic_partitions(str(SHARDS.name), [first, *keys])

    def materialize(start: str, end: str) -> dg.ExecuteInProcessResult:
        tags = {"dagster/asset_partition_range_start": start, "dagster/asset_partition_range_end": end}
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        result = job.execute_in_process(instance=instance, tags=tags, raise_on_error=False, run_config=quiet)
        if not result.success:
            raise RuntimeError(f"run {result.run_id} failed")
        return result

    materialize(first, first)  # makes the tables of the database, too

    def work() -> dict[str, Any]:
        started = time.process_time()
        with timed_jobs() as seconds:
            result = materialize(keys[0], keys[-1])
        orchestrator = time.process_time() - started
        jobs = {name: {"count": len(each), "cpu": sum(each)} for name, each in seconds.items()}
        return {"orchestrator": orchestrator, "jobs": jobs, "events": len(result.all_events)}

    return work


def prepare_bare(raw: str, output: str) -> Work:
    """The conversions of the graph without the graph, of all raw shards but the first."""
    first, *tars = [str(path) for path in sorted(Path(raw).glob("*.tar"))]
    _convert_all([first], f"{output}.warm-up")

    def work() -> dict[str, Any]:
        _convert_all(tars, output)
        return {}

    return work


def _convert_all(tars: list[str], output: str) -> None:
    curated = [
        report.uri or ""
        for report in project.convert("webdataset", "parquet", tars, f"{output}/curated", is_filtered=False)
    ]
    filtered = [
        report.uri or "" for report in project.convert("parquet", "parquet", curated, f"{output}/filtered")
    ]
    project.convert("parquet", "webdataset", filtered, f"{output}/webdataset", is_filtered=False)
    project.convert("parquet", "lance", filtered, f"{output}/lance", is_filtered=False)
