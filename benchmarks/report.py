"""The report on a data set of a million rows, from what its storage has."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT, Work, measure
from benchmarks.results import Results, spread
from benchmarks.shards import Shape, make_shards
from benchmarks.workbench import DATA

_BYTES_OF_A_SAMPLE = 9_000  # of images: they are not read, and take room
_ASSETS = "curated_parquet,quarantine,image_scores,sample_scores,filtered_parquet"
_SETTINGS = {"MM_MIN_ASPECT_RATIO": "1", "MM_MAX_ASPECT_RATIO": "1.6", "MM_SCORES": "language"}


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("report", help="the report on a million rows (15 minutes to make them)")
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument(
        "--samples", type=int, default=80_000, help="of 12.5 rows each (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the data set unless it is there, and measure the report."""
    shape = Shape("members", options.shards, options.samples, _BYTES_OF_A_SAMPLE)
    storage = _made(shape)
    runs = [measure("benchmarks.report:prepare_report", root=str(storage)) for _ in range(options.rounds)]
    results = Results(f"report-{options.samples}", "Report on a data set")
    results.say(
        f"{runs[0].result['rows']:,} curated rows in {options.shards} shards, of which "
        f"{runs[0].result['kept']:,} are kept by a filter; scores of images, languages of samples. "
        f"{options.rounds} rounds, each in a process of its own: median (least–greatest). "
        "MiB is the peak of memory above that before."
    )
    rows = [
        (
            "report, whole page",
            spread([run.cpu for run in runs]),
            spread([run.wall for run in runs]),
            f"{max(run.peak for run in runs):.0f}",
        )
    ]
    results.table(("what", "CPU s", "s", "MiB"), rows)
    results.keep({"cpu": [run.cpu for run in runs], "wall": [run.wall for run in runs]})
    results.publish()
    return 0


def _made(shape: Shape) -> Path:
    raw = make_shards(DATA, shape)[0].parent
    storage = DATA / f"report-{shape.name}"
    if not storage.exists():
        made = storage.with_suffix(".unfinished")
        environment = {"MM_RAW_SHARDS": str(raw), "MM_STORAGE": str(made), "DAGSTER_HOME": f"{made}.home"}
        command = [sys.executable, "-m", "mm_assets.cli", "run", "--assets", _ASSETS]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **_SETTINGS, **environment}, check=True)
        made.rename(storage)
    return storage


def prepare_report(root: str) -> Work:
    """The page on a storage, as the command makes it."""
    from mm_assets.view.report import gather
    from mm_assets.view.report_page import report_page

    def work() -> dict[str, Any]:
        report = gather(root)
        page = report_page(report)
        stages = report.stages
        kept = stages["filtered_parquet"].written.items
        return {"rows": stages["curated_parquet"].written.items, "kept": kept, "characters": len(page)}

    return work
