"""Policies for items with an error, that is, for rows that carry a ``materialize_error``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.interleaved.faults import FETCH_FAILED, INCOMPLETE_SAMPLE, Fault, fault_of
from mm_assets.interleaved.losses import Loss, with_source_refs
from mm_assets.interleaved.notices import warn_user

__all__ = ["MaterializeError"]

MaterializeErrorPolicy = Literal["error", "warn", "drop_row", "drop_sample"]
POLICIES: tuple[str, ...] = get_args(MaterializeErrorPolicy)


class MaterializeError(MmAssetsError, ValueError):
    """An item could not be fetched and the policy is ``error``.

    The message names file, sample, position and reason. ``kind`` is the class of the first item's fault.
    """

    def __init__(self, message: str, kind: str = FETCH_FAILED) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class ItemError:
    """One row that carries an error: the class of its fault, the message, and the outcome.

    ``outcome`` is ``kept``, ``row dropped`` or ``sample dropped``.
    """

    sample_id: str
    position: int
    modality: str
    kind: str
    message: str
    outcome: str


@dataclass(frozen=True)
class PolicyOutcome:
    """Rows that stay, all errors met, dropped rows, and one loss per dropped row in the same order."""

    table: pa.Table
    errors: tuple[ItemError, ...] = ()
    dropped: pa.Table | None = None
    losses: tuple[Loss, ...] = ()


def check_policy(policy: str) -> MaterializeErrorPolicy:
    """Return the policy itself.

    Raises:
        ValueError: It is none of the four that exist; the message lists them.
    """
    if policy not in POLICIES:
        raise ValueError(f"on_materialize_error must be one of {', '.join(POLICIES)}, not {policy!r}")
    return policy  # type: ignore[return-value]


def with_errors(table: pa.Table, errors: Mapping[int, Fault | str]) -> pa.Table:
    """Return the table with ``materialize_error`` set by row number: a fault's message, or a given text."""
    if not errors:
        return table
    index = table.schema.get_field_index("materialize_error")
    values = table.column(index).to_pylist()
    for row, error in errors.items():
        values[row] = error.message if isinstance(error, Fault) else error
    field = table.schema.field(index)
    return table.set_column(index, field, pa.array(values, field.type))


def apply_policy(table: pa.Table, policy: MaterializeErrorPolicy, source: str = "") -> PolicyOutcome:
    """Apply a policy to the errors that rows carry, from whatever stage.

    Args:
        table: Rows with the column ``materialize_error``.
        policy: ``error``, ``warn``, ``drop_row`` or ``drop_sample``.
        source: Name of the input, for messages.

    Raises:
        MaterializeError: The policy is ``error`` and a row carries an error.
    """
    column = table.column("materialize_error")
    if column.null_count == table.num_rows:
        return PolicyOutcome(table)
    failed = pc.is_valid(column)
    outcome = {"drop_row": "row dropped", "drop_sample": "sample dropped"}.get(policy, "kept")
    errors = tuple(
        ItemError(sample_id, position, modality, fault_of(message), message, outcome)
        for sample_id, position, modality, message in _rows(table.filter(failed))
    )
    if policy == "error":
        raise MaterializeError(f"{_describe(errors[0], source)}{_and_more(len(errors))}", errors[0].kind)
    if policy == "warn":
        for error in errors:
            warn_user(_describe(error, source))
        return PolicyOutcome(table, errors)
    if policy == "drop_sample":
        bad_samples = pc.unique(table.column("sample_id").filter(failed))
        failed = pc.is_in(table.column("sample_id"), bad_samples)
    dropped = table.filter(failed)
    return PolicyOutcome(table.filter(pc.invert(failed)), errors, dropped, _losses(dropped, errors))


def _losses(dropped: pa.Table, errors: tuple[ItemError, ...]) -> tuple[Loss, ...]:
    faults = iter(errors)  # those of these rows, in order
    first: dict[str, ItemError] = {}
    for error in errors:
        first.setdefault(error.sample_id, error)
    losses = []
    for sample_id, position, modality, message in _rows(dropped):
        is_cause = message is not None
        if is_cause:
            kind, reason = next(faults).kind, message
        else:
            cause = first[sample_id]
            kind = INCOMPLETE_SAMPLE
            reason = f"its sample has an error at position {cause.position}: {cause.message}"
        losses.append(Loss(sample_id, position, modality, "quarantined", kind, reason, is_cause=is_cause))
    return tuple(with_source_refs(losses, dropped))


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    columns = ("sample_id", "position", "modality", "materialize_error")
    return zip(*(table.column(name).to_pylist() for name in columns), strict=True)


def _describe(error: ItemError, source: str) -> str:
    prefix = f"{source}: " if source else ""
    return f"{prefix}sample {error.sample_id!r}, position {error.position}: {error.message}"


def _and_more(count: int) -> str:
    return f" (and {count - 1} more items with errors)" if count > 1 else ""
