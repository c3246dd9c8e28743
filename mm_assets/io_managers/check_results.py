"""Findings about one shard that was just written, as the outcome of its asset checks."""

from __future__ import annotations

from collections.abc import Sequence

from mm_assets.accounting.ledger import Balance
from mm_assets.formats.writer import PartitionReport
from mm_assets.interleaved.faults import DECOMPRESSION_BOMB, UNDECODABLE_IMAGE
from mm_assets.interleaved.policies import ItemError
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA
from mm_assets.io_managers.shards import Check

SCHEMA_ALIGNMENT = "schema_alignment"
MATERIALIZATION_ERRORS = "materialization_errors"
LEDGER_BALANCE = "ledger_balance"
IMAGES_DECODE = "images_decode"
_LISTED = 20


def schema_alignment(report: PartitionReport) -> Check:
    """Reserved columns first, in canonical order, with canonical types; nothing left out on the way."""
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


def materialization_errors(report: PartitionReport, policy: str) -> Check:
    """No item carries an error.

    Under ``error`` a single one fails the shard; the other policies let it pass with a warning.
    """
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


def ledger_balance(balance: Balance) -> Check:
    """Items in = out + filtered + quarantined; where the input's digest is known, also the rows themselves,
    modulo order.

    An input that does not say how many items it holds leaves nothing to balance; ours all say it.
    """
    metadata = {
        "items_in": -1 if balance.items_in is None else balance.items_in,
        "items_out": balance.items_out,
        "filtered": {"json": dict(balance.filtered)},
        "quarantined": {"json": dict(balance.quarantined)},
        "unaccounted": balance.difference or 0,
        "summary": f"{balance.difference} items unaccounted for" if balance.difference else "",
        "digests": {None: "not compared", True: "equal", False: "differ"}[balance.digests_agree],
    }
    passed = balance.is_balanced is not False and balance.digests_agree is not False
    return Check(LEDGER_BALANCE, passed, "ERROR", metadata)


def images_decode(report: PartitionReport) -> Check:
    """Every image that was looked into could be read; a sample of them was decoded to the last pixel."""
    bad = [error for error in report.errors if error.kind in (UNDECODABLE_IMAGE, DECOMPRESSION_BOMB)]
    listed = [{"sample_id": e.sample_id, "position": e.position, "message": e.message} for e in bad[:_LISTED]]
    metadata = {
        "images_checked": report.counts.get("images_checked", 0),
        "images_decoded": report.counts.get("images_decoded", 0),
        "unreadable": len(bad),
        "first": {"json": listed},
        "summary": _first(bad),
    }
    return Check(IMAGES_DECODE, not bad, "WARN", metadata)
