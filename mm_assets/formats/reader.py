"""Base class of all readers: partitions, the schema of a partition, batches with lineage.

* `FileSurvey`: what is found out of a raw file without reading any image. It has the samples, faults and
  field types.
* `grouped_streams`: any source of batches as streams with a known schema, one per partition. Batches without
  a schema known ahead are spooled to disk.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from mm_assets.formats.batching import cut_rows, row_bytes
from mm_assets.formats.materialize import bytes_to_fetch, materialize_table
from mm_assets.formats.names import ARRAY_SUFFIXES, first_kind, passed_over_lines
from mm_assets.formats.partitions import Partition, plan_partitions, root_of_locations
from mm_assets.formats.reports import ContentColumns
from mm_assets.model.digest import digest_faults
from mm_assets.model.errors import ShardError, first_and_more, html_text, warn_user
from mm_assets.model.json_codec import FieldTally
from mm_assets.model.losses import Loss, with_errors
from mm_assets.model.nested_types import refuse_broken_text
from mm_assets.model.samples import (
    BatchStream,
    InterleavedBatch,
    group_samples,
    rows_html,
    sample_offsets,
    sort_items,
)
from mm_assets.model.schema import (
    INTERLEAVED_SCHEMA,
    REQUIRED_COLUMNS,
    RESERVED_COLUMNS,
    align_table,
    canonical_schema,
    reconcile_schema,
    resolve_schema,
    unify_schemas,
)
from mm_assets.storage.errors import error_line, located
from mm_assets.storage.files import StorageOptions, is_remote, local_path, whole_url
from mm_assets.storage.listing import Paths, expand_paths

__all__ = ["InterleavedReader"]


_PROJECTED_BYTES = 32 << 20


class FileSource(ABC):
    """One open input file: its schema is known, its tables are read on demand.

    Attributes:
        uri: path or URL.
        schema: columns of the tables.
        items: how many items the file holds by its own account, found without building tables; None if
            unknown.
        losses: items that will not be in the tables, and damaged ranges of the file.
        notes: facts about the file for reports.
    """

    def __init__(self, uri: str, schema: pa.Schema, items: int | None) -> None:
        self.uri = uri
        self.schema = schema
        self.items = items
        self.losses: list[Loss] = []
        self.notes: dict[str, Any] = {}

    @abstractmethod
    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        """Yield tables of whole samples of at most ``max_bytes`` Arrow bytes; one larger sample passes alone.

        Only ``columns`` are read from storage; the tables have them in any order.
        """

    @abstractmethod
    def close(self) -> None: ...


def require_interleaved(schema: pa.Schema, place: str) -> None:
    """Raise `ShardError`, which names the place, if a column is missing without which rows are no items."""
    if missing := [name for name in REQUIRED_COLUMNS if name not in schema.names]:
        raise ShardError(f"{place}: not interleaved data, column {missing[0]!r} is missing")


class InterleavedReader(ABC):
    """Base of readers of files into `InterleavedBatch`; iterable any number of times.

    Args:
        file_paths: path, folder, glob, brace list or URL, or a list of them.
        files_per_partition: input files per partition (output file); default one.
        blocksize: instead, bytes of input files per partition, as a number or ``"512MiB"``.
        max_batch_bytes: limit of a batch in Arrow bytes, cut on sample boundaries (one larger sample passes
            alone). None: one batch per partition.
        fields: passthrough columns to keep; missing ones are filled with null. None keeps all.
        read_kwargs: forwarded to the underlying read.
        schema: strict target schema.
        schema_overrides: types of some columns; the others stay as they are.
        materialize: fetch the bytes of image rows that have only a source_ref.
        roots: folders or URL prefixes that a source_ref may point into; None trusts the data.
        storage_options: for the file system of the inputs.

    Raises:
        ValueError: ``max_batch_bytes`` is not positive, or ``fields`` names reserved columns.
        TypeError: ``fields`` is one string.
    """

    suffixes: tuple[str, ...]
    images_from = ""  # where the images lie that documents only name
    declared_digests: str | None = "off"  # of documents: see `mm_assets.model.digest.declared_digests`

    def __init__(
        self,
        file_paths: Paths,
        *,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        max_batch_bytes: int | None = None,
        fields: Sequence[str] | None = None,
        read_kwargs: Mapping[str, Any] | None = None,
        schema: pa.Schema | None = None,
        schema_overrides: Mapping[str, pa.DataType] | None = None,
        materialize: bool = False,
        roots: Sequence[str] | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        if max_batch_bytes is not None and max_batch_bytes <= 0:
            raise ValueError(f"max_batch_bytes must be positive, not {max_batch_bytes}")
        if isinstance(fields, str):
            raise TypeError("fields must be a list of column names, not one string")
        reserved = sorted(set(fields or ()) & set(RESERVED_COLUMNS))
        if reserved:
            raise ValueError(f"fields= names passthrough columns; {', '.join(reserved)} are always read")
        self.file_paths = _plain(file_paths)
        self.files_per_partition = files_per_partition
        self.blocksize = blocksize
        self.max_batch_bytes = max_batch_bytes
        self.fields = tuple(fields) if fields is not None else None
        self.read_kwargs = dict(read_kwargs or {})
        self.target = resolve_schema(schema, schema_overrides)
        self.is_strict = schema is not None
        self.materialize = materialize
        self.roots = tuple(roots) if roots is not None else None
        self.storage_options = storage_options
        self._kept: dict[Partition, FileSource] = {}  # at most one: opened for its schema, but not read yet

    def __repr__(self) -> str:
        given = {
            "fields": self.fields,
            "max_batch_bytes": self.max_batch_bytes,
            "materialize": self.materialize,
        }
        options = "".join(
            f", {name}={value!r}" for name, value in given.items() if value not in (None, False)
        )
        return f"<{type(self).__name__} of {first_and_more(self.file_paths)}{options}>"

    def _repr_html_(self) -> str:
        return f"<p>{html_text(repr(self))}</p>{self.first_rows_html()}"

    def first_rows_html(self) -> str:
        """Return the first rows for a notebook, without image bytes; nothing of remote files."""
        if any(map(is_remote, self.file_paths)):
            return ""
        try:
            for partition in self.partitions()[:1] if self.file_paths else ():
                names = [name for name in self.open(partition).schema.names if name != "binary_content"]
                for table in self.project(partition, names)[1]:
                    return rows_html(table.select(names))
        except (OSError, ValueError) as error:
            return f"<p>{html_text(error_line(error))}</p>"
        finally:
            self._close_kept()
        return ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    @abstractmethod
    def _open_file(self, uri: str, partition: Partition) -> FileSource: ...

    def _opener(self, partition: Partition) -> Callable[[str], FileSource]:
        """Return a function that opens the files of a partition in order; a new one for each pass."""
        return lambda uri: self._open_file(uri, partition)

    def partitions(self) -> list[Partition]:
        """Return the partitions of this reader, in order.

        Raises:
            FileNotFoundError: a path matches nothing.
        """
        if not self.file_paths:
            return []
        files = self._files()
        root = self.root()
        return plan_partitions(
            files, self.files_per_partition, self.blocksize, self.storage_options, lambda _: root
        )

    def _files(self) -> list[str]:
        files: dict[str, None] = {}
        for path in self.file_paths:
            chosen, passed_over = first_kind(expand_paths(path, self.suffixes, self.storage_options))
            files |= dict.fromkeys(chosen)
            for line in passed_over_lines(path, chosen, passed_over):
                warn_user(line)
        return list(files)

    def sources(self, partition: Partition) -> tuple[str, ...]:
        """Return the files that the rows of a partition are from, for lineage; none where code gives them."""
        return partition.files

    def root(self) -> str:
        """Return the folder or URL prefix that all ``file_paths`` share, which partition names leave out."""
        return root_of_locations(self.file_paths, (*self.suffixes, *ARRAY_SUFFIXES))

    def open(self, partition: Partition) -> BatchStream:
        """Return the stream of one partition; its files are scanned for their schema now, and read later.

        The file of a single-file partition stays open for the stream until it is read or the reader opens
        another partition.
        """
        schemas: list[pa.Schema] = []
        items: int | None = 0
        losses: list[Loss] = []
        self._close_kept()
        open_file = self._opener(partition)
        for file in partition.files:
            with located(file):
                source = open_file(file)
            schemas.append(source.schema)
            items = None if items is None or source.items is None else items + source.items
            losses += source.losses
            if len(partition.files) == 1:
                self._kept[partition] = source
            else:
                source.close()
        schema = self._partition_schema(schemas, partition.files)
        stream = BatchStream(
            partition.name,
            schema,
            lambda: self._batches(partition, stream),
            self.sources(partition),
            items,
            has_sound_text=True,
        )
        stream.losses += losses
        return stream

    def _close_kept(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()

    def _sources(self, partition: Partition) -> Iterator[FileSource]:
        """Yield the files of a partition, each open while it is used."""
        open_file = self._opener(partition)
        for file in partition.files:
            kept = self._kept.pop(partition, None)
            with located(file):
                opened = kept or open_file(file)
            with closing(opened) as source:
                yield source

    def project(
        self, partition: Partition, columns: Sequence[str], notes: dict[str, Any] | None = None
    ) -> tuple[pa.Schema, Iterator[pa.Table]]:
        """Return the schema of a partition, and tables of some columns; nothing else is read from storage.

        ``notes`` gets what a writer's report has under this name, of the files that are read to the end.
        """
        schema = self.open(partition).schema
        return schema, self._projected(partition, schema, columns, {} if notes is None else notes)

    def _projected(
        self, partition: Partition, schema: pa.Schema, columns: Sequence[str], notes: dict[str, Any]
    ) -> Iterator[pa.Table]:
        target = pa.schema([schema.field(name) for name in columns if name in schema.names])
        for source in self._sources(partition):
            with located(source.uri):
                for table in source.tables(_wanted(target, source), self.max_batch_bytes or _PROJECTED_BYTES):
                    aligned = align_table(table, target)
                    refuse_broken_text(aligned, source.uri)
                    yield aligned
            notes[source.uri] = source.notes

    def __iter__(self) -> Iterator[InterleavedBatch]:
        for partition in self.partitions():
            yield from self.open(partition)

    def _batches(self, partition: Partition, stream: BatchStream) -> Iterator[InterleavedBatch]:
        whole: list[pa.Table] = []
        for source in self._sources(partition):
            with located(source.uri):
                for table in source.tables(_wanted(stream.schema, source), self.max_batch_bytes):
                    for part in self._finish(table, stream.schema, source.uri):
                        if source.notes.get("of_others"):
                            part = with_errors(part, digest_faults(part, self.declared_digests))
                        if self.max_batch_bytes is not None:
                            yield InterleavedBatch(part, (source.uri,), partition.name)
                        else:
                            whole.append(part)
            if source.notes:
                stream.notes[source.uri] = source.notes
        if whole:
            yield InterleavedBatch(pa.concat_tables(whole), partition.files, partition.name)

    def _finish(self, table: pa.Table, schema: pa.Schema, file: str) -> Iterator[pa.Table]:
        """Yield a source's table sorted, in its final types and with its bytes, cut again if it grew."""
        try:
            table = sort_items(table)
            aligned = align_table(table, schema)
        except ValueError as error:
            refuse_broken_text(table, file)
            raise ShardError(f"{file}: {error}") from error
        refuse_broken_text(aligned, file)
        parts = [aligned]
        to_fetch = bytes_to_fetch(aligned) if self.materialize else np.zeros(table.num_rows, np.int64)
        # Tables are within the limit as they come from the source.
        has_grown = to_fetch.any() or not aligned.schema.equals(table.schema)
        if self.max_batch_bytes is not None and table.num_rows and has_grown:
            parts = cut_rows(
                aligned, sample_offsets(table), row_bytes(aligned) + to_fetch, self.max_batch_bytes
            )
        for part in parts:
            if self.materialize:
                part = materialize_table(part, self.roots, self.storage_options, self.images_from)
            yield part

    def _partition_schema(self, schemas: Sequence[pa.Schema], files: Sequence[str]) -> pa.Schema:
        found = unify_schemas(canonical_schema(reconcile_schema(schema)) for schema in schemas)
        if self.fields is not None:
            if absent := [name for name in self.fields if name not in found.names]:
                location = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
                near = [name for field in absent for name in get_close_matches(field, found.names, n=1)]
                hint = f" (is {', '.join(near)} meant?)" if near else ""
                warn_user(f"{location}: fields not found, filled with null: {', '.join(absent)}{hint}")
            kept = [found.field(n) if n in found.names else pa.field(n, pa.null()) for n in self.fields]
            found = pa.schema([*INTERLEAVED_SCHEMA, *kept])
        if self.target is None:
            return found
        if self.is_strict:
            return self.target
        declared = {field.name: field for field in self.target}
        others = [field for field in found if field.name not in declared]
        return pa.schema([*self.target, *others])


def _plain(paths: Paths) -> tuple[str, ...]:
    """Return locations as text, local files without ``file://``."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    return tuple(local_path(whole_url(os.fspath(path))) for path in given)


def _wanted(schema: pa.Schema, source: FileSource) -> list[str]:
    """Return the columns to read: those of the schema, and the required ones, which define samples."""
    names = {*schema.names, *REQUIRED_COLUMNS}
    return [name for name in source.schema.names if name in names]


@dataclass(frozen=True, slots=True)
class SurveyedSample:
    """One sample that can be decoded, and how many items it has.

    ``member`` is the name of its JSON, or of the text of an image-text pair without JSON, at ``byte_offset``
    of the uncompressed tar. In a Parquet file ``member`` is the name of the row and there is no byte range.
    """

    sample_id: str
    member: str
    byte_offset: int | None
    byte_size: int | None
    items: int
    images: int


@dataclass(frozen=True)
class FileSurvey:
    """Survey of one file.

    Attributes:
        samples: in the file's order, each id once.
        losses: samples that cannot be read, and damaged ranges.
        unresolved: (sample id, position, message) of image references that lead to no image.
        frame_counts: (TIFF member, frames, references) of those whose numbers differ.
        unreferenced: members that are not an image of a sample.
        skipped: members that are not regular files.
        left_out: members that macOS or tar had added, which are not data.
        tallies: kinds of values of the fields whose samples declare no types.
        declared: passthrough schemas of the samples that declare types.
        declared_ints: ranges of the integers in the 64-bit columns of those.
        content: columns of third-party documents that look like texts or images (`content_columns`).
        has_pairs: whether the rows of a Parquet file are image-text pairs.
        documents: layout of the documents, if it is one of `mm_assets.formats.document_layouts.LAYOUTS`.
        members: number of all members of a tar, or of rows of a Parquet file.
        nbytes: bytes of the unpacked tar, or of the file.
    """

    samples: tuple[SurveyedSample, ...] = ()
    losses: tuple[Loss, ...] = ()
    unresolved: tuple[tuple[str, int, str], ...] = ()
    frame_counts: tuple[tuple[str, int, int], ...] = ()
    unreferenced: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    tallies: Mapping[str, FieldTally] = field(default_factory=dict)
    declared: tuple[pa.Schema, ...] = ()
    declared_ints: Mapping[str, FieldTally] = field(default_factory=dict)
    content: ContentColumns = field(default_factory=dict)
    has_pairs: bool = False
    documents: str = ""
    members: int = 0
    nbytes: int = 0


_DEFAULT_PARTITION = "part-00000"
# Iterables that are not batches: iterated, they give letters, keys or columns.
_NOT_BATCHES = (str, os.PathLike, type, Mapping, pa.Table, pa.RecordBatch)

Batches = InterleavedReader | InterleavedBatch | BatchStream | Iterable[InterleavedBatch]


def grouped_streams(batches: Batches, single: str | None = None) -> Iterator[BatchStream]:
    """Yield one stream per partition, in the order partitions first appear.

    Args:
        batches: a reader, a batch, or an iterable of batches.
        single: put everything into one stream of this name.

    Raises:
        TypeError: ``batches`` is none of them.
    """
    if isinstance(batches, InterleavedBatch):
        batches = [batches]
    if not isinstance(batches, Iterable) or isinstance(batches, _NOT_BATCHES):
        raise _no_batches(batches)
    if isinstance(batches, BatchStream):
        streams: Iterable[BatchStream] = [batches]
    elif isinstance(batches, InterleavedReader):
        reader = batches
        streams = (reader.open(partition) for partition in reader.partitions())
    elif isinstance(batches, Sequence):
        streams = _group(batches)
    else:
        streams = _spooled(batches)
    if single is None:
        yield from streams
    else:
        yield _concatenated(list(streams), single)


def _no_batches(given: object) -> TypeError:
    hint = (
        "wrap a table: InterleavedBatch(table)"
        if isinstance(given, pa.Table | pa.RecordBatch)
        else "read files with a reader first"
    )
    return TypeError(
        "write() takes a reader, an InterleavedBatch or an iterable of them, "
        f"not {type(given).__name__}: {hint}"
    )


def _checked(batches: Iterable[object]) -> Iterator[InterleavedBatch]:
    for batch in batches:
        if not isinstance(batch, InterleavedBatch):
            raise _no_batches(batch)
        yield batch


def _group(batches: Sequence[InterleavedBatch]) -> list[BatchStream]:
    groups: dict[str, list[InterleavedBatch]] = {}
    for batch in _checked(batches):
        groups.setdefault(batch.partition or _DEFAULT_PARTITION, []).append(batch)
    return [_listed(name, members) for name, members in groups.items()]


def _listed(name: str, batches: list[InterleavedBatch]) -> BatchStream:
    schema = unify_schemas(canonical_schema(batch.data.schema) for batch in batches)
    files = tuple(dict.fromkeys(file for batch in batches for file in batch.source_files))
    return BatchStream(name, schema, lambda: map(_with_whole_samples, batches), files)


def _with_whole_samples(batch: InterleavedBatch) -> InterleavedBatch:
    """Return the batch with the rows of each sample together, which the caller may not have ensured."""
    table = group_samples(batch.data) if "sample_id" in batch.data.column_names else batch.data
    return batch if table is batch.data else batch.with_data(table)


def _concatenated(streams: list[BatchStream], name: str) -> BatchStream:
    schema = unify_schemas([stream.schema for stream in streams] or [canonical_schema(pa.schema([]))])
    files = tuple(dict.fromkeys(file for stream in streams for file in stream.files))
    counts = [stream.items for stream in streams]
    items = None if None in counts else sum(count for count in counts if count is not None)
    result = BatchStream(name, schema, lambda: _chained(streams, result), files, items)
    return result


def _chained(streams: list[BatchStream], result: BatchStream) -> Iterator[InterleavedBatch]:
    for stream in streams:
        yield from stream
        result.losses.extend(stream.losses)  # complete, like the notes, only after the stream was read
        result.removed = result.removed.plus(stream.removed)
        result.counts.update(stream.counts)
        result.notes.update(stream.notes)


class _Spool:
    """Batches of one partition on disk, with an Arrow stream per schema, as later batches may add columns."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.schemas: list[pa.Schema] = []
        self.lineage: list[tuple[str, ...]] = []
        # Lives as long as the spool.
        self._file = tempfile.TemporaryFile(prefix="mm-assets-spool-")  # noqa: SIM115
        self._starts: list[int] = []

    def append(self, batch: InterleavedBatch) -> None:
        self._starts.append(self._file.tell())
        with ipc.new_stream(self._file, batch.data.schema) as writer:
            writer.write_table(batch.data)
        self.lineage.append(tuple(batch.source_files))
        if not any(schema.equals(batch.data.schema, check_metadata=True) for schema in self.schemas):
            self.schemas.append(batch.data.schema)

    def stream(self) -> BatchStream:
        schema = unify_schemas(canonical_schema(found) for found in self.schemas)
        files = tuple(dict.fromkeys(file for files in self.lineage for file in files))
        return BatchStream(self.name, schema, self._read, files)

    def _read(self) -> Iterator[InterleavedBatch]:
        for start, files in zip(self._starts, self.lineage, strict=True):
            self._file.seek(start)
            yield _with_whole_samples(
                InterleavedBatch(ipc.open_stream(self._file).read_all(), files, self.name)
            )


def _spooled(batches: Iterable[InterleavedBatch]) -> Iterator[BatchStream]:
    spools: dict[str, _Spool] = {}
    for batch in _checked(batches):
        name = batch.partition or _DEFAULT_PARTITION
        if name not in spools:
            spools[name] = _Spool(name)
        spools[name].append(batch)
    for spool in spools.values():
        yield spool.stream()
