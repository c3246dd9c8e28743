"""Counts and digest of an output, derived from its files by the canonical reader of the format.

* `derive` does so for one partition of an output, `DigestTally` for any rows.
* `CanonicalSource` yields the rows at a location as plain tables; `canonical_sources` finds those of a
  dataset that a user names.
* `normalized`, `retyped` and `changes` are about the column types in which rows are digested. Digests are
  only comparable in the same types.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical import (
    BLOB_FIELD,
    AccountedFormat,
    CanonicalLocation,
    Derived,
    RowPart,
)
from mm_assets.formats.names import ARRAY_SUFFIXES, format_of
from mm_assets.formats.partitions import partition_name, relative_root, root_of_locations
from mm_assets.formats.registry import SUFFIXES, detect_format, reader_for
from mm_assets.model import json_codec
from mm_assets.model.digest import ContentDigest
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import is_json
from mm_assets.model.nested_types import is_bytes, refuse_broken_text
from mm_assets.model.schema import (
    REQUIRED_COLUMNS,
    RESERVED_COLUMNS,
    SchemaMismatch,
    align_table,
    canonical_schema,
    unify_schemas,
)
from mm_assets.storage.files import ORIGINS_BESIDE, absolute, exists, join
from mm_assets.storage.listing import expand_paths


def normalized(part: RowPart, location: str) -> RowPart:
    """Return rows with reserved columns in their canonical types, where lossless, without dictionaries.

    Raises:
        ShardError: text is not UTF-8, or the rows are no items: a required column is missing or has nulls,
            or a name occurs twice.
    """
    table, names = part.table, part.schema.names
    if len(set(names)) != len(names):
        raise ShardError(
            f"{location}: column {next(name for name in names if names.count(name) > 1)!r} occurs twice"
        )
    for name in REQUIRED_COLUMNS:
        if name not in names:
            raise ShardError(f"{location}: not interleaved data, column {name!r} is missing")
        if table.column(name).null_count:
            raise ShardError(f"{location}: column {name!r} is null in {table.column(name).null_count} rows")
    table = table.replace_schema_metadata(None)
    canonical = canonical_schema(table.schema)
    for index, field in enumerate(table.schema):
        target = canonical.field(field.name)
        if field.type != target.type:
            try:
                table = table.set_column(
                    index, target, table.column(index).cast(target.type, safe=not _is_text(field, target))
                )
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue  # the comparison reports the type as a difference
    refuse_broken_text(table, location)
    is_large = part.field.type == BLOB_FIELD.type  # otherwise only the offsets differ, not the bytes
    return replace(part, table=table, field=part.field if is_large else BLOB_FIELD)


def _is_text(field: pa.Field, target: pa.Field) -> bool:
    """Return whether bytes become text, which is looked at afterwards."""
    return is_bytes(field.type) and target.type == pa.string()


def retyped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the same columns, with those of ``schema`` in its types; reserved columns stay as they are.

    JSON text becomes the values it holds.

    Raises:
        SchemaMismatch: a column does not fit; the message names it.
    """
    fields, columns = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        target = (
            schema.field(field.name)
            if field.name in schema.names and field.name not in RESERVED_COLUMNS
            else field
        )
        if is_json(field) and not is_json(target):
            column, field = _unpacked(column, target), target
        fields.append(target)
        columns.append((column, field))
    found = pa.Table.from_arrays(
        [column for column, _ in columns], schema=pa.schema([field for _, field in columns])
    )
    return align_table(found, pa.schema(fields))


def changes(schema: pa.Schema, other: pa.Schema) -> bool:
    """Return whether `retyped` to ``other`` changes a column of ``schema`` that can have values."""
    return any(
        (field.type, is_json(field)) != (other.field(field.name).type, is_json(other.field(field.name)))
        for field in schema
        if field.name in other.names
        and field.name not in RESERVED_COLUMNS
        and not pa.types.is_null(field.type)
    )


def _unpacked(column: pa.ChunkedArray, target: pa.Field) -> pa.ChunkedArray:
    try:
        values = [None if text is None else json.loads(text) for text in column.to_pylist()]
        return pa.chunked_array([json_codec.decode(values, target)], target.type)
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        raise SchemaMismatch(
            f"column {target.name!r}: JSON text does not fit {target.type}: {error}"
        ) from error


def _accounted(kind: str) -> AccountedFormat:
    # The table knows the readers of this package, and what else accounts for a format.
    from mm_assets.accounting.formats import accounted_format

    return accounted_format(kind)


@dataclass(frozen=True)
class CanonicalSource(CanonicalLocation):
    """Rows at a location, read by the canonical reader of its format."""

    def states_types(self) -> bool:
        """Return whether each column has the type that was chosen for the rows here.

        Not so in a Lance table, where the rows of other partitions have a say in it, nor in a raw tar, whose
        types are inferred from its values.
        """
        return _accounted(self.kind).states_types(self)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows in the types they were written in, some megabytes at a time.

        Where there is only a schema, that is one table without rows.

        Raises:
            FileNotFoundError: nothing is there.
            ValueError: the reader, or the layout, does not allow what is there; the message names the file.
        """
        for part in self.parts():
            yield from part.tables()

    def parts(self) -> Iterator[RowPart]:
        """Yield the same rows as they are read.

        Raises as `tables` does, also while the blobs of a part are asked for.
        """
        if not self.uri:
            return
        for part in _accounted(self.kind).parts(self):
            yield normalized(part, self.uri)


def derive(
    kind: str,
    uri: str | None,
    partition: str | None = None,
    schema: pa.Schema | None = None,
    *,
    options: dict[str, Any] | None = None,
) -> Derived:
    """Count and digest one partition of an output; an empty ``uri`` has no rows.

    Args:
        kind: the format.
        uri: the output.
        partition: for a Lance table, the partition.
        schema: digest these columns in these types: a Lance table may have widened some since they were
            written.
        options: for the file system.

    Raises:
        SchemaMismatch: a column does not fit ``schema``. Others as `CanonicalSource.tables`.
    """
    _keep_freed_memory()
    digest = _accounted(kind).digest
    if digest is not None and uri and schema is None and (found := digest(uri, options)) is not None:
        return found
    tally = DigestTally()
    for part in CanonicalSource(kind, uri, partition, options=options).parts():
        tally.add(part if schema is None else replace(part, table=retyped(part.table, schema)))
    return tally.derived()


@cache
def _keep_freed_memory() -> None:
    """Make glibc keep freed blocks of image size.

    Until it has seen a block as large freed, it returns the memory of each image to the system, and the page
    faults cost more than reading.
    """
    bytes(16 << 20)


class DigestTally:
    """Running counts and digest of rows."""

    def __init__(self) -> None:
        self.schemas: list[pa.Schema] = []
        self.digest = ContentDigest()
        self.rows = self.samples = 0
        self._counts: Counter[str] = Counter()  # by modality
        self._last: str | None = None  # last sample id: the sample may continue in the next table

    def observe(self, table: pa.Table) -> None:
        """Add the rows of a table, in its types."""
        self.add(RowPart(table))

    def add(self, part: RowPart) -> None:
        """Add rows as a canonical reader yields them."""
        table, schema = part.table, part.schema
        if not any(schema.equals(known, check_metadata=True) for known in self.schemas):
            self.schemas.append(schema)
        if table.num_rows == 0:
            return
        self.digest.observe(table, part.values())
        self.rows += table.num_rows
        ids = table.column("sample_id").to_pylist()
        self.samples += sum(1 for _ in groupby(ids)) - (ids[0] == self._last)
        self._last = ids[-1]
        self._counts.update(table.column("modality").to_pylist())

    def derived(self) -> Derived:
        """Return the counts so far."""
        schema = unify_schemas(self.schemas) if self.schemas else pa.schema([])
        return Derived(
            self.rows,
            self.samples,
            self._counts["image"],
            self._counts["text"],
            self.digest.hexdigest(),
            schema,
        )


def canonical_sources(
    source: str, layout_of: Callable[[str, str], Mapping[str, Any]] = lambda *_: {}
) -> list[CanonicalSource]:
    """Return the files, or Lance tables, of a file, folder, glob, brace list or URL of one format.

    Args:
        source: path or URL.
        layout_of: returns for a format and source how files of other tools are read. Their locators and
            partitions are named as in ``mm-assets convert``.

    An output into which only inputs without samples were converted has none: no empty tar is written, but the
    inputs are noted.

    Raises as `detect_format` does.
    """
    source = absolute(source)
    try:
        kind = detect_format(source)
    except FileNotFoundError:
        if exists(join(source, ORIGINS_BESIDE)):
            return []
        raise
    entry = format_of(kind)
    if entry.is_table:
        return [
            CanonicalSource(kind, uri)
            for uri in dict.fromkeys(part.files[0] for part in reader_for(kind, source).partitions())
        ]
    root = root_of_locations([source], (*SUFFIXES, *ARRAY_SUFFIXES))
    relative_to = relative_root([root])
    layout = layout_of(kind, source)
    files = expand_paths(source, entry.suffixes)
    return [CanonicalSource(kind, file, partition_name(file, root), relative_to, layout) for file in files]
