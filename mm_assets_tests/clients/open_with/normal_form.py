"""The one form in which every client reports what it found, so that the reports can be compared.

    {sample_id: {"texts": [text or null], "images": [sha256 or null], "tiffs": [sha256 of a TIFF's pixel data
    or null],
                 "errors": [...], "metadata": {...}, "text_extra": [{...} or null], "image_extra": [{...} or
                 null]}}

Lists are indexed by position and end at their last item (trailing nulls stripped). Extras leave out what is
null: a client cannot tell a missing field from a null one, our own round trip tests can. Scripts here run by
path with the clients' interpreter, so this module needs nothing but the standard library.
"""

import hashlib
import json
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

RESERVED = (
    "sample_id",
    "position",
    "modality",
    "content_type",
    "text_content",
    "binary_content",
    "source_ref",
    "materialize_error",
)
OURS = "_source"  # what raw records said beyond rows: for our own reader only
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
# width, height, bits, compression, photometric, samples a pixel, planes, predictor, colour map, JPEG tables
_PICTURE_TAGS = (256, 257, 258, 259, 262, 277, 284, 317, 320, 347)

Document = dict[str, Any]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stripped(values: Iterable[Any]) -> list[Any]:
    """The list without its trailing nulls."""
    out = list(values)
    while out and out[-1] is None:
        out.pop()
    return out


def told(extra: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """An item's extras without nulls; nothing at all is null."""
    return {
        name: value for name, value in (extra or {}).items() if value is not None and name != OURS
    } or None


def tiff_digest(data: bytes | None) -> str | None:
    """What makes a TIFF's first picture, wherever it lies in the file: strips or tiles, and the tags to
    decode them.
    """
    if data is None or data[:4] not in (b"II*\0", b"MM\0*"):
        return None
    order = "<" if data[:1] == b"I" else ">"
    (at,) = struct.unpack_from(order + "I", data, 4)
    (entries,) = struct.unpack_from(order + "H", data, at)
    tags: dict[int, tuple[int, bytes]] = {}
    for entry in range(at + 2, at + 2 + 12 * entries, 12):
        tag, kind, number = struct.unpack_from(order + "HHI", data, entry)
        size = _SIZES[kind] * number
        start = entry + 8 if size <= 4 else struct.unpack_from(order + "I", data, entry + 8)[0]
        tags[tag] = (kind, data[start : start + size])

    def numbers(tag: int) -> tuple[int, ...]:
        kind, value = tags[tag]
        return struct.unpack(order + str(len(value) // _SIZES[kind]) + {3: "H", 4: "I"}[kind], value)

    picture = hashlib.sha256()
    for tag in _PICTURE_TAGS:
        if tag in tags:
            picture.update(
                b"%d " % tag + (tags[tag][1] if tags[tag][0] == 7 else repr(numbers(tag)).encode())
            )
    offsets, sizes = (273, 279) if 273 in tags else (324, 325)
    for offset, size in zip(numbers(offsets), numbers(sizes), strict=True):
        picture.update(data[offset : offset + size])
    return picture.hexdigest()


def document(
    texts: Iterable[str | None],
    images: Iterable[bytes | None],
    extra: Mapping[str, Any] | None = None,
    errors: Iterable[Any] = (),
) -> Document:
    images, extra = list(images), extra or {}
    return {
        "texts": stripped(texts),
        "images": stripped(None if data is None else sha256(data) for data in images),
        "tiffs": stripped(tiff_digest(data) for data in images),
        "errors": list(errors),
        "metadata": told(extra.get("metadata")) or {},
        "text_extra": stripped(told(entry) for entry in extra.get("text") or []),
        "image_extra": stripped(told(entry) for entry in extra.get("image") or []),
    }


def from_payload(payload: Mapping[str, Any], fetch: Callable[[str], bytes]) -> tuple[str, Document]:
    """A sample of our tars: its json, and how this client gets the bytes for a reference of ``images``."""
    images = [None if ref is None else fetch(ref) for ref in payload["images"]]
    return payload["sample_id"], document(
        payload["texts"], images, payload.get("_row_extra"), payload["_row_errors"]
    )


def from_rows(rows: Iterable[Mapping[str, Any]], json_columns: Iterable[str] = ()) -> dict[str, Document]:
    """Rows of our tables, in any order; ``json_columns`` are those whose text is a JSON value."""
    encoded = set(json_columns)
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        parts = found.setdefault(
            row["sample_id"], {"texts": {}, "images": {}, "text": {}, "image": {}, "errors": []}
        )
        position, modality = row["position"], row["modality"]
        extra = {
            name: json.loads(value) if name in encoded and value is not None else value
            for name, value in row.items()
            if name not in RESERVED
        }
        if row["materialize_error"] is not None:
            parts["errors"].append(row["materialize_error"])
        if modality == "metadata":
            parts["metadata"] = extra
            continue
        values, value = ("texts", "text_content") if modality == "text" else ("images", "binary_content")
        if position in parts[values]:
            raise ValueError(
                f"{row['sample_id']!r} has two items of modality {modality} at position {position}"
            )
        parts[values][position] = row[value]
        parts[modality][position] = extra
    return {sample_id: _from_positions(parts) for sample_id, parts in found.items()}


def _from_positions(parts: Mapping[str, Any]) -> Document:
    def dense(name: str) -> list[Any]:
        values = parts[name]
        return [values.get(position) for position in range(max(values, default=-1) + 1)]

    extra = {"metadata": parts.get("metadata"), "text": dense("text"), "image": dense("image")}
    return document(dense("texts"), dense("images"), extra, parts["errors"])


def collected(samples: Iterable[tuple[str, Document]]) -> dict[str, Document]:
    """All samples by id; an id seen twice is a finding, not something to overwrite."""
    out: dict[str, Document] = {}
    for sample_id, sample in samples:
        if sample_id in out:
            raise ValueError(f"sample {sample_id!r} came twice")
        out[sample_id] = sample
    return out


def require_same(one: object, other: object, what: str) -> None:
    """Two ways into the same client must agree (compared as text: NaN equals NaN)."""
    if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
        raise ValueError(f"the two ways differ: {what}")


def report(documents: Mapping[str, Document]) -> None:
    json.dump(documents, sys.stdout)
    sys.stdout.write("\n")
