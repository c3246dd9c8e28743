"""What `mm-assets run` costs beside its work: first runs of small shards, ones with nothing to do, and the
main job at its size beside the same by `mm-assets convert`, NeMo Curator and a raw copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import curator
from benchmarks.documents import LAYOUTS
from benchmarks.kept import check_same, kept
from benchmarks.measuring import ROOT, Measurement, measure, measure_command
from benchmarks.orchestration import small_shards
from benchmarks.results import Results, spread
from benchmarks.routes import MAX_ASPECT_RATIO, MIN_ASPECT_RATIO, PER_IMAGE_FIELDS
from benchmarks.shards import Shape
from benchmarks.sources import files_of, forget
from benchmarks.workbench import fresh_output, warm

BOUNDS = {
    "MM_MIN_ASPECT_RATIO": str(MIN_ASPECT_RATIO),
    "MM_MAX_ASPECT_RATIO": str(MAX_ASPECT_RATIO),
    "MM_PER_IMAGE_FIELDS": ",".join(PER_IMAGE_FIELDS),
}
_THREE = ("curated_parquet", "image_scores", "filtered_parquet", "final_tars")
_SAMPLES_OF_A_SHARD = 85
_FORMATS = "webdataset,parquet,parquet,webdataset"
_RUN, _REFERENCES, _THREE_OF_RUN, _CONVERTS, _ALONE, _BY_RAY, _COPY = (
    "run, all outputs",
    "run, all outputs, images of filtered Parquet by reference",
    "run, three outputs",
    "three converts",
    "NeMo Curator, no executor",
    "NeMo Curator, Ray",
    "raw copy",
)


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser(
        "mainjob", help="whole `mm-assets run` commands, over small shards and at their size beside others"
    )
    parser.add_argument(
        "--shards", type=int, nargs="*", default=[4], help="small ones (published: 4 100 1000)"
    )
    parser.add_argument("--large", type=int, nargs="*", default=[], help="of 130 MB (published: 4 16 64)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run all assets over each number of small shards, then again; then the main job."""
    if options.shards:
        _measure_small(options.shards, options.rounds)
    for count in options.large:
        _measure_large(count, options.rounds)
    return 0


def _measure_small(counts: Sequence[int], rounds: int) -> None:
    results = Results(f"mainjob-{max(counts)}", "Whole `mm-assets run` commands over small shards")
    results.say(
        f"CPU seconds of the whole command: a first run, {rounds} more that find nothing to do, median "
        "(least–greatest), and one that finds one shard more."
    )
    cases = [_small_case(count, rounds) for count in counts]
    results.table(
        ("shards", "first run", "again", "again, ms a shard", "one shard more"),
        [_row(case, cases[0]) for case in cases],
    )
    results.keep({"cases": cases})
    results.publish()


def _small_case(count: int, rounds: int) -> dict[str, Any]:
    with fresh_output() as output:
        *files, another = small_files(count)
        command, environment = run_of(files, output)
        first, *again = (round(measure_command(command, environment).cpu, 3) for _ in range(rounds + 1))
        os.link(another, Path(environment["MM_RAW_SHARDS"], another.name))
        more = round(measure_command(command, environment).cpu, 3)
    found = {"shards": count, "first": first, "again": again, "more": more}
    print(found, flush=True)
    return found


def small_files(count: int) -> list[Path]:
    """So many raw shards of both layouts in turn, and one more."""
    files = small_shards(count).glob("*.tar")
    return sorted(files, key=lambda file: (file.stem[-5:], file.stem))


def run_of(files: Sequence[Path], output: Path) -> tuple[list[str], dict[str, str]]:
    """The command that runs all assets over raw shards, and its environment; folders for both are made."""
    home, raw = output.with_name("home"), output.with_name("raw")
    for folder in (home, raw):
        folder.mkdir()
    for file in files:
        os.link(file, raw / file.name)
    environment = {"DAGSTER_HOME": str(home), "MM_RAW_SHARDS": str(raw), "MM_STORAGE": str(output)}
    return [sys.executable, "-m", "mm_assets.cli", "run"], {"PYTHONPATH": str(ROOT), **environment}


def _row(case: dict[str, Any], least: dict[str, Any]) -> tuple[str, ...]:
    others = case["shards"] - least["shards"]
    of_a_shard = f"{(min(case['again']) - min(least['again'])) / others * 1e3:.1f}" if others else ""
    first, more = f"{case['first']:.2f}", f"{case['more']:.2f}"
    return str(case["shards"]), first, spread(case["again"]), of_a_shard, more


@dataclass(frozen=True)
class _Contender:
    """``measure`` takes the raw shards and a folder to write to, and tells the cost; ``tars`` is where in
    that folder the training tars are then.
    """

    name: str
    measure: Callable[[Sequence[Path], Path], Measurement]
    tars: str | None = None


def _measure_large(count: int, rounds: int) -> None:
    samples = count * _SAMPLES_OF_A_SHARD
    results = Results(f"mainjob-{count}x{samples}", f"The main job beside NeMo Curator {curator.version()}")
    bounds = f"images of width/height {MIN_ASPECT_RATIO:g} to {MAX_ASPECT_RATIO:g}"
    results.say(
        f"Raw shards → curated Parquet → filtered Parquet ({bounds}) → training tars; {count} shards, "
        f"{samples} samples, {rounds} rounds in turns. Seconds of whole commands with interpreter, imports "
        "and every process that they start, median (least–greatest); peak is that of the largest process. "
        "A run also keeps accounts, events and checks, and proves its outputs; that of all outputs makes "
        "scores, quarantine, Arrow cache and Lance table too. NeMo Curator's script runs three pipelines "
        "one after the other: in its own process without an executor, its best case, or by Ray Data. The "
        "raw copy reads and writes about as many bytes as the three steps do."
    )
    rows, figures, stored = [], [], []
    for layout in LAYOUTS:
        shape = Shape(layout, count, samples)
        files = files_of(shape, "webdataset").files
        runs, sizes = _turns(files, layout, rounds)
        stored += _bytes_rows(layout, files, sizes, runs)
        rows += [_large_row(layout, name, runs) for name in runs]
        figures.append(
            {
                "layout": layout,
                "runs": {
                    name: [
                        {"cpu": round(one.cpu, 3), "wall": round(one.wall, 3), "peak": one.peak}
                        for one in found
                    ]
                    for name, found in runs.items()
                },
            }
        )
        if count > 4:
            forget(shape)
    header = ("input", "program", "CPU s", "wall s", "peak, MiB", "CPU of run, three outputs: less by")
    results.table(header, rows)
    results.say(
        "Bytes in MB: outputs on disk, and what processes read and wrote by calls to the system. What is "
        "mapped, as the Arrow cache is, is not in these."
    )
    results.table(("input", "MB", "MM_FILTERED=copy", "MM_FILTERED=reference"), stored)
    results.keep({"rounds": rounds, "cases": figures})
    results.publish()


def _turns(
    files: Sequence[Path], layout: str, rounds: int
) -> tuple[dict[str, list[Measurement]], dict[str, dict[str, int]]]:
    """Measure all in turns; return that, and the bytes in each folder of a run of all outputs."""
    references = {"MM_FILTERED": "reference"}
    contenders = (
        _Contender(_THREE_OF_RUN, lambda files, output: _ours(files, output, _THREE), "webdataset"),
        _Contender(_RUN, lambda files, output: _ours(files, output, ()), "webdataset"),
        _Contender(_REFERENCES, lambda files, output: _ours(files, output, (), references), "webdataset"),
        _Contender(_CONVERTS, _converted, "tars"),
        _Contender(_ALONE, lambda files, output: _theirs(files, output, "none"), "tars"),
        _Contender(_BY_RAY, lambda files, output: _theirs(files, output, "ray"), "tars"),
        _Contender(_COPY, _copied),
    )
    runs: dict[str, list[Measurement]] = {contender.name: [] for contender in contenders}
    sizes: dict[str, dict[str, int]] = {}
    for number in range(rounds):
        tars = {}
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            with fresh_output() as output:
                warm(files)
                runs[contender.name].append(contender.measure(files, output))
                print(layout, contender.name, f"{runs[contender.name][-1].cpu:.2f} s", flush=True)
                if contender.name in (_RUN, _REFERENCES):
                    sizes[contender.name] = {
                        folder.name: _size_of(folder) for folder in sorted(output.iterdir())
                    }
                if number == 0 and contender.tars:  # Curator encodes frames of a TIFF anew
                    tars[contender.name] = kept(
                        output / contender.tars, "webdataset", with_bytes=layout != "tiff"
                    )
        for name in tars:
            check_same(tars[_RUN], tars[name])
    return runs, sizes


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _ours(
    files: Sequence[Path], output: Path, assets: Sequence[str], settings: Mapping[str, str] | None = None
) -> Measurement:
    command, environment = run_of(files, output)
    only = ["--assets", ",".join(assets)] if assets else []
    return measure_command([*command, *only], {**environment, **BOUNDS, **(settings or {})})


def _converted(files: Sequence[Path], output: Path) -> Measurement:
    bounds = ["--min-aspect-ratio", str(MIN_ASPECT_RATIO), "--max-aspect-ratio", str(MAX_ASPECT_RATIO)]
    fields = ["--per-image-fields", ",".join(PER_IMAGE_FIELDS)]
    curated, filtered, tars = (str(output / name) for name in ("curated", "filtered", "tars"))
    steps = (
        [f"{files[0].parent}/*.tar", curated, "--to", "parquet", *fields],
        [f"{curated}/*.parquet", filtered, "--to", "parquet", *bounds],
        [f"{filtered}/*.parquet", tars, "--to", "webdataset"],
    )
    command = [sys.executable, "-m", "mm_assets.cli", "convert"]
    return _together([measure_command([*command, *step], {"PYTHONPATH": str(ROOT)}) for step in steps])


def _together(steps: Sequence[Measurement]) -> Measurement:
    cpu, wall = (sum(getattr(step, name) for step in steps) for name in ("cpu", "wall"))
    return Measurement(cpu, wall, max(step.peak for step in steps), {})


def _theirs(files: Sequence[Path], output: Path, executor: str) -> Measurement:
    output.mkdir()
    arguments = [executor, _FORMATS, str(output / "tars"), *map(str, files)]
    with tempfile.TemporaryDirectory(prefix="ray-") as scratch:
        return measure_command(
            [str(curator.PYTHON), "-m", "benchmarks.curator", *arguments],
            {"RAY_TMPDIR": scratch, "PYTHONPATH": str(ROOT)},
        )


def _copied(files: Sequence[Path], output: Path) -> Measurement:
    """All shards read and as many bytes written, then half of them read and written, twice: about what the
    filter keeps.
    """
    nbytes = sum(file.stat().st_size for file in files)
    steps = []
    for number, share in enumerate((1.0, 0.5, 0.5)):
        half = files[: max(1, round(len(files) * share))] if number == 2 else files
        paths = [str(file) for file in half]
        folder = str(output / str(number))
        steps.append(
            measure("benchmarks.raw_copy:prepare", files=paths, output=folder, nbytes=int(nbytes * share))
        )
        shutil.rmtree(folder)
    return _together(steps)


def _large_row(layout: str, name: str, runs: dict[str, list[Measurement]]) -> tuple[str, ...]:
    cpu, wall = ([getattr(one, what) for one in runs[name]] for what in ("cpu", "wall"))
    times = median(cpu) / median(one.cpu for one in runs[_THREE_OF_RUN])
    peak = max(one.peak for one in runs[name])
    return layout, name, spread(cpu), spread(wall), f"{peak:.0f}", f"{times:.2f}×"


def _bytes_rows(
    layout: str,
    files: Sequence[Path],
    sizes: Mapping[str, Mapping[str, int]],
    runs: Mapping[str, Sequence[Measurement]],
) -> list[tuple[str, ...]]:
    """A line for the raw shards, for each folder of at least a hundredth of them, and for all together."""
    raw = sum(file.stat().st_size for file in files)
    large = [folder for folder, size in sizes[_RUN].items() if size * 100 >= raw]
    figures = {"raw shards": [raw, raw]}
    figures |= {folder: [sizes[name][folder] for name in (_RUN, _REFERENCES)] for folder in large}
    figures["all outputs"] = [sum(sizes[name].values()) for name in (_RUN, _REFERENCES)]
    for what in ("read", "written"):
        figures[what] = [runs[name][0].result[what] for name in (_RUN, _REFERENCES)]
    return [(layout, what, *(f"{n / 1e6:,.0f}" for n in both)) for what, both in figures.items()]
