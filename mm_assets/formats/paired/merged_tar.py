"""Parts of a merged tar: the tars of one name, one per modality, and the content of each key.

* `ModalityTar` is a part. `members_by_key` has the members of each key in all parts.
* `KeyContent` is what becomes of the members of one key: items of a sample, and values of its columns.
"""

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

from mm_assets.formats.tar import FileRange
from mm_assets.formats.tar.scan import Member, TarIndex, read_member
from mm_assets.formats.webdataset import (
    DEFAULT_IMAGE_EXTENSIONS,
    MAX_JSON_BYTES,
    MAX_POSITION,
    SAMPLE_ID,
    SOURCE,
    SampleError,
    parse_payload,
)
from mm_assets.model.errors import (
    BAD_LAYOUT,
    DANGLING_REFERENCE,
    NOT_UTF8,
    OVERSIZED_MEMBER,
    UNREADABLE_MEMBER,
)
from mm_assets.model.samples import build_source_ref
from mm_assets.model.schema import RESERVED_COLUMNS

# webdataset's rule: the key ends at the first dot of the file name. Unlike there, a hidden file has no key
# (webdataset gives "a/.b" the key "a/").
_KEY = re.compile(r"((?:.*/|)[^./]+)\.([^/]+)", re.DOTALL)


@dataclass(frozen=True)
class ModalityTar:
    """The open tar of one modality; ``name`` is its name in locators."""

    modality: str
    name: str
    descriptor: int
    index: TarIndex


@dataclass(frozen=True, slots=True)
class SampleMember:
    """A member of a sample: its part, and its extension (lower case, all that follows the key's dot)."""

    part: ModalityTar
    extension: str
    member: Member

    @property
    def suffix(self) -> str:
        """The extension after its last dot."""
        return self.extension.rpartition(".")[2]

    @property
    def where(self) -> str:
        """Tar and member, for messages."""
        return f"{self.part.name}: {self.member.name}"

    @property
    def ref(self) -> str:
        """The member's locator."""
        return build_source_ref(self.part.name, self.member.name, self.member.offset, self.member.size)

    @property
    def range(self) -> FileRange:
        """Place of the payload."""
        return FileRange(self.part.descriptor, self.member.offset, self.member.size)

    def read(self, limit: int) -> bytes:
        """Return the payload.

        Raises:
            SampleError: It has more than ``limit`` bytes.
        """
        if self.member.size > limit:
            raise SampleError(OVERSIZED_MEMBER, f"{self.where}: {self.member.size} bytes, at most {limit}")
        return read_member(self.part.descriptor, self.member, self.part.name)


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and extension of a member; None for one that has no key."""
    match = _KEY.fullmatch(name)
    return (match[1], match[2].lower()) if match else None


def members_by_key(parts: Sequence[ModalityTar]) -> dict[str, list[SampleMember]]:
    """Return the members of each key, keys in the order of the first part, then of the others."""
    keys: dict[str, list[SampleMember]] = {}
    for part in parts:
        for member in part.index.members:
            key_and_extension = split_name(member.name)
            if key_and_extension is not None:
                keys.setdefault(key_and_extension[0], []).append(
                    SampleMember(part, key_and_extension[1], member)
                )
    return keys


@dataclass(frozen=True, slots=True)
class UnkeyedMember:
    """A member that belongs to no sample: its name, its locator, and the reason (None: it has no key)."""

    name: str
    ref: str
    reason: str | None = None


def members_without_key(part: ModalityTar) -> list[UnkeyedMember]:
    """Return the members that belong to no sample, including those that are no files."""
    unnamed = [
        SampleMember(part, "", member) for member in part.index.members if split_name(member.name) is None
    ]
    special_members = [skipped for skipped in part.index.skipped if not skipped.has_lost_bytes]
    return [
        *(UnkeyedMember(entry.member.name, entry.ref) for entry in unnamed),
        *(
            UnkeyedMember(
                special.name, build_source_ref(part.name, special.name, special.header_offset), special.reason
            )
            for special in special_members
        ),
    ]


_POSITION = re.compile(r"(\d{1,18})\.\w+", re.ASCII)
_TEXT_EXTENSIONS = ("txt", "text")
# Limits for a member that becomes the value of a column: it travels inside the sample's json, an array as a
# list of numbers.
_MAX_COLUMN_BYTES = 16 << 20
_MAX_ARRAY_BYTES = 4 << 20
_MAX_AXES = 8


@dataclass
class KeyContent:
    """Items by position, and the values of passthrough columns.

    ``fields`` has values as JSON has them, ``typed`` has arrays of one value. ``ref`` is the locator of the
    json, or of another member that became a column; ``sample_id`` is the id in the json, if any. ``refs`` has
    the locators of all members that became columns, by column name.
    """

    texts: dict[int, tuple[str, SampleMember]] = field(default_factory=dict)
    images: dict[int, SampleMember] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    typed: dict[str, pa.Array] = field(default_factory=dict)
    ref: str | None = None
    refs: dict[str, str] = field(default_factory=dict)
    sample_id: str | None = None
    _names: set[str] = field(default_factory=set)

    def add_field(self, name: str, value: Any, member: SampleMember) -> None:
        """Add the value of a column.

        Raises:
            SampleError: The name has a value already, or an array or bytes would take a column that every
                sample has.
        """
        place = member.where
        if name in self._names:
            raise SampleError(
                BAD_LAYOUT, f"{place}: another member of the sample has the field {name!r}, too"
            )
        self._names.add(name)
        is_reserved = name in RESERVED_COLUMNS or name == SOURCE
        if is_reserved and isinstance(value, pa.Array):
            raise SampleError(
                BAD_LAYOUT, f"{place}: it would be column {name!r}, which is a column of its own"
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
        """Keep the locators of columns whose member is not the one that the metadata row names.

        They go to the ``_source`` column, which has what rows cannot express.
        """
        if others := {name: json.loads(ref) for name, ref in self.refs.items() if ref != self.ref}:
            self.fields.setdefault(SOURCE, {})["members"] = others


def content_of(members: Sequence[SampleMember]) -> KeyContent:
    """Return the content of the members of one key.

    Raises:
        SampleError: Members cannot be read, or contradict each other.
    """
    content = KeyContent()
    seen: set[tuple[str, str]] = set()
    items: list[SampleMember] = []
    for member in members:
        with _located(member):
            _add_member(content, member, seen, items)
    content.keep_refs()
    for position, item in zip(_positions(items), items, strict=True):
        if item.suffix in DEFAULT_IMAGE_EXTENSIONS:
            content.images[position] = item
        else:
            with _located(item):
                content.texts[position] = _text(item), item
    return content


def _add_member(
    content: KeyContent, found: SampleMember, seen: set[tuple[str, str]], items: list[SampleMember]
) -> None:
    if found.member.broken is not None:
        raise SampleError(UNREADABLE_MEMBER, f"{found.where}: {found.member.broken}")
    if (found.part.modality, found.extension) in seen:
        raise SampleError(
            DANGLING_REFERENCE, f"ambiguous: {found.where}: the tar has this extension of the key twice"
        )
    seen.add((found.part.modality, found.extension))
    if found.suffix in (*DEFAULT_IMAGE_EXTENSIONS, *_TEXT_EXTENSIONS):
        items.append(found)
    else:
        _add_column(content, found)


@contextmanager
def _located(member: SampleMember) -> Iterator[None]:
    """Name this member in errors of the block."""
    try:
        yield
    except SampleError as error:
        error.source_ref = member.ref
        raise


def _add_column(content: KeyContent, found: SampleMember) -> None:
    suffix = found.suffix
    name = found.extension[: -len(suffix)].rstrip(".") or (found.part.modality if suffix == "npy" else suffix)
    if suffix == "json":
        content.ref = found.ref
        for field_name, value in parse_payload(found.read(MAX_JSON_BYTES), found.where).items():
            content.add_field(field_name, value, found)
        return
    content.ref = content.ref or found.ref
    data = found.read(_MAX_ARRAY_BYTES if suffix == "npy" else _MAX_COLUMN_BYTES)
    if suffix == "npy":
        content.add_field(name, _array(data, found.where), found)
    elif suffix == "cls":
        try:
            content.add_field(name, int(data), found)
        except ValueError as error:
            raise SampleError(BAD_LAYOUT, f"{found.where}: no class number: {data!r:.100}") from error
    else:
        content.add_field(found.extension, pa.array([data], pa.large_binary()), found)


def _array(data: bytes, place: str) -> pa.Array:
    """Return an array as one value: nested lists of its own number type.

    Raises:
        SampleError: The array has pickled objects, a shape that its bytes do not fill or go beyond, or more
            axes than formats support.
    """
    file = io.BytesIO(data)
    try:
        values = np.lib.format.read_array(file, allow_pickle=False)
        is_half = values.dtype == np.float16  # not all formats take these
        flat = pa.array(values.astype(np.float32 if is_half else values.dtype.newbyteorder("=")).ravel())
    except Exception as error:  # NumPy parses the header as Python, so any exception may come
        raise SampleError(BAD_LAYOUT, f"{place}: no array that can be read: {error}") from error
    if excess := len(data) - file.tell():
        raise SampleError(BAD_LAYOUT, f"{place}: {excess} bytes behind the array")
    if values.ndim > _MAX_AXES:
        raise SampleError(BAD_LAYOUT, f"{place}: an array of {values.ndim} axes, at most {_MAX_AXES}")
    for level, length in reversed(list(enumerate(values.shape))):
        lists = math.prod(values.shape[:level])
        if lists > len(data):  # for a shape with a zero in it
            raise SampleError(BAD_LAYOUT, f"{place}: an array of shape {values.shape} in {len(data)} bytes")
        flat = pa.ListArray.from_arrays(pa.array([length * at for at in range(lists + 1)], pa.int32()), flat)
    return flat


def _positions(items: Sequence[SampleMember]) -> list[int]:
    """Return the positions that extensions state; items without one follow after those, in their order.

    Raises:
        SampleError: A position is beyond the longest list, or has a second image or text.
    """
    stated = [match and int(match[1]) for match in (_POSITION.fullmatch(item.extension) for item in items)]
    free = max((number for number in stated if number is not None), default=-1) + 1
    occupied: set[tuple[bool, int]] = set()
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
            if place in occupied:
                raise SampleError(
                    BAD_LAYOUT,
                    f"{item.where}: a second {'image' if place[0] else 'text'} at position {number}",
                )
        occupied.add(place)
        positions.append(number)
    return positions


def _text(item: SampleMember) -> str:
    try:
        return item.read(MAX_JSON_BYTES).decode()
    except UnicodeDecodeError as error:
        raise SampleError(NOT_UTF8, f"{item.where}: not UTF-8: {error}") from error
