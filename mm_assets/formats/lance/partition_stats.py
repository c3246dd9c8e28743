"""What a table holds of each partition."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.formats.lance.partitions import PartitionRecord
from mm_assets.formats.lance.snapshot import Snapshot


@dataclass(frozen=True)
class LancePartitionStats:
    """One partition of one version of a table.

    ``rows`` and ``nbytes`` (of data files) are as written, ``version`` is the commit's (None when its process
    died before it could say). ``fragment_ids`` name fragments that hold all of the partition's rows and no
    others; they are empty when there are no such fragments: compaction merged or rewrote some, or rows were
    deleted by hand. ``is_whole`` tells the latter: whether all rows are there, in whichever fragments.
    """

    partition: str
    rows: int
    samples: int
    nbytes: int
    digest: str
    set_id: str
    version: int | None
    fragment_ids: tuple[int, ...]
    is_whole: bool


def stats_of(live: PartitionRecord, snapshot: Snapshot) -> LancePartitionStats:
    """The facts of a partition whose rows ``live`` stands for."""
    # A part of the fragments would make a reader that follows them lose the rest of the rows.
    complete = snapshot.present_rows(live) == live.rows
    return LancePartitionStats(
        partition=live.partition,
        rows=live.rows,
        samples=live.samples,
        nbytes=live.nbytes,
        digest=live.digest,
        set_id=live.set_id,
        version=live.version,
        fragment_ids=tuple(snapshot.fragment_ids(live)) if complete else (),
        is_whole=complete or snapshot.is_whole(live),
    )
