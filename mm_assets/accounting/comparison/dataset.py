"""Dataset as canonical readers see it: counts and digest over all sources, each column in one type."""

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
from mm_assets.interleaved.nested_types import with_plain_items
from mm_assets.interleaved.unify import unify_schemas


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
