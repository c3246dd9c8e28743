"""Fragments of a Lance write, described by a `FragmentSet`, and the schema of the table that takes them.

Workers write data files that belong to no version yet; one process commits them. Before, the table's schema
becomes the union of those of its partitions, in one new version (`evolve`). Added columns, and columns that
were only nulls, change no data: the schema gets fields that no data file has, which read as null. A widened
column (integers to floats, anything to JSON text) is written again, that column alone, beside the fragment's
other data. Field ids tie schema and data files together; they are never used twice.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, LanceFragment
from lance.schema import LanceSchema

from mm_assets.formats.lance import (
    ARROW_TYPE,
    Location,
    file_version,
    from_storage,
    from_storage_schema,
    opened,
    to_storage,
    to_storage_schema,
)
from mm_assets.formats.registry import FreeMemory
from mm_assets.model.errors import DataError, MmAssetsError
from mm_assets.model.json_codec import is_json, json_field
from mm_assets.model.nested_types import plain_type
from mm_assets.model.schema import RESERVED_COLUMNS, align_table, order_columns, unify_schemas

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


_NO_DATA = -2  # Lance's own mark for a column of a file that is no field of the table any more
_TEMPORARY = "__mm_assets_new_"


class SchemaNotPlanned(MmAssetsError, ValueError):
    """Rows were written in another schema than the table has now.

    Plan again (`plan_schema`) and write them again.
    """


def plan_schema(
    uri: str, schemas: Sequence[pa.Schema], storage_options: Mapping[str, str] | None = None
) -> pa.Schema:
    """Return the schema in which partitions should be written: the table's schema, unified with theirs.

    Call it before workers write; the table is not changed. Reserved columns come first, then the table's in
    their order, then new ones in the order of their first occurrence. Integers that meet floats become
    float64 only if the table's integers are exact in it, otherwise JSON text. For partitions still to be
    written the caller must know that (`FieldTally` does): `align_table` refuses inexact integers.

    Args:
        schemas: the schemas of the partitions.
    """
    location = Location(uri, storage_options)
    if not location.has_table():
        return union(None, schemas)
    dataset = opened(location.uri, storage_options=location.storage_options or None)
    current = from_storage_schema(dataset.schema)
    planned = union(current, schemas)
    inexact = {
        field.name
        for field in current
        if pa.types.is_integer(field.type)
        and pa.types.is_floating(planned.field(field.name).type)
        and not _fits(dataset, field.name, planned.field(field.name).type)
    }
    if not inexact:
        return planned
    return union(pa.schema([json_field(f.name) if f.name in inexact else f for f in current]), schemas)


def union(current: pa.Schema | None, schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the unified schema (`unify_schemas`) of the table and others, in original types."""
    return order_columns(unify_schemas(schema for schema in (current, *schemas) if schema is not None))


def target_schema(current: pa.Schema | None, sets: Iterable[FragmentSet]) -> pa.Schema:
    """Return the storage schema of the table after a commit of these sets.

    A set fits when each of its columns has its final type or is only nulls; columns that it lacks read as
    null.

    Raises:
        SchemaNotPlanned: for a set that does not fit.
    """
    sets = list(sets)
    logical = None if current is None else from_storage_schema(current)
    target = to_storage_schema(union(logical, [from_storage_schema(s.arrow_schema()) for s in sets]))
    for fragments in sets:
        if not fragments.rows:
            continue
        schema = fragments.arrow_schema()
        for field in schema:
            if not pa.types.is_null(field.type) and not same_values(field, target.field(field.name)):
                raise SchemaNotPlanned(
                    f"partition {fragments.partition!r}: column {field.name!r} was written as "
                    f"{_kind(field)}, but the table needs {_kind(target.field(field.name))}: "
                    "call plan_schema and write the partition in its schema"
                )
        for name in RESERVED_COLUMNS:
            if name in target.names and name not in schema.names and not target.field(name).nullable:
                raise SchemaNotPlanned(f"partition {fragments.partition!r} has no column {name!r}")
    return target


def same_values(first: pa.Field, second: pa.Field) -> bool:
    """Return whether the stored values of two fields mean the same."""
    mark = [(field.metadata or {}).get(ARROW_TYPE) for field in (first, second)]
    # Lance gives the items of fixed-size lists a name of its own.
    is_same_type = plain_type(first.type).equals(plain_type(second.type))
    return is_same_type and is_json(first) == is_json(second) and mark[0] == mark[1]


def evolve(dataset: lance.LanceDataset, target: pa.Schema) -> lance.LanceDataset:
    """Give the table a storage schema, in one commit.

    Raises:
        CommitConflictError: when another commit came first.
        SchemaMismatch: naming the column, when a value cannot be converted exactly. The table is then as
            before.
    """
    current = dataset.schema
    target = target.with_metadata(current.metadata)
    dropped = [name for name in current.names if name not in target.names]
    if dropped:
        raise ValueError(f"a table's schema only grows: {dropped} would be lost")
    changed = [
        f.name for f in target if f.name in current.names and not same_values(current.field(f.name), f)
    ]
    rewritten = [name for name in changed if not pa.types.is_null(current.field(name).type)]
    fragments = dataset.get_fragments()
    if not fragments or not rewritten:
        operation: Any = lance.LanceOperation.Project(_with_field_ids(dataset, target, changed))
    else:
        # Lance lets a Merge give a field a new id only when every fragment has data for it: nulls are written
        # as well.
        schema = _with_field_ids(dataset, target, changed)
        operation = lance.LanceOperation.Merge(
            [_rewrite(f, current, target, changed, schema) for f in fragments], schema
        )
    properties = {
        "mm_assets:evolution": json.dumps(changed + [n for n in target.names if n not in current.names])
    }
    transaction = lance.Transaction(dataset.version, operation, transaction_properties=properties)
    return lance.LanceDataset.commit(dataset, transaction)


def adopt(text: str, written: pa.Schema, dataset: lance.LanceDataset) -> FragmentMetadata:
    """Return a worker's fragment with the field ids of the table.

    Args:
        text: the fragment as JSON, with the field ids of its own schema.
        written: the storage schema it was written in.
    """
    written_paths = _paths(LanceSchema.from_pyarrow(written).fields())
    table = {path: id_ for id_, path in _paths(dataset.lance_schema.fields()).items()}
    only_nulls = {
        f.name
        for f in written
        if pa.types.is_null(f.type) and not pa.types.is_null(dataset.schema.field(f.name).type)
    }
    values = json.loads(text)
    for file in values["files"]:
        paths = [written_paths[id_] for id_ in file["fields"]]
        file["fields"] = [_NO_DATA if path[0] in only_nulls else table[path] for path in paths]
    return FragmentMetadata.from_json(json.dumps(values))


def _rewrite(
    fragment: Any, current: pa.Schema, target: pa.Schema, names: list[str], schema: LanceSchema
) -> FragmentMetadata:
    """Return the fragment with one more data file, which holds the new form of the named columns."""
    source = pa.schema([current.field(name) for name in names])
    converted = pa.schema([target.field(name) for name in names])
    failure: list[Exception] = []

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            stored = pa.Table.from_arrays([batch.column(name) for name in names], schema=source)
            aligned = to_storage(align_table(from_storage(stored), from_storage_schema(converted)))
            columns = [aligned.column(name).combine_chunks() for name in names]
            return pa.RecordBatch.from_arrays(columns, names=[_TEMPORARY + name for name in names])
        except Exception as error:
            failure.append(error)
            raise

    before = {file.path for file in fragment.metadata.files}
    try:
        merged, merged_schema = fragment.merge_columns(convert, columns=names)
    except Exception:
        if failure:  # Lance's error says less
            raise failure[0] from None
        raise
    merged_ids = _paths(merged_schema.fields())
    field_ids = {path: id_ for id_, path in _paths(schema.fields()).items()}
    values = merged.to_json()
    for file in values["files"]:
        if file["path"] not in before:
            paths = [merged_ids[id_] for id_ in file["fields"]]
            file["fields"] = [field_ids[(path[0].removeprefix(_TEMPORARY), *path[1:])] for path in paths]
    return FragmentMetadata.from_json(json.dumps(values))


def _with_field_ids(dataset: lance.LanceDataset, target: pa.Schema, changed: Iterable[str]) -> LanceSchema:
    """Return ``target`` with the table's ids for fields that keep their data, and unused ids for others."""
    fresh = LanceSchema.from_pyarrow(target)
    changed_names = set(changed)
    known = {p: i for i, p in _paths(dataset.lance_schema.fields()).items() if p[0] not in changed_names}
    next_id = dataset.max_field_id + 1
    ids: dict[tuple[str, ...], int] = {}
    for path in _paths(fresh.fields()).values():
        if path not in known:
            known[path] = next_id
            next_id += 1
        ids[path] = known[path]
    # A pickled LanceSchema is one protobuf message a field, in pre-order. In protobuf the last value of a
    # field wins, so that appending id (3) and parent id (4) sets them.
    reduced: Any = fresh.__reduce__()
    build, (metadata, *messages) = reduced
    numbered = [
        message + b"\x18" + _varint(id_) + b"\x20" + _varint(ids.get(path[:-1], -1))
        for message, (path, id_) in zip(messages, ids.items(), strict=True)
    ]
    schema: LanceSchema = build(metadata, *numbered)
    if _paths(schema.fields()) != {id_: path for path, id_ in ids.items()}:
        raise RuntimeError("this pylance keeps its schemas in another form: field ids could not be set")
    return schema


def _paths(fields: Iterable[Any], parent: tuple[str, ...] = ()) -> dict[int, tuple[str, ...]]:
    """Return field id -> names from the column down, in pre-order."""
    found: dict[int, tuple[str, ...]] = {}
    for field in fields:
        path = (*parent, field.name())
        found[field.id()] = path
        found.update(_paths(field.children(), path))
    return found


def _varint(number: int) -> bytes:
    rest, out = number & (2**64 - 1), bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def _fits(dataset: lance.LanceDataset, name: str, type_: pa.DataType) -> bool:
    for batch in dataset.scanner(columns=[name]).to_batches():
        try:
            batch.column(name).cast(type_)
        except pa.ArrowInvalid:
            return False
    return True


def _kind(field: pa.Field) -> str:
    return "JSON text" if is_json(field) else str(from_storage_schema(pa.schema([field])).field(0).type)


def differs(current: pa.Schema, target: pa.Schema) -> bool:
    """Return whether `evolve` has anything to do. Schema-level metadata does not count."""
    plain = [[field.with_type(plain_type(field.type)) for field in schema] for schema in (current, target)]
    return not pa.schema(plain[0]).equals(pa.schema(plain[1], metadata=target.metadata), check_metadata=True)
