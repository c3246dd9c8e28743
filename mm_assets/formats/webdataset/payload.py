"""The json member of a sample, parsed strictly: nothing in it is lost without a word."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mm_assets.formats.reader import ShardError
from mm_assets.interleaved.faults import BAD_JSON, FAULTS, LONE_SURROGATE, NOT_AN_OBJECT, NOT_UTF8
from mm_assets.interleaved.json_codec import is_too_deep

_INFINITE = (
    float("inf"),
    float("-inf"),
)  # JSON as Python writes it has a name for these, and it is no number
_MAYBE_INFINITE = re.compile(
    r"[eE]\+?\d{3}|\d{200}"
)  # what a number beyond float64 has; others need no call of Python each
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class SampleError(ShardError):
    """One sample cannot be read; ``kind`` is its class, one of `FAULTS`, the message names file, member and
    field.

    ``sample_id`` is the id it states, where that much could be read; ``source_ref`` says where the fault is,
    if not in the sample's json.
    """

    def __init__(self, kind: str, message: str) -> None:
        if kind not in FAULTS:
            raise ValueError(f"no class of faults: {kind!r}")
        super().__init__(message)
        self.kind = kind
        self.sample_id: str | None = None
        self.source_ref: str | None = None


@contextmanager
def naming(sample_id: str) -> Iterator[None]:
    """Errors of the block are those of this sample."""
    try:
        yield
    except SampleError as error:
        error.sample_id = sample_id
        raise


def parse_payload(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object of a sample.

    Raises `SampleError` for bad JSON, bad UTF-8, a repeated key, a number beyond float64, a lone surrogate,
    no object.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SampleError(NOT_UTF8, f"{where}: not UTF-8: {error}") from error
    try:
        if is_too_deep(text):  # what cannot be written again must not be taken in
            raise RecursionError
        parse_float = _finite if _MAYBE_INFINITE.search(text) else None
        payload = json.loads(text, object_pairs_hook=_object, parse_float=parse_float)
    except RecursionError as error:
        raise SampleError(BAD_JSON, f"{where}: JSON is nested too deeply") from error
    except ValueError as error:
        raise SampleError(BAD_JSON, f"{where}: not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise SampleError(NOT_AN_OBJECT, f"{where}: JSON is no object but {type(payload).__name__}")
    if _SURROGATE.search(data):
        try:
            json.dumps(payload, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise SampleError(
                LONE_SURROGATE, f"{where}: lone surrogate in JSON: {error.object[error.start]!a}"
            ) from error
    return payload


def _finite(literal: str) -> float:
    value = float(literal)
    if value in _INFINITE:
        raise ValueError(f"the number {literal:.100} is larger than any float64")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {repeated!r:.200} occurs twice in one object")
    return made
