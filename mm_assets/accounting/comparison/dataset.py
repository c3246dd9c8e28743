"""A dataset as canonical readers find it: counts and digest over all its places, its columns in one type
each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from mm_assets.accounting.canonical.derive import DigestTally
from mm_assets.accounting.canonical.derived import Derived
from mm_assets.accounting.canonical.source import CanonicalSource
from mm_assets.accounting.canonical.types import changes, retyped
from mm_assets.accounting.comparison.row_index import RowIndex
from mm_assets.interleaved.digest import ContentDigest, row_digests
from mm_assets.interleaved.json_values import is_json, json_field
from mm_assets.interleaved.unify import unify_schemas


class Dataset:
    """Rows that lie in one place or several. Everything is read when first asked for, and read again for each
    question.

    ``typed_as`` is another dataset whose columns have their types because of further rows: `stats` takes
    these rows in those, too.
    """

    def __init__(self, places: Sequence[CanonicalSource]) -> None:
        self.places = tuple(places)
        self.typed_as: Dataset | None = None

    @cached_property
    def stats_as_stored(self) -> Derived:
        """What is there, each row digested in the types that it has where it lies."""
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
        """What is there, each column digested in one type for the whole dataset, as a table of all places
        would have it.
        """
        schema = (
            self.stats_as_stored.schema
            if self.typed_as is None
            else unify_schemas([self.stats_as_stored.schema, self.typed_as.stats_as_stored.schema])
        )
        while True:
            digest = ContentDigest()
            for place, tally in zip(self.places, self._tallies, strict=True):
                found = self._normalized_digest(place, tally, schema)
                if isinstance(found, str):
                    schema = _wider(schema, found)
                    break
                digest = digest.plus(found)
            else:
                return replace(self.stats_as_stored, digest=digest.hexdigest(), schema=schema)

    def index(self) -> RowIndex:
        """The keys and digests of all rows, in the order of `tables`."""
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
        """All rows, place by place."""
        for place in self.places:
            yield from place.tables()

    @cached_property
    def _tallies(self) -> list[DigestTally]:
        tallies = []
        for place in self.places:
            tally = DigestTally()
            for table in place.tables():
                tally.observe(table)
            tallies.append(tally)
        return tallies

    def _normalized_digest(
        self, place: CanonicalSource, tally: DigestTally, schema: pa.Schema
    ) -> ContentDigest | str:
        """The digest of a place in these types, or the name of a column whose values do not fit."""
        if not any(changes(known, schema) for known in tally.schemas):
            return tally.digest
        digest = ContentDigest()
        for table in place.tables():
            try:
                normalized = retyped(table, schema)
            except ValueError:
                return next(field.name for field in schema if not _fits(table, field))
            digest.observe(normalized)
        return digest


def _fits(table: pa.Table, field: pa.Field) -> bool:
    try:
        retyped(table, pa.schema([field]))
    except ValueError:
        return False
    return True


def _wider(schema: pa.Schema, name: str) -> pa.Schema:
    """JSON text for this column, or, where it is that already, no type of its own: then each row keeps its
    type.
    """
    index = schema.get_field_index(name)
    return schema.remove(index) if is_json(schema.field(index)) else schema.set(index, json_field(name))
