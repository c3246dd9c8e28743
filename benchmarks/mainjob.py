"""What `mm-assets run` costs beside its work: a first run of small shards, and later ones with nothing to do."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT, measure_command
from benchmarks.orchestration import small_shards
from benchmarks.results import Results, spread
from benchmarks.workbench import fresh_output

_ANSWER = "nothing_to_do.json"


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
        f"CPU seconds of the whole command, {options.rounds} rounds; median (least–greatest). *Again*: nothing "
        "has changed, and the kept answer is printed. *Look*: the same without the answer, so that Dagster is "
        "imported and everything looked at."
    )
    cases = [_measure(count, options.rounds) for count in options.shards]
    header = ("shards", "first run", "again", "look", "again, ms a shard", "look, ms a shard")
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
        found: dict[str, Any] = {"shards": count, "first": first, "look": [], "again": []}
        for _ in range(rounds):
            Path(home, _ANSWER).unlink(missing_ok=True)
            found["look"].append(_cpu(environment))
            found["again"].append(_cpu(environment))
    print(found, flush=True)
    return found


def _cpu(environment: dict[str, str]) -> float:
    command = [sys.executable, "-m", "mm_assets.cli", "run"]
    return round(measure_command(command, {"PYTHONPATH": str(ROOT), **environment}).cpu, 3)


def _row(case: dict[str, Any], least: dict[str, Any]) -> tuple[str, ...]:
    more = case["shards"] - least["shards"]

    def of_a_shard(name: str) -> str:
        return f"{(min(case[name]) - min(least[name])) / more * 1e3:.1f}" if more else ""

    figures = f"{case['first']:.2f}", spread(case["again"]), spread(case["look"])
    return (str(case["shards"]), *figures, of_a_shard("again"), of_a_shard("look"))
