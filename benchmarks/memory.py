"""Peak memory of one worker, on shards of few big and of many small samples, and on shards four times as
big.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.documents import LAYOUTS, Layout
from benchmarks.programs import OURS
from benchmarks.results import Results
from benchmarks.routes import ROUTES, Route
from benchmarks.shards import Shape
from benchmarks.sources import files_of, forget
from benchmarks.workbench import fresh_output

LIMIT = 256
"""MiB that a worker may need above its imports, whatever the shard."""

_MANY = 5000
_BIG_SAMPLE = 25_000_000  # bytes: more than a batch, so each passes alone
_TIMES = 4
_ROUTES = {
    "members": (*ROUTES, Route("parquet", "lance", {})),
    "tiff": ROUTES[:2],
}  # rows are rows, whatever they were read from


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("memory", help="peak memory on one big shard, and on one four times as big")
    parser.add_argument(
        "--megabytes", type=int, default=250, help="of the smaller shard (default: %(default)s)"
    )
    parser.add_argument("--full", action="store_true", help="2 GB and 8 GB; needs 30 GB of disk")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure every route; exit code 1 if one needs more than `LIMIT`."""
    megabytes = 2000 if options.full else options.megabytes
    results = Results(f"memory-{megabytes}", "Peak memory of a worker")
    results.say(
        f"One shard, one worker; MiB above what is resident after imports and a first tiny shard. "
        f"The goal is at most {LIMIT}, whatever "
        "the size."
    )
    found: dict[tuple[str, str, Layout], list[float]] = {}
    for layout in LAYOUTS:
        for times in (1, _TIMES):
            for kind, shape in _shapes(layout, megabytes * 1_000_000, times).items():
                for route in _ROUTES[layout]:
                    with fresh_output() as output:
                        done = OURS.convert(route.source, route.target, files_of(shape, route.source), output)
                    found.setdefault((route.name, kind, layout), []).append(done.peak)
                    print(f"{route.name}, {shape.name}: {done.peak:.0f} MiB", flush=True)
                forget(shape)
    results.table(
        ("route", "shard", "raw layout", f"{megabytes} MB", f"{megabytes * _TIMES} MB"),
        [(*case, *(f"{peak:.0f}" for peak in peaks)) for case, peaks in found.items()],
    )
    results.keep({"limit": LIMIT, "cases": [{"case": case, "peaks": peaks} for case, peaks in found.items()]})
    results.publish()
    return int(max(peak for peaks in found.values() for peak in peaks) > LIMIT)


def _shapes(layout: Layout, nbytes: int, times: int) -> dict[str, Shape]:
    """A shard of ``nbytes * times`` bytes of each kind: the sample stays the same, their number grows."""
    big = max(nbytes // _BIG_SAMPLE, 1)
    return {
        f"samples of {_BIG_SAMPLE // 1_000_000} MB ({big:,} and {big * _TIMES:,})": Shape(
            layout, 1, big * times, _BIG_SAMPLE, (40, 60)
        ),
        f"small samples ({_MANY:,} and {_MANY * _TIMES:,})": Shape(
            layout, 1, _MANY * times, nbytes // _MANY, (1, 3)
        ),
    }
