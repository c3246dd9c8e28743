"""JSON objects with a digest of themselves, to detect changed or torn files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

_SEAL = "seal"


def seal(fields: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return the object as UTF-8, with one more field: the xxh3-128 of all other fields."""
    plain = {name: value for name, value in fields.items() if name != _SEAL}
    text = json.dumps({**plain, _SEAL: _digest(plain)}, ensure_ascii=False, sort_keys=True, indent=indent)
    return f"{text}\n".encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the object without its digest.

    Raises:
        ValueError: the data is not as `seal` wrote it.
    """
    try:
        fields = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(fields, dict) or _SEAL not in fields:
        raise ValueError("no digest of itself: an older version wrote it, or somebody changed it")
    stored_digest = fields.pop(_SEAL)
    if stored_digest != _digest(fields):
        raise ValueError("changed since it was written: its digest is another")
    return fields


def _digest(fields: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(
        json.dumps(fields, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()
    )
