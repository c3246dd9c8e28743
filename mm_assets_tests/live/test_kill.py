"""Workers, and whole runs, killed at random moments of their writing: run again, and everything is as if
nothing had happened.

``TEST_KILLS`` is the number of kills for each writer (1), ``TEST_SEED`` what their moments are drawn from
(0).
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.killing import (
    Killer,
    Moment,
    Outcome,
    RunServer,
    Witness,
    children_of,
    kill_a_worker,
    wait_until_gone,
)
from mm_assets_tests.live.raw_versions import KEEPER, SHARDS
from mm_assets_tests.live.storages import Versions, versions_and_server
from mm_assets_tests.live.watching import Event, Watch

pytestmark = pytest.mark.live

KILLS = int(os.environ.get("TEST_KILLS", "1"))
SEED = os.environ.get("TEST_SEED", "0")
OVER_OLD = (
    0.7  # the share of trials in which outputs of an older version lie there; in the others there are none
)
TRIALS = 10 * KILLS  # kills that come too late do not count
EVERYTHING = re.compile("")


@dataclass(frozen=True)
class Writer:
    """What workers do with a shard in ``job``, for the sake of ``asset``.

    ``own`` matches the paths of all that is made for the asset, or of what the job makes; ``clock`` those in
    which the job's work shows, and ``share`` is how much of what shows there shows while workers are at it.
    """

    job: str
    asset: str
    own: re.Pattern[str]
    clock: re.Pattern[str]
    share: float = 1.0


def of_asset(job: str, asset: str, output: str) -> Writer:
    """The job that makes the output of an asset (a pattern of paths), and mostly its account."""
    own = re.compile(rf"{output}|(ledger/accounts|proof)/{asset}/")
    return Writer(job, asset, own, re.compile(output))


INGEST = of_asset("ingest_shard", "curated_parquet", "curated/")
# Of a Lance table workers make the data files.
LANCE = replace(
    of_asset("fragment_shard", "lance_table", "lance/"), clock=re.compile(r"lance/items\.lance/data/")
)
SURVEYS = re.compile(r"ledger/raw_shards/[^/]*\.parquet")
# By stage: the writers of one run. What a kill keeps from being made is no input of the next stage.
STAGES = {
    "surveys and ingestion": [Writer("survey_raw_shard", "curated_parquet", SURVEYS, SURVEYS), INGEST],
    "scores and filters": [
        of_asset("quarantine_shard", "quarantine", "quarantine/"),
        of_asset("score_shard", "image_scores", "scores/"),
        of_asset("score_samples_of_shard", "sample_scores", "sample_scores/"),
        of_asset("rewrite_shard", "filtered_parquet", "filtered/"),
    ],
    "deliveries": [
        of_asset("pack_shard", "final_tars", "webdataset/"),
        LANCE,
        of_asset("cache_shard", "arrow_cache", "arrow_cache/"),
    ],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Versions, RunServer]]:
    with versions_and_server(tmp_path_factory.mktemp("kill"), ASSETS) as both:
        yield both


@pytest.fixture(scope="module")
def server(made: tuple[Versions, RunServer]) -> RunServer:
    return made[1]


@pytest.fixture(scope="module")
def versions(made: tuple[Versions, RunServer]) -> Versions:
    found = made[0]
    assert list(found.after.rows) == [name for name in SHARDS if name != "emptied"], (
        "one shard came to nothing"
    )
    assert {
        "quarantine/bad.parquet",
        "quarantine/emptied.parquet",
        "ledger/accounts/filtered_parquet/bad.parquet",
    } <= found.after.files.keys()
    assert "quarantine/mended.parquet" in found.before.files.keys() - found.after.files.keys()
    assert json.loads((found.new / "proof" / "proof.json").read_text())["is_equal"]
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_killed_workers(versions: Versions, server: RunServer, stage: str) -> None:
    """Until each writer of the stage has died; those that have are left alone."""
    rng = random.Random(f"{SEED} {stage}")
    problems: list[str] = []
    hits, trials = Counter[str](), 0
    while left := [writer for writer in STAGES[stage] if hits[writer.job] < KILLS]:
        trials += 1
        assert trials <= TRIALS, f"no kill hit a worker in the middle of {left}"
        is_over_old = rng.random() < OVER_OLD
        moments = [Moment.draw(rng, round(versions.count(each.clock) * each.share)) for each in left]
        versions.restore(re.compile("|".join(each.own.pattern for each in left)), is_over_old)
        disturbed, found = _killed_and_run_again(versions, server, left, moments, rng)
        hits.update(job for job, _ in disturbed.died)
        told = (
            f"seed {SEED}, trial {trials} of {stage}, {moments}, over old {is_over_old}, died "
            f"{disturbed.died}"
        )
        print(told)
        problems += [f"{told}: {problem}" for problem in found]
    assert not problems, "\n".join(problems)


def test_a_killed_survey_resolves_nothing(versions: Versions, server: RunServer) -> None:
    """Without the shard whose survey is killed, the others would have other types and keep other sample ids,
    once and for all.
    """
    own = re.compile(rf"ledger/raw_shards/|{INGEST.own.pattern}")
    survey = re.compile(rf"ledger/raw_shards/\.{KEEPER}\.parquet")
    writer = Writer("survey_raw_shard", "curated_parquet", own, survey)
    rng = random.Random(SEED)
    for _ in range(TRIALS):
        versions.restore(own, to_old=False)
        disturbed, problems = _killed_and_run_again(versions, server, [writer], [Moment(1, 0)], rng)
        assert not problems, "\n".join(problems)
        if ("survey_raw_shard", KEEPER) in disturbed.died:
            return
    pytest.fail(f"no kill in {TRIALS} came before the survey was done")


def test_killed_runs(versions: Versions, server: RunServer) -> None:
    """Their leftovers are found by a run in another process."""
    rng = random.Random(f"{SEED} run of {len(ASSETS)}")
    problems: list[str] = []
    hits = trials = 0
    while hits < KILLS:
        trials += 1
        assert trials <= TRIALS, f"only {hits} kills came before the run was over"
        is_over_old = rng.random() < OVER_OLD
        moment = Moment.draw(rng, versions.count(EVERYTHING))
        versions.restore(EVERYTHING, is_over_old)
        witness = Witness(versions.storage, versions.legal)
        with versions.server() as doomed:
            children: list[int] = []

            def strike(event: Event, doomed: RunServer = doomed, children: list[int] = children) -> None:
                children.extend(children_of(doomed.pid))
                doomed.kill()

            killer = Killer(EVERYTHING, [moment], strike)
            with Watch(versions.storage, killer.see, witness.see):
                try:
                    doomed.run(ASSETS)
                except EOFError:
                    hits += 1
                killer.close()
                found = [f"process {pid} has outlived its run" for pid in wait_until_gone(children)]
                again = server.run(ASSETS)
        found += witness.close() + _not_as_undisturbed(versions, again, ASSETS)
        found += [f"the table had {rows} rows" for rows in versions.illegal_rows(witness.rows)]
        told = f"seed {SEED}, trial {trials}, {moment}, over old {is_over_old}, {len(children)} children"
        print(told)
        problems += [f"{told}: {problem}" for problem in found]
    assert not problems, "\n".join(problems)


def _killed_and_run_again(
    versions: Versions, server: RunServer, writers: list[Writer], moments: list[Moment], rng: random.Random
) -> tuple[Outcome, list[str]]:
    """A run in which workers are killed, then, if one died of it, an undisturbed one: how the first ended,
    and all that was wrong.
    """
    assets = list(dict.fromkeys(writer.asset for writer in writers))
    strike = kill_a_worker(server, rng)
    killers = [Killer(each.clock, [moment], strike) for each, moment in zip(writers, moments, strict=True)]
    witness = Witness(versions.storage, versions.legal)
    with Watch(versions.storage, *(killer.see for killer in killers), witness.see):
        disturbed = server.run(assets)
        for killer in killers:
            killer.close()
        again = server.run(assets) if disturbed.died else disturbed
    problems = witness.close() + _not_as_undisturbed(versions, again, assets)
    problems += _untold(disturbed)
    missing = [shard for job, shard in disturbed.died if job == "fragment_shard"]
    problems += [f"the table had {rows} rows" for rows in versions.illegal_rows(witness.rows, missing)]
    if len(orphans := versions.orphans()) > len(missing):
        problems.append(
            f"data files in no version of the table, more than one for each killed job: {orphans}"
        )
    return disturbed, problems


def _untold(disturbed: Outcome) -> list[str]:
    """Deaths that the run kept to itself. Surveys may be done again in the same run."""
    problems = [] if disturbed.ok or disturbed.died else [f"the run failed for no reason: {disturbed.errors}"]
    for job, shard in disturbed.died:
        if job == "prove_shard":
            is_told = any(re.fullmatch(rf"\w+\.zero_loss {shard}", check) for check in disturbed.failed)
        else:
            is_told = job == "survey_raw_shard" or any(
                line.startswith(f"shard {shard!r} of ") for line in disturbed.errors
            )
        problems += [] if is_told else [f"the run does not tell that {job} of {shard} died"]
    return problems


def _not_as_undisturbed(versions: Versions, run: Outcome, assets: list[str]) -> list[str]:
    """What an undisturbed run would have left, or said, otherwise.

    Raw shards are checked only where they are read.
    """
    is_good = run.ok and not run.died and versions.failed(assets) <= run.failed <= versions.bad
    return ([] if is_good else [f"the undisturbed run: {run}"]) + versions.differences()
