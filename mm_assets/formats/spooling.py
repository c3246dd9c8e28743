"""Any source of batches as streams with a known schema; batches without one ahead are spooled to disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.ipc as ipc

from mm_assets.formats.reader import InterleavedReader
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.samples import group_samples
from mm_assets.interleaved.schema import canonical_schema
from mm_assets.interleaved.steps import BatchStream
from mm_assets.interleaved.unify import unify_schemas

_DEFAULT_PARTITION = "part-00000"
# Iterables that are no batches: iterated, they give letters, keys or columns.
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
