"""Canonical readers: the rows of our outputs as their users' libraries read them, not our own readers.

They share no code with our readers and writers that reads or writes rows. Both sides only share:

- the data model (`mm_assets.interleaved`): schema, JSON values, digest;
- opening and listing files, the names of partitions, the wording of errors;
- the Arrow types that a Parquet file or Lance table of ours states, so that its columns get them back;
- which rows of a Lance table are a partition's: its records, and the one of them that holds for a version;
- the metadata of an Arrow cache and the digest of its files, to check the files against; its rows are read
  without them;
- the reader of files of others, which have no canonical reader.

A test holds the imports to this list. Here is what accounting knows of a format, and what a reader takes and
returns:

* `AccountedFormat`: the accounting record of a format, with its canonical reader, the checks of what is
  beside the rows, and the lookup of a sample. `mm_assets.accounting.formats` has one for each format.
* `CanonicalLocation`: where the rows are: a file, a table or one partition of it, a cache.
* `RowPart`: some rows as they are read. Image bytes are apart, so that they are digested while they are in
  the processor's cache.
* `Derived`: the result: counts, digest and columns. `derive` makes it for one partition of an
  output, `DigestTally` for any rows.
* `CanonicalSource` yields the rows at a location as plain tables; `canonical_sources` finds those of a
  dataset that a user names.
* `one_proof`: what the shards of a proof share, such as an open table, is read once for it (`read_once`).
* `normalized`, `retyped` and `changes` are about the column types in which rows are digested. Digests are
  only comparable in the same types.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from mm_assets.formats.names import ARRAY_SUFFIXES, format_of
from mm_assets.formats.partitions import partition_name, relative_root, root_of_locations
from mm_assets.formats.registry import SUFFIXES, detect_format, reader_for
from mm_assets.model import json_codec
from mm_assets.model.digest import BLOBS, Blob, ContentDigest
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import is_json
from mm_assets.model.nested_types import binary_views, is_bytes, refuse_broken_text
from mm_assets.model.schema import (
    INTERLEAVED_SCHEMA,
    REQUIRED_COLUMNS,
    RESERVED_COLUMNS,
    SchemaMismatch,
    align_table,
    canonical_schema,
    unify_schemas,
)
from mm_assets.storage.errors import cause_line
from mm_assets.storage.files import ORIGINS_BESIDE, NoRegularFile, StorageOptions, absolute, exists, join
from mm_assets.storage.listing import expand_paths

Rows = list[dict[str, Any]]
T = TypeVar("T")


class SampleQuery(NamedTuple):
    """A lookup of one sample in an output.

    Args:
        folder: location of the output.
        uri_of: returns the file of a partition.
        partitions: partitions that have the sample by other outputs and the ledger.
    """

    folder: str
    uri_of: Callable[[str], str]
    sample_id: str
    partitions: Sequence[str]


class OutputProblems(NamedTuple):
    """Problems of an output whose rows are as they were written.

    ``problems`` are those of the output itself, ``beside`` those of files beside it.
    """

    problems: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableAccount:
    """Accounting of a table that all partitions share.

    Args:
        partitions: returns the partitions that a table has, by its own records.
        suspects: returns the partitions that have problems, with orphan rows counted by sample id. It finds
            them without reading rows, from the columns that each partition was written with.
    """

    partitions: Callable[[str], Collection[str]]
    suspects: Callable[[str, Mapping[str, pa.Schema]], dict[str, Counter[str]]]


@dataclass(frozen=True)
class AccountedFormat:
    """Accounting record of one format.

    Args:
        library: the library that reads it for a proof, as its users do.
        parts: yields the rows of a location, read with that library.
        states_types: whether each column of a location has the type that was chosen for its rows.
        digest: a faster way to the result of `derive`; None where that takes `parts`.
        examine: checks what is beside the rows of an output, once these are known to be sound.
        find_sample: returns rows of a sample by partition; by default its reader reads each partition of the
            query.
        finds_partitions: whether ``find_sample`` needs no partitions to look in.
        is_ours: whether this project wrote a file; used for formats in which others write documents.
        options_for: of the options for documents of others, those that apply to a file, and a description of
            the file; None where all apply.
        table: accounting of the table, for a format whose partitions share one.
        files: returns the files of an output, existing or not; by default there is one, the output itself.
        folder_files: names of the files that all outputs of a folder share.
    """

    library: str
    parts: Callable[[CanonicalLocation], Iterator[RowPart]]
    states_types: Callable[[CanonicalLocation], bool] = lambda _: True
    digest: Callable[[str, StorageOptions | None], Derived | None] | None = None
    examine: Callable[[str, Derived], OutputProblems] = lambda *_: OutputProblems()
    find_sample: Callable[[SampleQuery], Mapping[str | None, Rows]] | None = None
    finds_partitions: bool = False
    is_ours: Callable[[str], bool] = lambda _: False
    options_for: Callable[[str], tuple[Collection[str], str]] | None = None
    table: TableAccount | None = None
    files: Callable[[str, StorageOptions | None], Sequence[str]] = lambda uri, _: (uri,)
    folder_files: Sequence[str] = ()


@dataclass(frozen=True)
class CanonicalLocation:
    """Location of rows of one format.

    Args:
        kind: name of the format.
        uri: path or URL of a file, a table or the folder of a cache; empty if nothing was written.
        partition: the one partition of a table that is meant (None: the whole table); the name of the
            partition that a file is. Files are read whole.
        relative_to: folder that locators are relative to, in files of others.
        layout: arguments for the reader of files of others.
        options: options of the file system.
    """

    kind: str
    uri: str | None
    partition: str | None = None
    relative_to: str | None = None
    layout: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] | None = None

    @property
    def is_part_of_table(self) -> bool:
        """Whether this is one of the partitions that share a table."""
        return format_of(self.kind).is_table and self.partition is not None


BLOB_FIELD: pa.Field = INTERLEAVED_SCHEMA.field(BLOBS)
_BLOB_INDEX = INTERLEAVED_SCHEMA.get_field_index(BLOBS)


@contextmanager
def naming_file(uri: str) -> Iterator[None]:
    """Raise what pyarrow raises for a damaged file as `ShardError` that names the file."""
    try:
        yield
    except (FileNotFoundError, NoRegularFile):
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        raise ShardError(f"{uri}: pyarrow cannot read it: {cause_line(error, uri)}") from error


def blob_index(schema: pa.Schema) -> int:
    """Return the index of the column `BLOBS` if it is of bytes and occurs once, else -1."""
    index = int(schema.get_field_index(BLOBS))  # -1 also when there are two
    return index if index >= 0 and schema.field(index).type in (pa.binary(), pa.large_binary()) else -1


@dataclass(frozen=True)
class RowPart:
    """Some rows, possibly with their image bytes apart.

    Attributes:
        table: the rows; with ``blobs``, without the column `BLOBS`.
        blobs: the values of that column in order, a few rows at a time. They are read on demand, once, and
            must be consumed before the next part.
        index: position of the column.
        field: the column.
    """

    table: pa.Table
    blobs: Iterator[pa.Array | list[bytes | None]] | None = None
    index: int = _BLOB_INDEX
    field: pa.Field = BLOB_FIELD

    @property
    def schema(self) -> pa.Schema:
        """The schema with all columns."""
        return self.table.schema if self.blobs is None else self.table.schema.insert(self.index, self.field)

    def values(self) -> Iterator[Blob | None] | None:
        """Return the blobs one by one; None if the table has them."""
        if self.blobs is None:
            return None
        return chain.from_iterable(
            binary_views(piece) if isinstance(piece, pa.Array) else piece for piece in self.blobs
        )

    def tables(self) -> Iterator[pa.Table]:
        """Yield the same rows with all columns, some megabytes at a time."""
        if self.blobs is None:
            yield self.table
            return
        start = 0
        for piece in self.blobs:
            array = (
                piece.cast(self.field.type)
                if isinstance(piece, pa.Array)
                else pa.array(piece, self.field.type)
            )
            yield self.table.slice(start, len(array)).add_column(self.index, self.field, array)
            start += len(array)


@dataclass(frozen=True)
class Derived:
    """Counts and digest by a canonical reader.

    Attributes:
        rows: number of rows.
        samples: number of runs of rows with one sample id.
        images: image rows.
        texts: text rows.
        digest: sum of the digests of all rows, in hex.
        schema: the columns, each in one type for all rows.
        offsets: for our tars, the byte offsets at which samples begin, and the end of the last one; None if
            not determined.
        digests: for an Arrow cache, the digests of its files by name; None if not determined.
        metadata: for an Arrow cache, its metadata file as it was read.
        nbytes: size of the file; None if not determined.
    """

    rows: int = 0
    samples: int = 0
    images: int = 0
    texts: int = 0
    digest: str = ContentDigest().hexdigest()
    schema: pa.Schema = dataclasses.field(default_factory=lambda: pa.schema([]))
    offsets: tuple[int, ...] | None = dataclasses.field(default=None, compare=False, repr=False)
    digests: Mapping[str, str] | None = dataclasses.field(default=None, compare=False, repr=False)
    metadata: bytes | None = dataclasses.field(default=None, compare=False, repr=False)
    nbytes: int | None = dataclasses.field(default=None, compare=False, repr=False)


_proof_under_way: ContextVar[str] = ContextVar("proof", default="")
_read: dict[tuple[str, ...], Any] = {}  # what the shards of that proof share, by its proof and place


@contextmanager
def one_proof(proof: str) -> Iterator[None]:
    """Let `read_once` keep what it reads for other shards of a proof; without a name it keeps nothing."""
    token = _proof_under_way.set(proof)
    try:
        yield
    finally:
        _proof_under_way.reset(token)


def read_once(place: str, read: Callable[[], T]) -> T:
    """Return what ``read`` returns of a place that all shards share: the first answer within a proof."""
    if not (proof := _proof_under_way.get()):
        return read()
    if (proof, place) not in _read:
        for other in [key for key in _read if key[0] != proof]:
            del _read[other]
        _read[proof, place] = read()
    found: T = _read[proof, place]
    return found


def forget_reads() -> bool:
    """Forget what `read_once` keeps; return whether it was anything."""
    was_any = bool(_read)
    _read.clear()
    return was_any


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
