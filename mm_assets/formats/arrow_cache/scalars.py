"""Exact storage of Python and numpy scalars in Arrow."""

from __future__ import annotations

import math
from datetime import UTC, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa

_ATTOSECONDS = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18}
# Years and months have no fixed length.
_ATTOSECONDS |= {"m": 60 * 10**18, "h": 3600 * 10**18, "D": 86_400 * 10**18, "W": 604_800 * 10**18}


def exact_types(kind: pa.DataType) -> frozenset[type]:
    """Return the Python types whose values Arrow stores exactly as ``kind``, or refuses."""
    if pa.types.is_integer(kind):
        return frozenset({int})
    if pa.types.is_floating(kind):
        return frozenset({int, float}) if kind.bit_width == 64 else frozenset({int})
    return frozenset({bool}) if pa.types.is_boolean(kind) else frozenset({str, bytes})


def stored_scalar(value: Any, kind: pa.DataType) -> Any:
    """Return a scalar as a Python value that Arrow stores as ``kind`` without a change.

    Only floats may be rounded. The buffer of a bytearray or memoryview is copied, because its owner may reuse
    it. NaT becomes None. An aware datetime becomes UTC.

    Raises:
        ValueError, TypeError, OverflowError, pa.ArrowException: The value would change, or could not be read
            back.
    """
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        return _time(value, kind)
    if hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, str | bytes):
        return value
    stored = pa.scalar(value, kind).as_py()
    if pa.types.is_floating(kind):
        if math.isinf(stored) and value not in (math.inf, -math.inf):
            raise ValueError(f"{value!r} is out of the range of {kind}")
        return float(value)
    if pa.types.is_temporal(kind) and type(value) is int:
        return value  # a count of the type's units
    comparable: Any = stored
    if isinstance(value, datetime):
        if isinstance(stored, datetime):
            value = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        elif pa.types.is_date(kind):
            comparable = datetime.combine(stored, time.min)
    if comparable != value:
        raise ValueError(f"{value!r} would be stored as {stored!r} in {kind}")
    return stored


def _time(value: Any, kind: pa.DataType) -> Any:
    """Return a numpy datetime or timedelta of any unit as a Python value."""
    (unit, multiple), number = np.datetime_data(value.dtype), int(value.astype(np.int64).item())
    if number == np.iinfo(np.int64).min:
        return None  # NaT
    is_moment = value.dtype.kind == "M"
    if is_moment and pa.types.is_date(kind):
        kind, target_unit = pa.date32(), "D"
    elif pa.types.is_timestamp(kind) if is_moment else pa.types.is_duration(kind):
        target_unit = kind.unit
    else:
        raise ValueError(f"{value!r} is no {kind}")
    if unit not in _ATTOSECONDS:
        raise ValueError(f"{value!r} has no unit that has a length")
    count, rest = divmod(number * multiple * _ATTOSECONDS[unit], _ATTOSECONDS[target_unit])
    if rest:
        raise ValueError(f"{value!r} is between two values of {kind}")
    return pa.scalar(count, kind).as_py()
