"""Schema evolution of a table: the union of its partitions' schemas, in one new version.

Added columns, and columns that were only nulls, change no data: the schema gets fields that no data file has,
which read as null. A widened column (integers to floats, anything to JSON text) is written again, that column
alone, beside the fragment's other data. Field ids tie schema and data files together; they are never used
twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from lance.schema import LanceSchema

from mm_assets.formats.lance import (
    ARROW_TYPE,
    Location,
    from_storage,
    from_storage_schema,
    to_storage,
    to_storage_schema,
)
from mm_assets.formats.lance.fragments import FragmentSet
from mm_assets.formats.lance.snapshot import opened
from mm_assets.model.errors import MmAssetsError
from mm_assets.model.json_codec import is_json, json_field
from mm_assets.model.nested_types import plain_type
from mm_assets.model.schema import RESERVED_COLUMNS, align_table, order_columns, unify_schemas

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
