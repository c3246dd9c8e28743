"""Samples of tars of our layout, each read by its byte range, and made a document without any table.

`open_tars` takes the offsets of samples from the index beside a tar, else from its headers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from mm_assets.formats.images.headers import CONTENT_TYPES
from mm_assets.formats.tar.index import BLOCK, check_header, decode_name, full_name, member_size, padded
from mm_assets.formats.tar.scan import scan
from mm_assets.formats.webdataset.layout import (
    BOOKKEEPING,
    IMAGES,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    SOURCE,
    TEXT_TYPE,
    TEXTS,
    is_native_layout,
)
from mm_assets.formats.webdataset.native import iter_patches
from mm_assets.formats.webdataset.rows import read_declared
from mm_assets.model import json_codec
from mm_assets.model.errors import DataError
from mm_assets.model.samples import Document, item_order
from mm_assets.storage.files import read_bytes
from mm_assets.storage.stamps import existing_files, parallel_map
from mm_assets.train.cache import LocalCopies
from mm_assets.train.order import digest_of
from mm_assets.train.sources import Numbers, OpenFile, Recent, Shard, Source

_INDEX = ".idx"
_NO_ROWS: dict[str, Any] = {"schema": "", "rows": {"metadata": {}, "text": {}, "image": {}}}


class TarSource(Source):
    """Tars of our layout, by byte ranges of whole samples.

    Args:
        uris: the tars.
        spans: of each, the first byte of each sample and that behind its last.
        copies: gives a local copy of a remote tar.
    """

    def __init__(
        self, uris: Sequence[str], spans: Sequence[tuple[Numbers, Numbers]], copies: LocalCopies
    ) -> None:
        names = [uri.rpartition("/")[2] for uri in uris]
        places = [[*map(digest_of, (starts.tolist(), stops.tolist()))] for starts, stops in spans]
        shards = [Shard(name, len(starts)) for name, (starts, _) in zip(names, spans, strict=True)]
        super().__init__(shards, digest_of("tars", names, places))
        self._uris, self._spans, self._copies = list(uris), list(spans), copies
        self._files = Recent(self._file)

    def read(self, shard: int, numbers: Sequence[int]) -> list[Any]:
        descriptor = self._files.get(shard).descriptor
        starts, stops = self._spans[shard]
        found = []
        for number in numbers:
            start, stop = int(starts[number]), int(stops[number])
            data = os.pread(descriptor, stop - start, start)
            place = f"{self._uris[shard]}: sample {number}"
            if len(data) < stop - start:
                raise DataError(
                    f"{place}: the file ends before it: the index is of another tar, or it was cut"
                )
            found.append(_tar_document(data, place, self._uris[shard], start))
        return found

    def _file(self, shard: int) -> OpenFile:
        return self._copies.open(self._uris[shard], OpenFile)


def _tar_document(data: bytes, place: str, tar: str, start: int) -> Document:
    """Return the sample of the members in some bytes of a tar."""
    view = memoryview(data)
    members: dict[str, memoryview] = {}
    at = 0
    while at < len(data):
        header = data[at : at + BLOCK]
        check_header(header, tar, start + at)
        size = member_size(header, tar, start + at)
        name, _ = decode_name(full_name(header))
        members[name.rpartition("/")[2].partition(".")[2]] = view[at + BLOCK : at + BLOCK + size]
        at += BLOCK + padded(size)
    text = members.pop("json", None)
    try:
        payload = json.loads(bytes(text)) if text is not None else None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: its json cannot be read: {error}") from error
    if not isinstance(payload, dict) or not is_native_layout(payload):
        raise DataError(
            f"{place}: not in our layout of tars: make such tars of it with mm-assets convert --to webdataset"
        )
    try:
        return _native_document(payload, members)
    except (LookupError, TypeError, AttributeError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{place}: sample {payload.get(SAMPLE_ID)!r:.200} is damaged: {error!r}") from error


def _native_document(payload: dict[str, Any], members: Mapping[str, memoryview]) -> Document:
    texts, images, extra = payload[TEXTS], payload[IMAGES], payload[ROW_EXTRA]
    extras = {"text": extra.get("text") or (), "image": extra.get("image") or ()}
    bookkeeping = payload.get(BOOKKEEPING) or _NO_ROWS
    typed = _typed_fields(bookkeeping["schema"])

    def described(values: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            name: typed[name](value) if name in typed and value is not None else value
            for name, value in (values or {}).items()
            if name != SOURCE
        }

    def item(modality: str, position: int, content_type: str | None, content: Any) -> dict[str, Any]:
        entries = extras[modality]
        return {
            "modality": modality,
            "position": position,
            "content_type": content_type,
            modality: content,
            "metadata": _stated(described(entries[position] if position < len(entries) else None)),
        }

    items = [item("text", at, TEXT_TYPE, text) for at, text in enumerate(texts) if text is not None]
    for at, name in enumerate(images):
        if name is not None:
            items.append(item("image", at, CONTENT_TYPES.get(name.rpartition(".")[2]), bytes(members[name])))
    has_errors, rows = bool(payload.get(ROW_ERRORS)), bookkeeping["rows"]
    patches = [patch for patch in iter_patches(rows) if patch[2].keys() - {"ref"}]
    if has_errors or patches:
        by_place = {(each["modality"], each["position"]): each for each in items}
        for entry in payload.get(ROW_ERRORS) or ():
            modality, position = entry["modality"], entry["position"]
            if modality == "metadata":
                continue
            if (found := by_place.get((modality, position))) is None:
                found = item(modality, position, entry.get("content_type"), None)
                found["metadata"] = _stated(described(entry.get("extra")))
                by_place[modality, position] = found
            if entry.get("materialize_error") is not None:
                found["error"] = entry["materialize_error"]
        for modality, position, patch in patches:
            if modality == "metadata":
                continue
            found = by_place[modality, position]
            found["content_type"] = patch.get("content_type", found["content_type"])
            if modality == "text":
                found["text"] = patch.get("text_content", found["text"])
            elif "binary_content" in patch:
                found["image"] = json_codec.decode([patch["binary_content"]], pa.field("", pa.binary()))[
                    0
                ].as_py()
        items = list(by_place.values())
    items.sort(key=item_order)
    metadata = described(extra.get("metadata")) if "metadata" in rows else {}
    return {SAMPLE_ID: payload[SAMPLE_ID], "items": items, "metadata": metadata}


def _stated(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@lru_cache(maxsize=64)
def _typed_fields(schema: str) -> dict[str, Callable[[Any], Any]]:
    """Return, by column, what makes values of those that JSON has in another form, such as dates."""
    fields = [] if not schema else list(read_declared(schema).schema)

    return {
        field.name: partial(_decoded, field)
        for field in fields
        if not json_codec.is_natural(field.type) and not json_codec.is_json(field)
    }


def _decoded(field: pa.Field, value: Any) -> Any:
    return json_codec.decode([value], field)[0].as_py()


def open_tars(uris: Sequence[str], copies: LocalCopies) -> TarSource:
    """Open tars by the indexes beside them, ``<tar>.idx``; a tar without one is scanned.

    Raises:
        DataError: an index is none, or a tar is damaged.
    """
    indexed = existing_files([f"{uri}{_INDEX}" for uri in uris])

    def span(uri: str) -> tuple[Numbers, Numbers]:
        offsets = _indexed(uri) if f"{uri}{_INDEX}" in indexed else _scanned(uri, copies)
        return offsets[:-1], offsets[1:]

    return TarSource(uris, parallel_map(span, uris, uris[0]), copies)


def _indexed(uri: str) -> Numbers:
    data = read_bytes(f"{uri}{_INDEX}") or b""
    offsets = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.int64)
    if len(data) % 8 or not len(offsets) or (np.diff(offsets) <= 0).any() or offsets[0] < 0:
        raise DataError(f"{uri}{_INDEX}: no index of a tar: remove it, and the tar is scanned instead")
    return offsets


def _scanned(uri: str, copies: LocalCopies) -> Numbers:
    """Return the first byte of each sample, whose members are adjacent, and the end of the last."""
    file = copies.open(uri, OpenFile)
    index = scan(file.descriptor, uri)
    starts: list[int] = []
    last = None
    for member in index.members:
        folder, slash, name = member.name.rpartition("/")
        key = folder + slash + name.partition(".")[0]
        if key != last:
            starts.append(member.header_offset)
        last = key
    return np.array([*starts, index.end], np.int64)
