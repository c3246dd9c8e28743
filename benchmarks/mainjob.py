"""What `mm-assets run` costs beside its work: first runs of small shards, then ones with nothing to do."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from benchmarks.measuring import ROOT, measure_command
from benchmarks.orchestration import small_shards
from benchmarks.results import Results, spread
from benchmarks.workbench import fresh_output


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser(
        "mainjob", help="whole `mm-assets run` commands over small shards, and again with nothing to do"
    )
    parser.add_argument(
        "--shards", type=int, nargs="+", default=[4], help="(default: 4; published: 4 16 64 1000)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of runs with nothing to do")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run all assets over each number of shards, then again."""
    results = Results(f"mainjob-{max(options.shards)}", "Whole `mm-assets run` commands over small shards")
    results.say(
        f"CPU seconds of the whole command: a first run, and {options.rounds} more that find nothing to do; "
        "median (least–greatest)."
    )
    cases = [_measure(count, options.rounds) for count in options.shards]
    header = ("shards", "first run", "again", "again, ms a shard")
    results.table(header, [_row(case, cases[0]) for case in cases])
    results.keep({"cases": cases})
    results.publish()
    return 0


def _measure(count: int, rounds: int) -> dict[str, Any]:
    files = sorted(small_shards(count).glob("*.tar"), key=lambda file: (file.stem[-5:], file.stem))[:count]
    with fresh_output() as output:
        home, raw = output.with_name("home"), output.with_name("raw")
        for folder in (home, raw):
            folder.mkdir()
        for file in files:
            os.link(file, raw / file.name)
        environment = {"DAGSTER_HOME": str(home), "MM_RAW_SHARDS": str(raw), "MM_STORAGE": str(output)}
        first = _cpu(environment)
        again = [_cpu(environment) for _ in range(rounds)]
    found = {"shards": count, "first": first, "again": again}
    print(found, flush=True)
    return found


def _cpu(environment: dict[str, str]) -> float:
    command = [sys.executable, "-m", "mm_assets.cli", "run"]
    return round(measure_command(command, {"PYTHONPATH": str(ROOT), **environment}).cpu, 3)


def _row(case: dict[str, Any], least: dict[str, Any]) -> tuple[str, ...]:
    more = case["shards"] - least["shards"]
    of_a_shard = f"{(min(case['again']) - min(least['again'])) / more * 1e3:.1f}" if more else ""
    return str(case["shards"]), f"{case['first']:.2f}", spread(case["again"]), of_a_shard
