"""Two shards on two cores: the wall time of two workers beside that of one."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks import project
from benchmarks.documents import LAYOUTS
from benchmarks.measuring import Work
from benchmarks.programs import Program
from benchmarks.results import Results, spread
from benchmarks.routes import ROUTES
from benchmarks.shards import Shape
from benchmarks.sources import files_of
from benchmarks.workbench import fresh_output

_CORES = 2
_POOL = Program("mm_assets", "benchmarks.workers:prepare")


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("workers", help="two shards on two cores with one and with two workers")
    parser.add_argument(
        "--samples", type=int, default=340, help="in both shards, of 1.45 MB each (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure every route; wall time counts, so it takes a quiet machine."""
    results = Results(f"workers-2x{options.samples}", "Two shards on two cores")
    results.say(
        f"2 shards, {options.samples} samples, {options.rounds} rounds in turns; wall seconds of the "
        f"work, median (least–greatest). "
        "Workers were started before. The goal is at most 60 %."
    )
    rows, figures = [], []
    for layout in LAYOUTS:
        for route in ROUTES:
            source = files_of(Shape(layout, _CORES, options.samples), route.source)
            walls: dict[int, list[float]] = {1: [], _CORES: []}
            for _ in range(options.rounds):
                for processes, found in walls.items():
                    with fresh_output() as output:
                        found.append(
                            _POOL.convert(
                                route.source, route.target, source, output, processes=processes
                            ).wall
                        )
            rows.append(
                (
                    route.name,
                    layout,
                    *map(spread, walls.values()),
                    f"{median(walls[_CORES]) / median(walls[1]):.0%}",
                )
            )
            figures.append({"route": route.name, "layout": layout, "walls": walls})
    results.table(("route", "raw shards", "1 worker, wall s", "2 workers, wall s", "2 of 1"), rows)
    results.keep({"cases": figures})
    results.publish()
    return 0


def prepare(
    source: str, target: str, files: Sequence[str], output: str, warm_up: Sequence[str], processes: int
) -> Work:
    """Convert files in a pool of worker processes that have imported all they need, on two cores."""
    from mm_assets.formats.registry import Conversion
    from mm_assets.formats.reports import PartitionReport
    from mm_assets.pool import WorkerFailure
    from mm_assets.pool.workers import WorkerPool

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])
    pool = WorkerPool(processes)

    def convert(conversions: Sequence[Conversion]) -> None:
        reports: list[PartitionReport] = []
        for _, answer in pool.map(Conversion.run, conversions):
            if isinstance(answer, WorkerFailure):
                raise RuntimeError(str(answer))
            reports.append(answer)
        conversions[0].writer.finish(sorted(reports, key=lambda report: report.partition))

    # As many at once as there are workers, so that each of them starts.
    convert(
        [
            conversion
            for number in range(processes)
            for conversion in project.plan(source, target, warm_up, f"{output}.{number}")
        ]
    )

    def work() -> dict[str, Any]:
        convert(project.plan(source, target, files, output))
        return {}

    return work
