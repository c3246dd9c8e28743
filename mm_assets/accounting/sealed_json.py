"""JSON objects that carry a digest of their own content: one of which any byte was changed is not believed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

_SEAL = "seal"  # of the rest of the object


def sealed(values: Mapping[str, Any]) -> str:
    """The object as text, with its seal; the same object gives the same text."""
    plain = json.loads(_text(values))  # keys are text from here on, and so their order is that of the reader
    return _text({**plain, _SEAL: _seal(plain)})


def unsealed(data: bytes | str) -> dict[str, Any]:
    """The object in a text, without its seal; one of before there were seals has none. Raises ``ValueError`` for any other text."""
    try:
        values = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    seal = values.pop(_SEAL, None)
    if seal is not None and seal != _seal(values):
        raise ValueError("not as it was written")
    return values


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)  # ASCII: what bad data says of itself may hold lone surrogates


def _seal(values: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(_text(values).encode())
