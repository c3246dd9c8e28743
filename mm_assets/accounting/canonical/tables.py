"""Canonical readers of Parquet, Lance tables and Arrow caches, each with one library of its users.

* Parquet: `pyarrow.parquet` alone.
* Lance: the scanner of `lance` alone.
* Arrow cache: `pyarrow.ipc` alone. `cache_problems` checks that the files are those in the metadata of the
  cache; our readers refuse a cache otherwise. `derive_cache` digests them for it while it reads their rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import xxhash

from mm_assets.accounting.canonical import (
    Derived,
    DigestTally,
    RowPart,
    blob_index,
    naming_file,
    normalized,
    read_once,
)
from mm_assets.formats.arrow_cache import (
    METADATA_FILE,
    CacheShard,
    OpenShard,
    digest_of,
    parse_metadata,
)
from mm_assets.formats.parquet import (
    IMAGE_REFS,
    open_checked,
    original_schema,
    place_of_images,
    refers,
    restore,
    unpacked_bytes,
    unreadable_dictionary,
)
from mm_assets.formats.parquet.document_file import WrittenOut
from mm_assets.formats.parquet.document_layout import is_interleaved
from mm_assets.model.digest import BLOBS
from mm_assets.model.errors import ShardError
from mm_assets.model.nested_types import binary_views
from mm_assets.model.schema import schema_from_text
from mm_assets.storage.errors import cause_line
from mm_assets.storage.files import (
    StorageOptions,
    exists,
    is_remote,
    join,
    local_path,
    open_binary,
    regular_file,
    size_of,
)

if TYPE_CHECKING:
    from lance import LanceDataset

    from mm_assets.formats.lance import Location
    from mm_assets.formats.lance.snapshot import Snapshot

_BYTES_AT_ONCE = 8 << 20
# Fits the processor's cache between decoding and digest; also about one page of our files.
_BLOB_BYTES_AT_ONCE = 2 << 20
_ROWS_AT_ONCE = 4096
_READ_BUFFER = 1 << 18


def parquet_parts(
    uri: str,
    raw: Callable[[], Iterator[RowPart]],
    has_prefixes: bool = False,
    options: StorageOptions | None = None,
) -> Iterator[RowPart]:
    """Yield the rows of one file, in its types; for a file with a row per document what ``raw`` yields.

    Args:
        uri: the file.
        raw: the reader for files with a row per document.
        has_prefixes: prefixes are put in front of sample ids, which pyarrow knows nothing of: ``raw`` is used
            too.
        options: for the file system.
    """
    with ExitStack() as stack:
        source = stack.enter_context(open_binary(uri, options)) if is_remote(uri) else regular_file(uri)
        with naming_file(uri):
            file = stack.enter_context(
                open_checked(source, pre_buffer=is_remote(uri), buffer_size=_READ_BUFFER)
            )
            schema = original_schema(file)
        if not is_interleaved(schema) or has_prefixes:
            yield from raw()
            return
        with naming_file(uri):
            yield RowPart(pa.Table.from_batches([], schema))
            written = WrittenOut(
                file,
                lambda: size_of(uri, options),
                uri,
                lambda names: open_checked(source, metadata=file.metadata, read_dictionary=names),
            )
            elsewhere = CuratedImages(uri, options, stack) if refers(file) else None
            try:
                for group in range(file.num_row_groups):
                    if elsewhere is None:
                        yield from _row_group(file, group, schema, uri, written)
                    else:
                        yield from _referring_group(file, group, schema, elsewhere, written)
            except pa.ArrowInvalid as error:
                raise ShardError(unreadable_dictionary(file, error) or error) from error


def _row_group(
    file: pq.ParquetFile, group: int, schema: pa.Schema, uri: str, written: WrittenOut
) -> Iterator[RowPart]:
    row_group = file.metadata.row_group(group)
    blob_bytes = unpacked_bytes(row_group, [BLOBS])
    index = blob_index(schema)
    most_rows = written.rows(group, schema.names)
    if (
        index < 0
        or most_rows is not None
        or row_group.num_rows > _ROWS_AT_ONCE
        or row_group.total_byte_size - blob_bytes > _BYTES_AT_ONCE
    ):
        rows = _rows_in(_BYTES_AT_ONCE, row_group.total_byte_size, row_group.num_rows)
        rows = min(rows, most_rows or rows)
        for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
            written.count(batch)
            yield RowPart(restore(pa.Table.from_batches([batch]), schema))
        return
    others = schema.remove(index)
    table = restore(file.read_row_group(group, columns=others.names, use_threads=False), others)
    written.count(table)
    rows = _rows_in(_BLOB_BYTES_AT_ONCE, blob_bytes, row_group.num_rows)
    # Our pages have 16 rows, and a batch with rows of two pages is copied once more.
    rows = 1 << (rows.bit_length() - 1)
    yield RowPart(table, _blobs(file, group, rows, schema.field(index).type, uri), index, schema.field(index))


def _blobs(file: pq.ParquetFile, group: int, rows: int, type_: pa.DataType, uri: str) -> Iterator[pa.Array]:
    with naming_file(uri):  # a generator: errors occur while the caller iterates
        for batch in file.iter_batches(rows, row_groups=[group], columns=[BLOBS], use_threads=False):
            yield batch.column(BLOBS).cast(type_)


class CuratedImages:
    """Images that the rows of a file refer to, read one after the other."""

    def __init__(self, uri: str, options: StorageOptions | None, stack: ExitStack) -> None:
        self._uri, self._place = uri, place_of_images(uri)
        if not exists(self._place, options):
            raise ShardError(f"{uri}: its images lie in {self._place}: no such file")
        remote = is_remote(self._place)
        source = stack.enter_context(open_binary(self._place, options)) if remote else self._place
        arguments = {"pre_buffer": remote, "buffer_size": _READ_BUFFER}
        with naming_file(self._place):
            self._file = stack.enter_context(open_checked(source, **arguments))
            written = WrittenOut(
                self._file,
                lambda: size_of(self._place, options),
                self._place,
                lambda names: open_checked(source, metadata=self._file.metadata, read_dictionary=names),
            )
            self._rows: dict[tuple[str, int], tuple[int, int]] = {}
            for group in range(self._file.num_row_groups):
                if written.rows(group, [*_KEYS, BLOBS]) is not None:
                    raise ShardError("no curated Parquet of ours: its columns have dictionaries")
                keys = self._file.read_row_group(group, columns=_KEYS, use_threads=False)
                columns = [keys.column(name).to_pylist() for name in _KEYS]
                for row, (sample_id, position, modality) in enumerate(zip(*columns, strict=True)):
                    if modality == "image":
                        self._rows[sample_id, position] = group, row
        self._at = (-1, 0, 0)  # row group, and rows of it that the values are of
        self._values: Any = ()
        self._batches: Iterator[Any] = iter(())

    def image(self, sample_id: str, position: int, size: int, digest: str) -> pa.Array:
        """Return the bytes of an image, as the one value of an array.

        Raises:
            ShardError: there is no such image, or another one.
        """
        place = self._rows.get((sample_id, position))
        value = None if place is None else self._value(*place)
        data = None if value is None else binary_views(value)[0]
        if value is None or data is None or len(data) != size or xxhash.xxh3_128_hexdigest(data) != digest:
            what = "no such image" if data is None else "another image"
            raise ShardError(
                f"{self._uri}: sample {sample_id!r:.200}, position {position}: {what} in {self._place}"
            )
        return value

    def _value(self, group: int, row: int) -> pa.Array:
        with naming_file(self._place):
            if group != self._at[0] or row < self._at[1]:
                found = self._file.metadata.row_group(group)
                rows = _rows_in(_BLOB_BYTES_AT_ONCE, unpacked_bytes(found, [BLOBS]), found.num_rows)
                self._batches = self._file.iter_batches(
                    rows, row_groups=[group], columns=[BLOBS], use_threads=False
                )
                self._at = group, 0, 0
            while row >= self._at[2]:
                self._values = next(self._batches).column(0)
                self._at = group, self._at[2], self._at[2] + len(self._values)
            return self._values.slice(row - self._at[1], 1)


_KEYS = ["sample_id", "position", "modality"]


def _referring_group(
    file: pq.ParquetFile, group: int, schema: pa.Schema, elsewhere: CuratedImages, written: WrittenOut
) -> Iterator[RowPart]:
    row_group, index = file.metadata.row_group(group), blob_index(schema)
    rows = _rows_in(_BYTES_AT_ONCE, row_group.total_byte_size, row_group.num_rows)
    rows = min(rows, written.rows(group, file.schema_arrow.names) or rows)
    for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
        written.count(batch)
        table = pa.Table.from_batches([batch])
        own = batch.column(BLOBS)
        rows_read = zip(
            *(table.column(name).to_pylist() for name in ("sample_id", "position", IMAGE_REFS)), strict=True
        )
        others = restore(table.drop_columns([BLOBS, IMAGE_REFS]), schema.remove(index))
        blobs = (
            own.slice(row, 1)
            if ref is None
            else elsewhere.image(sample_id, position, ref["bytes"], ref["digest"])
            for row, (sample_id, position, ref) in enumerate(rows_read)
        )
        yield RowPart(others, blobs, index, schema.field(index))


def _rows_in(limit: int, nbytes: int, rows: int) -> int:
    """Return how many rows fit into the limit, by their mean size."""
    return min(max(limit * rows // max(nbytes, 1), 1), _ROWS_AT_ONCE)


# A scanner reads all its rows ahead, up to hundreds of megabytes, so each scan is limited to this.
_TABLE_BYTES_AT_ONCE = 6 << 20
_BATCHES = 3  # per scan of blobs: a batch is still in the processor's cache when it is digested
_IDS_PER_QUERY = 10_000
_LIMITS = {"batch_readahead": 1, "fragment_readahead": 1, "io_buffer_size": _TABLE_BYTES_AT_ONCE}


def lance_parts(
    uri: str, partition: str | None = None, options: StorageOptions | None = None
) -> Iterator[RowPart]:
    """Yield the rows of a table, or of one of its partitions, in the types of the table.

    The rows of a partition are found by its records (`mm_assets.formats.lance.records`). A partition that
    the table lacks has no rows.
    """
    import lance

    from mm_assets.formats.lance import Location, until_answered
    from mm_assets.formats.lance.reader_writer import lance_options
    from mm_assets.formats.lance.snapshot import unreadable_text

    location = Location(uri, lance_options(uri, options))

    def open_table() -> _Table:
        if not location.has_table():
            raise FileNotFoundError(f"{uri}: no Lance table here")
        arguments: dict[str, Any] = {"storage_options": location.storage_options or None, **_CACHES}
        with _naming(uri):
            return _Table(location, until_answered(partial(lance.dataset, location.uri, **arguments)))

    table = read_once(uri, open_table)
    with _naming(uri):
        dataset = table.dataset
        schema = _original(pa.Table.from_batches([], dataset.schema)).schema
        yield RowPart(pa.Table.from_batches([], schema))
        fragments, ids = table.rows_of(partition)
        try:
            for start in range(0, len(ids), _IDS_PER_QUERY):
                yield from _matching(dataset, ids.slice(start, _IDS_PER_QUERY).to_pylist())
            for fragment in fragments:
                yield from _fragment(dataset, fragment, schema, uri)
        except (pa.ArrowException, OSError) as error:
            raise ShardError(unreadable_text(fragments or dataset.get_fragments(), error) or error) from error


@contextmanager
def _naming(uri: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ShardError(f"{uri}: lance cannot read it: {cause_line(error, uri)}") from error


# A table that stays open for all shards of a proof keeps what it has read of their files: 1 GiB by default.
_CACHES = {"metadata_cache_size_bytes": 32 << 20, "index_cache_size_bytes": 32 << 20}


class _Table:
    """A version of a table, with the records of its partitions as they were listed then."""

    def __init__(self, location: Location, dataset: LanceDataset) -> None:
        from mm_assets.formats.lance.records import PartitionRecords
        from mm_assets.formats.lance.snapshot import Snapshot

        self.dataset = dataset
        self._records = PartitionRecords(location)
        self._open_snapshot = partial(Snapshot, dataset)

    @cached_property
    def _snapshot(self) -> Snapshot:
        return self._open_snapshot()

    @cached_property
    def _listed(self) -> Mapping[str, Sequence[str]]:
        return self._records.names()

    def rows_of(self, partition: str | None) -> tuple[list[Any], Any]:
        """Return the fragments of a partition, or its sample ids if other rows share its fragments."""
        if partition is None:
            return self.dataset.get_fragments(), []
        snapshot = self._snapshot
        live = snapshot.live(self._records.of([partition], self._listed)[partition])
        if live is None:  # or a commit of the meantime has replaced its record
            live = snapshot.live(self._records.of([partition])[partition])
        if live is None:
            return [], []
        if snapshot.present_rows(live) != live.rows:  # moved by compaction or by a deletion
            return [], live.sample_ids()
        return [snapshot.fragment(id_) for id_ in snapshot.fragment_ids(live)], []


def _matching(dataset: Any, ids: list[str]) -> Iterator[RowPart]:
    from mm_assets.formats.lance.snapshot import ids_predicate

    rows = _rows_at_once(dataset.get_fragments())
    for batch in dataset.scanner(filter=ids_predicate(ids), batch_size=rows, **_LIMITS).to_batches():
        yield RowPart(_original(pa.Table.from_batches([batch])))


def _fragment(dataset: Any, fragment: Any, schema: pa.Schema, uri: str) -> Iterator[RowPart]:
    rows, stop = _rows_at_once([fragment]), fragment.count_rows()
    index = blob_index(schema)
    columns = [name for name in dataset.schema.names if index < 0 or name != BLOBS]
    start, step = 0, rows
    while start < stop:
        limits = {"fragments": [fragment], "offset": start, "limit": step, "batch_size": step, **_LIMITS}
        table = _original(dataset.scanner(columns=columns, **limits).to_table())
        blob_rows = range(start, min(start + step, stop), rows)
        yield (
            RowPart(table)
            if index < 0
            else RowPart(table, _table_blobs(dataset, fragment, blob_rows, uri), index, schema.field(index))
        )
        start += step
        # Without blobs, rows are far smaller.
        step = min(max(_TABLE_BYTES_AT_ONCE * step // max(table.nbytes, 1), 1), _ROWS_AT_ONCE)


def _table_blobs(dataset: Any, fragment: Any, rows: range, uri: str) -> Iterator[pa.Array]:
    """Yield the image bytes of these rows, one scan per step of the range."""
    with _naming(uri):  # a generator: errors occur while the caller iterates
        for start in rows:
            limits = {
                "offset": start,
                "limit": min(rows.step, rows.stop - start),
                "batch_size": max(rows.step // _BATCHES, 1),
                **_LIMITS,
            }
            for batch in dataset.scanner(fragments=[fragment], columns=[BLOBS], **limits).to_batches():
                yield batch.column(0).cast(dataset.schema.field(BLOBS).type)


def _original(table: pa.Table) -> pa.Table:
    from mm_assets.formats.lance import from_storage, with_original_names

    table = from_storage(table)
    return table.rename_columns(with_original_names(table.schema).names)


def _rows_at_once(fragments: list[Any]) -> int:
    stored = sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.metadata.files)
    mean = max(stored // max(sum(fragment.metadata.physical_rows for fragment in fragments), 1), 1)
    return min(max(_TABLE_BYTES_AT_ONCE // mean, 1), _ROWS_AT_ONCE)


_METADATA = "_metadata.json"
_DIGESTED_AT_ONCE = 1 << 20  # bytes: they are still in the processor's cache then


def derive_cache(uri: str, options: StorageOptions | None = None) -> Derived:
    """Count and digest the rows of a cache, and digest its files, in one read of these."""
    tally, digests, metadata = DigestTally(), dict[str, str](), _metadata(uri, options)
    for part in arrow_cache_parts(uri, options, digests, metadata):
        tally.add(normalized(part, uri))
    return replace(tally.derived(), digests=digests, metadata=metadata)


def _metadata(cache: str, options: StorageOptions | None) -> bytes:
    uri = join(cache.removesuffix(f"/{_METADATA}"), _METADATA)
    with naming_file(uri), open_binary(uri, options) as file:
        return file.read()


def arrow_cache_parts(
    uri: str,
    options: StorageOptions | None = None,
    digests: dict[str, str] | None = None,
    metadata: bytes | None = None,
) -> Iterator[RowPart]:
    """Yield the rows of one cache, in the types of its shards, or of its metadata if it has no shards.

    Args:
        uri: its folder, or the `_metadata.json` in it.
        options: for the file system.
        digests: gets the digest of each shard by its file name.
        metadata: the content of `_metadata.json`, if it is known.
    """
    folder = uri.removesuffix(f"/{_METADATA}")
    with naming_file(join(folder, _METADATA)):
        content: dict[str, Any] = json.loads(_metadata(folder, options) if metadata is None else metadata)
        names, schema = list(content["shard_filenames"]), schema_from_text(content["arrow_schema"])
        if any("/" in name for name in names):
            raise ValueError("a shard of another folder")
    if not names:
        yield RowPart(pa.Table.from_batches([], schema))
    for name in names:
        with naming_file(join(folder, name)), closing(_open(join(folder, name), options)) as file:
            reads = _DigestedReads(file)
            yield from _shard(reads)
            if digests is not None:
                digests[name] = reads.digest()


def _open(uri: str, options: StorageOptions | None) -> Any:
    # Read, not mapped: mapped pages count as memory of the worker until the file is closed.
    return open_binary(uri, options) if is_remote(uri) else open(regular_file(uri), "rb", buffering=0)


def _shard(file: _DigestedReads) -> Iterator[RowPart]:
    reader = ipc.open_file(pa.PythonFile(file, "r"), options=ipc.IpcReadOptions(use_threads=False))
    blobs = blob_index(reader.schema)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        table = pa.Table.from_batches([batch])
        if blobs < 0:
            yield RowPart(table)
        else:
            yield RowPart(
                table.remove_column(blobs), iter([batch.column(blobs)]), blobs, reader.schema.field(blobs)
            )


class _DigestedReads:
    """A file that is digested from its begin to its end as far as somebody reads it in this order.

    What is digested is what the storage gives out, in the read that the rows come from.
    """

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._at = self._digested = 0
        self._digest = xxhash.xxh3_128()

    def read(self, size: int) -> pa.Buffer:
        if self._digested < self._at <= self._digested + _DIGESTED_AT_ONCE:  # what nobody has asked for
            self._digest_up_to(self._at)
        buffer = pa.allocate_buffer(size)
        view, filled = memoryview(buffer), 0
        self._file.seek(self._at)
        while count := self._file.readinto(view[filled : filled + _DIGESTED_AT_ONCE]):
            if self._at == self._digested:
                self._digest.update(view[filled : filled + count])
                self._digested += count
            filled += count
            self._at += count
        return buffer.slice(0, filled)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = int(self._file.seek(offset, whence))
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """Do nothing: who has opened the file closes it."""

    def digest(self) -> str:
        """Return the digest of the whole file as 32 hex digits."""
        self._digest_up_to(None)
        return self._digest.hexdigest()

    def _digest_up_to(self, end: int | None) -> None:
        buffer = memoryview(bytearray(_DIGESTED_AT_ONCE))
        self._file.seek(self._digested)
        left = _DIGESTED_AT_ONCE if end is None else end - self._digested
        while left and (count := self._file.readinto(buffer[:left])):
            self._digest.update(buffer[:count])
            self._digested += count
            left = left if end is None else left - count


def cache_problems(uri: str, found: Derived = Derived()) -> Iterator[str]:  # noqa: B008 (frozen)
    """Yield a line for each shard of a cache that differs from its metadata.

    Args:
        uri: its folder.
        found: what `derive_cache` has read: the metadata, and digests of the files; others are read.

    Raises:
        FileNotFoundError: the cache has no metadata.
    """
    try:
        meta = parse_metadata(Path(uri), _metadata(uri, None) if found.metadata is None else found.metadata)
    except ValueError as error:
        yield str(error)
        return
    for shard in meta.shards:
        path = join(uri, shard.filename)
        digest = (found.digests or {}).get(shard.filename) or _digest(path)
        if digest != shard.digest:
            yield f"{path}: its digest is {digest}, not {shard.digest} as {METADATA_FILE} says"
        elif not is_remote(path) and (
            differing := _differing(OpenShard(Path(local_path(path))), shard, meta.schema)
        ):
            yield f"{path}: {differing} are not those that {METADATA_FILE} says"


def _differing(found: OpenShard, declared: CacheShard, schema: object) -> str:
    if found.rows != declared.rows:
        return "its rows"
    return "" if found.schema.equals(schema, check_metadata=True) else "its columns"


def _digest(uri: str) -> str:
    with open_binary(uri) as file:
        return digest_of(file)
