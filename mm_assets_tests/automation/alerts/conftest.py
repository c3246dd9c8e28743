"""Alerts over the toy graph: an instance on SQLite files, receivers on loopback, ticks without a daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from mm_assets.automation.alerts.tick import tick
from mm_assets.settings import Settings
from mm_assets_tests.automation.alerts.event_writer import Writer
from mm_assets_tests.automation.alerts.receivers import MailServer, Webhook, mail_server, webhook
from mm_assets_tests.event_log.databases import OURS, open_instance
from mm_assets_tests.graph.io_manager import toy


@dataclass
class Alerts:
    """The alerts of a deployment.

    Args:
        hook: the target, as long as a tick names no others.
        lines: what ticks have logged.
    """

    instance: dg.DagsterInstance
    hook: Webhook
    repository: dg.RepositoryDefinition
    lines: list[str] = field(default_factory=list)

    def writer(self) -> Writer:
        return Writer(self.instance)

    def shards(self, count: int) -> list[str]:
        """Add this many partitions; their names."""
        keys = [f"k{number:05d}" for number in range(count)]
        for start in range(0, count, 500):
            self.instance.add_dynamic_partitions("shards", keys[start : start + 500])
        return keys

    def tick(self, *targets: str, later: float = 0.0, **settings: Any) -> list[dict[str, Any]]:
        """One tick, so many seconds later than now; the messages that reached the webhook in it."""
        before = len(self.hook.received)
        given = Settings(alerts=targets or (self.hook.url(),), **{"alert_on": "warn", **settings})
        tick(self.instance, self.repository, given, time.time() + later, self.lines.append)
        return self.hook.received[before:]

    def with_check(self, asset: str, name: str) -> dg.RepositoryDefinition:
        """The toy with one more check, which has no partitions."""

        @dg.asset_check(asset=dg.AssetKey(asset), name=name)
        def check() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=True)

        return self.with_more(dg.Definitions(asset_checks=[check]))

    def with_more(self, more: dg.Definitions) -> dg.RepositoryDefinition:
        """The toy with more definitions."""
        return dg.Definitions.merge(toy.definitions("raw", "out"), more).get_repository_def()

    def titles(self, *targets: str, **settings: Any) -> list[str]:
        """The titles of the messages of one tick, without the sender and the ids of runs."""
        return [brief(message["title"]) for message in self.tick(*targets, **settings)]


def brief(title: str) -> str:
    """A title without the sender, and without the id of a backfill or run."""
    words = title.removeprefix("mm_assets: ").split()
    return " ".join(
        word for before, word in zip(["", *words], words, strict=False) if before not in ("run", "backfill")
    )


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with open_instance(tmp_path_factory.mktemp("home"), OURS) as instance:
        yield instance


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as server:
        yield server


@pytest.fixture
def mails() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def alerts(instance: dg.DagsterInstance, hook: Webhook, tmp_path: Path) -> Alerts:
    return alerts_of(instance, hook, tmp_path)


def alerts_of(
    instance: dg.DagsterInstance, hook: Webhook, folder: Path, sensors: Sequence[Any] = ()
) -> Alerts:
    graph = toy.definitions(str(folder / "raw"), str(folder / "out"))
    merged = dg.Definitions.merge(graph, dg.Definitions(sensors=list(sensors)))
    return Alerts(instance, hook, merged.get_repository_def())
