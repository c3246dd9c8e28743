"""``python -m benchmarks NAME``: measure, print a table, store it in ``benchmarks/results/``."""

from __future__ import annotations

import argparse
import sys

from benchmarks import (
    accounting,
    attribution,
    duplicates,
    erase,
    events,
    faults,
    growth,
    lance_table,
    loaders,
    mainjob,
    memory,
    orchestration,
    pages,
    peer,
    ray_workers,
    report,
    reshard,
    scale,
    scores,
    store,
    ticks,
    training,
    whole_command,
    workers,
)


def main() -> int:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    modules = (
        peer,
        whole_command,
        mainjob,
        accounting,
        attribution,
        memory,
        workers,
        growth,
        lance_table,
        loaders,
        orchestration,
        events,
        training,
        pages,
        ticks,
        store,
        ray_workers,
        report,
        reshard,
        faults,
        scale,
        scores,
        duplicates,
        erase,
    )
    for benchmark in modules:
        benchmark.add_to(commands)
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
