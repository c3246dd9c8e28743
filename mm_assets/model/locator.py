"""The locator of an item (``source_ref``): its place in the file it was first read from, as JSON text."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from typing import TypedDict

__all__ = ["SourceRef", "build_source_ref", "parse_source_ref"]


class SourceRef(TypedDict):
    """Place of an item's bytes.

    ``byte_offset`` and ``byte_size`` are bytes of the (uncompressed) file; ``frame_index`` counts from 0.
    """

    path: str | None
    member: str | None
    byte_offset: int | None
    byte_size: int | None
    frame_index: int | None


_KEYS = ("path", "member", "byte_offset", "byte_size", "frame_index")


def build_source_ref(
    path: str | None,
    member: str | None = None,
    byte_offset: int | None = None,
    byte_size: int | None = None,
    frame_index: int | None = None,
) -> str:
    """Return a locator as JSON text; ``frame_index`` only appears when given."""
    # Called for each item: `json.dumps` of a dictionary takes five times as long.
    frame = "" if frame_index is None else f', "frame_index": {frame_index}'
    span = f'"byte_offset": {_number(byte_offset)}, "byte_size": {_number(byte_size)}'
    return f'{{"path": {_text(path)}, "member": {_text(member)}, {span}{frame}}}'


def _text(value: str | None) -> str:
    return "null" if value is None else encode_basestring_ascii(value)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


def parse_source_ref(text: str | None) -> SourceRef:
    """Parse a locator. Null or empty text gives all None; unknown keys are ignored.

    Raises:
        TypeError: The JSON is not an object.
        ValueError: The text is not JSON.
    """
    try:
        parsed = json.loads(text) if text else {}
    except RecursionError as error:
        raise ValueError("source_ref is nested too deeply to be a locator") from error
    if not isinstance(parsed, dict):
        raise TypeError(f"source_ref must be a JSON object, not {type(parsed).__name__}: {text!r:.200}")
    return SourceRef(**{key: parsed.get(key) for key in _KEYS})  # type: ignore[typeddict-item]
