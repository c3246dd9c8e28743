"""Decode one sample of our tars as docs/tar_layout.md describes it: written from that page, not from the
writer.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mm_assets.accounting.canonical.tar_order import misplaced
from mm_assets.formats.reader import ShardError

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

CanonicalSource = tuple[str, int]  # modality and position


@dataclass(slots=True)
class Item:
    """One row: reserved columns (but for the sample id, absent is null), and all others as JSON values."""

    values: dict[str, Any]
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Document:
    """One sample; ``schema`` is the text that states the types of the other columns, empty where the json
    states none.
    """

    sample_id: str
    schema: str
    items: list[Item]
    nbytes: int  # of its members
    span: tuple[int, int] = (0, 0)  # bytes of the tar from its first header to the end of its last member


def has_bookkeeping(payload: Any) -> bool:
    """Whether a json is one of our own tars: others of the layout lack what makes it exact."""
    return (
        isinstance(payload, dict)
        and isinstance(payload.get("_row_extra"), dict)
        and isinstance(payload.get("_mm_assets"), dict)
    )


def decode_sample(sample: Mapping[str, Any], where: str) -> Document:
    """The rows of a WebDataset sample (bytes by key).

    Raises `ShardError` naming file, sample and what is not as documented.
    """
    if "json" not in sample:
        raise ShardError(f"{where}: sample with key {sample['__key__']!r} has no json")
    try:
        payload = json.loads(sample["json"])
        check_sample_id(payload)
    except (*_NOT_AS_DOCUMENTED, RecursionError) as error:
        raise ShardError(
            f"{where}: json of the sample with key {sample['__key__']!r}: {error!r:.300}"
        ) from error
    return decode_payload(payload, sample, where)


def check_sample_id(payload: dict[str, Any]) -> None:
    """Raise ``LookupError`` or ``TypeError`` for a json without the id of its sample."""
    if not isinstance(payload["sample_id"], str):
        raise TypeError(f"sample_id is {payload['sample_id']!r:.100}")


def decode_payload(payload: dict[str, Any], sample: Mapping[str, Any], where: str) -> Document:
    """The rows of a sample whose json is parsed, and known to have a sample id. Raises as `decode` does."""
    sample_id: str = payload["sample_id"]
    if added := [name for name in payload if name not in _FIELDS]:
        raise ShardError(f"{where}: sample {sample_id!r}: field {added[0]!r} is not of the layout")
    try:
        items = _items(payload, sample)
        schema = payload.get("_mm_assets", {}).get("schema", "")
        fault = misplaced(payload, sample, _length(payload, items))
    except _NOT_AS_DOCUMENTED as error:
        raise ShardError(
            f"{where}: sample {sample_id!r}: its json is not as the layout says: {error!r:.300}"
        ) from error
    if fault is not None:
        raise ShardError(f"{where}: sample {sample_id!r}, {fault}")
    ordered = sorted(items, key=lambda place: (place[1], place[0] == "image"))
    return Document(sample_id, schema, [items[place] for place in ordered], sum(map(len, sample.values())))


def _items(payload: dict[str, Any], sample: Mapping[str, Any]) -> dict[CanonicalSource, Item]:
    extra, book = (
        payload["_row_extra"],
        payload.get("_mm_assets", {"refs": [], "rows": {"metadata": {}, "text": {}, "image": {}}}),
    )
    items: dict[CanonicalSource, Item] = {}
    if "metadata" in book["rows"]:
        items["metadata", -1] = _item("metadata", -1, "application/json", extra["metadata"])
    for position, text in enumerate(payload["texts"]):
        if text is not None:
            items["text", position] = _item("text", position, "text/plain", extra["text"][position])
            items["text", position].values["text_content"] = text
    for position, name in enumerate(payload["images"]):
        if name is not None:
            if name.startswith("__"):  # what webdataset itself adds to a sample
                raise ValueError(f"{name!r} is no image")
            items["image", position] = _item(
                "image", position, _TYPES.get(name.rpartition(".")[2]), extra["image"][position]
            )
            items["image", position].values["binary_content"] = sample.get(name)
    for entry in payload["_row_errors"]:
        place = _place(entry["modality"], entry["position"])
        if place not in items:
            items[place] = _item(*place, entry["content_type"], entry["extra"])
        items[place].values["materialize_error"] = entry["materialize_error"]
    for modality, patches in book["rows"].items():
        for position, patch in [(-1, patches)] if modality == "metadata" else patches.items():
            place = _place(modality, int(position))
            if (
                place in items
            ):  # else an item was taken out of the lists: it is missing, as the comparison will say
                _patch(items[place].values, patch, book["refs"])
    return items


def _length(payload: dict[str, Any], items: Iterable[CanonicalSource]) -> int:
    """How many entries the lists have: up to the last item, or as many as the source had."""
    rows = payload.get("_mm_assets", {}).get("rows", {})
    lengths = [position + 1 for _, position in items]
    # An item that was taken out of the lists has left its bookkeeping: that it is missing, the comparison
    # will say.
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


def _place(modality: Any, position: Any) -> CanonicalSource:
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
