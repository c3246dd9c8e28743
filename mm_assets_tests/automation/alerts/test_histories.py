"""Histories of attempts on shards: random ones, one with cancelled retries, and ones that go on while a tick
looks. Each shard that is broken is told once, and clear once it has landed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest

from mm_assets.automation.alerts.tick import State
from mm_assets.graph import dagster_internals
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets_tests.automation.alerts.conftest import Alerts
from mm_assets_tests.automation.alerts.event_writer import Writer

SHARD = re.compile(r"^- (k\d{5})\b", re.MULTILINE)
STEPS = 30


@dataclass
class Attempt:
    """Of some shards, in a run; alone or one of a backfill's."""

    writer: Writer
    run: str
    keys: list[str]
    is_backfill: bool


@dataclass
class History:
    """What has become of shards, and what was told of them.

    Args:
        bad: those whose next attempt fails its check, and so does not land.
        broken: those whose latest attempt failed.
        landed: those that have landed since they were told.
        told: those that were told, with the headline, and have not landed since.
    """

    alerts: Alerts
    keys: Sequence[str]
    bad: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    landed: set[str] = field(default_factory=set)
    told: dict[str, str] = field(default_factory=dict)
    open: list[Attempt] = field(default_factory=list)

    def start(self, keys: list[str], is_backfill: bool) -> None:
        writer = self.alerts.writer()
        if is_backfill:
            writer.begin_backfill(keys)
        run = writer.begin_run()
        for key in keys:
            writer.planned(run, "curated", key)
        self.open.append(Attempt(writer, run, keys, is_backfill))

    def end(self, attempt: Attempt) -> None:
        self.open.remove(attempt)
        failed = self.bad.intersection(attempt.keys)
        for key in attempt.keys:
            attempt.writer.evaluated(attempt.run, "curated", "not_empty", key, key not in failed)
            if key not in failed:
                attempt.writer.materialized(attempt.run, "curated", key)
            else:
                attempt.writer.failed(attempt.run, "curated", key, "a bad one")
        if failed:
            attempt.writer.fail_step(attempt.run, "curated_landed")
        attempt.writer.end_run(attempt.run, not failed)
        if attempt.is_backfill:
            attempt.writer.end_backfill("COMPLETED_FAILED" if failed else "COMPLETED_SUCCESS")
        self.broken = (self.broken - set(attempt.keys)) | failed
        self.landed |= set(attempt.keys) - failed

    def tick(self) -> None:
        for message in self.alerts.tick():
            title, text = message["title"], message["message"]
            if "all clear" in title:
                cleared = {line for line in self.told.values() if f"* {line} (" in text}
                wrong = [key for key, line in self.told.items() if line in cleared and key in self.broken]
                assert not wrong, f"false all-clear of {wrong}: {text}"
                continue
            names = set(SHARD.findall(text))
            assert names <= self.broken, f"not broken: {text}"
            assert not names <= self.told.keys() - self.landed, f"nothing new: {text}"
            self.told |= dict.fromkeys(names, title.removeprefix("mm_assets: "))
            self.landed -= names
        self.told = {key: line for key, line in self.told.items() if key not in self.landed}


@pytest.mark.parametrize(
    ("seed", "overlap"),
    [*((seed, 0.3) for seed in (0, 3, 4, 6, 105, 123, 125, 154)), (3, 0.0), (105, 0.0)],
)
def test_each_broken_shard_is_told_once_and_is_clear_once(alerts: Alerts, seed: int, overlap: float) -> None:
    choice = random.Random(seed)
    history = History(alerts, alerts.shards(4))
    alerts.tick()
    for _ in range(STEPS):
        key = choice.choice(history.keys)
        busy = {key for attempt in history.open for key in attempt.keys}
        # Another may be started while one is under way: overlapping backfills.
        free = [key for key in history.keys if key not in busy or choice.random() < overlap]
        if choice.random() < 0.3:
            history.bad ^= {key}
        elif history.open and (not free or choice.random() < 0.5):
            history.end(choice.choice(history.open))
        elif free:
            some = choice.sample(free, choice.randint(1, len(free)))
            history.start(some, choice.random() < 0.5)
        history.tick()
    for attempt in list(history.open):
        history.end(attempt)
        history.tick()
    history.tick()
    assert history.told.keys() == history.broken
    history.bad.clear()
    history.start(list(history.keys), is_backfill=False)
    history.tick()
    history.end(history.open[0])
    history.tick()
    assert State.load(alerts.instance, 0.0).incidents.open == {}
    titles = [message["title"] for message in alerts.hook.received]
    assert not titles or "all clear" in titles[-1]


def test_a_retry_that_somebody_cancels_mends_nothing(alerts: Alerts) -> None:
    (key,) = alerts.shards(1)
    writer = alerts.writer()
    first = writer.begin_run()
    writer.planned(first, "curated", key)
    writer.failed(first, "curated", key, "a bad one")
    writer.fail_step(first, "curated_landed")
    writer.end_run(first, False)
    assert alerts.titles() == ["1 shard of curated did not land in run"]
    for _ in range(2):
        again = writer.begin_run()
        writer.planned(again, "curated", key)
        assert alerts.titles() == []
        writer.cancel_run(again)
        assert alerts.titles() == []
    last = writer.begin_run()
    writer.planned(last, "curated", key)
    writer.materialized(last, "curated", key)
    writer.end_run(last, True)
    assert alerts.titles() == ["all clear: 1 shard of curated did not land in run"]


@dg.asset(partitions_def=SHARDS, deps=["curated"])
def archive() -> None:
    """Made from `curated`, and named before it: so is `arrow_cache` of `curated_parquet`."""


CHAIN = ("curated", "archive", "scores", "filtered")


def chain_fails(alerts: Alerts, keys: Sequence[str]) -> str:
    """Have shards fail in `curated`, and so in all that is made from it; the title of the message."""
    alerts.repository = alerts.with_more(dg.Definitions([archive]))
    writer = alerts.writer()
    run = writer.begin_run(CHAIN)
    for asset in CHAIN:
        writer.all_planned(run, asset, keys)
    for asset in CHAIN:
        for key in keys:
            writer.failed(run, asset, key, "a bad one" if asset == "curated" else "no curated")
    writer.fail_step(run, "curated_landed")
    writer.end_run(run, False)
    (title,) = alerts.titles()
    return title


def test_a_run_that_begins_while_a_tick_looks_is_no_news(
    alerts: Alerts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever assets the tick has read before: also if the run has made the first one when it goes on."""
    keys = iter(alerts.shards(40))
    shards = list(zip(keys, keys, strict=True))
    chain_fails(alerts, [key for both in shards for key in both])
    read = dagster_internals.attempts_without_result

    def begin(planned: str, landed: str) -> None:
        writer = alerts.writer()
        run = writer.begin_run(CHAIN)
        for asset in CHAIN:
            writer.all_planned(run, asset, [planned, landed])
        writer.materialized(run, "curated", landed)

    for moment, both in enumerate(shards):
        reads = 0

        def late_read(*args: Any, moment: int = moment, both: Any = both, **kwargs: Any) -> Any:
            nonlocal reads
            if reads == moment:
                begin(*both)
            reads += 1
            return read(*args, **kwargs)

        other = alerts.writer()
        other.end_run(other.begin_run(), True)  # else the tick finds nothing new, and reads little
        monkeypatch.setattr(dagster_internals, "attempts_without_result", late_read)
        assert alerts.titles() == [], f"a run began before read {moment}"
        if reads <= moment:
            break
    assert len(CHAIN) < moment < len(shards) - 1, "a run has begun before each read"


@pytest.mark.parametrize("order", [CHAIN, CHAIN[::-1]])
def test_a_run_that_has_not_planned_all_assets_yet_is_no_news(alerts: Alerts, order: Sequence[str]) -> None:
    """Events of a run with many shards are written in several transactions."""
    (key,) = alerts.shards(1)
    title = chain_fails(alerts, [key])
    writer = alerts.writer()
    run = writer.begin_run(CHAIN)
    for asset in order:
        writer.planned(run, asset, key)
        assert alerts.titles() == []
    writer.materialized(run, CHAIN[0], key)
    assert alerts.titles() == [f"all clear: {title}"]
    for asset in CHAIN[1:]:
        writer.materialized(run, asset, key)
        assert alerts.titles() == []
    writer.end_run(run, True)
    assert alerts.titles() == []


@pytest.mark.parametrize("is_told", [True, False])
def test_what_failed_is_told_once_its_input_is_not_being_made_again(alerts: Alerts, is_told: bool) -> None:
    (key,) = alerts.shards(1)
    title = "1 shard of filtered did not land in run"
    curates, filters = alerts.writer(), alerts.writer()
    begun = curates.begin_run(["curated"])
    curates.planned(begun, "curated", key)
    if is_told:
        curates.materialized(begun, "curated", key)
    failing = filters.begin_run(["filtered"])
    filters.planned(failing, "filtered", key)
    filters.fail_step(failing, "filtered_landed")
    filters.end_run(failing, False)
    assert alerts.titles() == ([title] if is_told else [])
    if is_told:
        begun = curates.begin_run(["curated"])
        curates.planned(begun, "curated", key)
        assert alerts.titles() == []
    curates.materialized(begun, "curated", key)
    assert alerts.titles() == ([] if is_told else [title])
    curates.end_run(begun, True)
    assert alerts.titles() == []
    last = filters.begin_run(["filtered"])
    filters.planned(last, "filtered", key)
    filters.materialized(last, "filtered", key)
    filters.end_run(last, True)
    assert alerts.titles() == [f"all clear: {title}"]
