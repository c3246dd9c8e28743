"""Check of the order in a tar sample's JSON lists and members, on which clients rely beyond the rows.

The order is described in docs/tar_layout.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def order_fault(payload: Mapping[str, Any], sample: Mapping[str, Any], length: int) -> str | None:
    """Return the first deviation from the layout in a WebDataset sample, as ``position 3: …``; None without.

    An image without a member is no fault of order. JSON of another kind raises whatever its types cause.

    Args:
        payload: the JSON of the sample.
        sample: the sample as webdataset gives it.
        length: the length of its lists.
    """
    texts, images, members = payload["texts"], payload["images"], payload["image_members"]
    extra = payload["_row_extra"]
    aligned = {"texts": texts, "images": images, "image_members": members}
    for name, entries in (
        *aligned.items(),
        *((f"_row_extra.{modality}", extra[modality]) for modality in ("text", "image")),
    ):
        if len(entries) != length:
            return (
                f"position {min(len(entries), length)}: {name!r} has {len(entries)} entries, "
                f"where the lists have {length}"
            )
    expected = [None if name is None else f"{sample['__key__']}.{name}" for name in images]
    if members != expected:
        index = next(
            index for index, pair in enumerate(zip(members, expected, strict=True)) if pair[0] != pair[1]
        )
        return (
            f"position {index}: 'image_members' has {members[index]!r}, where 'images' has {images[index]!r}"
        )
    for modality, entries in (("text", texts), ("image", images)):
        empty = [entry is None for entry in entries]
        if [entry is None for entry in extra[modality]] != empty:
            index = next(
                index for index, entry in enumerate(extra[modality]) if (entry is None) != empty[index]
            )
            fault = "an entry without" if empty[index] else "no entry for"
            return f"position {index}: '_row_extra.{modality}' has {fault} the {modality}"
    for index, name in enumerate(images):
        if name is not None and not name.startswith(f"{index}."):
            return f"position {index}: 'images' has {name!r}"
    found = [name for name in sample if name != "__key__"]
    ordered = [*(name for name in images if name in sample), "json"]  # one at most for each position
    if found == ordered:
        return None
    if added := [name for name in found if name not in ordered]:
        position, _, extension = added[0].partition(".")
        place = f"position {position}: " if extension and position.isdecimal() else ""
        return f"{place}member {sample['__key__']}.{added[0]} is not in 'images'"
    unexpected = next(name for name, due in zip(found, ordered, strict=True) if name != due)
    return (
        f"member {sample['__key__']}.{unexpected} is not in its place: "
        "images come first, by position, then the json"
    )
