"""Decoder of samples in our tars, written from docs/tar_layout.md and not from the writer."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mm_assets.accounting.canonical.tar_order import order_fault
from mm_assets.interleaved.errors import ShardError

_TYPES = {
    "jpg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "gif": "image/gif",
    "tiff": "image/tiff",
    "bmp": "image/bmp",
}
_FIELDS = {"sample_id", "texts", "images", "image_members", "_row_extra", "_row_errors", "_mm_assets"}
_LARGEST_POSITION = 2**31 - 1
_NOT_AS_DOCUMENTED = (LookupError, TypeError, AttributeError, ValueError)

ItemKey = tuple[str, int]  # modality and position


@dataclass(slots=True)
class Item:
    """One row: reserved columns (except the sample id; absent is null), and all others as JSON values."""

    values: dict[str, Any]
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Document:
    """One sample of a tar.

    ``schema`` is the text with the types of the other columns, empty if the JSON declares none.
    """

    sample_id: str
    schema: str
    items: list[Item]
    nbytes: int  # of its members
    span: tuple[int, int] = (0, 0)  # bytes of the tar from its first header to the end of its last member


def has_bookkeeping(payload: Any) -> bool:
    """Return whether the JSON is one of our own tars: others of this layout lack the exact types."""
    return (
        isinstance(payload, dict)
        and isinstance(payload.get("_row_extra"), dict)
        and isinstance(payload.get("_mm_assets"), dict)
    )


def decode_sample(sample: Mapping[str, Any], location: str) -> Document:
    """Return the rows of a WebDataset sample (bytes by key).

    Raises:
        ShardError: the sample is not as documented; the message names file, sample and fault.
    """
    if "json" not in sample:
        raise ShardError(f"{location}: sample with key {sample['__key__']!r} has no json")
    try:
        payload = json.loads(sample["json"])
        check_sample_id(payload)
    except (*_NOT_AS_DOCUMENTED, RecursionError) as error:
        raise ShardError(
            f"{location}: json of the sample with key {sample['__key__']!r}: {error!r:.300}"
        ) from error
    return decode_payload(payload, sample, location)


def check_sample_id(payload: dict[str, Any]) -> None:
    """Raise ``LookupError`` or ``TypeError`` for a json without the id of its sample."""
    if not isinstance(payload["sample_id"], str):
        raise TypeError(f"sample_id is {payload['sample_id']!r:.100}")


def decode_payload(payload: dict[str, Any], sample: Mapping[str, Any], location: str) -> Document:
    """Return the rows of a sample whose json is parsed, and known to have a sample id.

    Raises:
        ShardError: as `decode_sample` does.
    """
    sample_id: str = payload["sample_id"]
    if added := [name for name in payload if name not in _FIELDS]:
        raise ShardError(f"{location}: sample {sample_id!r}: field {added[0]!r} is not of the layout")
    try:
        items = _items(payload, sample)
        schema = payload.get("_mm_assets", {}).get("schema", "")
        fault = order_fault(payload, sample, _length(payload, items))
    except _NOT_AS_DOCUMENTED as error:
        raise ShardError(
            f"{location}: sample {sample_id!r}: its json is not as the layout says: {error!r:.300}"
        ) from error
    if fault is not None:
        raise ShardError(f"{location}: sample {sample_id!r}, {fault}")
    ordered = sorted(items, key=lambda key: (key[1], key[0] == "image"))
    return Document(sample_id, schema, [items[key] for key in ordered], sum(map(len, sample.values())))


def _items(payload: dict[str, Any], sample: Mapping[str, Any]) -> dict[ItemKey, Item]:
    extra, book = (
        payload["_row_extra"],
        payload.get("_mm_assets", {"refs": [], "rows": {"metadata": {}, "text": {}, "image": {}}}),
    )
    items: dict[ItemKey, Item] = {}
    if "metadata" in book["rows"]:
        items["metadata", -1] = _item("metadata", -1, "application/json", extra["metadata"])
    for position, text in enumerate(payload["texts"]):
        if text is not None:
            items["text", position] = _item("text", position, "text/plain", extra["text"][position])
            items["text", position].values["text_content"] = text
    for position, name in enumerate(payload["images"]):
        if name is not None:
            if name.startswith("__"):  # keys that webdataset itself adds to a sample
                raise ValueError(f"{name!r} is no image")
            items["image", position] = _item(
                "image", position, _TYPES.get(name.rpartition(".")[2]), extra["image"][position]
            )
            items["image", position].values["binary_content"] = sample.get(name)
    for entry in payload["_row_errors"]:
        key = _item_key(entry["modality"], entry["position"])
        if key not in items:
            items[key] = _item(*key, entry["content_type"], entry["extra"])
        items[key].values["materialize_error"] = entry["materialize_error"]
    for modality, patches in book["rows"].items():
        for position, patch in [(-1, patches)] if modality == "metadata" else patches.items():
            key = _item_key(modality, int(position))
            # An item that was removed from the lists is reported as missing by the comparison.
            if key in items:
                _patch(items[key].values, patch, book["refs"])
    return items


def _length(payload: dict[str, Any], items: Iterable[ItemKey]) -> int:
    """Return the length of the lists: up to the last item, or as many entries as the source had."""
    rows = payload.get("_mm_assets", {}).get("rows", {})
    lengths = [position + 1 for _, position in items]
    # An item that was removed from the lists still has its bookkeeping; the comparison reports it as missing.
    lengths += [int(position) + 1 for modality in ("text", "image") for position in rows.get(modality, ())]
    if "metadata" in rows:
        source = payload["_row_extra"]["metadata"].get("_source")
        known = source.get("lengths") if isinstance(source, dict) else None
        lengths += (
            [number for number in known.values() if isinstance(number, int)]
            if isinstance(known, dict)
            else []
        )
    return max(lengths, default=0)


def _item(modality: str, position: int, content_type: str | None, extras: Any) -> Item:
    return Item(
        {"position": position, "modality": modality, "content_type": content_type}, dict(extras or {})
    )


def _item_key(modality: Any, position: Any) -> ItemKey:
    is_known = (
        position == -1
        if modality == "metadata"
        else modality in ("text", "image") and 0 <= position <= _LARGEST_POSITION
    )
    if not is_known or type(position) is not int:
        raise ValueError(f"no item has modality {modality!r} and position {position!r}")
    return modality, position


def _patch(values: dict[str, Any], patch: dict[str, Any], refs: list[str]) -> None:
    if "ref" in patch:
        values["source_ref"] = refs[patch["ref"]]
    for name in ("content_type", "text_content"):
        if name in patch:
            values[name] = patch[name]
    if "binary_content" in patch:
        values["binary_content"] = base64.b64decode(patch["binary_content"], validate=True)
