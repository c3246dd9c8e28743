"""Tars of one modality each, merged into one tar of interleaved samples, in the project's own layout."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from mm_assets.formats.webdataset.keys import sample_key
from mm_assets.formats.webdataset.layout import (
    BOOKKEEPING,
    DEFAULT_IMAGE_EXTENSIONS,
    IMAGE_MEMBERS,
    IMAGES,
    MAX_JSON_BYTES,
    MAX_POSITION,
    REFUSED,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    SOURCE,
    TEXTS,
)
from mm_assets.formats.webdataset.payload import SampleError, parse_payload
from mm_assets.formats.webdataset.tar_scan import Member, TarIndex, read_members
from mm_assets.formats.webdataset.tar_write import TarWriter
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.faults import (
    BAD_LAYOUT,
    DANGLING_REFERENCE,
    MISSING_MODALITY,
    NOT_UTF8,
    OVERSIZED_MEMBER,
    UNREADABLE_MEMBER,
)
from mm_assets.interleaved.json_values import FieldTally, build_column, dumps, json_field
from mm_assets.interleaved.schema import RESERVED_COLUMNS
from mm_assets.interleaved.schema_text import schema_to_text
from mm_assets.interleaved.source_ref import build_source_ref

_KEY = re.compile(r"((?:.*/|)[^./]+)\.([^/]+)", re.DOTALL)  # webdataset's rule: up to the first dot of the file's name
_POSITION = re.compile(r"(\d{1,6})\.\w+")
_TEXT_EXTENSIONS = ("txt", "text")
_MAX_COLUMN_BYTES = 64 << 20  # of a member that becomes a column's value: it travels inside the sample's json


@dataclass(frozen=True)
class Part:
    """One modality's tar, opened: ``name`` is what locators call it."""

    modality: str
    name: str
    descriptor: int
    index: TarIndex


@dataclass(frozen=True, slots=True)
class _Found:
    """A member of a sample: of which part, and its extension (lower case, all that follows the key's dot)."""

    part: Part
    extension: str
    member: Member

    @property
    def where(self) -> str:
        return f"{self.part.name}: {self.member.name}"

    @property
    def ref(self) -> str:
        return build_source_ref(self.part.name, self.member.name, self.member.offset, self.member.size)

    def read(self, limit: int) -> bytes:
        if self.member.size > limit:
            raise SampleError(OVERSIZED_MEMBER, f"{self.where}: {self.member.size} bytes, at most {limit}")
        data = bytearray(self.member.size)
        read_members(self.part.descriptor, [self.member], memoryview(data), self.part.name)
        return bytes(data)


@dataclass
class _Content:
    """What the members of one key are: items by position, and the values of passthrough columns."""

    texts: dict[int, tuple[str, _Found]] = field(default_factory=dict)
    images: dict[int, _Found] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    typed: dict[str, pa.Array] = field(default_factory=dict)
    json_ref: str | None = None

    def add_field(self, name: str, value: Any, where: str) -> None:
        if name in RESERVED_COLUMNS or name == SOURCE:
            self.fields.setdefault(SOURCE, {}).setdefault("fields", {})[name] = value
        elif name in self.fields or name in self.typed:
            raise SampleError(BAD_LAYOUT, f"{where}: another member of the sample has the field {name!r}, too")
        elif isinstance(value, pa.Array):
            self.typed[name] = value
        else:
            self.fields[name] = value


def merge(parts: Sequence[Part], target: str | os.PathLike[str], missing_key_policy: str) -> None:
    """Write one sample for each key of any part, in the order of the first part.

    Image members become image items, ``.txt`` text items, at the positions that their extensions state (``0.jpg``), or in the order of the
    parts. The fields of ``.json`` and the values of ``.npy``, ``.cls`` and all other members become columns of the metadata row.
    A key that a part lacks: ``skip`` gives a sample that readers refuse and account for (as does what cannot be read), ``partial`` gives
    what there is, ``error`` raises ``ValueError``. Members without a key are written as members of no sample.
    """
    keys = _by_key(parts)
    if missing_key_policy == "error":
        _refuse_mismatch(parts, keys)
    columns = _Columns()
    for found in keys.values():
        try:
            columns.observe(_content(found))
        except SampleError:
            continue  # told below
    with TarWriter(target) as tar:
        for key, found in keys.items():
            stem = sample_key(key)
            try:
                if missing_key_policy == "skip":
                    _refuse_missing(key, parts, found)
                content = _content(found)
                members = [(f"{stem}.{at}.{_suffix(image)}", image.read(image.member.size)) for at, image in sorted(content.images.items())]
                payload = _payload(key, stem, content, columns)
            except SampleError as error:
                members = []
                payload = {SAMPLE_ID: key, ROW_EXTRA: {}, BOOKKEEPING: {REFUSED: [error.kind, str(error)]}}
            tar.write_sample([*members, (f"{stem}.json", dumps(payload).encode())])
        for part, name, data in _keyless(parts):
            tar.write_sample([(f"{sample_key(f'{part.modality}/{name}')}.unpaired", data)])


def split_name(name: str) -> tuple[str, str] | None:
    """Key and extension of a member, by webdataset's rule; None for one that has no key."""
    match = _KEY.fullmatch(name)
    return (match[1], match[2].lower()) if match else None


def _by_key(parts: Sequence[Part]) -> dict[str, list[_Found]]:
    keys: dict[str, list[_Found]] = {}
    for part in parts:
        for member in part.index.members:
            named = split_name(member.name)
            if named is not None:
                keys.setdefault(named[0], []).append(_Found(part, named[1], member))
    return keys


def _keyless(parts: Sequence[Part]) -> Iterator[tuple[Part, str, bytes]]:
    for part in parts:
        for member in part.index.members:
            if split_name(member.name) is None:
                found = _Found(part, "", member)
                yield part, member.name, b"" if member.broken else found.read(member.size)
        for skipped in part.index.skipped:
            yield part, skipped.name, b""


def _missing(parts: Sequence[Part], found: Sequence[_Found]) -> list[Part]:
    there = {some.part.modality for some in found}
    return [part for part in parts if part.modality not in there]


def _refuse_mismatch(parts: Sequence[Part], keys: Mapping[str, Sequence[_Found]]) -> None:
    for key, found in keys.items():
        if lacking := _missing(parts, found):
            raise ValueError(f"key mismatch across modalities: {key!r} is in {found[0].part.name}, not in {lacking[0].name}")


def _refuse_missing(key: str, parts: Sequence[Part], found: Sequence[_Found]) -> None:
    if lacking := _missing(parts, found):
        names = ", ".join(part.name for part in lacking)
        raise SampleError(MISSING_MODALITY, f"{found[0].where}: no member of key {key!r} in {names}")


def _content(found: Sequence[_Found]) -> _Content:
    """Raises `SampleError` for members that cannot be read or contradict each other."""
    content = _Content()
    seen: set[tuple[str, str]] = set()
    items: list[_Found] = []
    for one in found:
        if one.member.broken is not None:
            raise SampleError(UNREADABLE_MEMBER, f"{one.where}: {one.member.broken}")
        if (one.part.modality, one.extension) in seen:
            raise SampleError(DANGLING_REFERENCE, f"ambiguous: {one.where}: the tar has this extension of the key twice")
        seen.add((one.part.modality, one.extension))
        if _suffix(one) in (*DEFAULT_IMAGE_EXTENSIONS, *_TEXT_EXTENSIONS):
            items.append(one)
        else:
            _add_column(content, one)
    for position, item in zip(_positions(items), items, strict=True):
        if _suffix(item) in DEFAULT_IMAGE_EXTENSIONS:
            content.images[position] = item
        else:
            content.texts[position] = _text(item), item
    return content


def _add_column(content: _Content, one: _Found) -> None:
    suffix = _suffix(one)
    name = one.extension[: -len(suffix)].rstrip(".") or (one.part.modality if suffix == "npy" else suffix)
    if suffix == "json":
        content.json_ref = content.json_ref or one.ref
        for field_name, value in parse_payload(one.read(MAX_JSON_BYTES), one.where).items():
            content.add_field(field_name, value, one.where)
        return
    data = one.read(_MAX_COLUMN_BYTES)
    if suffix == "npy":
        content.add_field(name, _array(data, one.where), one.where)
    elif suffix == "cls":
        try:
            content.add_field(name, int(data), one.where)
        except ValueError as error:
            raise SampleError(BAD_LAYOUT, f"{one.where}: no class number: {data!r:.100}") from error
    else:
        content.add_field(one.extension, pa.array([data], pa.large_binary()), one.where)


def _array(data: bytes, where: str) -> pa.Array:
    """One value: the array as nested lists of its own number type. Pickled objects are refused, as is a shape its bytes do not fill."""
    try:
        values = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        is_half = values.dtype == np.float16  # not all formats take these
        flat = pa.array(values.astype(np.float32 if is_half else values.dtype.newbyteorder("=")).ravel())
    except (ValueError, TypeError, OSError, OverflowError, MemoryError, pa.ArrowException) as error:
        raise SampleError(BAD_LAYOUT, f"{where}: no array that can be read: {error}") from error
    for level, length in reversed(list(enumerate(values.shape))):
        lists = math.prod(values.shape[:level])
        if lists > len(data):  # of a shape with a zero in it
            raise SampleError(BAD_LAYOUT, f"{where}: an array of shape {values.shape} in {len(data)} bytes")
        flat = pa.ListArray.from_arrays(pa.array([length * at for at in range(lists + 1)], pa.int32()), flat)
    return flat


def _positions(items: Sequence[_Found]) -> list[int]:
    stated = [match and int(match[1]) for match in (_POSITION.fullmatch(item.extension) for item in items)]
    numbers = [number for number in stated if number is not None and number < MAX_POSITION]
    return numbers if len(set(numbers)) == len(items) else list(range(len(items)))


def _text(item: _Found) -> str:
    try:
        return item.read(MAX_JSON_BYTES).decode()
    except UnicodeDecodeError as error:
        raise SampleError(NOT_UTF8, f"{item.where}: not UTF-8: {error}") from error


def _suffix(one: _Found) -> str:
    return one.extension.rpartition(".")[2]


class _Columns:
    """The types of all passthrough columns of a shard."""

    def __init__(self) -> None:
        self._tallies: dict[str, FieldTally] = {}
        self._typed: dict[str, pa.DataType] = {}
        self._declared: tuple[pa.Schema, str] | None = None

    def observe(self, content: _Content) -> None:
        for name, value in content.fields.items():
            self._tallies.setdefault(name, FieldTally()).observe(value)
        for name, value in content.typed.items():
            self._typed.setdefault(name, value.type)

    def declared(self) -> tuple[pa.Schema, str]:
        """The schema, and as text; it is settled when first asked for."""
        if self._declared is None:
            fields = [json_field(name) if name == SOURCE else tally.field(name) for name, tally in self._tallies.items()]
            fields += [pa.field(name, type_) for name, type_ in self._typed.items() if name not in self._tallies]
            schema = pa.schema(fields)
            self._declared = schema, schema_to_text(schema)
        return self._declared

    def encoded(self, content: _Content, key: str) -> dict[str, Any]:
        """The values of a sample as its json has them. Raises `SampleError` for a value of another type than other samples have."""
        schema, _ = self.declared()
        values: dict[str, Any] = {}
        for name, value in content.fields.items():
            column = schema.field(name)
            values[name] = json_codec.encode(build_column([value], column), column)[0]
        for name, array in content.typed.items():
            if array.type != schema.field(name).type:
                what = f"{array.type}, in others of the shard {schema.field(name).type}"
                raise SampleError(BAD_LAYOUT, f"sample {key!r}: column {name!r} is {what}")
            values[name] = json_codec.encode(array, schema.field(name))[0]
        return values


def _payload(key: str, stem: str, content: _Content, columns: _Columns) -> dict[str, Any]:
    length = max([*content.texts, *content.images], default=-1) + 1
    texts: list[str | None] = [None] * length
    images: list[str | None] = [None] * length
    rows: dict[str, Any] = {"metadata": {}, "text": {}, "image": {}}
    refs: list[str] = []
    if content.json_ref is not None:
        refs.append(content.json_ref)
        rows["metadata"] = {"ref": 0}
    for position, (text, found) in sorted(content.texts.items()):
        texts[position] = text
        rows["text"][str(position)] = {"ref": len(refs)}
        refs.append(found.ref)
    for position, found in sorted(content.images.items()):
        images[position] = f"{position}.{_suffix(found)}"
        rows["image"][str(position)] = {"ref": len(refs)}
        refs.append(found.ref)
    return {
        SAMPLE_ID: key,
        TEXTS: texts,
        IMAGES: images,
        IMAGE_MEMBERS: [None if image is None else f"{stem}.{image}" for image in images],
        ROW_EXTRA: {"metadata": columns.encoded(content, key)},
        ROW_ERRORS: [],
        BOOKKEEPING: {"schema": columns.declared()[1], "refs": refs, "rows": rows},
    }
