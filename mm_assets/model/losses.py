"""Losses and error policies: what becomes of items with an error, and the record of each.

* A `Loss` records one item of an input that is not in its output, or flagged there, with the reason.
* Policies decide on rows that carry a ``materialize_error``, whatever stage it comes from: `apply_policy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.model.errors import (
    ERASED,
    FETCH_FAILED,
    INCOMPLETE_SAMPLE,
    Fault,
    MmAssetsError,
    fault_of,
    warn_user,
)

__all__ = ["MaterializeError"]


Outcome = Literal["filtered", "flagged", "quarantined", "unreferenced"]


@dataclass(frozen=True)
class Loss:
    """One item that does not reach the output, or reaches it with a flag.

    ``outcome`` says what became of it:

    * ``filtered``: the filter ``kind`` removed it; ``score`` is the measured value, ``threshold`` the
      required one.
    * ``flagged``: the filter ``kind`` refused it, but is set to keep what it refuses. It is in the output,
      and no lost item (`is_item`). A flagged sample is recorded once, with its first row.
    * ``quarantined``: a fault of the class ``kind`` (see `mm_assets.model.errors`). A json that cannot
      be decoded counts as one item, its metadata row; ``sample_id`` is then the member's key. A damaged range
      of a file holds an unknown number of samples: it is recorded once, without position and modality, and
      counts as no item (`is_item`).
    * ``unreferenced``: a member of a tar that no sample references; no item either.

    ``is_cause`` is False for a sound item that was lost with the rest of its sample. ``source_ref`` locates
    the bytes, as in the column of that name.
    """

    sample_id: str | None
    position: int | None
    modality: str | None
    outcome: Outcome
    kind: str
    reason: str
    score: float | None = None
    threshold: str | None = None
    source_ref: str | None = None
    is_cause: bool = True

    @classmethod
    def quarantined(
        cls,
        sample_id: str | None,
        position: int | None,
        modality: str | None,
        kind: str,
        reason: str,
        source_ref: str | None = None,
        is_cause: bool = True,
    ) -> Loss:
        """Return the loss of an item for a fault of a class: its own, or that of another of its sample."""
        outcome: Outcome = "quarantined"
        return cls(sample_id, position, modality, outcome, kind, reason, None, None, source_ref, is_cause)

    @property
    def is_item(self) -> bool:
        """True if this is an item that was counted as read, and is not in the output."""
        return self.position is not None and self.outcome != "flagged"


def with_source_refs(losses: Sequence[Loss], rows: pa.Table) -> list[Loss]:
    """Return the losses with the ``source_ref`` of their rows; of what is erased nothing is located.

    Args:
        losses: One loss per row, in the same order.
        rows: The removed rows.

    Raises:
        ValueError: The numbers of losses and rows differ.
    """
    if len(losses) != rows.num_rows:
        raise ValueError(
            f"{len(losses)} losses for {rows.num_rows} removed rows: each removed item needs its reason"
        )
    if "source_ref" not in rows.column_names:
        return list(losses)
    refs = rows.column("source_ref").to_pylist()
    return [
        loss if ref is None or loss.kind == ERASED else replace(loss, source_ref=ref)
        for loss, ref in zip(losses, refs, strict=True)
    ]


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
        losses.append(Loss.quarantined(sample_id, position, modality, kind, reason, is_cause=is_cause))
    return tuple(with_source_refs(losses, dropped))


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    columns = ("sample_id", "position", "modality", "materialize_error")
    return zip(*(table.column(name).to_pylist() for name in columns), strict=True)


def _describe(error: ItemError, source: str) -> str:
    prefix = f"{source}: " if source else ""
    return f"{prefix}sample {error.sample_id!r}, position {error.position}: {error.message}"


def _and_more(count: int) -> str:
    return f" (and {count - 1} more items with errors)" if count > 1 else ""
