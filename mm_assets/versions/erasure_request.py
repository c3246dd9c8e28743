"""Requests to erase: the entries that flags, lists and images in files name."""

from __future__ import annotations

import csv
import hashlib
import io
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.accounting.erasures import PDQ, SHA256, Entry
from mm_assets.filters.known_hashes import DEFAULT_RADIUS
from mm_assets.filters.measure import LEAST_QUALITY, ImageContent
from mm_assets.filters.readable import MAX_PIXELS
from mm_assets.formats.images import probe
from mm_assets.formats.parquet import UNREADABLE
from mm_assets.model.errors import (
    ImageError,
    MissingExtra,
    MmAssetsError,
    require,
    warn_user,
)
from mm_assets.model.json_codec import json_value
from mm_assets.storage.errors import located
from mm_assets.storage.files import open_binary


class NotErasedError(MmAssetsError, ValueError):
    """An erasure that cannot be carried out as it was asked for; the message says what to do."""


def entries_in(uri: str) -> list[Entry]:
    """Return the entries that a file lists by ``kind``, ``value`` and maybe ``radius``.

    It has these columns as Parquet, JSON lines or CSV.

    Raises:
        ValueError: naming file, row and what is wrong.
        OSError: it cannot be read.
    """
    with located(uri), open_binary(uri) as file:
        data = file.read()
    entries = []
    for number, row in enumerate(_rows(uri, data), start=1):
        try:
            entries.append(_entry_in(row))
        except ValueError as error:
            raise NotErasedError(f"{uri}: row {number}: {error}") from error
    return entries


def _entry_in(row: Mapping[Any, Any]) -> Entry:
    if None in row:  # cells of CSV
        raise ValueError("has more cells than there are columns")
    for name in ("kind", "value"):
        if name not in row:
            raise ValueError(f"no {name!r}")
        if not isinstance(row[name], str):
            raise ValueError(f"{name} is {row[name]!r:.100}, not a text")
    radius = row.get("radius")
    if radius in (None, ""):
        radius = DEFAULT_RADIUS
    elif not str(radius).isdecimal():
        raise ValueError(f"radius is {radius!r:.100}, not a number of bits")
    return Entry.of(row["kind"], row["value"], int(radius))


def _rows(uri: str, data: bytes) -> Iterator[Mapping[Any, Any]]:
    suffix = posixpath.splitext(uri.partition("?")[0])[1].lower()
    if suffix == ".parquet":
        try:
            yield from pq.read_table(pa.BufferReader(data)).to_pylist()
        except UNREADABLE as error:
            raise NotErasedError(f"{uri}: not a readable Parquet file: {error}") from error
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotErasedError(f"{uri}: not UTF-8: {error}") from error
    if suffix in (".jsonl", ".json", ".ndjson"):
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                if not isinstance(row := json_value(line), dict):
                    raise NotErasedError(f"{uri}: line {number}: no JSON object")
                yield row
        return
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        yield from reader
    except csv.Error as error:
        raise NotErasedError(f"{uri}: line {reader.reader.line_num}: no CSV: {error}") from error


def entry_of(kind: str, given: str) -> Entry:
    """Return the entry that a flag states; of PDQ a radius may follow behind a colon.

    Raises:
        ValueError: it states none.
    """
    value, colon, radius = given.partition(":") if kind == PDQ else (given, "", "")
    if colon and not radius.isdecimal():
        raise ValueError(f"{kind}: {given!r:.100}: the radius is a number of bits")
    return Entry.of(kind, value, int(radius) if colon else DEFAULT_RADIUS)


def entries_of_image(uri: str) -> list[Entry]:
    """Return the entries of an image in a file: of its bytes, and, with the extra ``scores``, of its looks.

    Raises:
        ValueError: it is no image.
        OSError: it cannot be read.
    """
    with located(uri), open_binary(uri) as file:
        data = file.read()
    try:
        info = probe(data)
    except ImageError as error:
        raise NotErasedError(f"{uri}: {error}") from error
    of_bytes = Entry.of(SHA256, hashlib.sha256(data).hexdigest())
    try:
        require("pdqhash", "cv2")
        hash_, quality = ImageContent(memoryview(data), info, MAX_PIXELS).perceptual
        why_not = "" if quality >= LEAST_QUALITY else "it has hardly any detail"
    except (ImageError, MissingExtra) as error:
        hash_, why_not = "", str(error)
    if not why_not:
        return [of_bytes, Entry.of(PDQ, hash_)]
    warn_user(f"{uri}: its very bytes are looked for, not what looks like it: {why_not}")
    return [of_bytes]
