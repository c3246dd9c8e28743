"""Examples as users have them, and as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from mm_assets.formats.arrow_cache.features import Features

__all__ = ["decode_example", "encode_example"]


def encode_example(example: Mapping[str, Any], features: Features) -> dict[str, Any]:
    """An example as Arrow takes it, its fields in the order of the features. None stays None.

    Raises ``ValueError`` naming the field that is missing, that is not among the features, or whose value
    does not fit, and for an example that is no mapping.
    """
    if not isinstance(example, Mapping):
        raise ValueError(f"a mapping of fields was expected, not {type(example).__name__}")
    if example.keys() != features.keys():
        missing, unexpected = (
            sorted(features.keys() - example.keys()),
            sorted(example.keys() - features.keys(), key=str),
        )
        raise ValueError(f"missing field(s) {missing}" if missing else f"unexpected field(s) {unexpected}")
    stored = {}
    for name, feature in features.items():
        value = example[name]
        try:
            stored[name] = None if value is None else feature.encode(value)
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise ValueError(f"field {name!r}: {error}") from error
    return stored


def decode_example(stored: Mapping[str, Any], features: Features) -> dict[str, Any]:
    """A stored row as users have it: pictures as PIL images, arrays as numpy arrays, labels as numbers. None
    stays None.

    Fields that are not in ``stored`` are left out: rows of some columns can be decoded, too.
    """
    return {name: None if value is None else features[name].decode(value) for name, value in stored.items()}
