"""What a user pays: whole commands, with start-up and all processes, beside the peer's pipeline script."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import curator
from benchmarks.documents import LAYOUTS
from benchmarks.kept import check_same, kept
from benchmarks.measuring import ROOT, Measurement, measure_command
from benchmarks.results import Results, spread
from benchmarks.routes import MAX_ASPECT_RATIO, MIN_ASPECT_RATIO, PER_IMAGE_FIELDS, ROUTES, Route
from benchmarks.shards import Shape
from benchmarks.sources import files_of
from benchmarks.workbench import fresh_output, warm

_GOALS = {"tiff": 25, "members": 10}


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser(
        "command", help="whole commands beside NeMo Curator's script, start-up included (5 minutes)"
    )
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument(
        "--samples", type=int, default=340, help="in all shards, of 1.45 MB each (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure every route from raw shards, in turns; check in the first round that both keep the same."""
    results = Results(
        f"command-{options.shards}x{options.samples}",
        f"Whole commands beside NeMo Curator {curator.version()}",
    )
    results.say(
        f"{options.shards} shards, {options.samples} samples, {options.rounds} rounds in turns: `mm-assets "
        "convert`, and a script that runs NeMo Curator's pipeline by its Ray Data executor. Seconds of the "
        "whole command, with interpreter, imports and every process that it starts; median (least–greatest)."
    )
    rows, figures = [], []
    for layout in LAYOUTS:
        files = files_of(Shape(layout, options.shards, options.samples), "webdataset").files
        for route in (route for route in ROUTES if route.source == "webdataset"):
            runs: dict[str, list[Measurement]] = {"ours": [], "theirs": []}
            for number in range(options.rounds):
                _compare(route, layout, files, runs, number)
            rows.append(_row(route, layout, runs))
            figures.append({"route": route.name, "layout": layout, "runs": _figures(runs)})
            print(" ".join(rows[-1]), flush=True)
    header = ("route", "input", "NeMo Curator, CPU s", "mm_assets, CPU s", "times less", "goal")
    results.table((*header, "NeMo Curator, wall s", "mm_assets, wall s"), rows)
    results.keep({"rounds": options.rounds, "cases": figures})
    results.publish()
    return 0


def _compare(
    route: Route, layout: str, files: Sequence[Path], runs: dict[str, list[Measurement]], number: int
) -> None:
    outputs = {}
    for program in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
        with fresh_output() as output, tempfile.TemporaryDirectory(prefix="ray-") as scratch:
            paths = warm(files)
            command = (_our_command if program == "ours" else _their_command)(route, paths, output)
            environment = {"RAY_TMPDIR": scratch, "PYTHONPATH": str(ROOT)}
            runs[program].append(measure_command(command, environment))
            if number == 0:
                is_encoded_anew = layout == "tiff"  # by Curator: frames of a TIFF
                outputs[program] = kept(output, route.target, with_bytes=not is_encoded_anew)
    if number == 0:
        check_same(outputs["ours"], outputs["theirs"])


def _our_command(route: Route, files: Sequence[str], output: Path) -> list[str]:
    bounds = ["--min-aspect-ratio", str(MIN_ASPECT_RATIO), "--max-aspect-ratio", str(MAX_ASPECT_RATIO)]
    fields = ["--per-image-fields", ",".join(PER_IMAGE_FIELDS)]
    source = f"{os.path.dirname(files[0])}/*.tar"
    command = [sys.executable, "-m", "mm_assets.cli", "convert", source, str(output), "--to", route.target]
    return [*command, *bounds, *fields]


def _their_command(route: Route, files: Sequence[str], output: Path) -> list[str]:
    python = str(curator.PYTHON)
    return [python, "-m", "benchmarks.curator", "ray", f"{route.source},{route.target}", str(output), *files]


def _row(route: Route, layout: str, runs: dict[str, list[Measurement]]) -> tuple[str, ...]:
    cpu = {program: [run.cpu for run in found] for program, found in runs.items()}
    wall = {program: [run.wall for run in found] for program, found in runs.items()}
    times = median(cpu["theirs"]) / median(cpu["ours"])
    figures = (spread(cpu["theirs"]), spread(cpu["ours"]), f"{times:.1f}×", f"{_GOALS[layout]}×")
    return (route.name, layout, *figures, spread(wall["theirs"]), spread(wall["ours"]))


def _figures(runs: dict[str, list[Measurement]]) -> dict[str, Any]:
    return {
        program: {name: [round(getattr(run, name), 3) for run in found] for name in ("cpu", "wall", "peak")}
        for program, found in runs.items()
    }
