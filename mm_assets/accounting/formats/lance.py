"""Accounting record of Lance tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from mm_assets.accounting.canonical.accounted_format import AccountedFormat, Rows, SampleQuery, TableAccount
from mm_assets.accounting.canonical.lance import lance_parts
from mm_assets.accounting.canonical.location import CanonicalLocation
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.lookup import in_lance
from mm_assets.accounting.shard_columns import is_same_type
from mm_assets.interleaved.unify import unify_schemas


def _parts(source: CanonicalLocation) -> Iterator[RowPart]:
    return lance_parts(str(source.uri), source.partition, source.options)


def _find_sample(query: SampleQuery) -> Mapping[str | None, Rows]:
    return in_lance(query.folder, query.sample_id, query.partitions, query.options)


def _partitions(uri: str) -> Collection[str]:
    from mm_assets.formats.lance.writer import InterleavedLanceWriter

    return InterleavedLanceWriter(uri).partition_stats() or ()


def _suspects(uri: str, schemas: Mapping[str, pa.Schema]) -> dict[str, Counter[str]]:
    """Return the shards of a table that have problems, with orphan rows by sample id.

    A shard has problems if one of its columns is missing or narrower, or if it has values in a column that is
    not its own. Orphan rows count with the shard that has the sample id, else with the first.
    """
    from mm_assets.formats.lance.writer import InterleavedLanceWriter

    writer = InterleavedLanceWriter(uri)
    columns = writer.table_columns()
    if columns is None:
        return {}
    suspects: dict[str, Counter[str]] = {
        key: Counter() for key, schema in schemas.items() if not _holds(columns, schema)
    }
    if foreign := sorted(set(columns.names).difference(*(schema.names for schema in schemas.values()))):
        suspects |= {key: Counter() for key in writer.partitions_with_values(foreign, list(schemas))}
    for orphan in writer.orphan_rows():
        key = orphan.partition if orphan.partition in schemas else min(schemas)
        suspects.setdefault(key, Counter())[orphan.sample_id] += orphan.rows
    return suspects


def _holds(columns: pa.Schema, schema: pa.Schema) -> bool:
    """Return whether a table with these columns can hold a shard's: each is there, in no narrower type."""
    united = unify_schemas([columns, schema])
    required = [field.name for field in schema if not pa.types.is_null(field.type)]
    return all(
        name in columns.names and is_same_type(columns.field(name), united.field(name)) for name in required
    )


ACCOUNTED = AccountedFormat(
    library="lance.LanceDataset.scanner",
    parts=_parts,
    states_types=lambda _: False,  # they depend on the other rows of the table, too
    find_sample=_find_sample,
    finds_partitions=True,
    table=TableAccount(_partitions, _suspects),
)
