"""Where the CPU of a conversion, and of the main job, goes: samples of ``perf``, by what the code at work is
for.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import project
from benchmarks.documents import LAYOUTS
from benchmarks.mainjob import BOUNDS, run_of, small_files
from benchmarks.measuring import Work, measure
from benchmarks.programs import OURS, Source
from benchmarks.results import Results
from benchmarks.routes import ROUTES, Route
from benchmarks.shards import Shape
from benchmarks.sources import files_of
from benchmarks.workbench import fresh_output, warm

_FREQUENCY: Final = 2000  # samples a second
_JOB_FREQUENCY: Final = 500  # of a command, with all its processes
_RECORDING: Final = "perf.data"
_SAMPLE: Final = re.compile(
    r"\s*(?P<thread>.*?)\s+(?P<process>\d+)\s+[0-9a-f]+ (?P<symbol>.*) \((?P<object>.*)\)\n?"
)
_DAGSTER, _WORKERS, _LANCE = "process that runs Dagster", "worker processes", "threads of Lance"

_KERNEL: Final = r"^\["
_OF_MEMORY: Final = (
    r"fault|clear_page|clear_huge|alloc_pages|page_alloc|from_freelist|rmqueue|free_unref|zap_|unmap|mmap|"
    r"munmap|madvise|_lru|charge|vma|_pte|free_pages|free_page|prep_new"
)
_PURPOSES: Final = (
    ("kernel copies in and out", _KERNEL, r"copy_user|copy_(to|from)|rep_movs|copy_(page|folio)|memcpy"),
    ("page faults and memory", _KERNEL, _OF_MEMORY),
    ("kernel, other", _KERNEL, ""),
    ("memmove, user space", r"/libc[.-]", r"mem(move|cpy|set)"),
    ("xxhash", "xxhash", ""),
    ("arrow, zstd, allocator", "arrow|parquet", ""),
    ("Python", "python", ""),
    ("other native", "", ""),
)
"""Purpose, and the patterns of object and symbol that tell it; the first one that fits counts."""


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser(
        "attribution", help="where the CPU of routes and of the main job goes; needs perf (4 minutes)"
    )
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--samples", type=int, default=340, help="in all shards (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure every route over our own files, and publish a column for each; then the main job."""
    if shutil.which("perf") is None:
        raise SystemExit("perf is not installed (Debian: apt-get install linux-perf)")
    results = Results(f"attribution-{options.shards}x{options.samples}", "Where the CPU of a conversion goes")
    columns = _of_routes(results, options)
    shares = _of_main_job(results, options)
    results.keep({"rounds": options.rounds, "columns": columns, "main_job": shares})
    results.publish()
    return 0


def _of_routes(results: Results, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    results.say(
        f"{options.shards} shards, {options.samples} samples, the routes and the filter of `peer`, "
        f"over our own Parquet; {_FREQUENCY} samples of perf a second, medians of {options.rounds} rounds. "
        "CPU seconds of the work, without imports. W is WebDataset, P Parquet."
    )
    columns: dict[str, dict[str, float]] = {}
    for layout in sorted(LAYOUTS):
        for route in ROUTES:
            source = files_of(Shape(layout, options.shards, options.samples), route.source, OURS)
            rounds = [_attributed(route, source) for _ in range(options.rounds)]
            name = f"{layout} {route.source[0].upper()}→{route.target[0].upper()}"
            columns[name] = {
                purpose: median(seconds[purpose] for seconds in rounds) for purpose, *_ in _PURPOSES
            }
            print(name, f"{sum(columns[name].values()):.2f} s", flush=True)
    rows = [
        [purpose, *(f"{column[purpose]:.2f}" for column in columns.values())] for purpose, *_ in _PURPOSES
    ]
    rows.append(["together", *(f"{sum(column.values()):.2f}" for column in columns.values())])
    results.table(["CPU s", *columns], rows)
    return columns


def _of_main_job(results: Results, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure whole commands by process and purpose, and tell the shares of each."""
    results.say(
        f"`mm-assets run` of all outputs, whole commands with every process; {_JOB_FREQUENCY} samples a "
        "second, one run each. Shares of the CPU, first by process, then by purpose."
    )
    shares = {"4 small shards": _shares_of_run(small_files(4)[:4], {})}
    for layout in sorted(LAYOUTS):
        files = files_of(Shape(layout, options.shards, options.samples), "webdataset").files
        shares[f"{options.shards} {layout} shards"] = _shares_of_run(files, BOUNDS)
    lines = [_DAGSTER, _WORKERS, _LANCE, *(purpose for purpose, *_ in _PURPOSES)]
    rows = [[line, *(f"{of_run.get(line, 0.0):.0%}" for of_run in shares.values())] for line in lines]
    results.table(["", *shares], rows)
    return shares


def _shares_of_run(files: Sequence[Path], settings: Mapping[str, str]) -> dict[str, float]:
    """Return the share of a run's CPU by process, and by purpose."""
    with fresh_output() as output, tempfile.TemporaryDirectory() as folder:
        warm(files)
        command, environment = run_of(files, output)
        recording = Path(folder, _RECORDING)
        record = ["perf", "record", "--quiet", "--freq", str(_JOB_FREQUENCY), "--output", str(recording)]
        environment = {**os.environ, **environment, **settings}
        subprocess.run([*record, "--", *command], env=environment, stdout=subprocess.DEVNULL, check=True)
        samples = list(_samples(recording))
    first = samples[0].process  # the command itself: all others are its own
    counts: Counter[str] = Counter()
    for sample in samples:
        of_lance = sample.thread.startswith("lance")
        counts[_LANCE if of_lance else _DAGSTER if sample.process == first else _WORKERS] += 1
        counts[purpose_of(sample.symbol, sample.object)] += 1
    return {name: count / len(samples) for name, count in counts.items()}


def prepare(folder: str, **conversion: Any) -> Work:
    """Prepare the conversion of `project.prepare`, which perf is to record into a folder."""
    convert = project.prepare(**conversion)

    def work() -> dict[str, Any]:
        with _recorded(folder):
            return convert()

    return work


def purpose_of(symbol: str, of: str) -> str:
    """Return what the code of a symbol in an object (program, library, kernel) is for."""
    return next(
        purpose
        for purpose, objects, symbols in _PURPOSES
        if re.search(objects, of) and re.search(symbols, symbol)
    )


def _attributed(route: Route, source: Source) -> Counter[str]:
    """Return the CPU seconds of one run by purpose."""
    with fresh_output() as output, tempfile.TemporaryDirectory() as folder:
        cpu = measure(
            f"{__name__}:prepare",
            environment=OURS.environment,
            folder=folder,
            source=route.source,
            target=route.target,
            files=warm(source.files),
            output=str(output),
            warm_up=[str(file) for file in source.warm_up],
        ).cpu
        samples = _samples(Path(folder, _RECORDING))
        counts = Counter(purpose_of(sample.symbol, sample.object) for sample in samples)
    every = counts.total()
    return Counter({purpose: cpu * count / every for purpose, count in counts.items()})  # type: ignore[misc]


@dataclass(frozen=True)
class Sample:
    """What was at work: name of the thread, id of its process, symbol, and its program, library or kernel."""

    thread: str
    process: int
    symbol: str
    object: str

    @classmethod
    def parse(cls, line: str) -> Sample:
        """Return the sample of a line of ``perf script``."""
        found = _SAMPLE.fullmatch(line)
        if found is None:
            raise ValueError(f"not a sample of perf: {line!r}")
        return cls(found["thread"], int(found["process"]), found["symbol"], found["object"])


def _samples(recording: Path) -> Iterator[Sample]:
    command = ["perf", "script", "--input", str(recording), "--fields", "comm,pid,ip,sym,dso"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return (Sample.parse(line) for line in text.splitlines() if line.strip())


@contextmanager
def _recorded(folder: str) -> Iterator[None]:
    """Have perf record this process within the block, and nothing before it."""
    control, answers = (os.path.join(folder, name) for name in ("control", "answers"))
    os.mkfifo(control)
    os.mkfifo(answers)
    command = ["perf", "record", "--quiet", "--freq", str(_FREQUENCY), "--pid", str(os.getpid())]
    command += ["--delay", "-1", "--control", f"fifo:{control},{answers}"]
    perf = subprocess.Popen([*command, "--output", os.path.join(folder, _RECORDING)])
    with open(control, "w") as orders, open(answers) as done:

        def tell(order: str) -> None:
            orders.write(f"{order}\n")
            orders.flush()
            done.readline()

        tell("enable")
        try:
            yield
        finally:
            tell("stop")
            perf.wait()
