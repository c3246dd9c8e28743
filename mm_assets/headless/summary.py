"""Summary of the runs of a command: problems, a table with a line for each asset, and the proof.

`find_problems` makes lines for people of what went wrong in a run: one per shard, with its cause but without
consequences of it.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from mm_assets.accounting import BY_ASSET, CURATED, OUTPUTS, ShardRecord
from mm_assets.formats.names import format_by_suffix
from mm_assets.formats.reports import LEFT_OUT_MEMBERS, empty_shards_lines, left_out_lines, untaken_lines
from mm_assets.graph import EMPTY, INPUT_MISSING, LOSS_SHARE, LOSS_SHARE_OF
from mm_assets.graph.dagster_internals import URI
from mm_assets.graph.instance_queries import failing_shards, messages
from mm_assets.graph.io_manager import FAILED_HERE, LANDED
from mm_assets.graph.planned_jobs import bare_values, parse_failure
from mm_assets.graph.proof import UNKNOWN_FILES, ZERO_LOSS
from mm_assets.graph.raw import (
    COLUMNS,
    CONTENT_TAKEN,
    GATE_CHECKS,
    MINORITY_TYPES,
    RAW_SHARDS,
    SCHEMA_CONTRACT,
)
from mm_assets.model.errors import counted
from mm_assets.storage.errors import error_line

_LONGEST = 300  # limit of characters of a check's summary, and of a step's error
_OF_SYSTEM = re.compile(r"\[Errno (\d+)\] (.*?): '(.+)'")
_OF_RAW = f"{RAW_SHARDS.to_user_string()}."
_QUARANTINE_EMPTY = f"quarantine.{EMPTY}"
# Errors of downstream assets for a shard that has failed before.
_CONSEQUENCES = (INPUT_MISSING, "failed in this run")


@dataclass
class _Shard:
    """The problems of a shard.

    ``causes`` are by asset, in the order of the graph; ``checks`` did not pass; it is ``absent`` from these
    assets.
    """

    causes: dict[str, str] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        return bool(self.causes or self.absent)

    def note(self, check: str, metadata: Mapping[str, Any]) -> None:
        """Note what a check found that did not pass."""
        words = str(metadata.get("summary") or "did not pass")
        if check == _QUARANTINE_EMPTY:  # the name says what should be, and here it is not
            words = f"not empty: {words}"
        if damage := metadata.get("damage_first"):
            words += f"; damage: {damage[0]['message']}"
        self.checks[check] = words

    def line(self, key: str) -> str:
        parts = [f"{asset}: {cause}" for asset, cause in self.causes.items()]
        if self.absent and not parts:
            parts = [f"{self.absent[0]}: did not land"]
        known = " ".join(self.causes.values())
        raw_first = sorted(self.checks.items(), key=lambda check: not check[0].startswith(_OF_RAW))
        parts += [f"{check}: {summary[:_LONGEST]}" for check, summary in raw_first if summary not in known]
        return (
            f"shard {key!r} of {'; '.join(parts)}"
            if self.has_failed
            else f"shard {key!r}: {'; '.join(parts)}"
        )


@dataclass
class Problems:
    """What went wrong in a run.

    Args:
        shards: those that failed, or failed a check.
        steps: a line for each step that failed as a whole.
    """

    shards: dict[str, _Shard] = field(default_factory=lambda: defaultdict(_Shard))
    steps: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """Lines on failed shards, then on shards with failed checks, then on steps."""
        ordered = sorted(self.shards, key=lambda key: (not self.shards[key].has_failed, key))
        return [*(self.shards[key].line(key) for key in ordered), *self.steps]

    @property
    def failed(self) -> dict[str, str]:
        """For each failed shard the first asset that it failed in.

        The log of the run tells; the check `landed` sees what another run may have made since.
        """
        return {
            key: next(iter([*shard.causes, *shard.absent]))
            for key, shard in self.shards.items()
            if shard.has_failed
        }


_Kind = dg.DagsterEventType
_FAILURES = {_Kind.STEP_FAILURE, _Kind.PIPELINE_FAILURE}
_STEPS = {_Kind.STEP_START, _Kind.STEP_SUCCESS, _Kind.STEP_FAILURE}


def find_problems(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> Problems:
    """Return what went wrong in a run."""
    problems = Problems()
    shards = problems.shards
    for message in messages(instance, result.run_id, level=logging.ERROR, limit=None):
        failure = parse_failure(message)
        if failure is not None:
            causes = shards[failure.key].causes
            if not causes or (
                failure.error not in causes.values()
                and not any(mark in failure.error for mark in _CONSEQUENCES)
            ):
                causes[failure.asset] = failure.error
    for evaluation in result.get_asset_check_evaluations():
        if not evaluation.passed and not _is_of_all(evaluation):
            _note(evaluation, shards)
    failures = instance.get_records_for_run(result.run_id, of_type=_FAILURES).records
    problems.steps += failed_steps(record.event_log_entry.get_dagster_event() for record in failures)
    return problems


def recorded_problems(records: Mapping[str, Mapping[str, ShardRecord]]) -> Problems:
    """Return the failed checks of shards that need no run, from their records by asset and partition."""
    problems = Problems()
    for asset, by_key in records.items():
        for key, record in by_key.items():
            for check in record.checks:
                if not check["passed"]:
                    problems.shards[key].note(f"{asset}.{check['name']}", check["metadata"])
    return problems


def _note(evaluation: dg.AssetCheckEvaluation, shards: dict[str, _Shard]) -> None:
    asset = evaluation.asset_key.to_user_string()
    if evaluation.check_name == LANDED:
        for key in _plain(evaluation.metadata).get(FAILED_HERE) or ():
            shards[str(key)].absent.append(asset)
    elif evaluation.partition is not None:  # evaluations over all shards repeat those of single shards
        shards[evaluation.partition].note(f"{asset}.{evaluation.check_name}", _plain(evaluation.metadata))


def _is_of_all(evaluation: dg.AssetCheckEvaluation) -> bool:
    """Return whether the summary has a line on all shards that fail the check, so none on each."""
    name, severity = evaluation.check_name, evaluation.severity
    return name == CONTENT_TAKEN or (name == SCHEMA_CONTRACT and severity == dg.AssetCheckSeverity.WARN)


def _plain(metadata: Mapping[str, dg.MetadataValue]) -> dict[str, Any]:
    return {name: value.value for name, value in metadata.items()}


def failed_steps(events: Iterable[dg.DagsterEvent]) -> list[str]:
    """Return a line for each step of a run that failed, but for those that only repeat their shards."""
    events = list(events)
    lines = [
        f"step {event.step_key} failed: {_cause(event.step_failure_data.error)}"
        for event in events
        if event.is_step_failure
        and not str(event.step_key).endswith(LANDED)
        and not _repeats_its_shards(event.step_failure_data)
    ]
    if any(event.is_step_failure for event in events):
        return lines
    # For example because a resource of Dagster cannot be configured.
    return [f"the run failed: {_cause(e.job_failure_data.error)}" for e in events if e.is_job_failure]


def _repeats_its_shards(failure: Any) -> bool:
    """Return whether a step failed for nothing but shards that have lines of their own."""
    given = failure.user_failure_data
    found = None if given is None else given.metadata.get(UNKNOWN_FILES)
    return found is not None and not found.value


def _cause(error: Any) -> str:
    """Return the error that Dagster's own errors wrap, without its class."""
    while error is not None and error.cause is not None and str(error.cls_name).startswith("Dagster"):
        error = error.cause
    if error is None:
        return "no reason given"
    line = re.sub(rf"^\S*\b{re.escape(str(error.cls_name))}: ", "", " ".join(str(error.message).split()))
    if error.cls_name == "DagsterInvalidConfigError":  # in front are pages about the types of the fields
        line = line.partition("Error 1: ")[2] or line
    if match := _OF_SYSTEM.fullmatch(line):
        line = error_line(OSError(int(match[1]), match[2], match[3]))
    return line[:_LONGEST]


_NAMED = 5  # shards in a line
_MOST_FAILURES = 10_000  # of a check, to look at
_HEADER = (
    *("asset", "partitions", "unchanged", "samples", "images"),
    *("filtered", "quarantined", "MB", "seconds", "where"),
)

_UNREFERENCED = {"unreferenced_members": "unreferenced member", "unreferenced_frames": "unreferenced frame"}
_PROOF_HEADER = ("asset", "partitions", "proven", "changed", "not examined", "where")


@dataclass
class _Line:
    partitions: int = 0
    unchanged: int = 0
    samples: int = 0
    images: int = 0
    filtered: int = 0
    quarantined: int = 0
    bytes: int = 0
    seconds: float = 0
    places: set[str] = field(default_factory=set)

    def row(self, name: str) -> tuple[str, ...]:
        counts = (self.samples or "", self.images, self.filtered or "", self.quarantined or "")
        return (
            name,
            str(self.partitions),
            str(self.unchanged),
            *map(str, counts),
            f"{self.bytes / 1e6:.1f}",
            f"{self.seconds:.1f}",
            ", ".join(sorted(self.places)),
        )


class RunSummary:
    """What came of the runs of a command.

    Args:
        keys: the partitions that were to be made, or proven, by asset.
        max_loss: share of a shard's members and items that may be lost.
    """

    def __init__(self, keys: Mapping[str, Collection[str]], max_loss: float = 1) -> None:
        self._expected: dict[str, set[str]] = {}
        self._keys: list[str] = []
        self.expect(keys)
        self._problems: list[Problems] = []
        self._lines: dict[str, _Line] = defaultdict(_Line)
        self._proofs: dict[tuple[str, str], bool] = {}
        self._failed: dict[str, str] = {}
        self._failed_checks: Counter[str] = Counter()
        self._lost = self._of = 0.0
        self._losses: dict[str, str] = {}  # what each shard lost, in words
        self._untaken: dict[str, Any] = {}  # of each shard, columns that look like what was not taken
        self._odd: set[str] = set()  # shards that make a column JSON text in all
        self._minority_types: dict[str, Any] = {}  # one line on each such column
        self._left_out: dict[str, Any] = {}  # of each shard, members that macOS or tar had added
        self._of_nothing: list[str] = []  # shards that hold no samples
        self._max_loss = max_loss
        # Shards that were published and lost more: one that loses more now fails, but an unchanged one was
        # made when more was allowed.
        self.lossy: dict[str, float] = {}
        self.has_succeeded = True

    @property
    def is_proven(self) -> bool:
        """Whether each shard was found in every output as it was written."""
        return not self._unproven()

    @property
    def failed_steps(self) -> int:
        """Number of steps that failed as a whole."""
        return sum(len(problems.steps) for problems in self._problems)

    @property
    def loss_share(self) -> float:
        """The share of lost members and items in all published shards, 0 to 1."""
        return self._lost / self._of if self._of else 0.0

    def expect(self, keys: Mapping[str, Collection[str]]) -> None:
        """Take into account that also these partitions are to be made, or proven, by asset."""
        expected = self._expected
        self._expected = {
            each.asset: expected.get(each.asset, set()).union(keys.get(each.asset, ()))
            for each in OUTPUTS
            if each.asset in expected or each.asset in keys
        }
        new = (key for asset in self._expected for key in keys.get(asset, ()))
        self._keys = list(dict.fromkeys([*self._keys, *new]))

    def add(self, instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> None:
        """Take a run into account."""
        self.has_succeeded &= result.success
        problems = find_problems(instance, result)
        self._problems.append(problems)
        for key, asset in problems.failed.items():
            self._failed.setdefault(key, asset)
        for event in result.get_asset_materialization_events():
            made = event.step_materialization_data.materialization
            self._add_shard(made.asset_key.to_user_string(), made.partition or "", _plain(made.metadata))
        # Not `get_run_step_stats`, which reads the events of all shards.
        started: dict[str | None, float] = {}
        for record in instance.get_records_for_run(result.run_id, of_type=_STEPS).records:
            entry = record.event_log_entry
            if entry.dagster_event_type == _Kind.STEP_START:
                started[entry.step_key] = entry.timestamp
            elif entry.step_key in started and entry.step_key in self._lines:
                self._lines[entry.step_key].seconds += entry.timestamp - started.pop(entry.step_key)
        for evaluation in result.get_asset_check_evaluations():
            asset = evaluation.asset_key.to_user_string()
            if evaluation.partition is None:
                continue
            self._failed_checks[evaluation.check_name] += not evaluation.passed
            if evaluation.check_name == CONTENT_TAKEN:
                self._untaken[evaluation.partition] = evaluation.metadata[COLUMNS].value
            if evaluation.check_name == SCHEMA_CONTRACT:
                minority_types = _plain(evaluation.metadata)[MINORITY_TYPES]
                self._minority_types |= minority_types
                self._odd |= {evaluation.partition} if minority_types else set()
            if evaluation.check_name == ZERO_LOSS:
                self._proofs[evaluation.partition, asset] = evaluation.passed
                if not evaluation.passed and asset in self._expected:
                    self._expect(evaluation.partition, asset)  # also what only the records know of

    def add_unchanged(self, records: Mapping[str, Mapping[str, ShardRecord]]) -> None:
        """Take proven shards into account that need no run, by their records per asset and partition."""
        self._problems.append(recorded_problems(records))
        for asset, by_key in records.items():
            for key, record in by_key.items():
                values = {**bare_values(record.metadata), "unchanged": True, URI: record.uri}
                self._add_shard(asset, key, values)
                self._proofs[key, asset] = True
                self._failed_checks.update(each["name"] for each in record.checks if not each["passed"])

    def add_standing(self, instance: dg.DagsterInstance) -> None:
        """Take into account what the gate found in unchanged shards when they were made."""
        known = {
            (key, told)
            for each in self._problems
            for key, shard in each.shards.items()
            for told in shard.checks
        }
        standing = self._problems[-1]
        for name in GATE_CHECKS:
            check = dg.AssetCheckKey(RAW_SHARDS, name)
            for key, evaluation in failing_shards(instance, check, _MOST_FAILURES).items():
                if key not in self._keys:
                    continue
                if name == CONTENT_TAKEN:
                    self._failed_checks[name] += key not in self._untaken
                    self._untaken.setdefault(key, evaluation.metadata[COLUMNS].value)
                elif _is_of_all(evaluation):
                    self._failed_checks[name] += key not in self._odd
                    self._minority_types = _plain(evaluation.metadata)[MINORITY_TYPES] | self._minority_types
                elif (key, told := f"{_OF_RAW}{name}") not in known:
                    self._failed_checks[name] += 1
                    standing.shards[key].note(told, _plain(evaluation.metadata))

    def _expect(self, key: str, asset: str) -> None:
        if all(key not in expected for expected in self._expected.values()):
            self._keys.append(key)
        self._expected[asset].add(key)

    def _add_shard(self, asset: str, key: str, values: Mapping[str, Any]) -> None:
        line = self._lines[asset]
        line.partitions += 1
        line.unchanged += bool(values.get("unchanged"))
        line.samples += _number(values, "samples")
        line.images += _number(values, "images")
        line.filtered += _total(values, "filtered")
        line.quarantined += _total(values, "quarantined") + _number(values, "records")
        line.bytes += _number(values, "bytes")
        if uri := values.get(URI):
            line.places.add(_folder(str(uri)))
        if left_out := values.get(LEFT_OUT_MEMBERS):
            self._left_out[key] = left_out
        if asset == CURATED.asset and LOSS_SHARE_OF in values:
            share, of = float(str(values[LOSS_SHARE])), float(str(values[LOSS_SHARE_OF]))
            self._lost += share * of
            self._of += of
            if not share and not _number(values, "samples"):
                self._of_nothing.append(key)
            if share:
                self._losses[key] = _loss(share, values)
            if share > self._max_loss:
                self.lossy[key] = share

    def print(self, locations: str) -> None:
        """Print problems, the table, the proof, and what failed or was lost.

        Args:
            locations: where the raw shards are.
        """
        self._print_problems()
        told = {key for problems in self._problems for key in problems.shards}
        for key, loss in sorted(self._losses.items()):
            if key not in told:
                print(f"shard {key!r}: {loss}")
        of = self._lines[CURATED.asset].partitions if self._of_nothing else 0
        left_out = self._left_out.values()
        first = [name for found in left_out for name in found["first"]]
        for line in (
            *empty_shards_lines(sorted(self._of_nothing), of),
            *untaken_lines(self._untaken.values(), len(self._keys)),
            *left_out_lines(sum(found["count"] for found in left_out), first),
            *(f"{line}; see docs/accounting.md" for line in self._minority_types.values()),
        ):
            print(line)
        if self._lines:
            _print_table([_HEADER, *(line.row(name) for name, line in self._lines.items())])
        if self._expected:
            print(self._proof_line())
        figures = [f"raw shards: {locations}", f"shards failed: {len(self._failed)}"]
        if self.failed_steps:
            figures[-1] += f", and {counted(self.failed_steps, 'step')} as a whole (see above)"
        if self._of or not self._failed:  # else there is nothing of which anything could be lost
            others = " of the others" if self._failed else ""
            figures.append(f"members and items lost{others}: {_share_text(self.loss_share, self._of)}")
        # Checks of an unchanged shard are those of the run that made it.
        is_partial = any(line.unchanged for line in self._lines.values())
        named = ", ".join(f"{count} {name}" for name, count in sorted(self._failed_checks.items()) if count)
        notes = [f"{named}, see above"] if named else []
        notes += ["unchanged shards were not checked again"] if is_partial else []
        noted = f" ({'; '.join(notes)})" if notes else ""
        print("; ".join([*figures, f"checks failed: {self._failed_checks.total()}{noted}"]))
        if self.lossy:
            named = ", ".join(f"{key} {share:.0%}" for key, share in list(self.lossy.items())[:_NAMED])
            more = f" and {len(self.lossy) - _NAMED} more" if len(self.lossy) > _NAMED else ""
            print(f"lost more than MM_MAX_LOSS allows, {self._max_loss:.0%}: {named}{more}")

    def print_proof(self) -> None:
        """Print what is wrong, a table, and of how many shards every item was found."""
        self._print_problems()
        rows: list[tuple[str, ...]] = [_PROOF_HEADER]
        for asset, keys in self._expected.items():
            found = [self._proofs.get((key, asset)) for key in keys]
            counts = (len(keys), found.count(True), found.count(False), found.count(None))
            rows.append((asset, *map(str, counts), BY_ASSET[asset].folder))
        _print_table(rows)
        print(self._proof_line())

    def _print_problems(self) -> None:
        for problems in self._problems:
            for line in problems.lines:
                print(line)

    def _proof_line(self) -> str:
        unproven = self._unproven()
        proven = len(self._keys) - len(unproven)
        is_same = all(len(keys) == len(self._keys) for keys in self._expected.values())
        outputs = counted(len(self._expected), "output") if is_same else "the outputs that were made"
        if not unproven:
            return (
                f"proven: every item of {counted(proven, 'shard')} is in {outputs} as it was written "
                "(proof/proof.json)"
            )
        named = "; ".join(f"{key} {reason}" for key, reason in list(unproven.items())[:_NAMED])
        more = f"; and {len(unproven) - _NAMED} more" if len(unproven) > _NAMED else ""
        every = "all " if is_same and len(self._expected) > 1 else ""
        return (
            f"NOT PROVEN: {proven} of {counted(len(self._keys), 'shard')} in {every}{outputs}; "
            f"the others: {named}{more}"
        )

    def _unproven(self) -> dict[str, str]:
        """Return for each shard that is not proven to be in every output the reason."""
        unproven: dict[str, str] = {}
        for key in self._keys:
            assets = [asset for asset, keys in self._expected.items() if key in keys]
            if changed := [asset for asset in assets if self._proofs.get((key, asset)) is False]:
                unproven[key] = f"not as written in {', '.join(changed)}; the next run makes it again"
            elif (failed_in := self._failed.get(key)) is not None:
                unproven[key] = f"failed in {failed_in}"
            elif absent := [asset for asset in assets if (key, asset) not in self._proofs]:
                unproven[key] = f"not examined in {', '.join(absent)}"
        return unproven


def _loss(share: float, values: Mapping[str, Any]) -> str:
    """Return how much a shard lost and of what kind, by the metadata of its materialization."""
    kinds = [f"{count} {kind.replace('_', ' ')}" for kind, count in (values.get("quarantined") or {}).items()]
    if damaged := _number(values, "damaged_stretches"):
        kinds.append(counted(damaged, "damaged stretch", "damaged stretches"))
    for kind, what in _UNREFERENCED.items():
        if found := values.get(kind):
            first = [str(name) for name in found["first"][:_NAMED]]
            more = " …" if found["count"] > len(first) else ""
            kinds.append(f"{counted(found['count'], what)} ({', '.join(first)}{more})")
    lost = f"{share:.1%}" if share >= _SMALL else _share_text(share, float(str(values[LOSS_SHARE_OF])))
    return f"lost {lost} of its members and items" + (f": {'; '.join(kinds)}" if kinds else "")


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table: names first, places last, numbers in between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        name, *numbers, place = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([name.strip().ljust(len(name)), *numbers, place.strip()]).rstrip())


def _folder(uri: str) -> str:
    """The folder of an output, or the table that it shares with all others."""
    found = format_by_suffix(uri)
    return uri if found is not None and found.is_table else uri.rpartition("/")[0]


def _total(values: Mapping[str, Any], name: str) -> int:
    return sum((values.get(name) or {}).values())


_SMALL = 0.001  # share that is told as a number, too


def _share_text(share: float, of: float) -> str:
    """Return a share of so many in percent: 0% is none at all. A damaged stretch counts by its bytes."""
    if 0 < share < _SMALL:
        return f"{100 * share:.1g}%, {math.ceil(share * of - 1e-6):,} of {of:,.0f}"
    return f"{share:.1%}" if 0 < share < 0.01 else f"{share:.0%}"


def _number(values: Mapping[str, Any], name: str) -> int:
    return int(values.get(name) or 0)
