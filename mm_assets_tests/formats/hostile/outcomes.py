"""What a case is: members of a tiny shard, and exactly what must become of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets_tests.formats.hostile.shards import Entry, file, tar
from mm_assets_tests.formats.images.pictures import picture

JSON = pa.field(
    "any", pa.string(), metadata={b"mm_assets:encoding": b"json"}
)  # stands for a column of JSON text
_NOWHERE = ("missing member", "ambiguous", "dangling reference")
PNG = picture(0)[1]
JPG = picture(1)[1]


@dataclass(frozen=True)
class Frame:
    """An image that must be frame ``number`` of a TIFF, every tag and strip of it, as a file of its own (or
    the file, if it has one).
    """

    tiff: bytes
    number: int


@dataclass(frozen=True)
class Sample:
    """A sample that is read; with ``faults`` (first words of the error by position) it goes whole into
    quarantine.

    ``texts`` and ``images`` by position (None: an image without bytes). ``extras`` of the metadata row,
    ``item_extras`` of (modality, position). ``said``: what ``_source`` keeps of the sample; ``tokens``,
    ``values``: of images and texts. ``types``: content types of images that their names do not tell.
    ``refs``: the locators of images, where the json itself states them, and no others.
    """

    sample_id: str = "bad"
    texts: Mapping[int, str] = field(default_factory=lambda: {0: "t"})
    images: Mapping[int, bytes | Frame | None] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)
    item_extras: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    said: Any = None
    tokens: Mapping[int, Any] = field(default_factory=dict)
    values: Mapping[int, Any] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)
    types: Mapping[int, str | None] = field(default_factory=dict)
    refs: Mapping[int, str] | None = None

    @property
    def unlocated(self) -> set[int]:
        """Positions of images that lead to no bytes at all."""
        return {
            at
            for at, words in self.faults.items()
            if words.startswith(_NOWHERE) and not words.startswith("dangling reference: frame")
        }

    @property
    def places(self) -> list[tuple[int, str]]:
        """(position, modality) of its rows, in order."""
        items = [(position, "text") for position in self.texts] + [
            (position, "image") for position in self.images
        ]
        return [(-1, "metadata"), *sorted(items, key=lambda place: (place[0], place[1] == "image"))]


@dataclass(frozen=True)
class Lost:
    """A sample that cannot be read: one item lost, whose locator gives the bytes of ``member`` (``data``,
    when several have that name).

    Without ``has_bytes`` the locator is that of its header.
    """

    kind: str
    words: str
    sample_id: str = "bad"
    member: str = "bad.json"
    data: bytes | None = None
    has_bytes: bool = True


@dataclass(frozen=True)
class Rejected:
    """A sample that can be read and not be used: each of its items is lost for it. ``places`` are (position,
    modality).
    """

    kind: str
    words: str
    sample_id: str = "bad"
    places: Sequence[tuple[int, str]] = ((-1, "metadata"), (0, "text"))
    member: str = "bad.json"


@dataclass(frozen=True)
class Damage:
    """A stretch of the (unpacked) file that cannot be read, from ``offset`` to ``end`` or to the file's; no
    items are known of it.
    """

    kind: str
    words: str
    offset: int
    end: int | None = None


Outcome = Sample | Lost | Rejected | Damage


@dataclass(frozen=True)
class Case:
    """One shard. ``outcomes`` in archive order, without the two good neighbours, which `ends` adds.

    ``columns``: passthrough columns and their types, all of them (``_source`` is implied). ``shard`` puts the
    file together of its entries, ``kept`` says which neighbours survive. ``notes``: what the report says of
    the file beside losses. ``settings``: module constants to change for this case. ``is_of_pairs``: the
    neighbours are image-text pairs, and no documents.
    """

    name: str
    members: Sequence[Entry]
    outcomes: Sequence[Outcome]
    columns: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    shard: Callable[[list[Entry]], bytes] = tar
    file_name: str = "shard.tar"
    kept: Sequence[str] = ("before", "after")
    notes: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    is_of_pairs: bool = False

    @property
    def entries(self) -> list[Entry]:
        """All entries of the shard: a good sample before, what the case puts in, a good sample after."""
        beside = pair if self.is_of_pairs else neighbour
        return [*beside("before"), *self.members, *beside("after")]

    @property
    def all_outcomes(self) -> list[Outcome]:
        first = [good("before")] if "before" in self.kept else []
        last = [good("after")] if "after" in self.kept else []
        damage = [outcome for outcome in self.outcomes if isinstance(outcome, Damage)]
        return [*first, *(outcome for outcome in self.outcomes if outcome not in damage), *last, *damage]


_NEIGHBOURS = {"before": picture(13)[1], "after": picture(26)[1]}


def neighbour(key: str) -> list[Entry]:
    """A sample with a text at 0 and an image at 1."""
    payload = {"sample_id": key, "texts": [f"text of {key}", None], "images": [None, f"{key}.1.png"]}
    return [file(f"{key}.json", payload), file(f"{key}.1.png", _NEIGHBOURS[key])]


def pair(key: str) -> list[Entry]:
    """The same as an image-text pair."""
    return [file(f"{key}.png", _NEIGHBOURS[key]), file(f"{key}.txt", f"text of {key}".encode())]


def good(key: str) -> Sample:
    return Sample(key, {0: f"text of {key}"}, {1: _NEIGHBOURS[key]})


def pictured(data: bytes, name: str = "bad.1.png") -> list[Entry]:
    """A sample with a text at 0 and an image at 1, whose bytes are ``data``."""
    return [file("bad.json", {"texts": ["t", None], "images": [None, name]}), file(name, data)]
