"""Collection of encoded examples into record batches of bounded rows and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from mm_assets.formats.arrow_cache.features import Features

# Text may take twice as many bytes in UTF-8 as in Python, and offsets of a string column end at 2 GiB.
LARGEST_BATCH = 512 << 20


class WaitingBatch:
    """Examples collected for one record batch.

    It has at most ``batch_size`` rows, and at most ``max_batch_bytes`` unless a single example is larger.
    """

    def __init__(self, features: Features, batch_size: int, max_batch_bytes: int) -> None:
        self._features = features
        self._schema = features.to_arrow_schema()
        self._limits = batch_size, max_batch_bytes
        self._clear()

    def _clear(self) -> None:
        self._keys: list[Any] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in self._features}
        self._bytes = 0

    def bytes_of(self, stored: Mapping[str, Any]) -> int:
        """Return the bytes of memory that an encoded example takes until its batch is written."""
        return sum(
            feature.held_bytes(stored[name])
            for name, feature in self._features.items()
            if stored[name] is not None
        )

    def is_full(self, more: int = 0) -> bool:
        """Return True if the batch must be taken before an example of ``more`` bytes is added."""
        max_rows, max_bytes = self._limits
        return bool(self._keys) and (len(self._keys) >= max_rows or self._bytes + more > max_bytes)

    def add(self, key: Any, stored: Mapping[str, Any], size: int) -> None:
        """Add an encoded example whose `bytes_of` is ``size``."""
        self._keys.append(key)
        self._bytes += size
        for name, values in self._columns.items():
            values.append(stored[name])

    def take(self) -> pa.RecordBatch | None:
        """Return the collected examples as a batch, and start anew; None if there are none.

        Raises:
            ValueError: Arrow refuses a value; the message names example and field.
        """
        keys, columns = self._keys, self._columns
        self._clear()
        if not keys:
            return None
        arrays = []
        for field in self._schema:  # each list is freed as soon as its array is made
            arrays.append(_array(columns.pop(field.name), field, keys))
        return pa.record_batch(arrays, schema=self._schema)


def _array(values: list[Any], field: pa.Field, keys: list[Any]) -> pa.Array:
    if field.type == pa.large_binary() and all(value is None or type(value) is bytes for value in values):
        return _joined(values)
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        for key, value in zip(keys, values, strict=True):
            _check_value(key, value, field)
        raise ValueError(f"field {field.name!r}: {error}") from error


def _check_value(key: Any, value: Any, field: pa.Field) -> None:
    try:
        pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"example {key!r}, field {field.name!r}: {error}") from error


def _joined(values: list[bytes | None]) -> pa.Array:
    """Return a large binary array with a single copy of the bytes.

    Arrow's builder makes several copies as it grows.
    """
    offsets = np.fromiter(
        accumulate((len(value or b"") for value in values), initial=0), np.int64, len(values) + 1
    )
    valid = None
    if None in values:
        valid = pa.array([value is not None for value in values]).buffers()[1]
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(pa.large_binary(), len(values), [valid, pa.py_buffer(offsets), data])
