"""CPU seconds against the number of shards: the same for each, however many there are."""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from benchmarks.programs import OURS, Source
from benchmarks.results import Results
from benchmarks.routes import ROUTES, Route
from benchmarks.shards import Shape
from benchmarks.sources import files_of
from benchmarks.workbench import fresh_output

_COUNTS = (4, 8, 16, 32)


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("growth", help="CPU of 4, 8, 16, 32 shards")
    parser.add_argument(
        "--samples", type=int, default=16, help="of each shard, of 1.45 MB each (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure every route, to Lance as well."""
    results = Results(f"growth-{options.samples}", "CPU against the number of shards")
    results.say(
        f"{options.samples} samples a shard, one worker; CPU milliseconds a shard, median of "
        f"{options.rounds} rounds. Linear within 15 % "
        "is the goal: the last column is the greatest distance from the mean of the row."
    )
    shape = Shape("members", _COUNTS[-1], _COUNTS[-1] * options.samples)
    rows, figures = [], []
    for route in (*ROUTES, Route("parquet", "lance", {})):
        source = files_of(shape, route.source)
        costs: dict[int, list[float]] = {count: [] for count in _COUNTS}
        for _ in range(options.rounds):
            for count, found in costs.items():
                with fresh_output() as output:
                    part = Source(source.files[:count], source.warm_up)
                    found.append(OURS.convert(route.source, route.target, part, output).cpu / count)
        medians = [median(found) for found in costs.values()]
        mean = sum(medians) / len(medians)
        worst = max(abs(cost / mean - 1) for cost in medians)
        rows.append((route.name, *(f"{cost * 1000:.1f}" for cost in medians), f"{worst:.0%}"))
        figures.append({"route": route.name, "cpu_per_shard": costs})
    results.table(("route", *(f"{count} shards" for count in _COUNTS), "off linear"), rows)
    results.keep({"cases": figures})
    results.publish()
    return 0
