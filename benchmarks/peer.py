"""This project beside NeMo Curator, and both beside a raw copy: the same files, the same filter, in turns."""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks import curator
from benchmarks.documents import LAYOUTS
from benchmarks.kept import check_same, images_of, kept
from benchmarks.measuring import Measurement, measure
from benchmarks.programs import OURS, THEIRS, Program, Source
from benchmarks.results import Results, spread
from benchmarks.routes import ROUTES, Route
from benchmarks.shards import Shape
from benchmarks.sources import files_of, forget
from benchmarks.workbench import fresh_output, warm

_FLOOR = "floor"
_PUBLISHED = (80, 6818)  # shards, samples of Curator's own benchmark


@dataclass
class Case:
    """One route over one kind of input: shards of a shape, as tars or as the Parquet that ``maker`` makes of
    them, ``nbytes`` in all.
    """

    shape: Shape
    route: Route
    maker: Program
    source: Source
    nbytes: int
    images_kept: int = 0
    runs: dict[str, list[Measurement]] = field(default_factory=lambda: defaultdict(list))

    @property
    def input(self) -> str:
        """The kind of input, in words."""
        return (
            f"Parquet by {self.maker.name}, {self.shape.layout}"
            if self.route.source == "parquet"
            else self.shape.layout
        )


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser(
        "peer", help="four routes, two layouts, beside NeMo Curator and a raw copy (2 minutes)"
    )
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument(
        "--samples", type=int, default=32, help="in all shards, of 1.45 MB each (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--full",
        action="store_true",
        help="the published shape: 80 shards, 6,818 samples, 9.9 GB in each layout; 40 GB of disk, half "
        "an hour a round",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure every case, check in the first round that both programs keep the same, publish the tables."""
    shards, samples = _PUBLISHED if options.full else (options.shards, options.samples)
    results = Results(f"peer-{shards}x{samples}", f"mm_assets beside NeMo Curator {curator.version()}")
    cases: list[Case] = []
    for layout in LAYOUTS:
        shape = Shape(layout, shards, samples)
        cases += (of_layout := _cases(shape))
        for number in range(options.rounds):
            for case in of_layout:
                _compare(case, number)
                costs = ", ".join(f"{program} {runs[-1].cpu:.2f} s" for program, runs in case.runs.items())
                print(f"round {number + 1}: {case.route.name}, {case.input}: {costs}", flush=True)
        if options.full:
            forget(shape)
    _report(results, cases, options.rounds)
    results.publish()
    return 0


def _cases(shape: Shape) -> list[Case]:
    cases = []
    for route in ROUTES:
        for maker in (THEIRS, OURS) if route.source == "parquet" else (OURS,):
            source = files_of(shape, route.source, maker)
            cases.append(Case(shape, route, maker, source, sum(file.stat().st_size for file in source.files)))
    return cases


def _compare(case: Case, number: int) -> None:
    """One round: both programs, in the other order than last time, then the floor."""
    route, outputs = case.route, {}
    for program in (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS):
        with fresh_output() as output:
            case.runs[program.name].append(program.convert(route.source, route.target, case.source, output))
            if number == 0:
                is_encoded_anew = (
                    case.shape.layout == "tiff" and route.source == "webdataset"
                )  # by Curator: frames of a TIFF
                outputs[program] = kept(output, route.target, with_bytes=not is_encoded_anew)
    if number == 0:
        check_same(outputs[OURS], outputs[THEIRS])
        case.images_kept = images_of(outputs[OURS])
    written = case.runs[OURS.name][-1].result["nbytes"]
    with fresh_output() as output:
        floor = measure(
            "benchmarks.raw_copy:prepare", files=warm(case.source.files), output=str(output), nbytes=written
        )
        case.runs[_FLOOR].append(floor)


def _report(results: Results, cases: list[Case], rounds: int) -> None:
    shape = cases[0].shape
    volume = " and ".join(
        f"{case.nbytes / 1e6:,.0f} MB ({case.shape.layout})" for case in cases if case.route == ROUTES[0]
    )
    results.say(
        f"{shape.shards} shards, {shape.samples} samples, {volume}; images of width/height 1.0 to "
        f"2.0 are kept. {rounds} rounds, the "
        "programs in turns, each time in a process of its own: CPU seconds of the work, user and "
        "system, median (least–greatest). "
        "The interpreter, its imports and a first tiny shard are not counted. Both programs kept the "
        "same texts and images in every row. "
        f"The floor reads the same bytes and writes as many as {OURS.name} does."
    )
    results.table(
        (
            "route",
            "input",
            f"{THEIRS.name}, CPU s",
            f"{OURS.name}, CPU s",
            "times less",
            "goal",
            "floor, CPU s",
            "× floor",
        ),
        [_cpu_row(case) for case in cases],
    )
    results.say(
        "Medians of wall seconds and samples/s, and the greatest peak memory above that after "
        "imports and the first tiny shard."
    )
    programs = (THEIRS.name, OURS.name)
    columns = [f"{program}, {what}" for what in ("wall s", "samples/s", "MiB") for program in programs]
    results.table(
        ("route", "input", *columns, "floor, wall s"), [_other_row(case, programs) for case in cases]
    )
    results.keep(
        {
            "rounds": rounds,
            "shards": shape.shards,
            "samples": shape.samples,
            "cases": [_figures(case) for case in cases],
        }
    )


def _cpu_row(case: Case) -> tuple[str, ...]:
    theirs, ours, floor = (
        [run.cpu for run in case.runs[program]] for program in (THEIRS.name, OURS.name, _FLOOR)
    )
    times, goal = median(theirs) / median(ours), case.route.goals[case.shape.layout]
    over = f"{median(ours) / median(floor):.1f}"
    return (
        case.route.name,
        case.input,
        spread(theirs),
        spread(ours),
        f"{times:.1f}×",
        f"{goal:g}×",
        spread(floor),
        over,
    )


def _other_row(case: Case, programs: tuple[str, ...]) -> tuple[str, ...]:
    walls = {program: median(run.wall for run in runs) for program, runs in case.runs.items()}
    peaks = {program: max(run.peak for run in runs) for program, runs in case.runs.items()}
    return (
        case.route.name,
        case.input,
        *(f"{walls[program]:.2f}" for program in programs),
        *(f"{case.shape.samples / walls[program]:.0f}" for program in programs),
        *(f"{peaks[program]:.0f}" for program in programs),
        f"{walls[_FLOOR]:.2f}",
    )


def _figures(case: Case) -> dict[str, Any]:
    return {
        "route": case.route.name,
        "input": case.input,
        "goal": case.route.goals[case.shape.layout],
        "images_kept": case.images_kept,
        "runs": {program: _columns(runs) for program, runs in case.runs.items()},
    }


def _columns(runs: list[Measurement]) -> dict[str, list[float]]:
    return {name: [round(getattr(run, name), 3) for run in runs] for name in ("cpu", "wall", "peak")}
