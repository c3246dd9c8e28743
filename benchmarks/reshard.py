"""A training set beside a plain copy of the same bytes: seconds, memory, and how well it is mixed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.measuring import Measurement, measure, measure_command
from benchmarks.programs import OURS
from benchmarks.results import Results
from benchmarks.shards import SAMPLE_BYTES, Shape
from benchmarks.sources import files_of
from benchmarks.workbench import DATA, fresh_output

_RESHARD = [sys.executable, "-m", "mm_assets.cli", "reshard"]
_SPLIT = "train=0.98,validation=0.02"


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("reshard", help="a training set beside a plain copy of the same bytes")
    parser.add_argument("--shards", type=int, default=4, help="tars of the source (default: %(default)s)")
    parser.add_argument(
        "--samples", type=int, default=340, help="of 1.55 MB; 6818 are 10 GB (default: %(default)s)"
    )
    parser.add_argument("--shard-size", default="64MiB", help="of the set (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure the copy and the command in turns, then look at the set."""
    source = _source(Shape("members", options.shards, options.samples, SAMPLE_BYTES))
    tars = sorted(source.glob("*.tar"))
    nbytes = sum(tar.stat().st_size for tar in tars)
    floors: list[Measurement] = []
    found: list[Measurement] = []
    figures: dict[str, Any] = {}
    for number in range(options.rounds):
        with fresh_output() as output:
            files = list(map(str, tars))
            floors.append(
                measure("benchmarks.raw_copy:prepare", files=files, output=str(output), nbytes=nbytes)
            )
        with fresh_output() as output:
            command = [*_RESHARD, str(source), str(output), "--split", _SPLIT]
            found.append(measure_command([*command, "--shard-size", options.shard_size]))
            if number == 0:
                figures = _figures(output)
    results = Results(f"reshard-{options.shards}x{options.samples}", "A training set beside a plain copy")
    results.say(
        f"{options.samples} samples, {nbytes / 1e9:.2f} GB in {options.shards} tars, to tars of at most "
        f"{options.shard_size}; medians of {options.rounds} rounds in turns. The copy is one process that "
        "reads, writes and syncs the same bytes; the command is whole, with its start and two workers."
    )
    rows = [(name, *_costs(done)) for name, done in (("plain copy", floors), ("mm-assets reshard", found))]
    ratio = median(one.wall for one in found) / median(one.wall for one in floors)
    results.table(("", "seconds", "CPU seconds", "MiB of the largest process"), rows)
    results.say(f"Seconds beside the copy: {ratio:.2f} times.")
    results.table(("the set", "figure"), [(name, f"{value:.4g}") for name, value in figures.items()])
    seconds = {"floor": floors, "reshard": found}
    results.keep({name: [one.__dict__ for one in done] for name, done in seconds.items()})
    results.keep({"times the copy": ratio, **figures})
    results.publish()
    return 0


def _source(shape: Shape) -> Path:
    """Tars of ours, made of raw shards; kept for the next time."""
    folder = DATA / f"{shape.name}-ours"
    if not folder.exists():
        with fresh_output() as output:
            raw = files_of(shape, "webdataset")
            OURS.convert("webdataset", "webdataset", raw, output, is_filtered=False)
            output.rename(folder)
    return folder


def _figures(folder: Path) -> dict[str, float]:
    """How equal the tars are, and how far the new order is from the old one."""
    plan = pq.read_table(folder / "plan.parquet")
    train = plan.filter(pc.equal(plan.column("split"), "train"))
    sizes = [tar.stat().st_size for tar in folder.glob("train-*.tar")]
    old = np.lexsort((train.column("source_offset").to_numpy(), train.column("source_shard").to_numpy(False)))
    rank = np.empty(len(old), np.int64)
    rank[old] = np.arange(len(old))
    correlation = float(np.corrcoef(rank, np.arange(len(rank)))[0, 1])
    neighbours = float(np.mean(np.diff(rank) == 1))
    return {
        "tars for training": len(sizes),
        "samples for training": train.num_rows,
        "largest minus smallest tar, % of the largest": 100 * (max(sizes) - min(sizes)) / max(sizes),
        "correlation of old and new position": correlation,
        "share of samples still behind the same one": neighbours,
    }


def _costs(done: list[Measurement]) -> tuple[str, str, str]:
    wall, cpu = ([getattr(one, name) for one in done] for name in ("wall", "cpu"))
    spans = (f"{median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in (wall, cpu))
    return (*spans, f"{max(one.peak for one in done):.0f}")  # type: ignore[return-value]
