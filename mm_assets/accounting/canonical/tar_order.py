"""Whether the lists of a sample's json and its members stand as docs/tar_layout.md has them: what clients go
by beyond the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def misplaced(payload: Mapping[str, Any], sample: Mapping[str, Any], length: int) -> str | None:
    """The first thing of a WebDataset sample that is not where the layout has it, as ``position 3: …``; None
    if all is.

    ``length`` is that of its lists. An image without a member is no fault of order. Raises what a json of
    another kind makes it raise.
    """
    texts, images, members = payload["texts"], payload["images"], payload["image_members"]
    extra = payload["_row_extra"]
    aligned = {"texts": texts, "images": images, "image_members": members}
    for name, entries in (
        *aligned.items(),
        *((f"_row_extra.{modality}", extra[modality]) for modality in ("text", "image")),
    ):
        if len(entries) != length:
            return f"position {min(len(entries), length)}: {name!r} has {len(entries)} entries, where the lists have {length}"
    expected = [None if name is None else f"{sample['__key__']}.{name}" for name in images]
    if members != expected:
        at = next(at for at, pair in enumerate(zip(members, expected, strict=True)) if pair[0] != pair[1])
        return f"position {at}: 'image_members' has {members[at]!r}, where 'images' has {images[at]!r}"
    for modality, entries in (("text", texts), ("image", images)):
        empty = [entry is None for entry in entries]
        if [entry is None for entry in extra[modality]] != empty:
            at = next(at for at, entry in enumerate(extra[modality]) if (entry is None) != empty[at])
            return f"position {at}: '_row_extra.{modality}' has {'an entry without' if empty[at] else 'no entry for'} the {modality}"
    for at, name in enumerate(images):
        if name is not None and not name.startswith(f"{at}."):
            return f"position {at}: 'images' has {name!r}"
    found = [name for name in sample if name != "__key__"]
    ordered = [*(name for name in images if name in sample), "json"]  # one at most for each position
    if found == ordered:
        return None
    if added := [name for name in found if name not in ordered]:
        position, _, extension = added[0].partition(".")
        place = f"position {position}: " if extension and position.isdecimal() else ""
        return f"{place}member {sample['__key__']}.{added[0]} is not in 'images'"
    stray = next(name for name, due in zip(found, ordered, strict=True) if name != due)
    return f"member {sample['__key__']}.{stray} is not in its place: images come first, by position, then the json"
