"""The pool of local workers beside that of tasks on a Ray cluster: conversions, and jobs that do nothing."""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks import project
from benchmarks.measuring import Work, measure
from benchmarks.results import Results, spread
from benchmarks.shards import Shape
from benchmarks.sources import files_of
from benchmarks.workbench import fresh_output, warm
from mm_assets_tests.live.ray_nodes import ray_nodes

_POOLS = {"1 local worker": 1, "2 local workers": 2, "Ray, two nodes of one core": 0}
_EMPTY_JOBS = 300


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("ray", help="local workers beside a Ray cluster of two nodes (3 minutes)")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--samples", type=int, default=512, help="in all shards, of 1.45 MB each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure the pools in turns."""
    results = Results(f"ray-{options.shards}x{options.samples}", "Local workers and a Ray cluster")
    source = files_of(Shape("members", options.shards, options.samples), "webdataset")
    walls: dict[str, list[float]] = defaultdict(list)
    empty: dict[str, list[float]] = defaultdict(list)
    with ray_nodes() as nodes:
        for _ in range(options.rounds):
            for name, processes in _POOLS.items():
                with fresh_output() as output:
                    found = measure(
                        "benchmarks.ray_workers:prepare",
                        address="" if processes else nodes.address,
                        processes=processes,
                        files=warm(source.files),
                        warm_up=[str(file) for file in source.warm_up],
                        output=str(output),
                    )
                walls[name].append(found.result["conversions"])
                empty[name].append(found.result["empty"] / _EMPTY_JOBS * 1000)
                print(f"{name}: {found.result}", flush=True)
    results.say(
        f"{options.shards} shards of tars to Parquet, {options.samples} samples in all, and {_EMPTY_JOBS} "
        f"jobs that do nothing, {options.rounds} rounds in turns. Wall time; the workers have been "
        "started and have their imports. Both nodes are on this machine, beside the process that hands out "
        "the jobs. "
        "Median (least–greatest)."
    )
    one = median(walls["1 local worker"])
    rows = [
        (name, spread(found), f"{one / median(found):.2f}×", spread(empty[name]))
        for name, found in walls.items()
    ]
    results.table(("pool", "conversions, wall s", "of one worker", "a job that does nothing, ms"), rows)
    results.keep({"walls": walls, "empty": empty})
    results.publish()
    return 0


def prepare(address: str, processes: int, files: Sequence[str], warm_up: Sequence[str], output: str) -> Work:
    """Make a pool, of Ray tasks if there is an address, and warm all its workers up."""
    from mm_assets.formats.registry import Conversion
    from mm_assets.pool import WorkerFailure
    from mm_assets.pool.ray import RayPool
    from mm_assets.pool.workers import WorkerPool

    folder = os.path.dirname(output)
    pool = RayPool(address, written=[folder]) if address else WorkerPool(processes)

    def run_all(fn: Any, jobs: Sequence[Any]) -> float:
        started = time.perf_counter()
        for _, answer in pool.map(fn, jobs):
            if isinstance(answer, WorkerFailure):
                raise RuntimeError(str(answer))
        return time.perf_counter() - started

    warm_ups = [
        conversion
        for number in range(8)
        for conversion in project.plan("webdataset", "parquet", warm_up, f"{output}.{number}")
    ]
    run_all(Conversion.run, warm_ups)

    def work() -> dict[str, Any]:
        conversions = run_all(Conversion.run, project.plan("webdataset", "parquet", files, output))
        return {"conversions": conversions, "empty": run_all(abs, list(range(_EMPTY_JOBS)))}

    return work
