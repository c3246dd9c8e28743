"""Exact conversion between JSON values and dates, times, timestamps and durations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
