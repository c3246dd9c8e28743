"""What is told of causes that come, grow and go: plain data, no instance."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mm_assets.automation.alerts import Cause, Kind, Message, Origin, Severity
from mm_assets.automation.alerts.tick import ALONE, Incident, Incidents
from mm_assets.graph.instance_queries import FailingPartition

GOING_ON = Origin("b1", is_backfill=True, has_ended=False)
ENDED = replace(GOING_ON, has_ended=True)


def check(name: str, shards: int = 1, origin: Origin = GOING_ON, severity: Severity = "error") -> Cause:
    return Cause(Kind.CHECK, "curated", name, origin, severity=severity, shards=shards)


def titles(incidents: Incidents, *causes: Cause, held: Sequence[str] = ()) -> list[str]:
    return [message.title.removeprefix("mm_assets: ") for message in update(incidents, *causes, held=held)]


def update(
    incidents: Incidents,
    *causes: Cause,
    alert_on: Severity = "error",
    held: Sequence[str] = (),
    repeated: Mapping[str, Collection[str]] | None = None,
    now: float | None = None,
) -> list[Message]:
    """One update.

    Args:
        repeated: by origin, the shards that failed in it before.
    """

    def new_part(cause: Cause, told: Collection[str]) -> Cause | None:
        known = {key for origin in told for key in (repeated or {}).get(origin, ())}
        new = cause.without(known) if cause.failing else cause
        return new if new.shards else None

    def is_held(key: str, incident: Incident) -> bool:
        return key in held

    if now is None:
        now = max((incident.begun for incident in incidents.open.values()), default=0) + 1
    messages = incidents.update(
        causes,
        detailed=lambda cause: cause,
        new_part=new_part,
        is_held=is_held,
        alert_on=alert_on,
        remind_after=100.0,
        ui_url="",
        now=now,
    )
    again = Incidents.stored(incidents.plain())
    assert again == incidents
    return messages


def test_growth_is_told_once_when_the_backfill_has_ended() -> None:
    incidents = Incidents({})
    assert titles(incidents, check("a", 3)) == ["Check a of curated failed: 3 shards in backfill b1"]
    assert titles(incidents, check("a", 70)) == []
    (message,) = update(incidents, check("a", 90, ENDED))
    assert message.title == "mm_assets: backfill b1 has ended: 1 new or grown problem"
    what = "Check a of curated failed: 90 shards in backfill b1"
    assert message.body == f"* {what} (first seen: 1970-01-01T00:00Z; told before: 3)"
    assert titles(incidents, check("a", 95, ENDED)) == []
    assert titles(incidents) == ["all clear: Check a of curated failed: 90 shards in backfill b1"]


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
    assert told[ALONE:] == [f"backfill b1 has ended: {count} new or grown problems"]
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


def test_what_still_holds_is_told_again_in_one_message() -> None:
    incidents = Incidents({})
    first, second, warns = check("a", 3), check("b", 5), check("c", 1, severity="warn")
    assert len(update(incidents, first, now=1000)) == 1
    assert len(update(incidents, first, second, warns, now=1090)) == 1
    assert update(incidents, first, second, warns, now=1099) == []
    (message,) = update(incidents, first, second, warns, now=1100)
    assert (message.title, message.level) == ("mm_assets: still broken: 2 problems", "error")
    assert message.body.splitlines() == [
        "Still so:",
        "* Check a of curated failed: 3 shards in backfill b1 (first seen: 1970-01-01T00:16Z)",
        "* Check b of curated failed: 5 shards in backfill b1 (first seen: 1970-01-01T00:18Z)",
    ]
    assert update(incidents, first, second, now=1190) == []
    assert [message.level for message in update(incidents, second, now=1199)] == ["clear"]
    (message,) = update(incidents, second, now=1200)
    assert message.title == "mm_assets: still broken: Check b of curated failed: 5 shards in backfill b1"


def test_what_fails_again_each_night_is_told_again_no_oftener() -> None:
    incidents = Incidents({})
    reminders = []
    for night in range(12):
        origin = Origin(f"b{night}", is_backfill=True)
        failing = {"a": FailingPartition(f"r{night}", True)}
        cause = check("a", 1, origin).of_shards(failing)
        messages = update(incidents, cause, repeated={f"b{n}": ["a"] for n in range(night)}, now=30.0 * night)
        reminders += [night for message in messages if "still broken" in message.title]
    assert reminders == [4, 8]  # each hundred seconds


def test_nothing_is_clear_while_a_later_backfill_has_the_same_problem() -> None:
    incidents = Incidents({})
    later = check("a", 1, Origin("b2", is_backfill=True))
    titles(incidents, check("a", 3))
    assert titles(incidents, later) == ["Check a of curated failed: 1 shard in backfill b2"]
    assert titles(incidents) == ["all clear: Check a of curated failed: 1 shard in backfill b2"]


def test_of_two_backfills_with_the_same_problem_each_is_cleared_for_itself() -> None:
    incidents = Incidents({})
    other = check("a", 1, Origin("b2", is_backfill=True))
    titles(incidents, check("a", 3), other)
    assert titles(incidents, other) == ["all clear: Check a of curated failed: 3 shards in backfill b1"]


def test_what_was_never_told_is_never_said_to_be_clear() -> None:
    incidents = Incidents({})
    titles(incidents, *(check(f"c{n}") for n in range(ALONE + 1)))
    (message,) = update(incidents)
    assert message.body.count("*") == ALONE


def of(keys: str, origin: Origin) -> Cause:
    """A check that fails for the shards that are the letters."""
    failing = {key: FailingPartition(origin.id, is_error=True) for key in keys}
    return Cause(Kind.CHECK, "curated", "a", origin).of_shards(failing)


def test_what_fails_again_in_a_later_backfill_is_told_no_more_and_cleared_once() -> None:
    incidents = Incidents({})
    first = replace(ENDED, id="b1")
    assert len(titles(incidents, of("xyz", first))) == 1
    later = replace(ENDED, id="b2")
    assert update(incidents, of("xyz", later), repeated={"b1": "xyz"}) == []
    last = replace(ENDED, id="b3")
    (message,) = update(incidents, of("xyw", last), repeated={"b2": "xyz"})
    assert message.title == "mm_assets: Check a of curated failed: 1 shard in backfill b3"
    assert message.body.splitlines()[1:3] == ["besides: 2 shards as before", "- w"]
    assert update(incidents, of("xyw", last)) == []
    assert titles(incidents) == ["all clear: Check a of curated failed: 1 shard in backfill b3"]


def test_all_clear_of_what_failed_again_names_what_was_told() -> None:
    incidents = Incidents({})
    titles(incidents, of("xyz", replace(ENDED, id="b1")))
    update(incidents, of("xy", replace(ENDED, id="b2")), repeated={"b1": "xyz"})
    (message,) = update(incidents)
    assert message.title == "mm_assets: all clear: Check a of curated failed: 3 shards in backfill b1"
    assert message.body.splitlines()[1].endswith(" in backfill b1 (first seen: 1970-01-01T00:00Z)")


def test_each_problem_is_cleared_under_its_own_name_when_only_one_goes_on() -> None:
    incidents = Incidents({})
    first, second, third = (replace(ENDED, id=name) for name in ("b1", "b2", "b3"))
    assert len(titles(incidents, of("g", first), of("dz", second))) == 2
    failed = "all clear: Check a of curated failed:"
    (message,) = update(incidents, of("g", third), repeated={"b1": "g"})
    assert message.title == f"mm_assets: {failed} 2 shards in backfill b2"
    assert titles(incidents) == [f"{failed} 1 shard in backfill b1"]


def test_growth_of_a_backfill_in_which_some_fail_again_counts_the_new_ones() -> None:
    incidents = Incidents({})
    titles(incidents, of("xyz", replace(ENDED, id="b1")))
    again = {"b1": "xyz"}
    later = replace(GOING_ON, id="b2")
    assert update(incidents, of("x", later), repeated=again) == []
    assert update(incidents, of("xyz", replace(later, has_ended=True)), repeated=again) == []
    third = replace(GOING_ON, id="b3")
    assert len(update(incidents, of("xv", third), repeated={"b2": "xyz"})) == 1
    (message,) = update(incidents, of("xyvw", replace(third, has_ended=True)), repeated={"b2": "xyz"})
    assert message.body.splitlines()[0] == (
        "* Check a of curated failed: 2 shards in backfill b3 (first seen: 1970-01-01T00:00Z; told before: 1)"
    )
