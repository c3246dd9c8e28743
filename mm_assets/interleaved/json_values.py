"""JSON values as Arrow columns: type inference for raw JSON fields, and columns of JSON text.

A column of JSON text is ``string`` with the field metadata `JSON_ENCODING`. ``pa.json_()`` is not used
because Lance re-encodes it and loses NaN, integers beyond 2^53 and key order (docs/architecture.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mm_assets.interleaved import json_codec

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
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_field(name: str, nullable: bool = True) -> pa.Field:
    """Return a field whose column holds one JSON text per row."""
    return pa.field(name, pa.string(), nullable=nullable, metadata=JSON_ENCODING)


is_json = json_codec.is_json_text


def dumps(value: Any) -> str:
    """Return the one normal form of JSON text in columns.

    It is compact and unescaped, with NaN and big integers as Python writes them.
    """
    return _encode(value)


def to_json_text(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Return each value of a column of any type as JSON text; nulls stay null."""
    values = json_codec.encode(column, field)
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
