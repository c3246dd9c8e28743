"""Training loaders on the same samples: ours, webdataset, Hugging Face, mosaicml-streaming, LitData."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import curator
from benchmarks.loader_reads import LOADERS
from benchmarks.measuring import Measurement, measure
from benchmarks.programs import OURS
from benchmarks.results import Results
from benchmarks.shards import Shape
from benchmarks.sources import files_of
from benchmarks.workbench import DATA, warm

_SAMPLE_BYTES = 150_000
_BASE = "webdataset"


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser(
        "loaders", help="training loaders side by side, shuffled, without decoding: samples a second"
    )
    parser.add_argument(
        "--samples", type=int, default=4000, help="of 150 KB, in eight tars (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--python", type=Path, default=curator.PYTHON, help="with the loaders (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure all loaders in turns."""
    results = Results(f"loaders-{options.samples}", "Training loaders")
    folder = _made(options)
    environment = {"OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    files = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    rows, figures = [], []
    for workers in options.workers:
        found: dict[str, list[Measurement]] = {loader: [] for loader in LOADERS}
        warm(files)
        for _ in range(options.rounds):
            for loader in LOADERS:
                found[loader].append(
                    measure(
                        "benchmarks.loader_reads:prepare",
                        python=options.python,
                        environment=environment,
                        loader=loader,
                        folder=str(folder),
                        workers=workers,
                    )
                )
        read = {loader: done[0].result for loader, done in found.items()}
        if len({str(result) for result in read.values()}) > 1:
            raise ValueError(f"not the same was read: {read}")
        base = median(one.wall for one in found[_BASE])
        for loader, done in found.items():
            wall, cpu = median(one.wall for one in done), median(one.cpu for one in done)
            rate = f"{options.samples / wall:,.0f}"
            rows.append(
                (str(workers), loader, rate, f"{base / wall:.2f}", f"{cpu / options.samples * 1e6:,.0f}")
            )
            figures.append(
                {
                    "workers": workers,
                    "loader": loader,
                    "wall": [one.wall for one in done],
                    "cpu": [one.cpu for one in done],
                }
            )
    results.say(
        f"{options.samples} interleaved samples of {_SAMPLE_BYTES // 1000} KB in eight tars, shuffled, in "
        "batches of 16, by a torch DataLoader; files in the page cache; medians of "
        f"{options.rounds} rounds in turns. "
        "mosaicml-streaming and LitData read the same samples in their own formats. Nothing is decoded; ours "
        "alone parses the json and puts texts and images in order."
    )
    results.table(("workers", "loader", "samples/s", "x webdataset", "CPU µs a sample"), rows)
    results.keep({"loaders": figures})
    results.publish()
    return 0


def _made(options: argparse.Namespace) -> Path:
    """A folder with the samples in all formats, made unless it is there."""
    shape = Shape("members", 8, options.samples, _SAMPLE_BYTES, (1, 3))
    folder = DATA / f"loaders-{shape.name}"
    source = files_of(shape, "webdataset")
    for target in ("webdataset", "arrow_cache"):
        if not (folder / target).exists():
            folder.mkdir(parents=True, exist_ok=True)
            OURS.convert("webdataset", target, source, folder / target, is_filtered=False)
    measure("benchmarks.loader_reads:make_others", python=options.python, folder=str(folder))
    return folder
