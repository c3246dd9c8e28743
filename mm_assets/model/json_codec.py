"""JSON codec of Arrow columns: exact conversion between columns of any type and JSON values.

Numbers, booleans, strings and nulls stay what they are. A column of JSON text becomes the value it holds.
Structs become objects, lists arrays, maps arrays of pairs; durations and times of day become integers of
their unit. Types without a JSON form travel as text: bytes as base64; dates, timestamps and decimals as Arrow
prints them. A value that would not come back equal in this form is wrapped under `RAW`.

A raw JSON field gets the Arrow type that holds all its values exactly (`FieldTally`). Where no other type
does, it becomes a column of JSON text: ``string`` with the field metadata `JSON_ENCODING`. ``pa.json_()`` is
not used because Lance re-encodes it and loses NaN, integers beyond 2^53 and key order
(docs/decisions.md, JSON as text).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.model.errors import MmAssetsError
from mm_assets.model.nested_types import is_bytes, is_list, is_text

# {"__arrow__": x}: x is the storage value (the integer of a date or time, the text of a JSON cell).
RAW = "__arrow__"


def _storage_ints(array: pa.Array) -> pa.Array:
    width = array.type.bit_width
    return array.view(pa.int32() if width == 32 else pa.int64())


def _travels_as_integer(type_: pa.DataType) -> bool:
    return pa.types.is_duration(type_) or pa.types.is_time(type_)  # Arrow cannot parse the text of either


def encode_times(array: pa.Array) -> list[Any]:
    """Return the JSON values of an array of dates, times, timestamps or durations."""
    integers = _storage_ints(array).to_pylist()
    if _travels_as_integer(array.type):
        return integers
    texts = _exact_texts(array)
    if texts is None:
        # Value by value: digests are made of these forms, so no form may depend on neighbouring values.
        texts = [
            None if value is None else (_exact_texts(array.slice(i, 1)) or [None])[0]
            for i, value in enumerate(integers)
        ]
    return [
        {RAW: value} if text is None and value is not None else text
        for text, value in zip(texts, integers, strict=True)
    ]


def _exact_texts(array: pa.Array) -> list[str | None] | None:
    """Return the values as Arrow prints them; None if not all of them come back equal.

    Years of five digits do not, nor does an hour that occurs twice.
    """
    try:
        texts: list[str | None] = array.cast(pa.string()).to_pylist()
        return texts if decode_times(texts, array.type).equals(array) else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def decode_times(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return the array that `encode_times` turned into ``values``."""
    integer = pa.int32() if type_.bit_width == 32 else pa.int64()
    if _travels_as_integer(type_):
        return pa.array(values, integer).view(type_)
    if any(isinstance(v, dict) for v in values):
        return pa.array([None if v is None else _temporal_int(v, type_) for v in values], integer).view(type_)
    return pc.cast(pa.array(values, pa.string()), type_)


def _temporal_int(value: Any, type_: pa.DataType) -> int:
    if isinstance(value, dict):
        return int(value[RAW])
    return int(_storage_ints(pc.cast(pa.array([value], pa.string()), type_))[0].as_py())


_MANY_BRACKETS = 200  # with fewer, text cannot be nested too deeply for Python's parser
_MAX_EXPONENT = 76  # of Arrow's widest decimal
# Extra nesting levels that a value must survive: it travels inside other JSON, parsed on a deeper stack.
_SPARE_DEPTH = 300


class NotEncodable(MmAssetsError, ValueError):
    """A column type that JSON values cannot carry exactly; the message names the column and its type."""


def check_type(field: pa.Field) -> None:
    """Check that `encode` supports a column's type, whatever the values.

    Raises:
        NotEncodable: The type has no exact JSON form.
    """
    if (unsupported := _unsupported_type(field)) is not None:
        context = "" if unsupported is field.type else f"{field.type!s:.200} cannot be written: "
        raise NotEncodable(
            f"column {field.name!r}: {context}values of type {unsupported!s:.200} have no exact form"
        )


def encode(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> list[Any]:
    """Return the JSON values of a column, one per row."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # combine_chunks keeps several chunks when offsets would overflow
        return [value for chunk in array.chunks for value in _encode(chunk, field)]
    return _encode(array, field)


def decode(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return the column that `encode` turned into ``values``."""
    return _decode(values, field)


def is_json_text(field: pa.Field) -> bool:
    """Return True for a column of JSON text.

    Such columns are made by `json_field`, or read from any of our outputs.
    """
    return field.metadata is not None and field.metadata.get(b"mm_assets:encoding") == b"json"


def _encode(array: pa.Array, field: pa.Field) -> list[Any]:
    type_ = array.type
    if is_json_text(field):
        return [None if text is None else _json_cell(text) for text in array.to_pylist()]
    if is_natural(type_):
        return array.to_pylist()
    if isinstance(type_, pa.BaseExtensionType):
        return _encode(array.storage, pa.field(field.name, type_.storage_type))
    if pa.types.is_dictionary(type_):
        return _encode(array.cast(type_.value_type), pa.field(field.name, type_.value_type))
    if _is_binary(type_):
        return [None if v is None else base64.b64encode(v).decode() for v in array.to_pylist()]
    if pa.types.is_decimal(type_):
        return [None if v is None else str(v) for v in array.to_pylist()]
    if pa.types.is_temporal(type_) and not pa.types.is_interval(type_):
        return encode_times(array)
    if pa.types.is_struct(type_):
        return _encode_struct(array, field.name)
    if pa.types.is_map(type_):
        return _encode_map(array)
    if _is_list(type_):
        return _encode_list(array)
    raise NotEncodable(f"column {field.name!r}: type {type_} has no exact JSON form")


def _decode(values: Sequence[Any], field: pa.Field) -> pa.Array:
    type_ = field.type
    if is_json_text(field):
        return pa.array([None if v is None else _json_text(v) for v in values], type_)
    if is_natural(type_):
        # Arrow would silently truncate floats to integers, and turn booleans into numbers.
        if (pa.types.is_integer(type_) and float in map(type, values)) or (
            pa.types.is_floating(type_) and bool in map(type, values)
        ):
            raise ValueError(f"column {field.name!r}: not all values are of type {type_}")
        return pa.array(values, type_)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(
            type_, _decode(values, pa.field(field.name, type_.storage_type))
        )
    if pa.types.is_dictionary(type_):
        return _to_dictionary(_decode(values, pa.field(field.name, type_.value_type)), type_)
    if _is_binary(type_):
        return pa.array([None if v is None else base64.b64decode(v, validate=True) for v in values], type_)
    if pa.types.is_decimal(type_):
        return pa.array([None if v is None else _decimal(v) for v in values], type_)
    if pa.types.is_temporal(type_):
        return decode_times(values, type_)
    if pa.types.is_struct(type_):
        children = [_decode([None if v is None else v.get(f.name) for v in values], f) for f in type_]
        mask = pa.array([v is None for v in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    if pa.types.is_map(type_):
        return _decode_map(values, type_)
    if _is_list(type_):
        return _decode_list(values, type_)
    raise NotEncodable(f"column {field.name!r}: type {type_} has no exact JSON form")


def _unsupported_type(field: pa.Field) -> pa.DataType | None:
    """Return the first type, at any depth, that has no exact JSON form; None if there is none."""
    type_ = field.type
    if isinstance(type_, pa.BaseExtensionType):
        return _unsupported_type(pa.field("", type_.storage_type))
    if pa.types.is_dictionary(type_):
        return (
            type_
            if pa.types.is_nested(type_.value_type)
            else _unsupported_type(pa.field("", type_.value_type))
        )
    if pa.types.is_map(type_):
        inner = [type_.key_field, type_.item_field]
    elif pa.types.is_struct(type_) and len({child.name for child in type_}) == type_.num_fields:
        inner = list(type_)
    elif _is_list(type_):
        inner = [type_.value_field]
    else:
        is_leaf = (
            is_natural(type_)
            or _is_binary(type_)
            or pa.types.is_decimal(type_)
            or pa.types.is_temporal(type_)
        )
        return None if is_leaf and not pa.types.is_interval(type_) else type_
    return next(
        (unsupported for child in inner if (unsupported := _unsupported_type(child)) is not None), None
    )


def is_natural(type_: pa.DataType) -> bool:
    """Return whether values of a type are the same in JSON."""
    return (
        is_text(type_)
        or pa.types.is_string_view(type_)
        or pa.types.is_null(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
    )


def _is_binary(type_: pa.DataType) -> bool:
    return is_bytes(type_) or pa.types.is_fixed_size_binary(type_) or pa.types.is_binary_view(type_)


def _is_list(type_: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(type_):
        return bool(type_.list_size)  # Arrow divides by the size and crashes for 0
    return is_list(type_)


def is_too_deep(text: str) -> bool:
    """Return True if JSON text is nested too deeply for Python to parse once it is inside other JSON."""
    if text.count("[") + text.count("{") < _MANY_BRACKETS:
        return False
    try:
        json.loads("[" * _SPARE_DEPTH + text + "]" * _SPARE_DEPTH)
    except RecursionError:
        return True
    except ValueError:
        return False
    return False


def json_value(text: str) -> Any:
    """Return the value of a cell of JSON text; the text itself where it is none, or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def strings_in(value: Any) -> Iterator[str]:
    """Yield the strings in a value of lists and objects, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from strings_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from strings_in(part)


def _json_cell(text: str) -> Any:
    try:
        if is_too_deep(text):
            return {RAW: text}
        value = json.loads(text)
    except ValueError:
        return {RAW: text}
    normal = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    ambiguous = value is None or (isinstance(value, dict) and set(value) == {RAW})
    return {RAW: text} if normal != text or ambiguous else value


def _json_text(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {RAW}:
        return str(value[RAW])
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _to_dictionary(array: pa.Array, type_: pa.DictionaryType) -> pa.Array:
    encoded = array.dictionary_encode()  # Arrow casts only text to a dictionary type
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(type_.index_type), encoded.dictionary, ordered=type_.ordered
    )


def _decimal(text: str) -> Any:
    from decimal import Decimal

    value = Decimal(text)
    exponent = value.as_tuple().exponent
    # Beyond this exponent Arrow reads past its table of powers of ten and crashes.
    if not isinstance(exponent, int) or abs(exponent) > _MAX_EXPONENT:
        raise ValueError(f"{text!r:.100} is no number of a decimal column")
    return value


def _encode_struct(array: pa.StructArray, name: str) -> list[Any]:
    names = [field.name for field in array.type]
    if len(set(names)) != len(names):
        raise NotEncodable(
            f"column {name!r}: struct with repeated field names {names} has no exact JSON form"
        )
    columns = [_encode(child, field) for child, field in zip(array.flatten(), array.type, strict=True)]
    present = array.is_valid().to_pylist()
    return [
        dict(zip(names, (column[i] for column in columns), strict=True)) if is_present else None
        for i, is_present in enumerate(present)
    ]


def _encode_list(array: pa.Array) -> list[Any]:
    value_field = array.type.value_field
    lengths = pc.list_value_length(array).to_pylist()
    flat = _encode(array.flatten(), value_field)  # flatten() skips values under null lists
    rows: list[Any] = []
    at = 0
    for length in lengths:
        rows.append(None if length is None else flat[at : at + length])
        at += length or 0
    return rows


def _decode_list(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    size = type_.list_size if pa.types.is_fixed_size_list(type_) else None
    flat: list[Any] = []
    offsets: list[int | None] = []
    for row in values:
        offsets.append(None if row is None else len(flat))
        flat.extend(row if row is not None else [None] * (size or 0))
    child = _decode(flat, type_.value_field)
    mask = pa.array([row is None for row in values], pa.bool_())
    if size is not None:
        return pa.FixedSizeListArray.from_arrays(child, type=type_, mask=mask)
    ends = [*_fill_backwards(offsets, len(flat)), len(flat)]
    if pa.types.is_large_list(type_):
        return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), child, type=type_, mask=mask)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), child, type=type_, mask=mask)


def _fill_backwards(offsets: list[int | None], end: int) -> list[int]:
    filled: list[int] = []
    following = end
    for offset in reversed(offsets):
        following = following if offset is None else offset
        filled.append(following)
    return filled[::-1]


def _encode_map(array: pa.MapArray) -> list[Any]:
    offsets = array.offsets.to_pylist()
    start, end = offsets[0], offsets[-1]
    keys = _encode(array.keys.slice(start, end - start), array.type.key_field)
    items = _encode(array.items.slice(start, end - start), array.type.item_field)
    pairs = [list(pair) for pair in zip(keys, items, strict=True)]
    spans = zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
    return [pairs[low - start : high - start] if is_present else None for low, high, is_present in spans]


def _decode_map(values: Sequence[Any], type_: pa.MapType) -> pa.Array:
    pairs = [pair for row in values if row is not None for pair in row]
    keys = _decode([key for key, _ in pairs], type_.key_field)
    items = _decode([item for _, item in pairs], type_.item_field)
    offsets: list[int | None] = []
    at = 0
    for row in values:
        offsets.append(None if row is None else at)
        at += len(row or ())
    return pa.MapArray.from_arrays(pa.array([*offsets, at], pa.int32()), keys, items, type=type_)


JSON_ENCODING = {b"mm_assets:encoding": b"json"}
EXACT_FLOAT_INT = 2**53  # largest magnitude up to which every integer is a float64
# All magnitudes from here on are treated alike, and Python prints no integer of more than 4,300 digits.
_BEYOND_INT64 = 2**63
_KINDS: dict[str, type] = {
    "null": type(None),
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list": list,
    "dict": dict,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
# Built once: `json.dumps` would build an encoder for each call.
_encoded_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_field(name: str) -> pa.Field:
    """Return a field whose column holds one JSON text per row."""
    return pa.field(name, pa.string(), metadata=JSON_ENCODING)


is_json = is_json_text


def dumps(value: Any) -> str:
    """Return the one normal form of JSON text in columns.

    It is compact and unescaped, with NaN and big integers as Python writes them.
    """
    return _encoded_text(value)


def to_json_text(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Return each value of a column of any type as JSON text; nulls stay null."""
    values = encode(column, field)
    return pa.chunked_array([pa.array([None if v is None else dumps(v) for v in values], pa.string())])


class FieldTally:
    """Tally of the kinds of JSON values in a field, and the Arrow type that holds all of them exactly."""

    __slots__ = ("_kinds", "_largest_int")

    def __init__(self) -> None:
        self._kinds: set[type] = set()
        self._largest_int = 0

    def observe(self, value: Any) -> None:
        """Count one value."""
        kind = type(value)
        if kind is int:
            magnitude = abs(value)
            if magnitude > self._largest_int:
                self._largest_int = magnitude
        self._kinds.add(kind)

    def merge(self, other: FieldTally) -> None:
        """Add all values that ``other`` has seen."""
        self._kinds |= other._kinds
        self._largest_int = max(self._largest_int, other._largest_int)

    @property
    def ints_fit_float(self) -> bool:
        """True if every integer seen is exact as float64."""
        return self._largest_int <= EXACT_FLOAT_INT

    def rounded(self) -> FieldTally:
        """Return a tally with the same fields, and the largest integer only as far as it decides on them."""
        tally = FieldTally()
        tally._kinds = set(self._kinds)
        limits = (EXACT_FLOAT_INT + 1, _BEYOND_INT64)
        tally._largest_int = max((limit for limit in limits if limit <= self._largest_int), default=0)
        return tally

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldTally) and self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """Return the tally as plain values, for `from_json`."""
        return {
            "kinds": sorted(_NAMES[kind] for kind in self._kinds),
            "largest_int": min(self._largest_int, _BEYOND_INT64),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FieldTally:
        """Return the tally that ``values`` were made from.

        Raises:
            LookupError, TypeError: `to_json` did not make ``values``.
        """
        tally = cls()
        tally._kinds = {_KINDS[name] for name in values["kinds"]}
        tally._largest_int = int(values["largest_int"])
        return tally

    def field(self, name: str) -> pa.Field:
        """Return a field of the narrowest exact type: JSON text if no Arrow type holds all values."""
        kinds = self._kinds - {type(None)}
        if not kinds:
            return pa.field(name, pa.null())
        if kinds == {bool}:
            return pa.field(name, pa.bool_())
        if kinds == {str}:
            return pa.field(name, pa.string())
        if kinds == {int} and self._largest_int < _BEYOND_INT64:
            return pa.field(name, pa.int64())
        if kinds == {float} or (kinds == {int, float} and self.ints_fit_float):
            return pa.field(name, pa.float64())
        return json_field(name)


def build_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return a column of parsed JSON values, in the type that a `FieldTally` chose."""
    if is_json(field):
        return pa.array([None if v is None else dumps(v) for v in values], field.type)
    return pa.array(values, field.type)
