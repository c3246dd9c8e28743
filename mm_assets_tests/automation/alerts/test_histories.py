"""Histories of attempts on shards, random ones and one with cancelled retries: each that is broken is told
once, and clear once it has landed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from mm_assets.automation.alerts.tick import State
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
