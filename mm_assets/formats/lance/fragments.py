"""Fragments of a Lance write: data files that belong to no version yet, described by a `FragmentSet`.

Workers write them; one process commits them.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.lance import Location, file_version, to_storage, to_storage_schema
from mm_assets.formats.registry import FreeMemory
from mm_assets.model.errors import DataError

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata


_RELEASE_BYTES = 8 << 20  # written between two releases of memory
_JOINED_BYTES = 20 << 20  # a batch of 16 MiB, and what a sample more may add
# Readers never see this metadata: the table has its own schema, and the hint is only for the file writer.
_NO_COMPRESSION = {"lance-encoding:compression": "none"}

Batches: TypeAlias = pa.RecordBatchReader | pa.Table | Iterable[pa.RecordBatch | pa.Table]


@dataclass(frozen=True)
class FragmentSet:
    """All rows of one partition, written but not committed; picklable, or text by `to_json` and `from_json`.

    Args:
        schema: the storage schema in IPC form.
        fragments: each Lance ``FragmentMetadata`` as JSON.
        nbytes: size of the data files.
        packed_ids: the distinct sample ids (`sample_ids`).
        digest: digest of the rows, from the caller; may be empty. Two sets with equal digest, row count and
            schema count as the same rows, and the second is not committed.
    """

    partition: str
    set_id: str
    schema: bytes
    fragments: tuple[str, ...]
    rows: int
    nbytes: int
    samples: int
    packed_ids: bytes
    digest: str = ""

    def arrow_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def sample_ids(self) -> pa.Array:
        """Return the distinct sample ids in the order they were written, as ``string``."""
        return unpack_ids(self.packed_ids)

    def data_files(self) -> tuple[str, ...]:
        """Return the names of the data files, relative to the table's ``data`` folder."""
        return tuple(file["path"] for text in self.fragments for file in json.loads(text)["files"])

    def with_digest(self, digest: str) -> FragmentSet:
        return replace(self, digest=digest)

    def to_json(self) -> str:
        values = asdict(self)
        for name in ("schema", "packed_ids"):
            values[name] = base64.b64encode(values[name]).decode()
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> FragmentSet:
        values = json.loads(text)
        for name in ("schema", "packed_ids"):
            values[name] = base64.b64decode(values[name])
        return cls(**{**values, "fragments": tuple(values["fragments"])})


def removal(partition: str, schema: pa.Schema) -> FragmentSet:
    """Return the set whose commit removes a partition.

    Args:
        schema: any schema that fits the table, e.g. its own.
    """
    stored = to_storage_schema(schema)
    return FragmentSet(
        partition, uuid.uuid4().hex, _schema_bytes(stored), (), 0, 0, 0, pack_ids(pa.array([], pa.string()))
    )


def write_fragments(
    uri: str | os.PathLike[str],
    partition: str,
    batches: Batches,
    *,
    schema: pa.Schema | None = None,
    digest: str = "",
    storage_options: Mapping[str, str] | None = None,
) -> FragmentSet:
    """Stream one partition's rows into new data files below ``uri``.

    They are invisible until `LanceTable.commit`. The table need not exist yet. Columns of the planned schema
    that this partition does not have read as null and need not be written. Files that a failed call leaves
    behind belong to no version; ``cleanup_old_versions`` removes them after seven days.

    Args:
        batches: a reader, a table, or (with ``schema``) an iterable of batches or tables of that schema.
        digest: digest of the rows, see `FragmentSet`.

    Raises:
        UnsupportedType: for a column that Lance cannot hold.
        ValueError: for a null sample id, or no partition name.
        OSError: from the store. Errors of ``batches`` are raised as they are.
    """
    if not partition:
        raise ValueError("a partition needs a name")
    if schema is None:
        if not isinstance(batches, pa.RecordBatchReader | pa.Table):
            raise TypeError(
                "write_fragments needs schema= when batches is neither a RecordBatchReader nor a Table"
            )
        schema = batches.schema
    if "sample_id" not in schema.names:
        raise DataError(f"partition {partition!r} has no sample_id column")
    location = Location(uri, storage_options)
    stored = to_storage_schema(schema)
    source = _Source(batches, schema, partition)
    version = file_version(stored)
    written_as = _written_schema(stored) if version != "2.0" else stored
    try:
        fragments = _write_file(location, version, written_as, source)
    except Exception:
        if source.error is not None:  # Lance wraps it in an OSError that says less
            raise source.error from None
        raise
    rows = sum(fragment.physical_rows for fragment in fragments)
    if rows != source.rows:
        raise OSError(f"partition {partition!r}: Lance wrote {rows} rows of {source.rows}")
    ids = pa.array(source.ids, pa.string())
    return FragmentSet(
        partition=partition,
        set_id=uuid.uuid4().hex,
        schema=_schema_bytes(stored),
        fragments=tuple(json.dumps(fragment.to_json()) for fragment in fragments),
        rows=rows,
        nbytes=sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files),
        samples=len(ids),
        packed_ids=pack_ids(ids),
        digest=digest,
    )


def _write_file(
    location: Location, version: str, schema: pa.Schema, source: _Source
) -> list[FragmentMetadata]:
    """Write one fragment, or none when the stream has no rows."""
    from lance.fragment import LanceFragment

    stream = source.batches(schema)
    first = next(stream, None)
    if first is None:
        return []
    reader = pa.RecordBatchReader.from_batches(schema, itertools.chain([first], stream))
    # Not lance.fragment.write_fragments: on a missing table it prints a warning, on an existing one it needs
    # the table's schema. The creation of a fragment does neither, and the mode has no effect.
    options = location.storage_options or None
    created = LanceFragment.create(
        location.uri, reader, mode="create", data_storage_version=version, storage_options=options
    )
    return [created]


class _Source:
    """Counts rows and sample ids of a stream, and keeps the error of the caller's stream."""

    def __init__(self, batches: Batches, schema: pa.Schema, partition: str) -> None:
        self._input = batches.to_batches() if isinstance(batches, pa.Table) else batches
        self._schema = schema
        self._partition = partition
        self.rows = 0
        self.ids: dict[str, None] = {}
        self.error: Exception | None = None
        self._memory = FreeMemory()
        self._unreleased = 0  # bytes written since memory was last released

    def batches(self, written_as: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for data in self._input:
                for batch in _joined(data) if isinstance(data, pa.Table) else (data,):
                    if batch.num_rows:
                        stored = to_storage(self._checked(batch))
                        yield pa.RecordBatch.from_arrays(
                            [_whole(column) for column in stored.columns], schema=written_as
                        )
                        self._bound_memory(batch.nbytes)
        except Exception as error:
            self.error = error
            raise

    def _bound_memory(self, nbytes: int) -> None:
        """Release memory to the system after every some megabytes.

        The pages that Lance has written are free memory to its allocator, but not to the system: hundreds of
        megabytes.
        """
        self._unreleased += nbytes
        if self._unreleased > _RELEASE_BYTES:
            self._unreleased = 0
            self._memory.release_to_os()

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.schema.equals(self._schema):
            raise ValueError(
                f"partition {self._partition!r}: a batch has schema {batch.schema}, not {self._schema}"
            )
        ids: Any = batch.column("sample_id")
        if ids.null_count:
            raise DataError(f"partition {self._partition!r} has a row without sample_id")
        self.ids.update(dict.fromkeys(pc.unique(ids).to_pylist()))
        self.rows += batch.num_rows
        return batch


def _joined(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the rows of a small table as one batch, those of a large one in the batches that it has.

    Lance would join small batches itself, in memory that the system clears anew for each. A large table is
    left as it is: joined, it would be held twice.
    """
    if table.nbytes <= _JOINED_BYTES:
        with suppress(pa.ArrowInvalid):  # dictionaries that do not fit into one
            table = table.combine_chunks()
    return table.to_batches()


def _whole(column: pa.Array) -> pa.Array:
    """Return a nested column without offsets, at any depth.

    Lance 14 panics on a slice of a struct in a struct.
    """
    return pa.concat_arrays([column]) if pa.types.is_nested(column.type) else column


def pack_ids(ids: pa.Array) -> bytes:
    """Return sample ids as a compressed IPC stream."""
    sink = pa.BufferOutputStream()
    table = pa.table({"sample_id": ids})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def unpack_ids(packed: bytes) -> pa.Array:
    """Return the sample ids of `pack_ids`."""
    with pa.ipc.open_stream(pa.py_buffer(packed)) as reader:
        column = reader.read_all().column("sample_id").combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _schema_bytes(schema: pa.Schema) -> bytes:
    # Schema-level metadata may name the shard; the table has one schema for all of them.
    return bytes(schema.remove_metadata().serialize().to_pybytes())


def _written_schema(schema: pa.Schema) -> pa.Schema:
    fields = [
        field.with_metadata({**(field.metadata or {}), **_NO_COMPRESSION})
        if field.name == "binary_content"
        else field
        for field in schema
    ]
    return pa.schema(fields)
