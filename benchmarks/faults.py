"""Conversions, the graph and Lance commits on an S3 store that spoils every fifth request."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import Results
from mm_assets_tests.live.fault_rounds import CONVERSIONS, RATE, FaultRounds, Round
from mm_assets_tests.live.faulty_proxy import Faults
from mm_assets_tests.live.faulty_runs import FaultyStore, faulty_store
from mm_assets_tests.live.lance_committers import CommitRound, commit_rounds
from mm_assets_tests.live.s3_server import s3_server

_OF_GRAPH = 3  # every third run is one of the graph
_OUTAGES = 3  # and every third of these, one in which the store goes away

_ABOUT = (
    f"{RATE:.0%} of all requests to a real S3 server (SeaweedFS) are spoilt by a proxy: 503 SlowDown, "
    "500 InternalError, a connection that is reset, a body that is cut, no answer at all (once in a "
    "run; clients wait 2 s for it), or an answer that is lost after the request was carried out. When "
    "the store goes away, no request succeeds from some moment on. Three raw shards of three samples "
    "each. After each run, or the next one if it fails, all files that readers find and all rows of "
    "Lance tables are compared with those of a run without faults."
)
_WHAT_COUNTS = (
    "*Requests* are those of all runs of a row, *without* those of as many runs without faults, *most* "
    "is the largest quotient of a single run. *Wrong* is a run after which anything differs, whose "
    "failure is not told in lines that name the place, or that asks more than twice as often."
)
_ABOUT_COMMITS = (
    "Two processes commit to one Lance table at the same time: each replaces a partition of its own and"
    " adds one, and in every second round both replace the same one. *Exact*: every row of every "
    "partition is there once, and of the shared one the rows of one of the two."
)


class _Commits(NamedTuple):
    seconds: float
    requests: int
    rounds: list[CommitRound]


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("faults", help="runs and commits on an S3 store that spoils requests")
    parser.add_argument("--runs", type=int, default=60, help="of conversions and the graph (default: 60)")
    parser.add_argument("--commits", type=int, default=20, help="rounds of two committers (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of the faults (default: 0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the rounds, and return 1 if anything was lost, doubled, unclear or asked for too often."""
    results = Results(f"faults-{options.runs}", "Conversions, the graph and Lance commits under faults")
    results.say(_ABOUT)
    with s3_server() as server, tempfile.TemporaryDirectory() as folder:
        with faulty_store(server, Path(folder)) as store:
            rounds = [_told(found) for found in _rounds(FaultRounds(store), options.runs, options.seed)]
            commits = {rate: _commits(store, rate, options) for rate in (0.0, RATE)}
    _publish_rounds(results, rounds)
    _publish_commits(results, commits)
    results.publish()
    wrong = [found.problems for found in rounds if found.problems]
    wrong += [each.problems for made in commits.values() for each in made.rounds if each.problems]
    return int(bool(wrong))


def _rounds(study: FaultRounds, count: int, seed: int) -> Iterator[Round]:
    """Make runs of the graph and conversions by turns, each with a seed of its own."""
    of_graph = 0
    for number in range(count):
        if number % _OF_GRAPH == 0:
            of_graph += 1
            make: Callable[[int], Round] = study.outage if of_graph % _OUTAGES == 0 else study.graph
            yield make(seed + number)
        else:
            source, kind = CONVERSIONS[(number - of_graph) % len(CONVERSIONS)]
            yield study.convert(source, kind, seed + number)


def _told(found: Round) -> Round:
    end = "finished" if found.has_finished else "failed"
    faults = sum(found.faults.values())
    print(f"{found.name}, seed {found.seed}: {end}, {found.requests} requests, {faults} faults", flush=True)
    for line in (*found.lines, *found.problems):
        print(f"    {line}", flush=True)
    return found


def _commits(store: FaultyStore, rate: float, options: argparse.Namespace) -> _Commits:
    store.proxy.reset(Faults(rate, seed=options.seed))
    uri, started = f"{store.new_place()}/items.lance", time.perf_counter()
    found = list(commit_rounds(uri, store.server, store.through_proxy, options.commits))
    return _Commits(time.perf_counter() - started, store.proxy.requests.total(), found)


def _publish_rounds(results: Results, rounds: Sequence[Round]) -> None:
    names = dict.fromkeys(found.name for found in rounds)
    rows = [_row(name, [found for found in rounds if found.name == name]) for name in names]
    header = ("command", "runs", "finished", "failed", "wrong", "faults", "requests", "without", "most")
    results.table(header, [*rows, _row("**all**", rounds)])
    faults: Counter[str] = Counter()
    for found in rounds:
        faults.update(found.faults)
    results.say("Faults: " + ", ".join(f"{count} × {kind}" for kind, count in faults.most_common()) + ".")
    results.say(_WHAT_COUNTS)
    results.keep({"rounds": [vars(found) for found in rounds]})


def _row(name: str, rounds: Sequence[Round]) -> tuple[str, ...]:
    finished = sum(found.has_finished for found in rounds)
    wrong = sum(bool(found.problems) for found in rounds)
    faults, requests = sum(sum(f.faults.values()) for f in rounds), sum(f.requests for f in rounds)
    without = sum(found.requests_without_faults for found in rounds)
    most = max(found.requests / found.requests_without_faults for found in rounds)
    counts = (len(rounds), finished, len(rounds) - finished, wrong, faults, requests, without)
    return (name, *map(str, counts), f"{most:.2f}")


def _publish_commits(results: Results, commits: Mapping[float, _Commits]) -> None:
    results.say(_ABOUT_COMMITS)
    rows = [
        (
            f"{rate:.0%}",
            str(len(made.rounds)),
            str(sum(each.is_same_partition for each in made.rounds)),
            str(sum(not each.problems for each in made.rounds)),
            str(made.rounds[-1].version if made.rounds else 0),
            str(made.requests),
            f"{made.seconds:.0f}",
        )
        for rate, made in commits.items()
    ]
    results.table(("faults", "rounds", "same partition", "exact", "versions", "requests", "seconds"), rows)
    results.keep({"commits": [vars(each) for made in commits.values() for each in made.rounds]})
