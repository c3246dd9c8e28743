"""The json member of a sample, parsed strictly: nothing in it is lost without a word."""

from __future__ import annotations

import json
import re
from typing import Any

from mm_assets.formats.reader import ShardError
from mm_assets.interleaved.json_codec import is_too_deep

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class SampleError(ShardError):
    """One sample cannot be read; ``kind`` says why in one word, the message names file, member and field."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def parse_payload(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object of a sample. Raises `SampleError` for bad JSON, bad UTF-8, a repeated key, a lone surrogate, no object."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SampleError("encoding", f"{where}: not UTF-8: {error}") from error
    try:
        if is_too_deep(text):  # what cannot be written again must not be taken in
            raise RecursionError
        payload = json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:
        raise SampleError("json", f"{where}: JSON is nested too deeply") from error
    except ValueError as error:
        raise SampleError("json", f"{where}: not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise SampleError("json", f"{where}: JSON is no object but {type(payload).__name__}")
    if _SURROGATE.search(data):
        try:
            json.dumps(payload, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise SampleError("encoding", f"{where}: lone surrogate in JSON: {error.object[error.start]!a}") from error
    return payload


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(n for n in names if names.count(n) > 1)!r} occurs twice in one object")
    return made
