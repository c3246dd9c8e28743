"""Causes of alerts, and the backfill or run that each came up in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

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

    @property
    def key(self) -> str:
        """Identifies the cause from tick to tick."""
        return "|".join([self.kind, self.subject, self.detail, self.origin.id if self.origin else ""])
