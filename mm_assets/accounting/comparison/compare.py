"""Comparison of two datasets: the items that they do not share."""

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
    """Result of a comparison: counts of both sides, the first differences, and how many items differ.

    The digests of the two sides may differ though no item does: when other rows gave their columns different
    types.

    Attributes:
        left: what the left dataset holds.
        right: what the right dataset holds.
        differences: the first ones, or all unless ``is_cut``.
        items: how many items differ.
        is_cut: there are more differences.
    """

    left: Derived
    right: Derived
    differences: tuple[Difference, ...] = ()
    items: int = 0
    is_cut: bool = False

    @property
    def is_equal(self) -> bool:
        """True if no item differs."""
        return self.items == 0


def compare(
    left: CanonicalSource | Dataset,
    right: CanonicalSource | Dataset,
    lost: Iterable[Item] = (),
    names: Names = ("A", "B"),
) -> Comparison:
    """Compare the items of two datasets.

    The order of items does not count, nor does a column without values, nor what a format calls the items of
    lists. Items are the same if their columns are, each in its own type. If a side's types were not chosen
    for its own rows (`CanonicalSource.states_types`), items are also the same if they agree in the column
    types of their whole datasets: a shard's integers may be floats in the Lance table of all shards. Data
    compared with one partition of a Lance table is also taken in the types of that table.

    Both sides are read once. They are read again only if their digests differ or items are lost, and the
    differing sources a third time.

    Args:
        left: a dataset or one source.
        right: a dataset or one source.
        lost: items of the left that are known to be missing on the right, as often as they are named.
        names: names of the two sides in differences; at most `LISTED` differences are described.

    Raises as `CanonicalSource.tables` does.
    """
    first, second = _datasets(left, right)
    lost = list(lost)
    normalized = not all(source.states_types() for source in (*first.sources, *second.sources))
    known_lost = Counter(row_key(*item) for item in lost if None not in item)  # type: ignore[arg-type]
    if not known_lost and (
        first.stats_as_stored.digest == second.stats_as_stored.digest
        or (normalized and first.stats.digest == second.stats.digest)
    ):
        return Comparison(first.stats, second.stats)
    if not first.plain_items and not (first.has_plain_items and second.has_plain_items):
        return compare(*_with_plain_items(first, second), lost, names)
    indexes = first.index(), second.index()
    rows = [found.tolist() for found in indexes[0].without_partner(indexes[1], normalized)]
    by_key = _by_key(indexes, rows, known_lost)
    listed = dict(list(by_key.items())[:LISTED])
    found = [
        rows_at(dataset, [row for pair in listed.values() for row in pair[side]])
        for side, dataset in enumerate((first, second))
    ]
    types = (first.stats.schema, second.stats.schema) if normalized else None
    differences: list[Difference] = []
    for key, (left_rows, right_rows) in listed.items():
        for row, other in zip(left_rows, right_rows, strict=False):
            differences += pair_differences(found[0][row], found[1][other], types, names)
        if len(left_rows) != len(right_rows):
            row = found[0][left_rows[0]] if left_rows else found[1][right_rows[0]]
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


def _with_plain_items(first: Dataset, second: Dataset) -> tuple[Dataset, Dataset]:
    pair = Dataset(first.sources, plain_items=True), Dataset(second.sources, plain_items=True)
    for dataset, plain, other in ((first, *pair), (second, *pair[::-1])):
        if dataset.typed_as is not None:
            plain.typed_as = other
    return pair


def _by_key(
    indexes: tuple[RowIndex, RowIndex], rows: Sequence[list[int]], known_lost: Counter[bytes]
) -> dict[bytes, tuple[list[int], list[int]]]:
    """Return rows without a partner by key, left and right, except known losses, in the order of the left."""
    found: dict[bytes, tuple[list[int], list[int]]] = {}
    for side in (0, 1):
        for row in rows[side]:
            found.setdefault(indexes[side].key(row), ([], []))[side].append(row)
    for key in found.keys() & known_lost.keys():
        left_rows, right_rows = found[key]
        lost = min(known_lost[key], max(len(left_rows) - len(right_rows), 0))
        found[key] = left_rows[: len(left_rows) - lost], right_rows
    return {key: pair for key, pair in found.items() if pair[0] or pair[1]}
