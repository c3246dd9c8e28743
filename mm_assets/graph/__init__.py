"""The graph in Dagster: assets, IO managers, resources. Here are messages between processes, and checks.

Messages between assets, IO managers and workers are small and picklable. They hold no data of shards, and
nothing of Dagster, which workers do not load.

asset body      ──► Plan(source, steps, side_inputs)   the same work for every shard
IO manager      ──► ShardJob                           that work for one shard, sent to a worker
worker          ──► ShardResult                        the outcome for one shard
next asset      ◄── ShardSet of Shard                  the published shards, each with its version

With them come the terms that all sides share: `ShardCheck` and the `WrittenShard` that it looks at (written,
not yet published).

The checks of shards are here, too. `INGEST_CHECKS`, `ROW_CHECKS`, `SCORE_CHECKS` and `QUARANTINE_CHECKS` go
with the plan of an asset: workers run them on each shard before they publish it.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from mm_assets.accounting import Balance
from mm_assets.filters.readable import DimensionTally
from mm_assets.formats.reports import PartitionReport
from mm_assets.model.errors import DECOMPRESSION_BOMB, DENIED, UNDECODABLE_IMAGE, counted
from mm_assets.model.losses import ItemError
from mm_assets.model.samples import LATER_FIELD, Example, InterleavedBatch, StepResult
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets.storage.errors import error_line

if TYPE_CHECKING:
    from mm_assets.accounting.accounts import WrittenAccount

# Metadata of a shard that was made from a raw one: the lost share of its members and items, and their
# number.
LOSS_SHARE = "loss_share"
LOSS_SHARE_OF = "loss_share_of"


INPUT_MISSING = "input missing: "  # the error of a shard begins so, if it failed for nothing else
NO_RAW_SHARD = "no such raw shard"


@dataclass(frozen=True)
class Shard:
    """One shard of an asset as it was last published.

    Args:
        version: its data version.
        pointer: storage id of the event that logged the version; None outside of the event log.
    """

    key: str
    uri: str
    version: str
    pointer: int | None = None


@dataclass(frozen=True)
class ShardSet:
    """The shards of an asset that a step may use: a handle without data, iterable in the order of the keys.

    Args:
        absent: the reason for each further requested key that is missing.
    """

    asset: str
    shards: tuple[Shard, ...] = ()
    absent: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __iter__(self) -> Iterator[Shard]:
        return iter(self.shards)

    def __len__(self) -> int:
        return len(self.shards)

    def by_key(self) -> dict[str, Shard]:
        return {shard.key: shard for shard in self.shards}

    def why_absent(self, key: str) -> str:
        """Return one line for the user about a key that is not in `shards`; it names the first asset without.

        What failed for a missing input of its own has the reason of that.
        """
        reason = self.absent.get(key, "not among its partitions")
        if INPUT_MISSING in reason:
            return reason.partition(INPUT_MISSING)[2]
        return f"shard {key!r} of {self.asset}: {reason}"


SEVERITIES = ("ERROR", "WARN")


@dataclass(frozen=True)
class Check:
    """Outcome of one declared check on one shard.

    Args:
        severity: "ERROR" or "WARN".
        metadata: plain values, as in `ShardResult`.
    """

    name: str
    passed: bool
    severity: str = "ERROR"
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(
                f"check {self.name!r}: severity is {' or '.join(SEVERITIES)}, not {self.severity!r}"
            )


@dataclass(frozen=True)
class ShardCheck:
    """A check that workers run on every shard before they publish it.

    Args:
        function: a function of a module. It gets what the asset's IO manager provides for a shard (rows: a
            `WrittenShard`) and returns the outcome.
        blocking: whether a failure with ERROR keeps its shard, and only that, from being published.
        step: gets each batch that is about to be written, and changes nothing. Its counts and examples are in
            what `function` gets.
        version: another one has every shard checked again.
    """

    name: str
    function: Callable[[Any], Check]
    blocking: bool = False
    description: str | None = None
    step: Callable[[Any], Any] | None = None
    version: str = ""

    def outcome(self, shown: Any) -> Check:
        """Return the outcome on one shard.

        Raises:
            ValueError: in one line that names check and module, when the function fails or returns something
                else than an outcome of this check.
        """
        try:
            found = self.function(shown)
        except Exception as error:
            raise self.fault(error) from error
        if not isinstance(found, Check) or found.name != self.name:
            raise ValueError(f"{self._name()} returned {found!r}, no outcome of {self.name!r}")
        return found

    def fault(self, error: Exception) -> ValueError:
        """Return the error to raise for one in the code of the check."""
        return ValueError(f"{self._name()}: {error_line(error)}")

    def _name(self) -> str:
        return f"check {self.name!r} of {self.function.__module__}"


@dataclass(frozen=True)
class Plan:
    """The return value of an asset's body: take each shard of `source` through `steps`.

    Args:
        steps: picklable frozen dataclasses.
        side_inputs: further inputs (image scores, for instance) whose shards have the same keys. The same
            shard of each is at hand.
        checks: checks of the asset; `sharded` adds them.
        unread: upstream assets of which these steps read nothing. Events name them all the same, or Dagster
            would take the shards for outdated. What is missing or changes there makes nothing stale.
        foreseen: steps of later assets, which must fit the columns of the shards before any is made.
    """

    source: ShardSet
    steps: tuple[Any, ...] = ()
    side_inputs: Mapping[str, ShardSet] = dataclasses.field(default_factory=dict)
    checks: tuple[ShardCheck, ...] = ()
    unread: tuple[ShardSet, ...] = ()
    foreseen: tuple[Any, ...] = ()

    def digest(self) -> str:
        """Return a digest of the steps, equal in every process.

        It changes if and only if a step's class name, a field, or a version, of a step's class or a check,
        changes.

        Raises:
            TypeError: for a step that has no such digest (no dataclass, or a field that is an arbitrary
                object).
        """
        for step in self.steps:
            if not dataclasses.is_dataclass(step) or isinstance(step, type):
                raise TypeError(f"a step must be an instance of a frozen dataclass, not {step!r}")
        versions = {check.name: check.version for check in self.checks if check.version}
        return digest([self.steps, versions] if versions else self.steps)


@dataclass(frozen=True)
class ShardJob:
    """Everything a worker needs for one shard.

    It reads `shard` and `side_inputs`, applies `steps`, and publishes the output in one step.

    Args:
        dest: URI of the output.
        options: options of the IO manager (compression, error policy …) and what `resolve_jobs` added for
            this shard.
        blocking: names of the checks that forbid to publish when they fail with severity ERROR. The worker
            then leaves what is at `dest` alone and returns `ok=False`.
        asset: the asset that is made.
        root: where outputs and accounts are stored.
        checks: checks to run before the shard is published.
    """

    shard: Shard
    dest: str
    side_inputs: Mapping[str, Shard] = dataclasses.field(default_factory=dict)
    steps: tuple[Any, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    blocking: frozenset[str] = frozenset()
    asset: str = ""
    root: str = ""
    checks: tuple[ShardCheck, ...] = ()

    @property
    def key(self) -> str:
        return self.shard.key


@dataclass(frozen=True)
class ShardResult:
    """The result of a `ShardJob`.

    Args:
        version: a digest of the content: equal bytes leave everything downstream unchanged.
        metadata: plain values by name: int, float, bool, str, or one of `{"md": text}`, `{"json": value}`,
            `{"table_schema": [[name, type], …]}`, `{"path": text}`, `{"url": text}`.
        error: one line, only if not `ok`.
        detail: more about the error (a traceback).
        payload: passed to `publish_chunk` and nowhere else.
        account: plain values that a later proof needs; kept in the shard's record and shown nowhere.
        rows: rows of the shard's account (`account_table`); None for an asset without items of its own.
        written: the account, once it is written; `account` and `rows` are empty then.
    """

    key: str
    ok: bool
    uri: str = ""
    version: str = ""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    error: str | None = None
    detail: str = ""
    payload: Any = None
    account: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rows: pa.Table | None = None
    written: WrittenAccount | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for another process, the rows in Arrow's own form: ten times as quick to read."""
        if self.rows is None:
            return vars(self)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.rows.schema) as writer:
            writer.write_table(self.rows)
        return {**vars(self), "rows": sink.getvalue().to_pybytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state["rows"]
        options = pa.ipc.IpcReadOptions(use_threads=False)  # fork-safe
        rows = None if packed is None else pa.ipc.open_stream(packed, options=options).read_all()
        vars(self).update(state | {"rows": rows})


def blocked_by(checks: Sequence[Check], blocking: frozenset[str]) -> str | None:
    """Return why these outcomes forbid to publish the shard, or None."""
    bad = [c.name for c in checks if c.name in blocking and not c.passed and c.severity == "ERROR"]
    return f"blocking check failed: {', '.join(bad)}" if bad else None


def digest(value: Any) -> str:
    """Return a stable digest of plain values, enums, dataclasses and containers of them.

    Raises:
        TypeError: for anything else.
    """
    text = json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def fingerprint_name(class_: type) -> str:
    """Return the name of a class in fingerprints: the ``fingerprint_name`` that it states, else its own name.

    A class that is renamed states its former name, so that nothing is made again.
    """
    return str(class_.__dict__.get("fingerprint_name", class_.__qualname__))


def _canonical(value: Any) -> Any:
    """Return JSON that distinguishes what Python distinguishes.

    Tuples stay equal to lists, but 1, 1.0, "1" and True differ. What does not count when dataclasses are
    compared is left out.
    """
    if isinstance(value, enum.Enum):
        return {"enum": [fingerprint_name(type(value)), value.name]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, PurePath):
        return {"path": str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare}
        later = {f.name for f in dataclasses.fields(value) if f.metadata.get(LATER_FIELD)}
        fields = {n: _canonical(v) for n, v in given.items() if v is not None or n not in later}
        version = getattr(type(value), "version", "")  # of a filter; most have none
        return {"class": fingerprint_name(type(value)), "fields": fields} | (
            {"version": version} if version and "version" not in fields else {}
        )
    if isinstance(value, Mapping):
        return {"map": sorted(([_canonical(k), _canonical(v)] for k, v in value.items()), key=repr)}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted((_canonical(v) for v in value), key=repr)}
    if isinstance(value, (list, tuple)):
        return [_canonical(v) for v in value]
    raise TypeError(f"no stable digest of a {type(value).__qualname__}: {value!r}")


Value = TypeVar("Value")


@dataclass(frozen=True)
class WrittenShard:
    """A shard whose rows are written, but not yet published.

    Args:
        policy: the error policy. A step of a check also sees the items with an error, which the policy then
            removes.
        counts: counts of the asset's steps and of the check's own step, which wins where names are equal.
        examples: examples of the same steps; `listed` makes metadata of them.
    """

    report: PartitionReport
    balance: Balance
    policy: str
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    examples: Mapping[str, Sequence[Example]] = dataclasses.field(default_factory=dict)

    def shown_to(self, check: ShardCheck) -> WrittenShard:
        """Return the shard with the counts and examples of this check's step."""
        prefix = f"{check.name}: "

        def own_last(values: Mapping[str, Value]) -> dict[str, Value]:
            own = {
                name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)
            }
            return {name: value for name, value in values.items() if not name.startswith(prefix)} | own

        report = self.report
        return replace(self, counts=own_last(report.counts), examples=own_last(report.examples))

    def listed(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Return the examples of this name as metadata of a check."""
        return {"json": [vars(example) for example in self.examples.get(name, ())]}


@dataclass(frozen=True)
class CheckStep:
    """A check's step as a step of the shard.

    It changes no row. Its counts are prefixed with the check's name.
    """

    check: ShardCheck

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        assert self.check.step is not None
        try:
            found = self.check.step(batch)
        except Exception as error:
            raise self.check.fault(error) from error
        counts, examples = (
            {f"{self.check.name}: {name}": value for name, value in values.items()}
            for values in (found.counts, found.examples)
        )
        return StepResult(batch, counts=counts, examples=examples)


SCHEMA_ALIGNMENT = "schema_alignment"
MATERIALIZATION_ERRORS = "materialization_errors"
LEDGER_BALANCE = "ledger_balance"
IMAGES_DECODE = "images_decode"
DIMENSIONS_AGREE = "dimensions_agree"
EMPTY = "empty"
_LISTED = 20


class Balanced(Protocol):
    """A shard whose items in and out are known."""

    @property
    def balance(self) -> Balance: ...


@dataclass(frozen=True)
class ScoredShard:
    """A shard of image scores, as checks see it."""

    dimensions: DimensionTally
    balance: Balance


def schema_alignment(shard: WrittenShard) -> Check:
    """Check order and types of the reserved columns, and that no column was left out."""
    report = shard.report
    problems = []
    for index, field in enumerate(INTERLEAVED_SCHEMA):
        if field.name not in report.schema.names:
            problems.append(f"{field.name}: missing")
        elif report.schema.names[index] != field.name:
            problems.append(f"{field.name}: not column {index}")
        elif report.schema.field(field.name).type != field.type:
            problems.append(f"{field.name}: {report.schema.field(field.name).type} instead of {field.type}")
    problems.extend(f"{name}: left out by a strict schema" for name in report.dropped_columns)
    metadata = {
        "columns": len(report.schema),
        "problems": {"json": problems},
        "summary": "; ".join(problems[:3]),
    }
    return Check(SCHEMA_ALIGNMENT, not problems, "ERROR", metadata)


def materialization_errors(shard: WrittenShard) -> Check:
    """Check that no item carries an error.

    Under the policy ``error`` a single one fails the shard. Other policies publish it with a warning.
    """
    report, policy = shard.report, shard.policy
    listed = [
        {"sample_id": e.sample_id, "position": e.position, "message": e.message, "outcome": e.outcome}
        for e in report.errors[:_LISTED]
    ]
    metadata = {
        "policy": policy,
        "items_with_errors": len(report.errors),
        "summary": _first(report.errors),
        "rows_dropped": sum(loss.outcome == "quarantined" and loss.is_item for loss in report.losses),
        "first": {"json": listed},
    }
    return Check(
        MATERIALIZATION_ERRORS, not report.errors, "ERROR" if policy == "error" else "WARN", metadata
    )


def _first(errors: Sequence[ItemError]) -> str:
    if not errors:
        return ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"sample {errors[0].sample_id!r}, position {errors[0].position}: {errors[0].message}{more}"


def ledger_balance(shard: Balanced) -> Check:
    """Check that items in = out + filtered + quarantined, and that the rows have the digest of the input.

    Digests are compared modulo order, where that of the input is known. An input that does not say how many
    items it holds leaves nothing to balance; those of this project all say it.
    """
    balance = shard.balance
    metadata = {
        "items_in": -1 if balance.items_in is None else balance.items_in,
        "items_out": balance.items_out,
        "filtered": {"json": dict(balance.filtered)},
        "quarantined": {"json": dict(balance.quarantined)},
        "unaccounted": balance.difference or 0,
        "summary": f"{counted(balance.difference, 'item')} unaccounted for" if balance.difference else "",
        "digests": {None: "not compared", True: "equal", False: "differ"}[balance.digests_agree],
    }
    passed = balance.is_balanced is not False and balance.digests_agree is not False
    return Check(LEDGER_BALANCE, passed, "ERROR", metadata)


def images_decode(shard: WrittenShard) -> Check:
    """Check that every inspected image could be read; a sample of them was decoded in full."""
    bad = [error for error in shard.report.errors if error.kind in (UNDECODABLE_IMAGE, DECOMPRESSION_BOMB)]
    listed = [{"sample_id": e.sample_id, "position": e.position, "message": e.message} for e in bad[:_LISTED]]
    metadata = {
        "images_checked": shard.counts.get("images_checked", 0),
        "images_decoded": shard.counts.get("images_decoded", 0),
        "unreadable": len(bad),
        "first": {"json": listed},
        "summary": _first(bad),
    }
    return Check(IMAGES_DECODE, not bad, "WARN", metadata)


def dimensions_agree(shard: ScoredShard) -> Check:
    """Check that images have the size that their documents declare, where they declare one."""
    tally = shard.dimensions
    listed = [
        {
            "sample_id": m.sample_id,
            "position": m.position,
            "declared": list(m.declared),
            "measured": list(m.measured),
        }
        for m in tally.mismatches[:_LISTED]
    ]
    metadata = {
        "compared": tally.compared,
        "undeclared": tally.undeclared,
        "mismatches": len(tally.mismatches),
        "first": {"json": listed},
        "summary": f"{counted(len(tally.mismatches), 'image')} of other dimensions than declared"
        if tally.mismatches
        else "",
    }
    return Check(DIMENSIONS_AGREE, not tally.mismatches, "WARN", metadata)


def empty(records: pa.Table) -> Check:
    """Check that nothing of the shard is in quarantine, but for what is denied."""
    kinds = Counter(records.column("kind").to_pylist())
    faults = {kind: count for kind, count in kinds.items() if kind not in DENIED}
    summary = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    metadata = {"records": len(records), "kinds": {"json": dict(kinds)}, "summary": summary}
    return Check(EMPTY, not faults, "WARN", metadata)


BALANCE = ShardCheck(
    LEDGER_BALANCE,
    ledger_balance,
    blocking=True,
    description="Items in = out + filtered + quarantined, by count and by digest.",
)
ROW_CHECKS = (
    ShardCheck(
        SCHEMA_ALIGNMENT,
        schema_alignment,
        blocking=True,
        description="Reserved columns are canonical, no column was left out.",
    ),
    ShardCheck(
        MATERIALIZATION_ERRORS,
        materialization_errors,
        description="No item carries an error; what happens if one does is the policy's.",
    ),
    BALANCE,
)
"""The checks of every asset made of interleaved rows."""

INGEST_CHECKS = (
    *ROW_CHECKS,
    ShardCheck(
        IMAGES_DECODE,
        images_decode,
        description="Every image could be read; a sample was decoded in full.",
    ),
)
SCORE_CHECKS = (
    ShardCheck(
        DIMENSIONS_AGREE,
        dimensions_agree,
        description="Images have the dimensions that their documents declare.",
    ),
    BALANCE,
)
QUARANTINE_CHECKS = (ShardCheck(EMPTY, empty, description="Nothing of the shard is in quarantine."),)
