"""Findings about one shard that was just written, as the outcome of its asset checks."""

from __future__ import annotations

from mm_assets.formats.writer import PartitionReport
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA
from mm_assets.io_managers.shards import Check

SCHEMA_ALIGNMENT = "schema_alignment"
MATERIALIZATION_ERRORS = "materialization_errors"
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
    metadata = {"columns": len(report.schema), "problems": {"json": problems}}
    return Check(SCHEMA_ALIGNMENT, not problems, "ERROR", metadata)


def materialization_errors(report: PartitionReport, policy: str) -> Check:
    """No item carries an error. Under ``error`` a single one fails the shard; the other policies let it pass with a warning."""
    listed = [
        {"sample_id": e.sample_id, "position": e.position, "message": e.message, "outcome": e.outcome}
        for e in report.errors[:_LISTED]
    ]
    metadata = {
        "policy": policy,
        "items_with_errors": len(report.errors),
        "rows_dropped": report.policy_dropped_rows,
        "first": {"json": listed},
    }
    return Check(MATERIALIZATION_ERRORS, not report.errors, "ERROR" if policy == "error" else "WARN", metadata)
