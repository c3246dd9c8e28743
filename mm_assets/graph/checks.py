"""Checks of shards: the functions of those that workers run, and checks that are a step of their own.

* `INGEST_CHECKS`, `ROW_CHECKS`, `SCORE_CHECKS` and `QUARANTINE_CHECKS` go with the plan of an asset. Workers
  run them on each shard before they publish it.
* `specs_by_shard` and `report_shards` are for asset checks that run as a step of their own, with one
  evaluation per shard and one over all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from mm_assets.accounting import Balance
from mm_assets.filters.readable import DimensionTally
from mm_assets.graph import Check, ShardCheck, WrittenShard
from mm_assets.model.errors import DECOMPRESSION_BOMB, UNDECODABLE_IMAGE, counted
from mm_assets.model.losses import ItemError
from mm_assets.model.schema import INTERLEAVED_SCHEMA

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
    """Check that nothing of the shard is in quarantine."""
    kinds = dict(Counter(records.column("kind").to_pylist()))
    summary = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    metadata = {"records": len(records), "kinds": {"json": kinds}, "summary": summary}
    return Check(EMPTY, not len(records), "WARN", metadata)


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
