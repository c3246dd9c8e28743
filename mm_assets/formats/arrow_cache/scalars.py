"""Python and numpy scalars as Arrow stores them without a change."""

from __future__ import annotations

import math
from datetime import UTC, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa

_ATTOSECONDS = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18}
_ATTOSECONDS |= {
    "m": 60 * 10**18,
    "h": 3600 * 10**18,
    "D": 86_400 * 10**18,
    "W": 604_800 * 10**18,
}  # years and months have no length


def exact_types(kind: pa.DataType) -> frozenset[type]:
    """The Python types whose values Arrow stores exactly as ``kind``, or refuses."""
    if pa.types.is_integer(kind):
        return frozenset({int})
    if pa.types.is_floating(kind):
        return frozenset({int, float}) if kind.bit_width == 64 else frozenset({int})
    return frozenset({bool}) if pa.types.is_boolean(kind) else frozenset({str, bytes})


def stored_scalar(value: Any, kind: pa.DataType) -> Any:
    """A scalar as a Python value that Arrow stores as ``kind`` without a change, but for the rounding of
    floats.

    The buffer of a bytearray or memoryview is copied, for its owner may use it again. NaT becomes None. An
    aware datetime becomes UTC. Raises ``ValueError``, ``TypeError``, ``OverflowError`` or Arrow's errors for
    one that would change, or could not be read again.
    """
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        return _time(value, kind)
    if hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, str | bytes):
        return value
    found = pa.scalar(value, kind).as_py()
    if pa.types.is_floating(kind):
        if math.isinf(found) and value not in (math.inf, -math.inf):
            raise ValueError(f"{value!r} is out of the range of {kind}")
        return float(value)
    if pa.types.is_temporal(kind) and type(value) is int:
        return value  # a count of its units
    same: Any = found
    if isinstance(value, datetime):
        if isinstance(found, datetime):
            value = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        elif pa.types.is_date(kind):
            same = datetime.combine(found, time.min)
    if same != value:
        raise ValueError(f"{value!r} would be stored as {found!r} in {kind}")
    return found


def _time(value: Any, kind: pa.DataType) -> Any:
    """A numpy datetime or timedelta of any unit."""
    (unit, multiple), number = np.datetime_data(value.dtype), int(value.astype(np.int64).item())
    if number == np.iinfo(np.int64).min:
        return None  # NaT
    is_moment = value.dtype.kind == "M"
    if is_moment and pa.types.is_date(kind):
        kind, wanted = pa.date32(), "D"
    elif pa.types.is_timestamp(kind) if is_moment else pa.types.is_duration(kind):
        wanted = kind.unit
    else:
        raise ValueError(f"{value!r} is no {kind}")
    if unit not in _ATTOSECONDS:
        raise ValueError(f"{value!r} has no unit that has a length")
    count, rest = divmod(number * multiple * _ATTOSECONDS[unit], _ATTOSECONDS[wanted])
    if rest:
        raise ValueError(f"{value!r} is between two values of {kind}")
    return pa.scalar(count, kind).as_py()
