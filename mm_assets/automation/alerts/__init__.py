"""Alerts: what is wrong now, told once to people, and that it is over.

A `Cause` is one thing that is wrong, with its `Origin`: the backfill or run that it came up in. A `Message`
has one line of title, then what, how much, what to do and where to look.

runs, checks  finders of causes in the Dagster instance
tick          one tick: causes -> incidents (what has been told) -> messages -> outbox; its sensor
delivery      the outbox of messages that still have to reach a target; targets, by Apprise
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from mm_assets.automation.sensors import PRESENT
from mm_assets.graph.instance_queries import FailingPartition
from mm_assets.model.errors import counted

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
        return series_of(self.key)

    @property
    def key(self) -> str:
        """Identifies the cause from tick to tick."""
        return "|".join([self.kind, self.subject, self.detail, self.origin.id if self.origin else ""])


def series_of(key: str) -> str:
    """Return the series of a cause by its key."""
    return key.rpartition("|")[0]


Level = Literal["error", "warn", "clear", "test"]

_SENDER = "mm_assets"  # begins each title: inboxes have mails of other systems, too
_LONGEST = 320  # characters of a name with its reason

# In chats these call everybody, or become links, pictures and previews that are fetched; text of the data
# must not, whatever a service takes for text. A space behind them ends it.
_ACTIVE = re.compile(
    r"<(?=\S)|@(?=everyone|here|channel|all)|\](?=[(\[:])|(?:https?|ftp)://(?=\S)|www\.(?=\S)", re.IGNORECASE
)

_NEXT = {
    Kind.CHECK: (
        "Open the page of the check: the metadata of each shard say what was found. Mend the raw shards, "
        "then run: mm-assets run --changed --failed"
    ),
    Kind.NOT_LANDED: "Mend what the reasons name, then run: mm-assets run --failed",
    Kind.RUN_FAILED: "Read the error in the log of the run. Mend its reason, then launch it again.",
    Kind.HANGING: (
        "Look at the log of the run and at its machine. If it is dead, terminate it and launch it again."
    ),
    Kind.LOSS: (
        "Look into the quarantine: mm-assets explain names each lost item. If it is what you expect, raise "
        "MM_MAX_LOSS."
    ),
    Kind.DRIFT: (
        "Compare the drop reasons of the latest shards with earlier ones. If the data or the bounds of the "
        "filters have changed on purpose, nothing is to be done: after some runs this is the usual share."
    ),
    Kind.STALE: "See whether raw shards still arrive, and whether sensors, schedules and the daemon run.",
    Kind.TICKS: "Open it in the UI: its ticks have the whole error. It does nothing until that is mended.",
}


@dataclass(frozen=True)
class Message:
    """What is sent to each target.

    Args:
        title: one line.
        level: severity of what it tells, or that all is clear.
    """

    title: str
    body: str
    level: Level


def headline(cause: Cause) -> str:
    """Return what is wrong in one line."""
    where = f" in {cause.origin}" if cause.origin else ""
    count = _count(cause)
    match cause.kind:
        case Kind.CHECK:
            word = "failed" if cause.severity == "error" else "warns"
            what = f"Check {cause.detail} of {cause.subject} {word}"
            text = f"{what}: {count}" if count else what
        case Kind.NOT_LANDED:
            refused = any("MM_MAX_LOSS" in reason for reason in cause.names.values())
            text = (
                f"{count} of {cause.subject} did not land"
                if not cause.of
                else f"{count} did not land: {cause.subject}"
            )
            text += " (quarantine share over MM_MAX_LOSS)" if refused else ""
        case Kind.RUN_FAILED:
            text = f"Failed: {cause.subject}"
        case Kind.HANGING:
            text = f"Hangs: {cause.subject}"
        case Kind.LOSS:
            text = f"Quarantine share of {cause.subject} is over MM_MAX_LOSS"
        case Kind.DRIFT:
            text = f"{cause.subject} keeps another share of items than usual"
        case Kind.STALE:
            text = "Not fresh: no new materialization"
        case Kind.TICKS:
            text = f"The ticks of {cause.subject} fail"
    return one_line(text + where)


def alert(cause: Cause, ui_url: str, begun: float, repeated: int = 0) -> Message:
    """Return the message that tells a cause.

    Args:
        begun: when it was first seen, in seconds since 1970.
        repeated: number of shards that it concerns besides, as was told before.
    """
    again = [f"besides: {counted(repeated, 'shard')} as before"] if repeated else []
    lines = [headline(cause), *_figures(cause), *again, *_names(cause)]
    lines += ["", f"First seen: {_minute(begun)}", f"What to do: {_next(cause)}"]
    lines += _link(ui_url, _page(cause))
    return Message(f"{_SENDER}: {headline(cause)}", "\n".join(lines), cause.severity)


def _link(ui_url: str, path: str = "") -> list[str]:
    return [f"Page: {ui_url.rstrip('/')}/{path}"] if ui_url else []


def _next(cause: Cause) -> str:
    if cause.kind == Kind.CHECK and cause.detail == PRESENT.name:
        return "Bring the raw shards back, or remove their outputs: mm-assets retire"
    return _NEXT[cause.kind]


def summary(
    origin: Origin,
    causes: Sequence[Cause],
    told: Mapping[str, int],
    begun: Mapping[str, float],
    ui_url: str,
) -> Message:
    """Return the message about several causes of one backfill or run, with their latest figures.

    Args:
        told: by key of a cause, the number of shards that was told before.
        begun: by key of a cause, when it was first seen.
    """
    lines = []
    for cause in causes:
        before = f"; told before: {told[cause.key]}" if cause.key in told else ""
        seen = f" (first seen: {_minute(begun[cause.key])}{before})"
        lines += [f"* {headline(cause)}{seen}", *(f"  {line}" for line in _names(cause, 5))]
    word = "has ended" if origin.has_ended else "goes on"
    title = f"{_SENDER}: {origin} {word}: {counted(len(causes), 'new or grown problem')}"
    lines += ["", *link] if (link := _link(ui_url, origin.page)) else []
    level: Level = "error" if any(cause.severity == "error" for cause in causes) else "warn"
    return Message(title, "\n".join(lines), level)


def all_clear(gone: Mapping[str, float], ui_url: str) -> Message:
    """Return the message that causes are gone.

    Args:
        gone: their headlines, with the time at which each was first seen.
    """
    what = next(iter(gone)) if len(gone) == 1 else f"{len(gone)} problems are gone"
    return _of_headlines(f"all clear: {what}", "No longer so:", gone, ui_url, "clear")


def reminder(holding: Mapping[str, float], level: Severity, ui_url: str) -> Message:
    """Return the message that causes, which were told long ago, still hold; arguments as of `all_clear`."""
    what = next(iter(holding)) if len(holding) == 1 else counted(len(holding), "problem")
    return _of_headlines(f"still broken: {what}", "Still so:", holding, ui_url, level)


def _of_headlines(title: str, first: str, begun: Mapping[str, float], ui_url: str, level: Level) -> Message:
    shown = list(begun.items())[:NAMED]
    lines = [first, *(f"* {line} (first seen: {_minute(since)})" for line, since in shown)]
    if len(begun) > NAMED:
        lines.append(f"and {len(begun) - NAMED} more")
    return Message(f"{_SENDER}: {title}", "\n".join(lines + _link(ui_url)), level)


def trial_message(ui_url: str) -> Message:
    """Return a message that tells nothing but that it has arrived."""
    lines = ["Alerts of mm_assets reach you here. Nothing is wrong.", *_link(ui_url)]
    return Message(f"{_SENDER}: test of alerts", "\n".join(lines), "test")


def one_line(text: str) -> str:
    """Return text, which may come from data, as one printable line."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    line = _ACTIVE.sub(r"\g<0> ", " ".join(line.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _minute(seconds: float) -> str:
    """Return a time in seconds since 1970 as UTC, to the minute."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%MZ}"


def _count(cause: Cause) -> str:
    if not cause.shards:
        return ""
    part = f"{cause.shards} of " if cause.of else ""
    return part + counted(cause.of or cause.shards, "shard")


def _figures(cause: Cause) -> list[str]:
    return [f"{name}: {one_line(value)}" for name, value in cause.figures.items()]


def _names(cause: Cause, limit: int = NAMED) -> list[str]:
    shown = list(cause.names.items())[:limit]
    lines = [one_line(f"- {name}: {reason}" if reason else f"- {name}") for name, reason in shown]
    hidden = max(cause.shards, len(cause.names)) - len(shown)
    return [*lines, f"and {hidden} more"] if hidden > 0 and shown else lines


def _page(cause: Cause) -> str:
    """Return the path of the page to look at first."""
    match cause.kind:
        case Kind.CHECK:
            return f"assets/{cause.subject}?view=checks&checkDetail={cause.detail}"
        case Kind.NOT_LANDED:
            return f"assets/{cause.subject}?view=partitions"
        case Kind.DRIFT | Kind.LOSS:
            return f"assets/{cause.subject}"
        case Kind.TICKS:
            return "automation"
    return cause.origin.page if cause.origin else "assets"
