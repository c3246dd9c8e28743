"""What is in an input and not in its output: each item, with what took it and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

Outcome = Literal["filtered", "quarantined", "unreferenced"]


@dataclass(frozen=True)
class Loss:
    """One item that does not reach the output.

    ``filtered``: a filter (``kind``) took it out, ``score`` is what it measured, ``threshold`` what it asked
    for. ``quarantined``: a fault of the class ``kind`` (see `mm_assets.interleaved.faults`). A json that
    cannot be decoded counts as one item, its metadata row; ``sample_id`` is then the member's key. A damaged
    range of a file holds an unknown number of samples: it is recorded once, with neither position nor
    modality, and no item is counted (`is_item`). ``unreferenced``: a member of a tar that no sample names; no
    item either.

    ``is_cause`` is False for a sound item that went along with its sample. ``source_ref`` locates the bytes,
    as in the column.
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
        """Whether this is an item that was counted among those read."""
        return self.position is not None


def with_source_refs(losses: Sequence[Loss], rows: pa.Table) -> list[Loss]:
    """The losses with the ``source_ref`` of their rows, one row each, in the same order."""
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
