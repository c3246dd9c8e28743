"""Strict parsing of a sample's json member: nothing in it is lost silently."""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.faults import BAD_JSON, FAULTS, LONE_SURROGATE, NOT_AN_OBJECT, NOT_UTF8
from mm_assets.interleaved.json_codec import is_too_deep

# Results of number literals beyond float64. Python's JSON writes infinities as names, not as numbers.
_INFINITE = (float("inf"), float("-inf"))
# Found in any number beyond float64. Without a match, numbers need no slow `parse_float` callback.
_MAYBE_INFINITE = re.compile(r"[eE]\+?\d{3}|\d{200}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class SampleError(ShardError):
    """One sample cannot be read.

    ``kind`` is the fault class (see `mm_assets.interleaved.faults`); the message names file, member and
    field. ``sample_id`` is the id that the sample states, if that could be read. ``source_ref`` locates the
    fault, if it is not in the sample's json.
    """

    def __init__(self, kind: str, message: str) -> None:
        if kind not in FAULTS:
            raise ValueError(f"no class of faults: {kind!r}")
        super().__init__(message)
        self.kind = kind
        self.sample_id: str | None = None
        self.source_ref: str | None = None


@contextmanager
def naming_sample(sample_id: str) -> Iterator[None]:
    """Set the sample id of errors raised in the block."""
    try:
        yield
    except SampleError as error:
        error.sample_id = sample_id
        raise


def parse_payload(data: bytes, place: str) -> dict[str, Any]:
    """Return the JSON object of a sample.

    Raises:
        SampleError: Bad JSON, bad UTF-8, a repeated key, a number beyond float64, a lone surrogate, or no
            object.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        utf16, utf32 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), codecs.BOM_UTF32_LE
        if data.startswith(utf16) and not data.startswith(utf32):
            raise SampleError(NOT_UTF8, f"{place}: not UTF-8, but UTF-16: write it as UTF-8") from error
        raise SampleError(NOT_UTF8, f"{place}: not UTF-8: {error}") from error
    try:
        if is_too_deep(text):  # it could not be written again
            raise RecursionError
        parse_float = _finite if _MAYBE_INFINITE.search(text) else None
        payload = json.loads(text, object_pairs_hook=_object, parse_float=parse_float)
    except RecursionError as error:
        raise SampleError(BAD_JSON, f"{place}: JSON is nested too deeply") from error
    except ValueError as error:
        raise SampleError(BAD_JSON, f"{place}: not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise SampleError(NOT_AN_OBJECT, f"{place}: JSON is no object but {type(payload).__name__}")
    if _SURROGATE.search(data):
        try:
            json.dumps(payload, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise SampleError(
                LONE_SURROGATE, f"{place}: lone surrogate in JSON: {error.object[error.start]!a}"
            ) from error
    return payload


def _finite(literal: str) -> float:
    value = float(literal)
    if value in _INFINITE:
        raise ValueError(f"the number {literal:.100} is larger than any float64")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {repeated!r:.200} occurs twice in one object")
    return result
