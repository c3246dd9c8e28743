"""Schema contract: one type per column for all raw shards, so outputs do not depend on processing order.

The contract is derived from the surveys and records of all shards in each run and never stored, so concurrent
runs cannot corrupt it. As long as no shard with a column is published, its type is the one that all surveyed
shards require together. After that the type only widens: null to any type, a number or text to a wider one,
integers to float64 if all are exact. A shard that would require more is refused, or the column becomes JSON
text if the user says so.

`PublishedOutputs` reads schema and sample ids of whole outputs, where their accounts do not tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting import ShardRecord
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.survey import RequiredType, ShardColumns, is_same_type, passthrough, type_name
from mm_assets.formats.parquet import UNREADABLE, original_schema, parquet_file
from mm_assets.model.errors import counted
from mm_assets.model.json_codec import FieldTally, is_json
from mm_assets.storage.stamps import parallel_map

T = TypeVar("T")

log = logging.getLogger(__name__)

_SHARDS_NAMED = 3
_OUTPUTS_AT_ONCE = 16  # whose columns are in memory
_MOST_TYPES = 20  # of one column, to see which are odd


# What happens to a shard that does not fit the published types: it fails, or the column becomes JSON text.
SCHEMA_CHANGES = ("refuse", "widen")


@dataclass(frozen=True)
class Published:
    """The schema of a published output, and the columns that its raw shard had then."""

    schema: pa.Schema
    columns: ShardColumns = field(default_factory=ShardColumns)


class PublishedOutputs:
    """Parquet files of an asset's published shards, found by their records below ``root``.

    Files that are missing or unreadable are logged and skipped: their shards are made again.
    """

    def __init__(self, root: str, asset: str) -> None:
        self._root = root
        self._asset = asset

    def sample_ids(self, partitions: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield the sample ids of these shards."""
        return self._each(partitions, _sample_ids)

    def published(self, partitions: Iterable[str]) -> Iterator[tuple[str, Published]]:
        """Yield the columns of these shards, and whether their integers are exact as floats."""
        return self._each(partitions, _published)

    def _each(
        self, partitions: Iterable[str], read: Callable[[pq.ParquetFile], T]
    ) -> Iterator[tuple[str, T]]:
        keys = sorted(partitions)
        if not keys:  # the usual case: accounts tell
            return
        records = Ledger(self._root).records(self._asset, keys)

        def read_output(record: ShardRecord) -> T | None:
            try:
                with parquet_file(record.uri) as file:
                    return read(file)
            except UNREADABLE as error:
                if (
                    isinstance(error, OSError)
                    and error.errno is not None
                    and not isinstance(error, FileNotFoundError)
                ):
                    raise  # an error of the system, not of Arrow: the file need not be damaged
                log.warning("%s tells nothing of shard %r: %s", record.uri, record.key, error)
                return None

        published = [record for record in records.values() if record.uri]
        for start in range(0, len(published), _OUTPUTS_AT_ONCE):
            some = published[start : start + _OUTPUTS_AT_ONCE]
            for record, found in zip(some, parallel_map(read_output, some, self._root), strict=True):
                if found is not None:
                    yield record.key, found


def _sample_ids(file: pq.ParquetFile) -> pa.ChunkedArray:
    ids = file.read(columns=["sample_id"], use_threads=False).column(0).cast(pa.string())
    return pa.chunked_array([ids.unique()])


def _published(file: pq.ParquetFile) -> Published:
    schema = original_schema(file).remove_metadata()
    integers = pa.schema([column for column in passthrough(schema) if pa.types.is_integer(column.type)])
    tallies = {column.name: FieldTally() for column in integers}
    for name, tally in tallies.items():
        for bound in pc.min_max(file.read(columns=[name], use_threads=False).column(0)).as_py().values():
            tally.observe(bound)
    return Published(schema, ShardColumns(declared=integers, declared_ints=tallies))


@dataclass(frozen=True)
class SchemaDecision:
    """Decision of the contract about one shard.

    Types in ``promoted`` and ``adapted`` are given as ``"int64 -> double"``.

    Attributes:
        fields: the shard's columns in the contract's types and order; unless ``refused``, it may be written
            in them.
        added: columns that no published shard has.
        promoted: changes of a published type that this shard causes.
        adapted: the shard's columns that are written in another type than its own values require.
        absent: columns of other shards that this one lacks.
        refused: column -> one line why it does not fit.
        minority_types: column -> one line, where the column is JSON text in all shards for this one and few
            others: it names these, and both types.
    """

    fields: pa.Schema
    added: tuple[str, ...] = ()
    promoted: Mapping[str, str] = field(default_factory=dict)
    adapted: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    minority_types: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Group:
    """Shards that require the same of a column: the ``first`` by partition key, and how many."""

    required_type: RequiredType
    first: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, partitions: Sequence[str], count: int) -> None:
        """Add shards (sorted), of which at least the first few are given."""
        self.first = sorted([*self.first, *partitions[:_SHARDS_NAMED]])[:_SHARDS_NAMED]
        self.count += count

    def fits(self, other: RequiredType) -> bool:
        """Return whether a column for both need not be JSON text for that."""
        mine = self.required_type
        return is_same_type(mine.field, other.field) or not mine.clashes(other)

    def named(self) -> str:
        """Return the type, and the shards: a few by name, the others by number."""
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        shards = "shard" if self.count == 1 else "shards"
        return f"{self.required_type.described()} in {shards} {', '.join(map(repr, self.first))}{more}"


@dataclass
class ContractColumn:
    """One column over all shards.

    Attributes:
        name: the column.
        required_type: the type that it requires.
        published: the type it was published with; None if no published shard has it.
        shards: how many shards have it.
        first: the first of these by partition key.
    """

    name: str
    required_type: RequiredType = field(default_factory=lambda: RequiredType(pa.field("", pa.null())))
    published: RequiredType | None = None
    shards: int = 0
    first: list[str] = field(default_factory=list)
    _published: dict[tuple[Any, ...], _Group] = field(default_factory=dict)
    _surveyed: dict[tuple[Any, ...], _Group] = field(default_factory=dict)

    def add(
        self,
        partitions: Sequence[str],
        required_type: RequiredType,
        is_published: bool,
        again: bool = False,
    ) -> None:
        """Add what shards (sorted) require, published or surveyed; ``again``: they are counted already."""
        groups = self._published if is_published else self._surveyed
        key = (
            required_type.field.type,
            required_type.field.nullable,
            is_json(required_type.field),
            required_type.is_exact,
        )
        groups.setdefault(key, _Group(required_type)).add(partitions, len(partitions))
        if not again:
            self.shards += len(partitions)
            self.first = sorted([*self.first, *partitions[:_SHARDS_NAMED]])[:_SHARDS_NAMED]

    def resolve_type(self, widen: bool) -> None:
        """Find the column's type, once all shards are known."""
        surveyed = [group.required_type for group in self._surveyed.values()]
        if self._published:
            self.published = reduce(
                RequiredType.join, [group.required_type for group in self._published.values()]
            )
        if self.published is None or pa.types.is_null(self.published.field.type):
            self.required_type = reduce(
                RequiredType.join, surveyed if self.published is None else [self.published, *surveyed]
            )
            return
        # Shards that require no change go first, so that widening for one shard never excludes another that
        # already fits.
        self.required_type = reduce(
            RequiredType.join,
            [required_type for required_type in surveyed if self.published.holds(required_type)],
            self.published,
        )
        for required_type in surveyed:
            joined = self.required_type.join(required_type)
            if widen or not is_json(joined.field):
                self.required_type = joined

    def conflict(self, required_type: RequiredType) -> str:
        """Return one line on why a shard's type is refused, which names the shards on the other side."""
        for groups in (self._published, self._surveyed):
            others = [
                group
                for group in groups.values()
                if self.required_type.holds(group.required_type)
                and group.required_type.clashes(required_type)
            ]
            if others:
                break
        more = sum(group.count for group in others) - 1
        return (
            f"column {self.name!r}: {required_type.described()} in this shard, "
            f"{others[0].required_type.described()} in shard {others[0].first[0]!r}"
            f"{f' and {more} more' if more else ''} (contract: {type_name(self.required_type.field)}); "
            f"only JSON text holds both: {_HOW_TO_WIDEN}"
        )

    def minority_line(self, required_type: RequiredType) -> str:
        """Return one line if the column is JSON text for the few shards of this type and others; else "".

        What was published does not count: the surveys tell what each shard has now.
        """
        if not is_json(self.required_type.field):
            return ""
        by_type: dict[str, _Group] = {}  # whether a shard has nulls says nothing here
        for group in self._surveyed.values():
            if not pa.types.is_null(group.required_type.field.type):
                merged = by_type.setdefault(group.required_type.described(), _Group(group.required_type))
                merged.add(group.first, group.count)
        if not 1 < len(by_type) <= _MOST_TYPES:  # with so many none is odd
            return ""
        groups = sorted(by_type.values(), key=lambda group: (-group.count, group.first))

        def votes(group: _Group) -> int:
            return sum(other.count for other in groups if group.fits(other.required_type))

        most = max(groups, key=votes)
        is_majority = 2 * votes(most) > sum(group.count for group in groups)
        if not is_majority or is_json(most.required_type.field) or most.fits(required_type):
            return ""
        odd = [group.named() for group in groups if not most.fits(group.required_type)]
        return (
            f"column {self.name!r} becomes JSON text in all shards as they are made: "
            f"{most.required_type.described()} in {counted(votes(most), 'shard')}, but {'; '.join(odd)}"
        )


_HOW_TO_WIDEN = "MM_SCHEMA_CHANGES=widen makes the column that, in all shards"


class SchemaContract:
    """Columns of all shards by name: published ones first, others in the order of partition keys."""

    def __init__(self, columns: Mapping[str, ContractColumn]) -> None:
        self.columns = columns

    @classmethod
    def derive(
        cls, shards: Mapping[str, ShardColumns], published: Mapping[str, Published], widen: bool = False
    ) -> SchemaContract:
        """Derive the contract over all surveyed and all published shards; their order does not matter.

        The cost is that of different objects: shards that share theirs are taken together.

        Args:
            shards: columns of surveyed shards, by partition.
            published: published shards, by partition.
            widen: a column that would refuse a shard becomes JSON text instead.
        """
        columns: dict[str, ContractColumn] = {}
        for same in _alike(published, lambda partition: id(published[partition])):
            made = published[same[0]]
            required = made.columns.required_types()
            for column in passthrough(made.schema):
                required_type = replace(required.get(column.name, RequiredType(column)), field=column)
                columns.setdefault(column.name, ContractColumn(column.name)).add(
                    same, required_type, is_published=True
                )
        for same in _alike(shards, lambda partition: (id(shards[partition]), id(published.get(partition)))):
            published_columns = published[same[0]].schema.names if same[0] in published else ()
            for name, required_type in shards[same[0]].required_types().items():
                columns.setdefault(name, ContractColumn(name)).add(
                    same, required_type, is_published=False, again=name in published_columns
                )
        for contract in columns.values():
            contract.resolve_type(widen)
        return cls(columns)

    def admit(self, partition: str, shard: ShardColumns) -> SchemaDecision:
        """Decide about a shard that the contract was derived with.

        Raises:
            ValueError: the contract does not know one of its columns.
        """
        required = shard.required_types()
        if unknown := [name for name in required if name not in self.columns]:
            raise ValueError(
                f"shard {partition!r}: column {unknown[0]!r} is not in the contract: "
                "derive it with this shard"
            )
        present = [column for name, column in self.columns.items() if name in required]
        refused = {
            c.name: c.conflict(required[c.name])
            for c in present
            if not c.required_type.holds(required[c.name])
        }
        admitted = [c for c in present if c.name not in refused]
        grown = [c for c in admitted if c.published is not None and not c.published.holds(required[c.name])]
        adapted = [c for c in admitted if not is_same_type(required[c.name].field, c.required_type.field)]
        return SchemaDecision(
            pa.schema([c.required_type.field for c in admitted]),
            tuple(c.name for c in present if c.published is None),
            {
                c.name: f"{type_name(c.published.field)} -> {type_name(c.required_type.field)}"
                for c in grown
                if c.published
            },
            {
                c.name: f"{type_name(required[c.name].field)} -> {type_name(c.required_type.field)}"
                for c in adapted
            },
            tuple(name for name in self.columns if name not in required),
            refused,
            {c.name: line for c in admitted if (line := c.minority_line(required[c.name]))},
        )

    def describe(self) -> list[dict[str, Any]]:
        """Return one row per column for display.

        A row has the column's type, its published type (or None), the number of shards and the first of them.
        """
        return [
            {
                "column": column.name,
                "type": type_name(column.required_type.field),
                "published": None if column.published is None else type_name(column.published.field),
                "shards": column.shards,
                "first": list(column.first),
            }
            for column in self.columns.values()
        ]


def _alike(partitions: Iterable[str], object_of: Callable[[str], Hashable]) -> list[list[str]]:
    """Return the partitions in groups of the same object; groups and partitions by key."""
    groups: dict[Hashable, list[str]] = {}
    for partition in sorted(partitions):
        groups.setdefault(object_of(partition), []).append(partition)
    return list(groups.values())


def disagreement(name: str, decisions: Mapping[str, SchemaDecision]) -> str:
    """Return one line if a column is JSON text (``json``) because shards disagree about its type; else "".

    Args:
        name: the column.
        decisions: those of the contract, by partition.
    """
    first: dict[str, str] = {}  # of each type
    for key, decision in sorted(decisions.items()):
        place = decision.fields.get_field_index(name)
        if place >= 0 and is_json(decision.fields.field(place)):
            own = decision.adapted.get(name, "json").partition(" -> ")[0]
            first.setdefault(own, key)
    first.pop("null", None)
    if len(first) < 2:
        return ""
    types = ", ".join(f"{type_} in shard {key!r}" for type_, key in list(first.items())[:_SHARDS_NAMED])
    return f"column {name!r} is JSON text in all shards, which disagree: {types}"
