"""What the members of one key are: items of a sample, and values of its columns."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from mm_assets.formats.paired.raw.parts import Found
from mm_assets.formats.webdataset.layout import (
    DEFAULT_IMAGE_EXTENSIONS,
    MAX_JSON_BYTES,
    MAX_POSITION,
    SAMPLE_ID,
    SOURCE,
)
from mm_assets.formats.webdataset.payload import SampleError, parse_payload
from mm_assets.interleaved.faults import BAD_LAYOUT, DANGLING_REFERENCE, NOT_UTF8, UNREADABLE_MEMBER
from mm_assets.interleaved.schema import RESERVED_COLUMNS

_POSITION = re.compile(r"(\d{1,18})\.\w+", re.ASCII)
_TEXT_EXTENSIONS = ("txt", "text")
# Of a member that becomes a column's value: it travels inside the sample's json, an array as a list of
# numbers.
_MAX_COLUMN_BYTES = 16 << 20
_MAX_ARRAY_BYTES = 4 << 20
_MAX_AXES = 8


@dataclass
class KeyContent:
    """Items by position, and the values of passthrough columns: ``fields`` as JSON has them, ``typed`` as
    arrays of one value.

    ``ref`` is the locator of the json, or of another member that became a column; ``sample_id`` what the json
    says. ``refs`` are the locators of all these members, by the name of the column.
    """

    texts: dict[int, tuple[str, Found]] = field(default_factory=dict)
    images: dict[int, Found] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    typed: dict[str, pa.Array] = field(default_factory=dict)
    ref: str | None = None
    refs: dict[str, str] = field(default_factory=dict)
    sample_id: str | None = None
    _names: set[str] = field(default_factory=set)

    def add_field(self, name: str, value: Any, member: Found) -> None:
        """Raises `SampleError` for a second value of a name, and for an array or bytes under a name that
        every sample has.
        """
        where = member.where
        if name in self._names:
            raise SampleError(
                BAD_LAYOUT, f"{where}: another member of the sample has the field {name!r}, too"
            )
        self._names.add(name)
        is_reserved = name in RESERVED_COLUMNS or name == SOURCE
        if is_reserved and isinstance(value, pa.Array):
            raise SampleError(
                BAD_LAYOUT, f"{where}: it would be column {name!r}, which is a column of its own"
            )
        if name == SAMPLE_ID and isinstance(value, str):
            self.sample_id = value
            return
        self.refs[name] = member.ref
        if is_reserved:
            self.fields.setdefault(SOURCE, {}).setdefault("fields", {})[name] = value
        elif isinstance(value, pa.Array):
            self.typed[name] = value
        else:
            self.fields[name] = value

    def keep_refs(self) -> None:
        """Keep, in the column for what rows cannot say, where columns come from that are not of the member
        which the metadata row names.
        """
        if others := {name: json.loads(ref) for name, ref in self.refs.items() if ref != self.ref}:
            self.fields.setdefault(SOURCE, {})["members"] = others


def content_of(found: Sequence[Found]) -> KeyContent:
    """Raises `SampleError` for members that cannot be read or contradict each other."""
    content = KeyContent()
    seen: set[tuple[str, str]] = set()
    items: list[Found] = []
    for one in found:
        with _located(one):
            _take(content, one, seen, items)
    content.keep_refs()
    for position, item in zip(_positions(items), items, strict=True):
        if item.suffix in DEFAULT_IMAGE_EXTENSIONS:
            content.images[position] = item
        else:
            with _located(item):
                content.texts[position] = _text(item), item
    return content


def _take(content: KeyContent, one: Found, seen: set[tuple[str, str]], items: list[Found]) -> None:
    if one.member.broken is not None:
        raise SampleError(UNREADABLE_MEMBER, f"{one.where}: {one.member.broken}")
    if (one.part.modality, one.extension) in seen:
        raise SampleError(
            DANGLING_REFERENCE, f"ambiguous: {one.where}: the tar has this extension of the key twice"
        )
    seen.add((one.part.modality, one.extension))
    if one.suffix in (*DEFAULT_IMAGE_EXTENSIONS, *_TEXT_EXTENSIONS):
        items.append(one)
    else:
        _add_column(content, one)


@contextmanager
def _located(one: Found) -> Iterator[None]:
    """Errors of the block are about this member."""
    try:
        yield
    except SampleError as error:
        error.source_ref = one.ref
        raise


def _add_column(content: KeyContent, one: Found) -> None:
    suffix = one.suffix
    name = one.extension[: -len(suffix)].rstrip(".") or (one.part.modality if suffix == "npy" else suffix)
    if suffix == "json":
        content.ref = one.ref
        for field_name, value in parse_payload(one.read(MAX_JSON_BYTES), one.where).items():
            content.add_field(field_name, value, one)
        return
    content.ref = content.ref or one.ref
    data = one.read(_MAX_ARRAY_BYTES if suffix == "npy" else _MAX_COLUMN_BYTES)
    if suffix == "npy":
        content.add_field(name, _array(data, one.where), one)
    elif suffix == "cls":
        try:
            content.add_field(name, int(data), one)
        except ValueError as error:
            raise SampleError(BAD_LAYOUT, f"{one.where}: no class number: {data!r:.100}") from error
    else:
        content.add_field(one.extension, pa.array([data], pa.large_binary()), one)


def _array(data: bytes, where: str) -> pa.Array:
    """One value: the array as nested lists of its own number type.

    Raises `SampleError` for pickled objects, for a shape that its bytes do not fill or go beyond, and for
    more axes than formats take.
    """
    file = io.BytesIO(data)
    try:
        values = np.lib.format.read_array(file, allow_pickle=False)
        is_half = values.dtype == np.float16  # not all formats take these
        flat = pa.array(values.astype(np.float32 if is_half else values.dtype.newbyteorder("=")).ravel())
    except Exception as error:  # NumPy parses the header as Python: it raises what it likes
        raise SampleError(BAD_LAYOUT, f"{where}: no array that can be read: {error}") from error
    if left := len(data) - file.tell():
        raise SampleError(BAD_LAYOUT, f"{where}: {left} bytes behind the array")
    if values.ndim > _MAX_AXES:
        raise SampleError(BAD_LAYOUT, f"{where}: an array of {values.ndim} axes, at most {_MAX_AXES}")
    for level, length in reversed(list(enumerate(values.shape))):
        lists = math.prod(values.shape[:level])
        if lists > len(data):  # of a shape with a zero in it
            raise SampleError(BAD_LAYOUT, f"{where}: an array of shape {values.shape} in {len(data)} bytes")
        flat = pa.ListArray.from_arrays(pa.array([length * at for at in range(lists + 1)], pa.int32()), flat)
    return flat


def _positions(items: Sequence[Found]) -> list[int]:
    """The positions that extensions state; items without one follow behind all of those, in their order.

    Raises `SampleError` for a position beyond the longest list, and for a second image or text at one.
    """
    stated = [match and int(match[1]) for match in (_POSITION.fullmatch(item.extension) for item in items)]
    free = max((number for number in stated if number is not None), default=-1) + 1
    taken: set[tuple[bool, int]] = set()
    positions: list[int] = []
    for number, item in zip(stated, items, strict=True):
        with _located(item):
            if number is None:
                number, free = free, free + 1
            if number >= MAX_POSITION:
                raise SampleError(
                    BAD_LAYOUT, f"{item.where}: position {number}, of at most {MAX_POSITION - 1}"
                )
            place = item.suffix in DEFAULT_IMAGE_EXTENSIONS, number
            if place in taken:
                raise SampleError(
                    BAD_LAYOUT,
                    f"{item.where}: a second {'image' if place[0] else 'text'} at position {number}",
                )
        taken.add(place)
        positions.append(number)
    return positions


def _text(item: Found) -> str:
    try:
        return item.read(MAX_JSON_BYTES).decode()
    except UnicodeDecodeError as error:
        raise SampleError(NOT_UTF8, f"{item.where}: not UTF-8: {error}") from error
