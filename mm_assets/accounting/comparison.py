"""Comparison of two datasets of any formats: the items that they do not share, and what differs in them.

`compare` works in three steps, so that neither dataset has to fit into memory:

1. `Dataset` counts and digests all sources of a side as canonical readers see them, each column in one type.
   Equal digests end the comparison.
2. `RowIndex` finds the rows without a partner, in 48 bytes of memory per row.
3. Only these rows are compared column by column. A `Difference` has the column, and its value on each side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from mm_assets.accounting.canonical import CanonicalSource, Derived, DigestTally, changes, retyped
from mm_assets.model import json_codec
from mm_assets.model.digest import ContentDigest, row_digests
from mm_assets.model.json_codec import dumps, is_json, json_field
from mm_assets.model.nested_types import with_plain_items
from mm_assets.model.schema import unify_schemas

Rows = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_BYTES = 16


class RowIndex:
    """The key and the digests of every row, in reading order."""

    def __init__(self) -> None:
        self._keys = bytearray()
        self._digests = bytearray()
        self._normalized = bytearray()

    def add(self, table: pa.Table, digests: Iterable[int], normalized: Iterable[int]) -> None:
        """Add rows with their digests in their own types, and in those of the whole dataset."""
        columns = (table.column(name).to_pylist() for name in ("sample_id", "position", "modality"))
        self._keys += b"".join(map(row_key, *columns))
        self._digests += _packed(digests)
        self._normalized += _packed(normalized)

    def __len__(self) -> int:
        return len(self._keys) // _BYTES

    def key(self, row: int) -> bytes:
        """Return the key of a row."""
        return bytes(self._keys[row * _BYTES : (row + 1) * _BYTES])

    def count(self, key: bytes) -> int:
        """Return how many rows have this key."""
        return int((_words(self._keys) == np.frombuffer(key, np.uint64)).all(axis=1).sum())

    def without_partner(self, other: RowIndex, normalized: bool) -> tuple[Rows, Rows]:
        """Return the rows of this and the other index that remain when equal rows are paired off one by one.

        Rows are equal with the same key and digest; then, if ``normalized``, with the same key and digest in
        the types of their datasets.
        """
        left_rows, right_rows = np.arange(len(self)), np.arange(len(other))
        for name in ("_digests", "_normalized") if normalized else ("_digests",):
            left, right = (
                np.concatenate([_words(index._keys)[rows], _words(getattr(index, name))[rows]], axis=1)
                for index, rows in ((self, left_rows), (other, right_rows))
            )
            is_left, is_right = _unpaired(left, right)
            left_rows, right_rows = left_rows[is_left], right_rows[is_right]
        return left_rows, right_rows


def row_key(sample_id: str, position: int, modality: str) -> bytes:
    """Return 16 bytes that identify an item in its dataset."""
    return xxhash.xxh3_128_digest(f"{position}:{modality}:{sample_id}".encode())


def _unpaired(left: _Words, right: _Words) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return masks of the rows of each array for which the other has no equal row left."""
    both = np.concatenate([left, right])
    side = np.repeat([0, 1], [len(left), len(right)])
    order = np.lexsort((side, *both.T))
    both, side = both[order], side[order]
    starts = np.ones(len(both), bool)
    starts[1:] = (both[1:] != both[:-1]).any(axis=1)
    group = np.cumsum(starts) - 1
    counts = np.stack(
        [np.bincount(group[side == side_number], minlength=starts.sum()) for side_number in (0, 1)]
    )
    first = np.flatnonzero(starts)[group] + np.where(side == 1, counts[0][group], 0)
    rank = np.arange(len(both)) - first
    unpaired = np.empty(len(both), bool)
    unpaired[order] = rank >= counts.min(axis=0)[group]
    return unpaired[: len(left)], unpaired[len(left) :]


def _packed(digests: Iterable[int]) -> bytes:
    return b"".join(digest.to_bytes(_BYTES, "little") for digest in digests)


def _words(packed: bytearray) -> _Words:
    return np.frombuffer(packed, np.uint64).reshape(-1, 2)


class Dataset:
    """Rows in one source or several; read on first use, and again for each further question.

    ``typed_as`` is another dataset with the same columns in types that further rows widened: `stats` unifies
    the types with its own. With ``plain_items`` the items of lists are named alike, whatever they are called.
    """

    def __init__(self, sources: Sequence[CanonicalSource], plain_items: bool = False) -> None:
        self.sources = tuple(sources)
        self.typed_as: Dataset | None = None
        self.plain_items = plain_items

    @cached_property
    def stats_as_stored(self) -> Derived:
        """Counts and digest with each row in the types of its source."""
        digest = ContentDigest()
        for tally in self._tallies:
            digest = digest.plus(tally.digest)
        found = [tally.derived() for tally in self._tallies]
        rows, samples, images, texts = (
            sum(getattr(f, n) for f in found) for n in ("rows", "samples", "images", "texts")
        )
        schemas = [schema for tally in self._tallies for schema in tally.schemas]
        return Derived(
            rows,
            samples,
            images,
            texts,
            digest.hexdigest(),
            unify_schemas(schemas) if schemas else pa.schema([]),
        )

    @cached_property
    def stats(self) -> Derived:
        """Counts and digest with each column in one type for the whole dataset."""
        schema = (
            self.stats_as_stored.schema
            if self.typed_as is None
            else unify_schemas([self.stats_as_stored.schema, self.typed_as.stats_as_stored.schema])
        )
        while True:
            digest = ContentDigest()
            for source, tally in zip(self.sources, self._tallies, strict=True):
                found = self._normalized_digest(source, tally, schema)
                if isinstance(found, str):
                    schema = _wider(schema, found)
                    break
                digest = digest.plus(found)
            else:
                return replace(self.stats_as_stored, digest=digest.hexdigest(), schema=schema)

    @property
    def states_types(self) -> bool:
        """True if columns have the types that were chosen for all rows of their source.

        Not so in the tar of a training set, whose samples keep the types of their sources.
        """
        if not all(source.states_types() for source in self.sources):
            return False
        of_several = [tally.schemas for tally in self._tallies if len(tally.schemas) > 1]
        return not any(changes(known, unify_schemas(found)) for found in of_several for known in found)

    @property
    def has_plain_items(self) -> bool:
        """True if the items of all lists are named as with ``plain_items``."""
        types = [field.type for tally in self._tallies for schema in tally.schemas for field in schema]
        return all(str(type_) == str(with_plain_items(type_)) for type_ in types)

    def index(self) -> RowIndex:
        """Return keys and digests of all rows, in the order of `tables`."""
        index = RowIndex()
        schema = self.stats.schema
        for table in self.tables():
            stored = row_digests(table)
            index.add(
                table,
                stored,
                row_digests(retyped(table, schema)) if changes(table.schema, schema) else stored,
            )
        return index

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows, source by source."""
        for source in self.sources:
            yield from self._tables_of(source)

    def _tables_of(self, source: CanonicalSource) -> Iterator[pa.Table]:
        return map(_with_plain_items, source.tables()) if self.plain_items else source.tables()

    @cached_property
    def _tallies(self) -> list[DigestTally]:
        tallies = []
        for source in self.sources:
            tally = DigestTally()
            for table in self._tables_of(source):
                tally.observe(table)
            tallies.append(tally)
        return tallies

    def _normalized_digest(
        self, source: CanonicalSource, tally: DigestTally, schema: pa.Schema
    ) -> ContentDigest | str:
        """Return the digest of a source in these types, or the name of a column whose values do not fit."""
        if not any(changes(known, schema) for known in tally.schemas):
            return tally.digest
        digest = ContentDigest()
        for table in self._tables_of(source):
            try:
                normalized = retyped(table, schema)
            except ValueError:
                return next(field.name for field in schema if not _fits(table, field))
            digest.observe(normalized)
        return digest


def _with_plain_items(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([field.with_type(with_plain_items(field.type)) for field in table.schema]))


def _fits(table: pa.Table, field: pa.Field) -> bool:
    try:
        retyped(table, pa.schema([field]))
    except ValueError:
        return False
    return True


def _wider(schema: pa.Schema, name: str) -> pa.Schema:
    """Return the schema with JSON text for this column, or without it if it is JSON text already.

    Without the column, each row keeps its own type.
    """
    index = schema.get_field_index(name)
    return schema.remove(index) if is_json(schema.field(index)) else schema.set(index, json_field(name))


Names = tuple[str, str]

_SHOWN = 60  # characters shown of a long value
_BEFORE = 20  # of these, characters before the first difference


@dataclass(frozen=True)
class Difference:
    """One column of an item, or (``column`` None) a whole item, that differs between two datasets."""

    sample_id: str
    position: int
    modality: str
    column: str | None
    what: str

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column!r}"
        return f"sample {self.sample_id!r}, position {self.position}{column}: {self.what}"


def rows_at(dataset: Dataset, rows: Iterable[int]) -> dict[int, pa.Table]:
    """Return single rows of a dataset by number in reading order, each as a table in its own types."""
    numbers = sorted(set(rows), reverse=True)
    found: dict[int, pa.Table] = {}
    start = 0
    tables = dataset.tables() if numbers else iter(())
    for table in tables:
        while numbers and numbers[-1] < start + table.num_rows:
            row = numbers.pop()
            found[row] = table.take([row - start])  # a copy: a slice would keep the whole table
        if not numbers:
            break
        start += table.num_rows
    return found


def pair_differences(
    left: pa.Table, right: pa.Table, normalized: tuple[pa.Schema, pa.Schema] | None, names: Names
) -> list[Difference]:
    """Return the columns of an item that differ.

    They differ in their own types and, if given, in ``normalized`` types: those of the two whole datasets.
    """
    columns = dict.fromkeys([*left.column_names, *right.column_names])
    differing = [name for name in columns if _value(left, name) != _value(right, name)]
    if normalized is not None:
        retyped_rows = retyped(left, normalized[0]), retyped(right, normalized[1])
        differing = [
            name for name in differing if _value(retyped_rows[0], name) != _value(retyped_rows[1], name)
        ]
    if not differing:
        return [_difference(left, None, f"its columns have other types in {names[0]} than in {names[1]}")]
    return [_difference(left, name, _described(left, right, name, names)) for name in differing]


def unpaired_difference(row: pa.Table, counts: tuple[int, int], names: Names) -> Difference:
    """Return the difference of an item that occurs more often in one dataset than in the other."""
    modality = row.column("modality")[0].as_py()
    if 0 in counts:
        return _difference(row, None, f"the {modality} row is missing in {names[counts.index(0)]}")
    times = (
        f"{count} time{'' if count == 1 else 's'} in {name}"
        for count, name in zip(counts, names, strict=True)
    )
    return _difference(row, None, f"the {modality} row occurs {', '.join(times)}")


def _difference(row: pa.Table, column: str | None, what: str) -> Difference:
    sample_id, position, modality = (
        row.column(name)[0].as_py() for name in ("sample_id", "position", "modality")
    )
    return Difference(sample_id, position, modality, column, what)


def _value(row: pa.Table, name: str) -> int | None:
    """Return a digest of one column's type and value; None for null or a missing column."""
    is_there = name in row.column_names and row.column(name).null_count == 0
    return row_digests(row.select([name]))[0] if is_there else None


def _described(left: pa.Table, right: pa.Table, name: str, names: Names) -> str:
    first, second = _cell(left, name), _cell(right, name)
    start = _common_length(first.value, second.value)
    described = f"{first.shown(start)} in {names[0]}, {second.shown(start)} in {names[1]}"
    if isinstance(first.value, bytes) and isinstance(second.value, bytes):
        return f"{described}, different from byte {start} on"
    return described


@dataclass(frozen=True)
class _Cell:
    """A value for display: bytes as their number, long text as the part around the first difference."""

    kind: str
    value: Any = None

    def shown(self, start: int) -> str:
        if isinstance(self.value, bytes):
            return f"{len(self.value)} bytes"
        if not isinstance(self.value, str):
            return self.kind if self.value is None else f"{self.kind} {dumps(self.value)}"
        if len(self.value) <= _SHOWN:
            return f"{self.kind} {self.value!r}"
        begin = max(start - _BEFORE, 0)
        part = self.value[begin : begin + _SHOWN]
        return f"{self.kind} {'…' if begin else ''}{part!r}{'…' if begin + _SHOWN < len(self.value) else ''}"


def _cell(row: pa.Table, name: str) -> _Cell:
    if name not in row.column_names:
        return _Cell("no such column")
    column, field = row.column(name), row.schema.field(name)
    if column.null_count:
        return _Cell("null")
    if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
        return _Cell("bytes", column[0].as_py())
    return _Cell("json" if is_json(field) else str(field.type), json_codec.encode(column, field)[0])


def _common_length(first: Any, second: Any) -> int:
    """Return how many leading characters or bytes two values share."""
    if type(first) is not type(second) or not isinstance(first, str | bytes):
        return 0
    shared = min(len(first), len(second))
    return next((index for index in range(shared) if first[index] != second[index]), shared)


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
    for its own rows (`Dataset.states_types`), items are also the same if they agree in the column types of
    their whole datasets: a shard's integers may be floats in the Lance table of all shards. Data
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
    normalized = not (first.states_types and second.states_types)
    known_lost = Counter(row_key(*item) for item in lost if None not in item)  # type: ignore[arg-type]
    if not known_lost and (
        first.stats_as_stored.digest == second.stats_as_stored.digest
        or (normalized and first.stats.digest == second.stats.digest)
    ):
        return Comparison(first.stats, second.stats)
    if not first.plain_items and not (first.has_plain_items and second.has_plain_items):
        return compare(*_both_with_plain_items(first, second), lost, names)
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


def _both_with_plain_items(first: Dataset, second: Dataset) -> tuple[Dataset, Dataset]:
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
