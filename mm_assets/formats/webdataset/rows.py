"""Rows of decoded samples, the Arrow tables built from them, and the references and types of their json.

* Column types that a json declares are untrusted (`DeclaredTypes`). They are checked for the memory they
  need, and for support by our writers.
* An image reference in the json leads to a member, or a frame of a member. It resolves exactly or not at all.
* `build_table` makes a table of samples that share one passthrough schema.
"""

from __future__ import annotations

import dataclasses
import posixpath
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.lance import ARROW_TYPE, to_storage_schema
from mm_assets.formats.parquet import stored_schema
from mm_assets.formats.reports import string_leaves
from mm_assets.formats.tar.scan import Member, TarIndex
from mm_assets.formats.webdataset import MAX_FIELDS, MAX_ROOM, TIFF_EXTENSIONS, RawLayout, extension
from mm_assets.model import json_codec
from mm_assets.model.errors import DANGLING_REFERENCE, Fault, missing_member
from mm_assets.model.json_codec import RAW, FieldTally, build_column, dumps, is_json, json_field
from mm_assets.model.nested_types import inner_types, is_list, value_type
from mm_assets.model.schema import (
    INTERLEAVED_SCHEMA,
    RESERVED_COLUMNS,
    align_table,
    canonical_schema,
    reconcile_schema,
    refuse_misfits,
    schema_from_text,
    schema_to_text,
    unify_schemas,
)

SLOT = 16  # bytes of a value while its column is built: a Python reference, and a number or an offset
_WIDEST = 1 << 20  # bytes of one row of nulls: the rows of all other samples of the shard take as many
# Tuples, not sets: users' extension types may have no hash.
_JSON_TYPES = (pa.string(), pa.large_string(), pa.string_view())
# Arrow takes a value of these types unchanged, or not at all.
_STRICT_TYPES = (pa.null(), pa.bool_(), pa.float64(), pa.string(), pa.large_string())


@dataclass(frozen=True, eq=False)
class DeclaredTypes:
    """The passthrough columns that a json declares; one object per distinct text, compared by identity.

    ``row_bytes`` are the bytes of a row of nulls (see `width`). ``int64s`` has the names of columns whose
    integers may not be exact as float64. ``lax`` has the names of columns whose type would accept a value and
    change it.
    """

    schema: pa.Schema
    row_bytes: int
    int64s: tuple[str, ...]
    lax: tuple[str, ...]
    _wide_lists: tuple[pa.Field, ...]  # columns with lists of items wider than one value
    _has_required: bool  # some values must not be null
    _has_seconds: bool  # Parquet stores these as milliseconds

    def room(self, extras: Sequence[dict[str, Any]]) -> int:
        """Return the bytes that the columns take while built from these rows, if the values fit the types."""
        inside = sum(
            _listed_bytes([row.get(field.name) for row in extras], field.type) for field in self._wide_lists
        )
        return len(extras) * self.row_bytes + inside

    def try_out(self, table: pa.Table) -> None:
        """Check values as Parquet would.

        Raises:
            ValueError: There are nulls where none may be, values that their type does not hold, or seconds
                that do not fit 64 bits as milliseconds.
        """
        refuse_misfits(table)
        if self._has_required:
            table.cast(table.schema)
        if self._has_seconds:
            pq.write_table(table.cast(stored_schema(table.schema, "")), pa.BufferOutputStream())

    @cached_property
    def unwritable(self) -> str | None:
        """Reason why one of our writers would refuse these types and metadata, whatever the values.

        None if no writer would.
        """
        columns = (field for field in canonical_schema(self.schema) if field.name not in RESERVED_COLUMNS)
        return next(
            filter(None, (_unwritable(schema_to_text(pa.schema([field]))) for field in columns)), None
        )


@lru_cache(maxsize=4096)  # samples of one tar may state other columns each
def _unwritable(text: str) -> str | None:
    """Return why the one column of a schema cannot be written, None if it can."""
    schema = schema_from_text(text)
    (field,) = schema
    try:
        for inner in _with_inner(field):
            _refuse_odd(inner)
        to_storage_schema(schema)
        with pq.ParquetWriter(pa.BufferOutputStream(), stored_schema(schema, "")):
            pass
    except (ValueError, TypeError, OSError, pa.ArrowException) as error:
        return f"column {field.name!r}: {field.type!s:.200} cannot be written: {error}"
    return None


@lru_cache(maxsize=64)
def read_declared(text: str) -> DeclaredTypes:
    """Return the types that a json declares.

    Raises:
        ValueError, OSError, pa.ArrowException: The text is no schema, or its columns exceed what any sample
            needs.
    """
    schema = schema_from_text(text)
    fields = sum(1 for field in schema for _ in _with_inner(field))
    if fields > MAX_FIELDS:
        raise ValueError(f"it declares {fields} fields, at most {MAX_FIELDS}")
    if len({*schema.names, *RESERVED_COLUMNS}) != len(schema) + len(RESERVED_COLUMNS):
        raise ValueError(f"its column names are not unique: {schema.names}")
    total = 0
    for field in schema:
        total += max(width(inner.type) for inner in _with_inner(field))
        if total > _WIDEST:
            raise ValueError(
                f"column {field.name!r}: {field.type!s:.200}: "
                f"a row is wider than the {_WIDEST} bytes that are read"
            )
    return DeclaredTypes(
        schema,
        sum(width(field.type) for field in schema),
        tuple(field.name for field in schema if pa.types.is_int64(value_type(field.type))),
        tuple(
            field.name
            for field in schema
            if not (pa.types.is_integer(field.type) or field.type in _STRICT_TYPES) or is_json(field)
        ),
        tuple(field for field in schema if _has_wide_items(field)),
        any(not inner.nullable for field in schema for inner in _with_inner(field)),
        any("timestamp[s" in str(field.type) for field in schema),
    )


def is_readable(text: str, rows: int) -> bool:
    """Return whether a sample of so many rows, most without values, may declare these types."""
    try:
        return rows * read_declared(text).row_bytes <= MAX_ROOM
    except ValueError:
        return False


def width(type_: pa.DataType) -> int:
    """Return the bytes that a null of a type takes: all of a fixed-size type, every field of a struct."""
    type_ = value_type(type_)
    if pa.types.is_fixed_size_list(type_):
        return SLOT + int(type_.list_size) * width(type_.value_type)
    if pa.types.is_fixed_size_binary(type_):
        return SLOT + int(type_.byte_width)
    if pa.types.is_struct(type_):
        return SLOT + sum(width(field.type) for field in type_)
    return SLOT


def _refuse_odd(field: pa.Field) -> None:
    for key, value in (field.metadata or {}).items():
        if key == ARROW_TYPE or key.startswith(b"lance") or value.startswith(b"lance"):
            raise ValueError(f"metadata {key!r} is Lance's own")
        key.decode(), value.decode()  # Lance refuses metadata that is not UTF-8
    if is_json(field) and field.type not in _JSON_TYPES:
        raise ValueError("JSON text is no such type")
    contains_nulls = pa.types.is_struct(field.type) or pa.types.is_fixed_size_list(field.type)
    if contains_nulls and not all(field.type.field(index).nullable for index in range(field.type.num_fields)):
        raise ValueError("a row without it would have nulls where none may be")
    if pa.types.is_struct(field.type) and len({child.name for child in field.type}) != field.type.num_fields:
        raise ValueError("field names are not unique")


def _with_inner(field: pa.Field) -> Iterator[pa.Field]:
    """Yield a field and all fields inside its type.

    Keys of maps are never null, and count as nullable.
    """
    yield field
    type_ = value_type(field.type)
    if pa.types.is_map(type_):
        inner = [type_.key_field.with_nullable(True), type_.item_field]
    else:
        inner = [type_.field(index) for index in range(type_.num_fields)]
    for child in inner:
        yield from _with_inner(child)


def _has_wide_items(field: pa.Field) -> bool:
    return any(_has_items(type_) and width(type_.field(0).type) > SLOT for type_ in inner_types(field.type))


def _has_items(type_: pa.DataType) -> bool:
    return is_list(type_) or bool(pa.types.is_fixed_size_list(type_) or pa.types.is_map(type_))


def _listed_bytes(values: Sequence[Any], type_: pa.DataType) -> int:
    """Return the bytes that the items of all lists and maps inside JSON values of a type take.

    Values of other forms are ignored.
    """
    type_ = value_type(type_)
    if pa.types.is_struct(type_):
        present = [value for value in values if isinstance(value, dict)]
        return sum(_listed_bytes([value.get(field.name) for value in present], field.type) for field in type_)
    if not _has_items(type_):
        return 0
    inner = type_.field(0).type
    items = [item for value in values if isinstance(value, list) for item in value]
    if pa.types.is_map(type_):
        names = [field.name for field in inner]
        items = [dict(zip(names, item, strict=False)) for item in items if isinstance(item, list)]
    return len(items) * width(inner) + _listed_bytes(items, inner)


@dataclass(frozen=True, slots=True)
class ResolvedContent:
    """Place of an image's bytes: a whole member, or one of ``frames`` frames of a TIFF member."""

    member: Member
    frame: int | None = None
    frames: int = 1


Resolved = ResolvedContent | Fault

_TIFF_SPELLINGS = tuple(s for e in TIFF_EXTENSIONS for s in (e, e.upper(), e.capitalize()))


def resolve_keys(references: Sequence[object], key: str, index: TarIndex) -> list[Resolved | None]:
    """Resolve WebDataset keys as references (``"3.png"`` is member ``<key>.3.png``); null gives None."""
    return [None if token is None else _by_key(token, key, index) for token in references]


def resolve_raw(
    references: Sequence[object], key: str, layout: RawLayout, index: TarIndex, default_member: object
) -> list[Resolved | None]:
    """Resolve the references of a raw sample.

    A reference is a member name, a name relative to the json's folder, a WebDataset key, or a frame of the
    sample's TIFF. If no reference names a member, the k-th one is frame k of ``default_member`` or of
    ``<key>.tiff``. A reference that looks like a file name is never taken for a frame: a missing member would
    come back as another image.
    """
    found = [None if token is None else _by_name(token, key, layout, index) for token in references]
    opaque = [
        i
        for i, token in enumerate(references)
        if token is not None and not isinstance(found[i], ResolvedContent)
    ]
    if opaque and len(opaque) == sum(token is not None for token in references):
        tiff = frame_member(key, index, default_member)
        if tiff is not None and not any(layout.is_image(str(references[i])) for i in opaque):
            if isinstance(tiff, Member) and len(opaque) == 1 and extension(tiff.name) not in TIFF_EXTENSIONS:
                found[opaque[0]] = ResolvedContent(tiff)  # `image_member_field` names the only image
                return found
            for frame, i in enumerate(opaque):
                found[i] = ResolvedContent(tiff, frame, len(opaque)) if isinstance(tiff, Member) else tiff
            return found
    return _number_frames(found)


def _number_frames(found: list[Resolved | None]) -> list[Resolved | None]:
    """Give each reference to the same TIFF one of its frames, in order."""
    reference_counts = Counter(item.member.name for item in found if isinstance(item, ResolvedContent))
    seen: Counter[str] = Counter()
    numbered: list[Resolved | None] = []
    for item in found:
        if isinstance(item, ResolvedContent):
            name = item.member.name
            if reference_counts[name] > 1 and extension(name) in TIFF_EXTENSIONS:
                item = ResolvedContent(item.member, seen[name], reference_counts[name])
                seen[name] += 1
        numbered.append(item)
    return numbered


def frame_member(key: str, index: TarIndex, default_member: object) -> Member | Fault | None:
    """Return the member that a json names as the image of its sample, else the TIFF of the key.

    Returns None if there is none, and a fault if there is not exactly one.
    """
    if default_member is not None:
        named = index.find(str(default_member)) or index.find(_beside(str(default_member), key))
        return named or _missing(str(default_member), index)
    candidates = [found for s in _TIFF_SPELLINGS if (found := index.find(f"{key}.{s}")) is not None]
    if len(candidates) > 1:
        return Fault(DANGLING_REFERENCE, f"ambiguous: {key!r} has more than one TIFF member")
    return candidates[0] if candidates else None


def _by_name(token: object, key: str, layout: RawLayout, index: TarIndex) -> Resolved:
    if not isinstance(token, str) or not token:
        return _no_name(token)
    bare = token.removeprefix("./")
    names = dict.fromkeys([bare, _beside(bare, key), f"{key}.{token}"])
    matches = {name: found for name in names if (found := index.find(name)) is not None}
    if len(matches) > 1:
        members = ", ".join(map(repr, matches))
        return Fault(DANGLING_REFERENCE, f"ambiguous reference {token!r}: members {members}")
    if not matches and layout.is_image(token):
        return _missing(token, index)
    if not matches:
        words = f"dangling reference {token!r}: no member, and no frame of a TIFF"
        return Fault(DANGLING_REFERENCE, words)
    found = next(iter(matches.values()))
    return ResolvedContent(found) if isinstance(found, Member) else found


def _by_key(token: object, key: str, index: TarIndex) -> Resolved:
    if not isinstance(token, str) or not token:
        return _no_name(token)
    # A full member name counts only if it belongs to this sample: another sample's "3.png" must not be used.
    names = [f"{key}.{token}", *([token] if token.startswith(f"{key}.") else [])]
    for name in names:
        found = index.find(name)
        if found is not None:
            return ResolvedContent(found) if isinstance(found, Member) else found
    return _missing(names[0], index)


def _missing(name: str, index: TarIndex) -> Fault:
    """Return the fault of a reference without a member, with the member that only looks as if it were it."""
    others = (unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name))
    return missing_member(name, next((other for other in others if other in index.by_name), None))


def _no_name(token: object) -> Fault:
    return Fault(DANGLING_REFERENCE, f"dangling reference: no member name: {token!r:.100}")


def _beside(token: str, key: str) -> str:
    return posixpath.join(posixpath.dirname(key), token)


_DECLARED_APART = 256  # declarations that are kept apart until they are united


@dataclass(slots=True)
class Row:
    """One item before its bytes are read. ``binary`` has bytes that were in the json itself.

    If ``is_typed``, the source states that there is no content type; otherwise a missing one is detected from
    the bytes.
    """

    position: int
    modality: str
    content_type: str | None = None
    text: str | None = None
    content: ResolvedContent | None = None
    source_ref: str | None = None
    error: Fault | None = None
    binary: bytes | None = None
    is_typed: bool = False
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)


def row_order(row: Row) -> tuple[int, bool]:
    """Return the key by which the rows of a sample are sorted: by position, text before image."""
    return row.position, row.modality == "image"


@dataclass(slots=True)
class Sample:
    """The rows of one sample.

    ``declared`` has the types of its passthrough columns, if the json states them. ``room`` are the bytes
    that columns of declared types take while they are built. ``nbytes`` are those of the members with its
    texts and fields.
    """

    sample_id: str
    rows: list[Row]
    declared: DeclaredTypes | None = None
    room: int = 0
    nbytes: int = 0


class SchemaTally:
    """Tally of the passthrough columns of all samples of a tar.

    ``declared`` has the columns whose types a json states, ``tallies`` the kinds of values of all others.
    ``leaves`` has of each of these with lists or objects the `string_leaves` of the first that has any.
    ``declared_ints`` tallies the integers of declared 64-bit columns: whether they are exact as float64, if
    other samples have floats, depends on their values.
    """

    def __init__(self) -> None:
        self.tallies: dict[str, FieldTally] = {}
        self.leaves: dict[str, set[str]] = {}
        self.declared_ints: dict[str, FieldTally] = {}
        self._declared: dict[DeclaredTypes, None] = {}
        self._united: pa.Schema | None = None  # of declarations seen earlier
        self._has_undeclared = False

    def observe(self, sample: Sample) -> None:
        """Add the columns of one sample."""
        if sample.declared is not None:
            self._declared.setdefault(sample.declared)
            if len(self._declared) > _DECLARED_APART:
                self._united = self._declared_schema()
                self._declared.clear()
            for name in sample.declared.int64s:
                ints = self.declared_ints.setdefault(name, FieldTally())
                for row in sample.rows:
                    ints.observe(row.extras.get(name))
            return
        self._has_undeclared = True
        for row in sample.rows:
            for name, value in row.extras.items():
                tally = self.tallies.get(name)
                if tally is None:
                    tally = self.tallies[name] = FieldTally()
                tally.observe(value)
                if isinstance(value, list | dict) and not self.leaves.get(name):
                    self.leaves[name] = string_leaves(value)

    @property
    def declared(self) -> list[pa.Schema]:
        """The union of all declared schemas, without dictionaries; none if no sample declares any.

        Columns that some samples lack are nullable.
        """
        schema = self._declared_schema()
        if schema is None or not self._has_undeclared:
            return [] if schema is None else [schema]
        return [pa.schema([field.with_nullable(True) for field in schema])]

    def _declared_schema(self) -> pa.Schema | None:
        schemas = [reconcile_schema(declared.schema) for declared in self._declared]
        united = schemas if self._united is None else [self._united, *schemas]
        return unify_schemas(united) if united else None

    def raw_schema(self) -> pa.Schema:
        """Return the inferred types of columns whose samples declare none."""
        return pa.schema([tally.field(name) for name, tally in self.tallies.items()])

    def schema(self) -> pa.Schema:
        """Return the tar's columns: the union of all.

        A column is JSON text if its integers meet floats and are not exact as float64.
        """
        # Only with such samples: an empty schema would make all columns nullable.
        undeclared = [self.raw_schema()] if self._has_undeclared else []
        union = unify_schemas([*self.declared, *undeclared])
        return pa.schema([field if self._is_exact(field) else json_field(field.name) for field in union])

    def _is_exact(self, field: pa.Field) -> bool:
        column_tallies = [
            tallies[field.name] for tallies in (self.tallies, self.declared_ints) if field.name in tallies
        ]
        return not pa.types.is_floating(field.type) or all(tally.ints_fit_float for tally in column_tallies)


# Exceptions that Arrow may raise for values that do not fit the json's own schema.
MISFITS = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, pa.ArrowException)


def misfit(sample: Sample, extras: pa.Schema, target: pa.Schema) -> str | None:
    """Return why values of a sample do not fit its passthrough columns, or the same columns of ``target``.

    None if they fit.
    """
    try:
        table = build_table([sample], pa.nulls(0, pa.large_binary()), extras, extras.names)
        if sample.declared is not None:
            _refuse_changed(sample, sample.declared, table)
        align_table(table, pa.schema([target.field(name) for name in extras.names]))
    except MISFITS as error:
        return str(error)
    return None


def _refuse_changed(sample: Sample, declared: DeclaredTypes, table: pa.Table) -> None:
    """Refuse values that their declared type would accept and change.

    For example, two lists of one and three values pass for two lists of two.
    """
    declared.try_out(table)
    for name in declared.lax:
        original = [row.extras.get(name) for row in sample.rows]
        column = table.schema.field(name)
        if is_json(column) and not any(isinstance(value, dict) and RAW in value for value in original):
            continue
        stored = json_codec.encode(table.column(name), column)
        # Compared as text as well: NaN is not equal to itself.
        if stored != original and dumps(stored) != dumps(original):
            raise ValueError(f"column {name!r}: not all values are of the form of {column.type!s:.200}")


def build_table(
    samples: Sequence[Sample], blobs: pa.Array, extras: pa.Schema, columns: Iterable[str]
) -> pa.Table:
    """Return a table of samples that share one passthrough schema.

    Args:
        samples: The samples.
        blobs: Values of ``binary_content``, one per row.
        extras: The passthrough schema.
        columns: Names of the columns to build.

    Raises:
        ValueError: A value does not fit its declared type.
    """
    rows = [row for sample in samples for row in sample.rows]
    is_declared = bool(samples) and samples[0].declared is not None
    requested = set(columns)
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for column in INTERLEAVED_SCHEMA:
        if column.name in requested:
            fields.append(column)
            arrays.append(_reserved(column, samples, rows, blobs))
    for column in extras:
        if column.name in requested:
            values = [row.extras.get(column.name) for row in rows]
            fields.append(column)
            arrays.append(json_codec.decode(values, column) if is_declared else build_column(values, column))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _reserved(column: pa.Field, samples: Sequence[Sample], rows: list[Row], blobs: pa.Array) -> pa.Array:
    values: list[Any]
    match column.name:
        case "binary_content":
            return blobs
        case "sample_id":
            values = [sample.sample_id for sample in samples for _ in sample.rows]
        case "text_content":
            values = [row.text for row in rows]
        case "materialize_error":
            values = [row.error and row.error.message for row in rows]
        case name:
            values = [getattr(row, name) for row in rows]
    return pa.array(values, column.type)
