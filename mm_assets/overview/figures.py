"""Figures of the whole data set, from what the events of its shards say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

_PICTURE: Final = re.compile(r"!\[\]\(data:image/webp;base64,[A-Za-z0-9+/=]+\)")


@dataclass(frozen=True)
class Figures:
    """Counts over all published shards; they are those of the ledger.

    Args:
        raw_shards: raw shards that are known.
        shards: shards with filtered rows.
        documents: samples in them.
        dropped: images that filters took out, by filter and reason.
        quarantined: faulty items of the raw shards, by class.
        kept_pictures: Markdown of thumbnails of kept images, one strip for each of some shards.
        dropped_pictures: the same of dropped ones.
    """

    raw_shards: int
    shards: int
    documents: int
    texts: int
    images_kept: int
    dropped: Mapping[str, int]
    quarantined: Mapping[str, int]
    kept_pictures: Sequence[str] = ()
    dropped_pictures: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        curated: Mapping[str, Mapping[str, Any]],
        filtered: Mapping[str, Mapping[str, Any]],
        strips: int,
        raw_shards: int = 0,
    ) -> Figures:
        """Return the figures of shards.

        Args:
            curated: metadata of the curated shards' events, by shard.
            filtered: of the filtered ones.
            strips: largest number of strips of thumbnails, of kept and of dropped images each.
            raw_shards: raw shards that are known.
        """
        return cls(
            raw_shards=raw_shards,
            shards=len(filtered),
            documents=_total(filtered, "samples"),
            texts=_total(filtered, "texts"),
            images_kept=_total(filtered, "images"),
            dropped=_totals(filtered, "filtered"),
            quarantined=_totals(curated, "quarantined"),
            # A shard that no filter has touched shows what the curated one shows.
            kept_pictures=_pictures(
                {key: {**_preview(curated.get(key, {})), **_preview(filtered[key])} for key in filtered},
                "preview",
                strips,
            ),
            dropped_pictures=_pictures(filtered, "preview_dropped", strips),
        )

    @property
    def images_dropped(self) -> int:
        return sum(self.dropped.values())

    @property
    def items_quarantined(self) -> int:
        return sum(self.quarantined.values())

    @property
    def share_kept(self) -> float | None:
        """Share of the curated images that the filters leave; None where there is no image."""
        images = self.images_kept + self.images_dropped
        return self.images_kept / images if images else None


def evenly_spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` of the items, evenly spread over all of them."""
    if len(items) <= most:
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]


def _total(shards: Mapping[str, Mapping[str, Any]], name: str) -> int:
    return sum(metadata.get(name, 0) for metadata in shards.values())


def _totals(shards: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for metadata in shards.values():
        counts.update(metadata.get(name, {}))
    return dict(counts)


def _preview(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"preview": metadata["preview"]} if "preview" in metadata else {}


def _pictures(shards: Mapping[str, Mapping[str, Any]], name: str, most: int) -> list[str]:
    """Return thumbnails of some shards; text that is anything else, of events of older versions, is not."""
    found: Iterable[str] = (str(shards[key].get(name, "")) for key in sorted(shards))
    return evenly_spread([text for text in found if _PICTURE.fullmatch(text)], most)
