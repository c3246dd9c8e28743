"""The Lance table beside Parquet: what writing the same rows costs, and what one sample by its id costs."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

from benchmarks.measuring import Measurement, Work, measure
from benchmarks.programs import OURS
from benchmarks.results import Results
from benchmarks.shards import Shape
from benchmarks.sources import files_of
from benchmarks.workbench import fresh_output

_TARGETS = ("parquet", "lance")
_WRITE_GOAL, _READ_GOAL = 1.2, 2.0  # times Parquet's CPU, milliseconds
_SMALL_BYTES = 50_000
_LOOKUPS = 200
_SEED = 20_264


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("lance", help="Parquet → Lance beside Parquet → Parquet; one sample by id")
    parser.add_argument(
        "--samples", type=int, default=340, help="of 1.45 MB; small ones are ten times as many"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write both formats in turns, then look samples up in the table that was written."""
    results = Results(f"lance-{options.samples}", "The Lance table beside Parquet")
    results.say(
        f"All rows of four Parquet files written again, {options.rounds} rounds in turns, each in a process "
        "of its own: CPU seconds of the work, median (least–greatest). Then "
        f"{_LOOKUPS} samples one after the other by `sample_id = …`, all columns, files in the page cache: "
        "milliseconds of wall, median and 95 % quantile."
    )
    shapes = (
        Shape("members", 4, options.samples),
        Shape("members", 4, options.samples * 10, _SMALL_BYTES, (1, 2)),
    )
    written, read, figures = [], [], []
    for shape in shapes:
        of_target, lookups = _compare(shape, options.rounds)
        times = median(run.cpu for run in of_target["lance"]) / median(
            run.cpu for run in of_target["parquet"]
        )
        name = f"{shape.samples:,} of {shape.sample_bytes / 1e6:.2f} MB"
        costs = (_cell([run.cpu for run in of_target[target]]) for target in _TARGETS)
        written.append((name, *costs, f"{times:.2f}×", f"{_WRITE_GOAL}×"))
        found = [second * 1000 for second in lookups]
        read.append((name, f"{median(found):.2f}", f"{quantiles(found, n=20)[-1]:.2f}", f"{_READ_GOAL:.0f}"))
        runs = {target: [vars(run) for run in of_target[target]] for target in _TARGETS}
        figures.append({"shape": shape.name, "runs": runs, "lookups_ms": found})
    results.table(("samples", "Parquet, CPU s", "Lance, CPU s", "times", "goal"), written)
    results.table(("samples", "by id, ms", "95 %", "goal"), read)
    results.keep({"cases": figures})
    results.publish()
    return 0


def _compare(shape: Shape, rounds: int) -> tuple[dict[str, list[Measurement]], list[float]]:
    source = files_of(shape, "parquet")
    found: dict[str, list[Measurement]] = {target: [] for target in _TARGETS}
    lookups: list[float] = []
    for number in range(rounds):
        for target in _TARGETS if number % 2 == 0 else reversed(_TARGETS):
            with fresh_output() as output:
                found[target].append(OURS.convert("parquet", target, source, output, is_filtered=False))
                if target == "lance":
                    uri = f"{output}/items.lance"
                    lookups += measure("benchmarks.lance_table:prepare_lookups", uri=uri).result["seconds"]
    return found, lookups


def prepare_lookups(uri: str) -> Work:
    """Open a table; the work looks samples up by id, and gives the seconds of each."""
    import lance

    table = lance.dataset(uri)
    ids = sorted(set(table.to_table(columns=["sample_id"]).column(0).to_pylist()))
    chosen = random.Random(_SEED).choices(ids, k=_LOOKUPS)

    def look_up(sample_id: str) -> Any:
        return table.to_table(filter=f"sample_id = '{sample_id}'")

    for sample_id in chosen[:3]:
        look_up(sample_id)
    return lambda: {"seconds": _seconds(look_up, chosen)}


def _seconds(look_up: Callable[[str], Any], ids: Sequence[str]) -> list[float]:
    found = []
    for sample_id in ids:
        started = time.perf_counter()
        rows = look_up(sample_id)
        found.append(time.perf_counter() - started)
        if set(rows.column("sample_id").to_pylist()) != {sample_id}:
            raise ValueError(f"other rows than those of {sample_id!r}")
    return found


def _cell(cpu: Sequence[float]) -> str:
    return f"{median(cpu):.2f} ({min(cpu):.2f}–{max(cpu):.2f})"
