"""Encoded examples collected into record batches of bounded rows and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from mm_assets.formats.arrow_cache.features import Features

# Text may take twice the bytes in UTF-8 that it takes in Python; the offsets of a string column reach 2 GiB.
LARGEST_BATCH = 512 << 20


class WaitingBatch:
    """Examples that wait to become one record batch: at most ``batch_size``, and ``max_batch_bytes`` unless a
    single one is larger.
    """

    def __init__(self, features: Features, batch_size: int, max_batch_bytes: int) -> None:
        self._features = features
        self._schema = features.to_arrow_schema()
        self._limits = batch_size, max_batch_bytes
        self._clear()

    def _clear(self) -> None:
        self._keys: list[Any] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in self._features}
        self._held = 0

    def bytes_of(self, stored: Mapping[str, Any]) -> int:
        """Memory that an encoded example takes while it waits."""
        return sum(
            feature.held_bytes(stored[name])
            for name, feature in self._features.items()
            if stored[name] is not None
        )

    def is_full(self, more: int = 0) -> bool:
        """Whether it must be taken, or must before an example of ``more`` bytes is added."""
        rows, held = self._limits
        return bool(self._keys) and (len(self._keys) >= rows or self._held + more > held)

    def add(self, key: Any, stored: Mapping[str, Any], size: int) -> None:
        """Add an encoded example whose `bytes_of` is ``size``."""
        self._keys.append(key)
        self._held += size
        for name, values in self._columns.items():
            values.append(stored[name])

    def take(self) -> pa.RecordBatch | None:
        """What waited, as a batch; None if nothing did. Raises ``ValueError`` naming the example and field
        that Arrow refuses.
        """
        keys, columns = self._keys, self._columns
        self._clear()
        if not keys:
            return None
        arrays = []
        for field in self._schema:  # each column is freed as soon as it is made
            arrays.append(_array(columns.pop(field.name), field, keys))
        return pa.record_batch(arrays, schema=self._schema)


def _array(values: list[Any], field: pa.Field, keys: list[Any]) -> pa.Array:
    if field.type == pa.large_binary() and all(value is None or type(value) is bytes for value in values):
        return _joined(values)
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        for key, value in zip(keys, values, strict=True):
            _try(key, value, field)
        raise ValueError(f"field {field.name!r}: {error}") from error


def _try(key: Any, value: Any, field: pa.Field) -> None:
    try:
        pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"example {key!r}, field {field.name!r}: {error}") from error


def _joined(values: list[bytes | None]) -> pa.Array:
    """A large binary array; one copy of the bytes, where Arrow's builder makes several as it grows."""
    offsets = np.fromiter(
        accumulate((len(value or b"") for value in values), initial=0), np.int64, len(values) + 1
    )
    valid = None
    if None in values:
        valid = pa.array([value is not None for value in values]).buffers()[1]
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(pa.large_binary(), len(values), [valid, pa.py_buffer(offsets), data])
