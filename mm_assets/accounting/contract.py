"""The schema contract: one type a column for all raw shards, so that outputs agree whichever shard is made
first.

It is derived anew from what is known of every shard, never stored: two runs at once have nothing to corrupt.
Until a shard that has a column is published, its type is what all surveyed shards need, as if they were one.
From then on it only grows: null to any type, a number or text to a wider one, integers to float64 if all are
exact. What would take more is refused, or becomes JSON text if the user says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa

from mm_assets.accounting.shard_columns import Need, ShardColumns, is_same_type, passthrough, type_name
from mm_assets.interleaved.json_values import is_json

_SHARDS_NAMED = 3


# What a shard that does not fit the published types means: it fails, or the column becomes JSON text.
SCHEMA_CHANGES = ("refuse", "widen")


@dataclass(frozen=True)
class Published:
    """What the output of a landed shard was made with: its schema, and the columns its raw shard had then."""

    schema: pa.Schema
    columns: ShardColumns = field(default_factory=ShardColumns)


@dataclass(frozen=True)
class SchemaDecision:
    """What the contract says to one shard.

    ``fields`` are the shard's own columns in the contract's types and order; without ``refused`` it may be
    written in them. ``added`` are those that no landed shard has, ``absent`` those of other shards that it
    lacks. ``promoted`` are changes of a published type that this shard brings, ``adapted`` its own columns
    written in another type than its values alone need; both as ``"int64 -> double"``.
    """

    fields: pa.Schema
    added: tuple[str, ...] = ()
    promoted: Mapping[str, str] = field(default_factory=dict)
    adapted: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Group:
    """Shards that need the very same of a column: ``first`` in the order of keys, and how many."""

    need: Need
    first: str
    count: int = 0


@dataclass
class ContractColumn:
    """One column over all shards: what it needs, what it was ``published`` with (None: no landed shard has
    it), how many shards have it.
    """

    name: str
    need: Need = field(default_factory=lambda: Need(pa.field("", pa.null())))
    published: Need | None = None
    shards: int = 0
    first: list[str] = field(default_factory=list)
    _landed: dict[tuple[Any, ...], _Group] = field(default_factory=dict)
    _surveyed: dict[tuple[Any, ...], _Group] = field(default_factory=dict)

    def add(self, partition: str, need: Need, landed: bool, again: bool = False) -> None:
        """Take note of what a shard needs, landed or surveyed; ``again``: it was counted before."""
        groups = self._landed if landed else self._surveyed
        key = (need.field.type, need.field.nullable, is_json(need.field), need.is_exact)
        groups.setdefault(key, _Group(need, partition)).count += 1
        if not again:
            self.shards += 1
            self.first = sorted([*self.first, partition])[:_SHARDS_NAMED]

    def resolve_type(self, widen: bool) -> None:
        """Find the column's type, once all shards are known."""
        surveyed = [group.need for group in self._surveyed.values()]
        if self._landed:
            self.published = reduce(Need.join, [group.need for group in self._landed.values()])
        if self.published is None or pa.types.is_null(self.published.field.type):
            self.need = reduce(Need.join, surveyed if self.published is None else [self.published, *surveyed])
            return
        # Who needs no change goes first, so that a change for one shard never shuts out another that fits as
        # things are.
        self.need = reduce(
            Need.join, [need for need in surveyed if self.published.holds(need)], self.published
        )
        for need in surveyed:
            joined = self.need.join(need)
            if widen or not is_json(joined.field):
                self.need = joined

    def conflict(self, need: Need) -> str:
        """One line on why a shard's need is refused, naming the shards on the other side."""
        for groups in (self._landed, self._surveyed):
            others = [
                group for group in groups.values() if self.need.holds(group.need) and group.need.clashes(need)
            ]
            if others:
                break
        more = sum(group.count for group in others) - 1
        return (
            f"column {self.name!r}: {need.described()} in this shard, {others[0].need.described()} in shard {others[0].first!r}"
            f"{f' and {more} more' if more else ''} (contract: {type_name(self.need.field)}); only JSON text holds both: {_HOW_TO_WIDEN}"
        )


_HOW_TO_WIDEN = "MM_SCHEMA_CHANGES=widen makes the column that, in all shards"


class SchemaContract:
    """The columns of all shards, by name: published ones first, then as first met in the order of partition
    keys.
    """

    def __init__(self, columns: Mapping[str, ContractColumn]) -> None:
        self.columns = columns

    @classmethod
    def derive(
        cls, shards: Mapping[str, ShardColumns], published: Mapping[str, Published], widen: bool = False
    ) -> SchemaContract:
        """The contract over all surveyed ``shards`` and all ``published`` ones, by partition; their order
        does not matter.

        ``widen``: a column that would refuse a shard becomes JSON text instead.
        """
        columns: dict[str, ContractColumn] = {}
        for partition in sorted(published):
            known = published[partition].columns.required_types()
            for column in passthrough(published[partition].schema):
                need = replace(known.get(column.name, Need(column)), field=column)
                columns.setdefault(column.name, ContractColumn(column.name)).add(partition, need, landed=True)
        for partition in sorted(shards):
            counted = published[partition].schema.names if partition in published else ()
            for name, need in shards[partition].required_types().items():
                columns.setdefault(name, ContractColumn(name)).add(
                    partition, need, landed=False, again=name in counted
                )
        for contract in columns.values():
            contract.resolve_type(widen)
        return cls(columns)

    def admit(self, partition: str, shard: ShardColumns) -> SchemaDecision:
        """What the contract says to a shard that it was derived with.

        Raises ``ValueError`` for a column it does not know.
        """
        own = shard.required_types()
        if unknown := [name for name in own if name not in self.columns]:
            raise ValueError(
                f"shard {partition!r}: column {unknown[0]!r} is not in the contract: derive it with this shard"
            )
        present = [column for name, column in self.columns.items() if name in own]
        refused = {c.name: c.conflict(own[c.name]) for c in present if not c.need.holds(own[c.name])}
        admitted = [c for c in present if c.name not in refused]
        grown = [c for c in admitted if c.published is not None and not c.published.holds(own[c.name])]
        adapted = [c for c in admitted if not is_same_type(own[c.name].field, c.need.field)]
        return SchemaDecision(
            pa.schema([c.need.field for c in admitted]),
            tuple(c.name for c in present if c.published is None),
            {
                c.name: f"{type_name(c.published.field)} -> {type_name(c.need.field)}"
                for c in grown
                if c.published
            },
            {c.name: f"{type_name(own[c.name].field)} -> {type_name(c.need.field)}" for c in adapted},
            tuple(name for name in self.columns if name not in own),
            refused,
        )

    def describe(self) -> list[dict[str, Any]]:
        """A row a column for display: its type, the type published so far (None: none), how many shards have
        it, and the first.
        """
        return [
            {
                "column": column.name,
                "type": type_name(column.need.field),
                "published": None if column.published is None else type_name(column.published.field),
                "shards": column.shards,
                "first": list(column.first),
            }
            for column in self.columns.values()
        ]
