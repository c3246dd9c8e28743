"""Orphan rows and values: content of a table that was not committed with any partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mm_assets.formats.lance.ownership import Ownership
from mm_assets.formats.lance.partitions import PartitionRecord
from mm_assets.formats.lance.snapshot import Snapshot

_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class OrphanRows:
    """Rows of one sample in one fragment that belong to no partition.

    ``partition`` is the one that has the same sample id, or "".
    """

    sample_id: str
    fragment: int
    rows: int
    partition: str


def find_orphan_rows(
    snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]]
) -> list[OrphanRows]:
    """Return orphan rows: surplus rows in files that no record names, and duplicates from two commits.

    Files that no record names have surplus rows if they have more than partitions lack in their own files. A
    row with the sample id of a partition is an orphan if that partition has all of its rows in its own files.
    If it does not (after a compaction), the surplus row cannot be told from the others: `Snapshot.is_whole`
    is False then, and the partition must be committed again.
    """
    live = [record for entries in records.values() if (record := snapshot.live(entries)) is not None]
    ownership = Ownership(snapshot, records)
    duplicated = set(ownership.of_fragment) - {
        id_ for record in live for id_ in snapshot.fragment_ids(record)
    }
    unnamed = set(snapshot.fragments) - set(ownership.of_fragment)
    moved = sum(max(record.rows - snapshot.present_rows(record), 0) for record in live)
    if sum(snapshot.fragments[id_].num_rows for id_ in unnamed) == moved:
        unnamed = set()
    counts = Counter(_rows(snapshot, duplicated | unnamed))
    owners = ownership.owners({sample_id for sample_id, _ in counts})
    orphan_rows = []
    for (sample_id, fragment), rows in sorted(counts.items()):
        owner = owners.get(sample_id)
        if fragment in duplicated or owner is None or snapshot.present_rows(owner) == owner.rows:
            orphan_rows.append(
                OrphanRows(sample_id, fragment, rows, owner.partition if owner is not None else "")
            )
    return orphan_rows


def rows_by_fragment(orphan_rows: Iterable[OrphanRows]) -> dict[int, set[str]]:
    """Return fragment -> sample ids of its orphan rows."""
    found: dict[int, set[str]] = {}
    for orphan in orphan_rows:
        found.setdefault(orphan.fragment, set()).add(orphan.sample_id)
    return found


def partitions_with_values(
    snapshot: Snapshot,
    records: Mapping[str, Sequence[PartitionRecord]],
    columns: Iterable[str],
    among: Collection[str],
) -> set[str]:
    """Return those of the partitions in ``among`` that have a value in one of some columns.

    Files without the column are not read.
    """
    ownership = Ownership(snapshot, records)
    candidates = {
        id_: fragment
        for id_, fragment in snapshot.fragments.items()
        if ownership.of_fragment.get(id_, "") in {"", *among}
    }
    rows: set[tuple[str, int]] = set()
    for column in columns:
        ids = _ids_below(snapshot, column)
        relevant = [
            id_
            for id_, fragment in candidates.items()
            if any(ids & set(file.fields) for file in fragment.files)
        ]
        rows.update(_rows(snapshot, relevant, f"`{column}` IS NOT NULL"))
    return set(ownership.of_rows(rows).values()).intersection(among)


def _rows(
    snapshot: Snapshot, fragments: Collection[int], where: str | None = None
) -> Iterable[tuple[str, int]]:
    """Yield (sample id, fragment) of each row."""
    if not fragments:
        return
    scanner = snapshot.dataset.scanner(
        columns=["sample_id"],
        filter=where,
        fragments=[snapshot.fragment(id_) for id_ in sorted(fragments)],
        with_row_address=True,
        batch_size=_BATCH_ROWS,
    )
    for batch in scanner.to_batches():
        addresses = batch.column("_rowaddr").to_pylist()
        yield from zip(
            batch.column("sample_id").to_pylist(), (address >> 32 for address in addresses), strict=True
        )


def _ids_below(snapshot: Snapshot, column: str) -> set[int]:
    """Return the field ids of a column and all its children."""
    pending = [field for field in snapshot.dataset.lance_schema.fields() if field.name() == column]
    found: set[int] = set()
    while pending:
        field = pending.pop()
        found.add(field.id())
        pending.extend(field.children())
    return found
