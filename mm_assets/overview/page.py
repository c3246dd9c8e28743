"""The overview as it is shown: figures and plots for the asset's page, contact sheets for its event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from mm_assets.interleaved.counted import counted
from mm_assets.overview.figures import Figures
from mm_assets.overview.measures import IMAGES, SIDES, SIZES, Histogram, Measures
from mm_assets.overview.plots import DROPPED, KEPT, columns, rows, share

STRIPS: Final = 8
"""Strips of thumbnails of kept images, and of dropped ones. The UI shows two rows of each without a click."""

_RATIO_LABELS: Final = {1: "1/4", 5: "1/2", 9: "1", 13: "2", 17: "4"}


def metadata(figures: Figures, measures: Measures) -> dict[str, Any]:
    """Return the entries by name, as plain values; pictures are Markdown that is shown without a click."""
    plots: list[tuple[str, Any]] = [(name, {"md": markdown}) for name, markdown in _plots(figures, measures)]
    pictures = [
        (name, {"md": strips[len(strips) // 2]})
        for name, strips in (
            ("pictures of kept images", figures.kept_pictures),
            ("pictures of dropped images", figures.dropped_pictures),
        )
        if strips
    ]
    counts: dict[str, Any] = {
        "documents": figures.documents,
        "texts": figures.texts,
        "images kept": figures.images_kept,
        "images dropped": figures.images_dropped,
        "items in quarantine": figures.items_quarantined,
        "shards": figures.shards,
        "raw shards": figures.raw_shards,
    }
    if figures.share_kept is not None:
        counts["share of images kept"] = round(figures.share_kept, 4)
    if measures.shards < measures.of_shards:
        counts["shards in the plots of images"] = measures.shards
    return {"summary": summary(figures), **dict(plots[:1]), **dict(pictures), **dict(plots[1:]), **counts}


def description(figures: Figures) -> str:
    """Return the text of the event, as Markdown: the contact sheets."""
    sheets = _sheet("Kept", figures.kept_pictures) + _sheet("Dropped", figures.dropped_pictures)
    return "\n\n".join([summary(figures), *sheets])


def summary(figures: Figures) -> str:
    """Return the figures in one sentence or two."""
    images = figures.images_kept + figures.images_dropped
    kept = (
        f"{figures.images_kept:,} of {images:,} images kept ({figures.share_kept:.1%})"
        if figures.share_kept is not None
        else "No images"
    )
    return (
        f"{kept}, in {counted(figures.documents, 'document')} of {counted(figures.shards, 'shard')}. "
        f"{counted(figures.images_dropped, 'image')} dropped by filters, "
        f"{counted(figures.items_quarantined, 'item')} in quarantine."
    )


def _plots(figures: Figures, measures: Measures) -> Iterable[tuple[str, str]]:
    if figures.share_kept is not None:
        parts = [("kept", figures.images_kept, KEPT), ("dropped", figures.images_dropped, DROPPED)]
        yield "images", share(parts)
    if figures.dropped:
        yield "drop reasons", rows(figures.dropped, DROPPED)
    if figures.quarantined:
        yield "quarantine", rows(figures.quarantined, DROPPED)
    if measures.formats:
        ratio_labels = [_RATIO_LABELS.get(index, "") for index in range(len(measures.ratios.kept))]
        yield "aspect ratio", _histogram(measures.ratios, ratio_labels)
        yield "pixels of the longer side", _histogram(measures.sides, _labels(SIDES))
        yield "bytes of an image", _histogram(measures.sizes, _labels(SIZES))
        yield "images in a document", _histogram(measures.in_documents, _labels(IMAGES))
        yield "image formats", rows(measures.formats)


def _histogram(histogram: Histogram, labels: Sequence[str]) -> str:
    return columns(labels, histogram.kept, histogram.dropped)


def _labels(edges: Sequence[float]) -> list[str]:
    return ["0", *(_short(int(edge)) for edge in edges[:-1]), f"{_short(int(edges[-1]))}+"]


def _short(number: int) -> str:
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if number >= size:
            return f"{number // size}{unit}"
    return str(number)


def _sheet(name: str, strips: Sequence[str]) -> list[str]:
    return [f"**{name}**", " ".join(strips)] if strips else []
