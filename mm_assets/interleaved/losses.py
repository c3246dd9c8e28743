"""Records of losses: each item of an input that is not in its output, or flagged there, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

Outcome = Literal["filtered", "flagged", "quarantined", "unreferenced"]


@dataclass(frozen=True)
class Loss:
    """One item that does not reach the output, or reaches it with a flag.

    ``outcome`` says what became of it:

    * ``filtered``: the filter ``kind`` removed it; ``score`` is the measured value, ``threshold`` the
      required one.
    * ``flagged``: the filter ``kind`` refused it, but is set to keep what it refuses. It is in the output,
      and no lost item (`is_item`). A flagged sample is recorded once, with its first row.
    * ``quarantined``: a fault of the class ``kind`` (see `mm_assets.interleaved.faults`). A json that cannot
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

    @property
    def is_item(self) -> bool:
        """True if this is an item that was counted as read, and is not in the output."""
        return self.position is not None and self.outcome != "flagged"


def with_source_refs(losses: Sequence[Loss], rows: pa.Table) -> list[Loss]:
    """Return the losses with the ``source_ref`` of their rows.

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
        loss if ref is None else replace(loss, source_ref=ref) for loss, ref in zip(losses, refs, strict=True)
    ]
