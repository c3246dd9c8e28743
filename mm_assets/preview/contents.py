"""What borderline images and samples look like, from curated Parquet, a few row groups at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from mm_assets.formats.images.probe import ImageInfo
from mm_assets.formats.storage import exists
from mm_assets.pages.pictures import Picture, picture
from mm_assets.preview.borderline import Pick
from mm_assets.preview.stored_scores import StoredScores
from mm_assets.sample_view.document import Item, items_of
from mm_assets.sample_view.sample_rows import parquet_rows

IMAGES_OF_A_SAMPLE: Final = 4
_TEXTS_OF_A_SAMPLE: Final = 4
_SIDE: Final = 192  # pixels
_MOST_EMBEDDED: Final = 8 << 10


def contents_of(stored: StoredScores, picks: Iterable[Pick]) -> dict[Pick, list[Item]]:
    """Return the image of each pick, or the first texts and images of its sample, rendered for a page.

    Nothing is returned for one whose curated file is gone, or has it no more.

    Raises:
        ShardError: a file is damaged.
    """
    by_file: dict[str, list[Pick]] = {}
    for pick in dict.fromkeys(picks):
        by_file.setdefault(pick.file_name, []).append(pick)
    found: dict[Pick, list[Item]] = {}
    for file_name, wanted in sorted(by_file.items()):
        uri = stored.curated(file_name)
        if exists(uri):
            for table in parquet_rows(uri, {pick.sample_id for pick in wanted}):
                for pick in wanted:
                    items = items_of([_rows_of(pick, table, found.get(pick, []))], _observe)
                    if items:
                        found.setdefault(pick, []).extend(items)
    return found


def _rows_of(pick: Pick, table: pa.Table, known: Iterable[Item]) -> pa.Table:
    """Return the rows that are shown, beside those that are known already."""
    room = {"image": IMAGES_OF_A_SAMPLE, "text": _TEXTS_OF_A_SAMPLE}
    for item in known:
        room[item.modality] -= 1
    chosen = []
    places = table.select(["sample_id", "position", "modality"]).to_pylist()
    for row, place in enumerate(places):
        if place["sample_id"] == pick.sample_id and _is_shown(pick, place, room):
            room[place["modality"]] -= 1
            chosen.append(row)
    return table.take(pa.array(chosen, pa.int64()))


def _is_shown(pick: Pick, place: Mapping[str, Any], room: Mapping[str, int]) -> bool:
    if pick.position is not None:
        return bool(place["modality"] == "image" and place["position"] == pick.position)
    return room.get(place["modality"], 0) > 0


def _observe(data: memoryview, info: ImageInfo) -> str:
    description = f"{info.format} of {info.display_width}x{info.display_height} pixels"
    shown = picture(data, info, _MOST_EMBEDDED, _SIDE)
    return (Picture(shown.uri) if shown.uri else shown).html(description)
