"""What is told of causes that come, grow and go: plain data, no instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mm_assets.automation.alerts.cause import Cause, Kind, Origin, Severity
from mm_assets.automation.alerts.incidents import ALONE, Incident, Incidents
from mm_assets.automation.alerts.messages import Message

GOING_ON = Origin("b1", is_backfill=True, has_ended=False)
ENDED = replace(GOING_ON, has_ended=True)


def check(name: str, shards: int = 1, origin: Origin = GOING_ON, severity: Severity = "error") -> Cause:
    return Cause(Kind.CHECK, "curated", name, origin, severity=severity, shards=shards)


def titles(incidents: Incidents, *causes: Cause, held: Sequence[str] = ()) -> list[str]:
    return [message.title.removeprefix("mm_assets: ") for message in update(incidents, *causes, held=held)]


def update(
    incidents: Incidents, *causes: Cause, alert_on: Severity = "error", held: Sequence[str] = ()
) -> list[Message]:
    def is_held(key: str, incident: Incident) -> bool:
        return key in held

    now = max((incident.begun for incident in incidents.open.values()), default=0) + 1
    messages = incidents.update(
        causes, detailed=lambda cause: cause, is_held=is_held, alert_on=alert_on, ui_url="", now=now
    )
    again = Incidents.stored(incidents.plain())
    assert again == incidents
    return messages


def test_growth_is_told_once_when_the_backfill_has_ended() -> None:
    incidents = Incidents({})
    assert titles(incidents, check("a", 3)) == ["Check a of curated failed: 3 shard(s) in backfill b1"]
    assert titles(incidents, check("a", 70)) == []
    (message,) = update(incidents, check("a", 90, ENDED))
    assert message.title == "mm_assets: backfill b1 has ended: 1 more or grown problem(s)"
    assert message.body == "* Check a of curated failed: 90 shard(s) in backfill b1 (told before: 3)"
    assert titles(incidents, check("a", 95, ENDED)) == []
    assert titles(incidents) == ["all clear: Check a of curated failed: 90 shard(s) in backfill b1"]


def test_a_backfill_that_ends_as_it_was_told_needs_no_further_message() -> None:
    incidents = Incidents({})
    assert len(titles(incidents, check("a", 3))) == 1
    assert titles(incidents, check("a", 3, ENDED)) == []


def test_however_much_fails_a_backfill_says_few_things() -> None:
    incidents = Incidents({})
    count = 50
    told = []
    for shards in (1, 2, 3):
        told += titles(incidents, *(check(f"c{n}", shards) for n in range(count)))
    assert len(told) == ALONE
    told += titles(incidents, *(check(f"c{n}", 5, ENDED) for n in range(count)))
    assert told[ALONE:] == [f"backfill b1 has ended: {count} more or grown problem(s)"]
    assert titles(incidents, *(check(f"c{n}", 5, ENDED) for n in range(count))) == []
    assert titles(incidents) == [f"all clear: {count} problems are gone"]


def test_errors_and_what_concerns_many_come_first() -> None:
    incidents = Incidents({})
    causes = [check("few", 1), check("warns", 99, severity="warn"), check("many", 9)]
    messages = update(incidents, *causes, alert_on="warn")
    assert [message.body.split()[1] for message in messages] == ["many", "few", "warns"]
    assert [message.level for message in messages] == ["error", "error", "warn"]


def test_what_is_held_is_neither_clear_nor_told_again() -> None:
    incidents = Incidents({})
    cause = check("a", 3)
    titles(incidents, cause)
    assert titles(incidents, held=[cause.key]) == []
    assert titles(incidents, cause) == []
    assert len(titles(incidents)) == 1


def test_nothing_is_clear_while_a_later_backfill_has_the_same_problem() -> None:
    incidents = Incidents({})
    later = check("a", 1, Origin("b2", is_backfill=True))
    titles(incidents, check("a", 3))
    assert titles(incidents, later) == ["Check a of curated failed: 1 shard(s) in backfill b2"]
    assert titles(incidents) == ["all clear: Check a of curated failed: 1 shard(s) in backfill b2"]


def test_of_two_backfills_with_the_same_problem_each_is_cleared_for_itself() -> None:
    incidents = Incidents({})
    other = check("a", 1, Origin("b2", is_backfill=True))
    titles(incidents, check("a", 3), other)
    assert titles(incidents, other) == ["all clear: Check a of curated failed: 3 shard(s) in backfill b1"]


def test_what_was_never_told_is_never_said_to_be_clear() -> None:
    incidents = Incidents({})
    titles(incidents, *(check(f"c{n}") for n in range(ALONE + 1)))
    (message,) = update(incidents)
    assert message.body.count("*") == ALONE
