"""Find the items that two datasets do not share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mm_assets.accounting.canonical.derived import Derived
from mm_assets.accounting.canonical.source import CanonicalSource
from mm_assets.accounting.comparison.dataset import Dataset
from mm_assets.accounting.comparison.row_differences import (
    Difference,
    Names,
    pair_differences,
    rows_at,
    unpaired_difference,
)
from mm_assets.accounting.comparison.row_index import RowIndex, row_key

LISTED = 20

Item = tuple[str | None, int | None, str | None]  # sample id, position, modality


@dataclass(frozen=True)
class Comparison:
    """What two datasets hold, the first differences (all, unless ``is_cut``), and how many items differ.

    The digests of the two may differ where no item does: when their columns have different types because
    of other rows.
    """

    left: Derived
    right: Derived
    differences: tuple[Difference, ...] = ()
    items: int = 0
    is_cut: bool = False

    @property
    def is_equal(self) -> bool:
        return self.items == 0


def compare(
    left: CanonicalSource | Dataset,
    right: CanonicalSource | Dataset,
    lost: Iterable[Item] = (),
    names: Names = ("A", "B"),
) -> Comparison:
    """Whether both hold the same items. ``names`` are what the two are called in differences, of which at
    most `LISTED` are described.

    The order of items does not count, nor does a column without values. An item is the same when its columns
    are, each in its own type. Where a side is not free in its types (`CanonicalSource.states_types`), an item is also
    the same in the types that columns have in the whole of its dataset: a shard's integers may be floats in
    the Lance table of all shards. What is compared with one partition of a Lance table is taken in the types
    of that, too. ``lost`` are items of the left that are known not to be on the right, as often as they are
    named. Raises as `CanonicalSource.tables` does.

    Both are read once. Only if their digests differ, or items are lost, they are read once more, and the
    places that differ once again.
    """
    first, second = _datasets(left, right)
    normalized = not all(place.states_types() for place in (*first.places, *second.places))
    forgiven = Counter(row_key(*item) for item in lost if None not in item)  # type: ignore[arg-type]
    if not forgiven and (
        first.stats_as_stored.digest == second.stats_as_stored.digest
        or (normalized and first.stats.digest == second.stats.digest)
    ):
        return Comparison(first.stats, second.stats)
    indexes = first.index(), second.index()
    rows = [found.tolist() for found in indexes[0].without_partner(indexes[1], normalized)]
    by_key = _by_key(indexes, rows, forgiven)
    listed = dict(list(by_key.items())[:LISTED])
    found = [
        rows_at(dataset, [row for pair in listed.values() for row in pair[side]])
        for side, dataset in enumerate((first, second))
    ]
    types = (first.stats.schema, second.stats.schema) if normalized else None
    differences: list[Difference] = []
    for key, (mine, others) in listed.items():
        for row, other in zip(mine, others, strict=False):
            differences += pair_differences(found[0][row], found[1][other], types, names)
        if len(mine) != len(others):
            row = found[0][mine[0]] if mine else found[1][others[0]]
            differences.append(
                unpaired_difference(row, (indexes[0].count(key), indexes[1].count(key)), names)
            )
    is_cut = len(by_key) > len(listed) or len(differences) > LISTED
    return Comparison(first.stats, second.stats, tuple(differences[:LISTED]), len(by_key), is_cut)


def _datasets(left: CanonicalSource | Dataset, right: CanonicalSource | Dataset) -> tuple[Dataset, Dataset]:
    first, second = (
        Dataset([source]) if isinstance(source, CanonicalSource) else source for source in (left, right)
    )
    if isinstance(left, CanonicalSource) and isinstance(right, CanonicalSource):
        for source, mine, other in ((left, first, second), (right, second, first)):
            if source.is_part_of_table:
                other.typed_as = mine
    return first, second


def _by_key(
    indexes: tuple[RowIndex, RowIndex], rows: Sequence[list[int]], forgiven: Counter[bytes]
) -> dict[bytes, tuple[list[int], list[int]]]:
    """Rows without partner of the left and the right, by key, in the order of the left; those that are known
    to be lost are left out.
    """
    found: dict[bytes, tuple[list[int], list[int]]] = {}
    for side in (0, 1):
        for row in rows[side]:
            found.setdefault(indexes[side].key(row), ([], []))[side].append(row)
    for key in found.keys() & forgiven.keys():
        mine, others = found[key]
        known = min(forgiven[key], max(len(mine) - len(others), 0))
        found[key] = mine[: len(mine) - known], others
    return {key: pair for key, pair in found.items() if pair[0] or pair[1]}
