"""What clients of a tar go by beyond its rows is as docs/tar_layout.md has it, or named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.accounting.canonical import derive
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import json_field
from mm_assets_tests.accounting.mutations import PNG, rewrite, write_tar
from mm_assets_tests.formats.datasets import item, table_of

FIELDS = [pa.field("w", pa.int64()), json_field("_source")]
ROWS = [
    item("s", _source='{"lengths":{"texts":6,"images":4}}'),
    item("s", 0, text_content="t", w=1),
    item("s", 1, "image", binary_content=PNG, w=2),
    item("s", 3, "image", binary_content=PNG + b"!", w=3),
    item("s", 4, "image", materialize_error="gone"),
    item("u", 0, text_content="without metadata"),
]
Payload = dict[str, Any]


def tar_with(folder: Path, change: Callable[[Payload], object]) -> str:
    """The tar of `ROWS` with another json of sample ``s``."""
    tar = write_tar(folder, table_of(ROWS, FIELDS))

    def changed(name: str, data: bytes) -> list[tuple[str, bytes]]:
        if name != "s.json":
            return [(name, data)]
        payload = json.loads(data)
        change(payload)
        return [(name, json.dumps(payload).encode())]

    rewrite(tar, changed)
    return str(tar)


def swap(entries: list[Any], one: int, other: int) -> None:
    entries[one], entries[other] = entries[other], entries[one]


def lengthen(payload: Payload) -> None:
    extra = payload["_row_extra"]
    for entries in (
        payload["texts"],
        payload["images"],
        payload["image_members"],
        extra["text"],
        extra["image"],
    ):
        entries.append(None)


def test_a_tar_of_ours_is_in_order(tmp_path: Path) -> None:
    """Lists as long as the source's, items without content, a sample without metadata."""
    lengths: list[int] = []
    found = derive("webdataset", tar_with(tmp_path, lambda payload: lengths.append(len(payload["texts"]))))
    assert (found.rows, found.images, lengths) == (6, 3, [6])


CHANGES: dict[str, tuple[Callable[[Payload], object], str]] = {
    "swapped members": (
        lambda p: swap(p["image_members"], 1, 3),
        "position 1: 'image_members' has 's.3.png', where 'images' has '1.png'",
    ),
    "no members": (lambda p: p.update(image_members=[None] * 6), "position 1: 'image_members' has None"),
    "no list of members": (lambda p: p.pop("image_members"), "KeyError.'image_members'"),
    "a member too many": (
        lambda p: p["image_members"].append(None),
        "position 6: 'image_members' has 7 entries, where the lists have 6",
    ),
    "a null too many": (lambda p: p["texts"].append(None), "position 6: 'texts' has 7 entries"),
    "a null too few": (lambda p: p["texts"].pop(), "position 5: 'texts' has 5 entries"),
    "longer than the source": (lengthen, "position 6: 'texts' has 7 entries"),
    "columns of no text": (
        lambda p: swap(p["_row_extra"]["text"], 0, 1),
        "position 0: '_row_extra.text' has no entry for the text",
    ),
    "columns of no image": (
        lambda p: p["_row_extra"]["image"].__setitem__(2, {"w": None}),
        "position 2: '_row_extra.image' has an entry without the image",
    ),
    "another position": (
        lambda p: p.update(
            images=[None, "3.png", None, "1.png", None, None],
            image_members=[None, "s.3.png", None, "s.1.png", None, None],
        ),
        "position 1: 'images' has '3.png'",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_lists_that_do_not_agree(change: str, tmp_path: Path) -> None:
    alter, message = CHANGES[change]
    with pytest.raises(ShardError, match=f"part.tar: sample 's'[,:].* ?{message}"):
        derive("webdataset", tar_with(tmp_path, alter))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["s.json", "s.1.png", "s.3.png"], "member s.json is not in its place"),
        (["s.3.png", "s.1.png", "s.json"], "member s.3.png is not in its place"),
        (["s.1.png", "s.3.png", "s.77.png", "s.json"], "position 77: member s.77.png is not in 'images'"),
        (["s.1.png", "s.3.png", "s.json", "s.txt"], "member s.txt is not in 'images'"),
        (["s.1.PNG", "s.3.png", "s.json"], "member 's.1.PNG' has no name of the layout"),
        (["s.1.png", "s.3.png", "s.json", "NOTES"], "member 'NOTES' has no name of the layout"),
        (["s.1.png", "s.3.png", "d/s.json"], "member 'd/s.json' has no name of the layout"),
    ],
)
def test_members_that_are_not_in_order(order: list[str], message: str, tmp_path: Path) -> None:
    tar = write_tar(tmp_path, table_of(ROWS[:4], FIELDS))
    members: dict[str, bytes] = {}
    rewrite(tar, lambda name, data: [members.__setitem__(name, data) or (name, data)])
    assert list(members) == ["s.1.png", "s.3.png", "s.json"]
    by_name = {name.lower().removeprefix("d/"): name for name in order}
    contents = [(name, members.get(lower, b"added")) for lower, name in by_name.items()]
    rewrite(tar, lambda name, _: contents if name == "s.json" else [])
    with pytest.raises(ShardError, match=f"part.tar: .*{message}"):
        derive("webdataset", str(tar))


def test_where_samples_lie(tmp_path: Path) -> None:
    tar = write_tar(tmp_path, table_of(ROWS, FIELDS))
    offsets = derive("webdataset", str(tar)).offsets
    assert offsets is not None
    stated = Path(f"{tar}.idx").read_bytes()
    assert b"".join(offset.to_bytes(8, "little") for offset in offsets) == stated
    assert offsets[-1] + 1024 == tar.stat().st_size
