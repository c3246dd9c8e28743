"""What ledger and proof add to the conversions of the graph."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks import project
from benchmarks.documents import LAYOUTS
from benchmarks.measuring import Work, cpu_seconds
from benchmarks.programs import Program
from benchmarks.results import Results, spread
from benchmarks.routes import ROUTES, Route
from benchmarks.shards import Shape
from benchmarks.sources import files_of
from benchmarks.workbench import fresh_output
from mm_assets.pool import WORKER_ENVIRONMENT

_PARTS = ("conversion", "ledger", "proof")
_ASSET = "benchmark"
_ACCOUNTED = Program("mm_assets", "benchmarks.accounting:prepare", environment=WORKER_ENVIRONMENT)


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("accounting", help="share of ledger and proof in the CPU of a conversion")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument(
        "--samples", type=int, default=128, help="in all shards, of 1.45 MB each (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure every route, to Lance as well."""
    results = Results(f"accounting-{options.shards}x{options.samples}", "Share of ledger and proof")
    results.say(
        f"{options.shards} shards, {options.samples} samples, {options.rounds} rounds, one worker; "
        f"CPU seconds, median (least–greatest). "
        "Proof: the output read once more by the library that its users read it with."
    )
    rows, figures = [], []
    for layout in LAYOUTS:
        for route in (*ROUTES, Route("parquet", "lance", {})):
            source = files_of(Shape(layout, options.shards, options.samples), route.source)
            found: dict[str, list[float]] = {part: [] for part in _PARTS}
            for _ in range(options.rounds):
                with fresh_output() as output:
                    done = _ACCOUNTED.convert(route.source, route.target, source, output)
                for part in _PARTS:
                    found[part].append(done.result[part])
            share = (median(found["ledger"]) + median(found["proof"])) / median(found["conversion"])
            rows.append((route.name, layout, *(spread(found[part]) for part in _PARTS), f"{share:.0%}"))
            figures.append({"route": route.name, "layout": layout, **found})
    results.table(("route", "raw shards", *_PARTS, "ledger and proof"), rows)
    results.keep({"cases": figures})
    results.publish()
    return 0


def prepare(source: str, target: str, files: Sequence[str], output: str, warm_up: Sequence[str]) -> Work:
    """Convert files, enter them in a ledger beside, and prove them; CPU seconds of each part."""
    _account(source, target, warm_up, f"{output}.warm-up")
    return lambda: _account(source, target, files, output)


def _account(source: str, target: str, files: Sequence[str], output: str) -> dict[str, float]:
    from mm_assets.accounting import Balance, ShardRecord, account_table
    from mm_assets.accounting.accounts import Ledger
    from mm_assets.accounting.canonical import derive

    started = cpu_seconds()
    reports = project.convert(source, target, files, output)
    converted = cpu_seconds()
    for report in reports:
        rows = account_table(_ASSET, report.partition, Balance.of(report), report.losses)
        record = ShardRecord(_ASSET, report.partition, "", report.digest, report.uri or "")
        Ledger(f"{output}.accounts").write(record, rows)
    entered = cpu_seconds()
    for report in reports:
        found = derive(target, report.uri, report.partition)
        if found.digest != report.digest:
            raise ValueError(f"{report.uri}: digest {report.digest} written, {found.digest} found")
    return dict(zip(_PARTS, (converted - started, entered - converted, cpu_seconds() - entered), strict=True))
