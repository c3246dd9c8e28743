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
* `Derived`: the result: counts, digest and columns. `mm_assets.accounting.canonical.derive` makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from mm_assets.formats.names import format_of
from mm_assets.model.digest import BLOBS, Blob, ContentDigest
from mm_assets.model.errors import ShardError
from mm_assets.model.nested_types import binary_views
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets.storage.errors import cause_line
from mm_assets.storage.files import NoRegularFile, StorageOptions

Rows = list[dict[str, Any]]


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
    options: StorageOptions | None


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
    layout: Mapping[str, Any] = field(default_factory=dict)
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
    """

    rows: int = 0
    samples: int = 0
    images: int = 0
    texts: int = 0
    digest: str = ContentDigest().hexdigest()
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    offsets: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
