"""Causes of alerts, and the backfill or run that each came up in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from mm_assets.io_managers.instance_queries import FailingPartition

Severity = Literal["error", "warn"]

# Names of shards, or of other things, that a cause lists.
NAMED = 20


class Kind(StrEnum):
    """Kinds of causes; the values are part of stored state."""

    CHECK = "check"
    NOT_LANDED = "not landed"
    RUN_FAILED = "run failed"
    HANGING = "hanging"
    LOSS = "loss"
    DRIFT = "drift"
    STALE = "stale"
    TICKS = "ticks"


@dataclass(frozen=True)
class Origin:
    """The backfill, or run outside of a backfill, in which something went wrong.

    Args:
        has_ended: no further run of it will follow.
    """

    id: str
    is_backfill: bool
    has_ended: bool = True

    def __str__(self) -> str:
        return f"{'backfill' if self.is_backfill else 'run'} {self.id[:8]}"

    @property
    def page(self) -> str:
        """Path of its page in the UI."""
        return f"runs/b/{self.id}" if self.is_backfill else f"runs/{self.id}"


@dataclass(frozen=True)
class Cause:
    """One thing that is wrong now.

    Args:
        subject: the asset, job, sensor or schedule.
        detail: more about which, such as the name of the check.
        shards: how many shards are concerned; 0 where shards are not the point.
        of: of how many; 0 if unknown.
        names: the first names that are concerned, with the reason of each where one is known.
        figures: further figures by name.
        run_ids: the runs in which it came up.
        failing: all shards that are concerned; empty where only their number is known.
    """

    kind: Kind
    subject: str
    detail: str = ""
    origin: Origin | None = None
    severity: Severity = "error"
    shards: int = 0
    of: int = 0
    names: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)
    run_ids: tuple[str, ...] = ()
    failing: Mapping[str, FailingPartition] = field(default_factory=dict, repr=False)

    def of_shards(self, failing: Mapping[str, FailingPartition]) -> Cause:
        """Return the cause with all that follows from the shards: severity, number, first names, runs."""
        first = sorted(failing)[:NAMED]
        runs = [failing[key].run_id for key in first] + sorted({shard.run_id for shard in failing.values()})
        return replace(
            self,
            severity="error" if any(shard.is_error for shard in failing.values()) else "warn",
            shards=len(failing),
            names=dict.fromkeys(first, ""),
            run_ids=tuple(dict.fromkeys(runs)),
            failing=failing,
        )

    def without(self, keys: Collection[str]) -> Cause:
        """Return the cause without some of its shards."""
        return self.of_shards({key: shard for key, shard in self.failing.items() if key not in keys})

    @property
    def series(self) -> str:
        """Identifies the cause whatever backfill or run it came up in."""
        return self.key.rpartition("|")[0]

    @property
    def key(self) -> str:
        """Identifies the cause from tick to tick."""
        return "|".join([self.kind, self.subject, self.detail, self.origin.id if self.origin else ""])
