"""Overview of the whole data set: figures, histograms and contact sheets, as Markdown.

* `Figures`: counts over all shards, from what their events say.
* `Histogram`, `Measures`: what images are like, from the stored scores and the ledger of some shards. No
  image is read.
* `columns`, `rows`, `share`: plots as small SVG files, below `INLINE` characters as Markdown whatever is
  counted. Text comes from data in part: it is escaped, and cut. Colours have enough contrast on white and on
  black.
* `metadata`, `description`: the overview as it is shown, figures and plots for the asset's page, contact
  sheets for its event.
* `Status`: what is made, failed, outdated and missing, for the overview and the command ``status``.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting import FILTERED
from mm_assets.accounting.accounts import Ledger
from mm_assets.formats.parquet import UnreadableFile, read_small_table
from mm_assets.model.errors import counted
from mm_assets.view import INLINE, svg_image

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


KEPT: Final = "#4a80e8"
DROPPED: Final = "#e08020"
_TEXT: Final = "#777"
_WIDTH: Final = 360
_LABEL: Final = 38  # characters
_LEAST_LABEL: Final = 6
_MOST_ROWS: Final = 6
_UNPRINTABLE: Final = re.compile(r"[^\x20-\ud7ff\ue000-\ufffd]")


def columns(labels: Sequence[str], kept: Sequence[int], dropped: Sequence[int] = ()) -> str:
    """Return a histogram as Markdown: one column for each label, what is dropped stands above what is kept.

    Args:
        labels: short texts of our own; an empty one is left out.
        kept: counts, as many as there are labels.
        dropped: counts, as many or none.
    """
    dropped = dropped or [0] * len(kept)
    totals = [low + high for low, high in zip(kept, dropped, strict=True)]
    top, pitch, base = max([*totals, 1]), _WIDTH // len(labels), 72
    lower, upper = "", ""
    for index, (low, total) in enumerate(zip(kept, totals, strict=True)):
        x, middle, end = (
            index * pitch + pitch // 2 - 1,
            base - _height(low, top, base - 12),
            base - _height(total, top, base - 12),
        )
        lower += f"M{x} {base}V{middle}" if low else ""
        upper += f"M{x} {middle}V{end}" if total > low else ""
    bars = _lines(lower, KEPT, pitch - 2) + _lines(upper, DROPPED, pitch - 2)
    peak = totals.index(max(totals))
    texts = [(peak * pitch, 10, f"{totals[peak]:,}")]
    texts += [(index * pitch, base + 12, label) for index, label in enumerate(labels) if label]
    return svg_image(_svg(86, bars, texts))


def rows(counts: Mapping[str, int], colour: str = KEPT) -> str:
    """Return the largest counts as Markdown, one bar each with its label; the others are summed up."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    for shown in range(min(len(ranked), _MOST_ROWS), 0, -1):
        listed = ranked[:shown]
        if others := sum(count for _, count in ranked[shown:]):
            listed = [*listed, (f"in {len(ranked) - shown} others", others)]
        for longest in range(_LABEL, _LEAST_LABEL - 1, -8):
            if len(picture := svg_image(_ranking(listed, colour, longest))) <= INLINE:
                return picture
    return ""


def share(parts: Sequence[tuple[str, int, str]]) -> str:
    """Return one bar divided into parts as Markdown: label of our own, count and colour of each."""
    total = sum(count for _, count, _ in parts) or 1
    bars, texts, left = "", [], 0.0
    for _, count, colour in parts:
        right = left + _WIDTH * count / total
        bars += _lines(f"M{left:.0f} 11H{right:.0f}" if count else "", colour, 22)
        left = right
    for index, (label, count, _) in enumerate(parts):
        texts.append((index * _WIDTH // len(parts), 37, f"{label} {count:,}"))
    return svg_image(_svg(42, bars, texts))


def _ranking(counts: Sequence[tuple[str, int]], colour: str, longest: int) -> str:
    top = max(count for _, count in counts) or 1
    bars, texts = "", []
    for index, (label, count) in enumerate(counts):
        y = index * 16
        bars += f"M0 {y + 8}h{max(1, round(120 * count / top))}"
        texts.append((126, y + 12, f"{count:,} {_short(label, longest)}"))
    return _svg(len(counts) * 16, _lines(bars, colour, 11), texts)


def _short(text: str, longest: int) -> str:
    plain = _UNPRINTABLE.sub(" ", text)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def _height(count: int, top: int, tallest: int) -> int:
    """Return the height of a column; 1 for a count that would be too small to be seen."""
    return max(1, round(tallest * count / top)) if count else 0


def _lines(path: str, colour: str, width: int) -> str:
    """Return thick lines: as bars they take half the characters of rectangles."""
    return f"<path stroke='{colour}' stroke-width='{width}' d='{path}'/>" if path else ""


def _svg(height: int, bars: str, texts: Sequence[tuple[int, int, str]]) -> str:
    spans = "".join(f"<tspan x='{x}' y='{y}'>{escape(text)}</tspan>" for x, y, text in texts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}'>{bars}"
        f"<text fill='{_TEXT}' font-family='sans-serif' font-size='11'>{spans}</text></svg>"
    )


log = logging.getLogger(__name__)

MOST_SHARDS: Final = 400
_THREADS: Final = 8
_COLUMNS: Final = ("sample_id", "position", "width", "height", "format", "byte_size")

# Lower edges; what is below the first one is in a column of its own.
RATIOS: Final = tuple(2 ** (step / 4) for step in range(-8, 9))
SIDES: Final = (64, 128, 256, 512, 1024, 2048, 4096)
SIZES: Final = tuple(1 << shift for shift in range(10, 26, 2))
IMAGES: Final = (1, 2, 3, 4, 5, 6, 10, 20)


@dataclass
class Histogram:
    """Counts of kept and dropped images between edges; there is one more count than there are edges."""

    edges: tuple[float, ...]
    kept: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept = [0] * (len(self.edges) + 1)
        self.dropped = [0] * (len(self.edges) + 1)

    def add(self, values: npt.NDArray[np.float64], is_dropped: npt.NDArray[np.bool_]) -> None:
        """Count values, of which some are dropped."""
        columns = np.searchsorted(self.edges, values, side="right")
        for counts, chosen in ((self.kept, ~is_dropped), (self.dropped, is_dropped)):
            for column, count in enumerate(np.bincount(columns[chosen], minlength=len(counts))):
                counts[column] += int(count)


@dataclass
class Measures:
    """What the images of some shards are like.

    Attributes:
        shards: number of shards that were looked at, of ``of_shards``.
        ratios: width/height.
        sides: pixels of the longer side.
        sizes: bytes of the file.
        in_documents: images of a document, before filters; only ``kept`` counts.
        formats: images by format; ``unreadable`` where there is none.
    """

    of_shards: int = 0
    shards: int = 0
    ratios: Histogram = field(default_factory=lambda: Histogram(RATIOS))
    sides: Histogram = field(default_factory=lambda: Histogram(SIDES))
    sizes: Histogram = field(default_factory=lambda: Histogram(SIZES))
    in_documents: Histogram = field(default_factory=lambda: Histogram(IMAGES))
    formats: Counter[str] = field(default_factory=Counter)

    def add(self, scores: pa.Table, lost: pa.Table, documents: int) -> None:
        """Count the images of one shard.

        Args:
            scores: of its images, with the columns of `SCORES_SCHEMA` but orientation and error.
            lost: ledger of its filtered rows.
            documents: samples of the shard, with images or without.
        """
        self.shards += 1
        filtered = lost.filter(pc.equal(lost.column("outcome"), "filtered"))
        is_dropped = pc.is_in(_places(scores), value_set=_places(filtered)).to_numpy(zero_copy_only=False)
        width, height, nbytes = (
            pc.fill_null(scores.column(name), 0).to_numpy().astype(np.float64)
            for name in ("width", "height", "byte_size")
        )
        measured = (width > 0) & (height > 0)
        self.ratios.add(width[measured] / height[measured], is_dropped[measured])
        self.sides.add(np.maximum(width, height)[measured], is_dropped[measured])
        self.sizes.add(nbytes[measured], is_dropped[measured])
        counts = pc.value_counts(scores.column("sample_id")).field("counts").to_numpy().astype(np.float64)
        without = np.zeros(max(0, documents - len(counts)))
        in_document = np.concatenate([counts, without])
        self.in_documents.add(in_document, np.zeros(len(in_document), dtype=np.bool_))
        for entry in pc.value_counts(scores.column("format")).to_pylist():
            self.formats[entry["values"] or "unreadable"] += entry["counts"]


def measure(
    root: str, scores: Mapping[str, str], documents: Mapping[str, int], most: int = MOST_SHARDS
) -> Measures:
    """Return the measures of at most ``most`` shards, evenly spread over all of them.

    A shard whose files are gone or damaged is logged and left out.

    Args:
        root: storage root.
        scores: location of the scores of each shard.
        documents: samples of each shard.
    """
    measures = Measures(of_shards=len(scores))
    ledger = Ledger(root)

    def read(key: str) -> tuple[str, pa.Table, pa.Table] | None:
        try:
            return (
                key,
                read_small_table(scores[key], _COLUMNS),
                ledger.items(FILTERED.asset, key).select(["sample_id", "position", "outcome"]),
            )
        except (UnreadableFile, OSError) as error:
            log.warning("the overview leaves out shard %r: %s", key, error)
            return None

    chosen: Sequence[str] = evenly_spread(sorted(scores), most)
    with ThreadPoolExecutor(_THREADS) as pool:
        for found in pool.map(read, chosen):
            if found is not None:
                key, table, lost = found
                measures.add(table, lost, documents.get(key, 0))
    return measures


def _places(rows: pa.Table) -> pa.ChunkedArray:
    position = pc.cast(rows.column("position"), pa.string())
    return pc.binary_join_element_wise(rows.column("sample_id"), position, "\0")


STRIPS: Final = 8
"""Strips of thumbnails of kept images, and of dropped ones. The UI shows two rows of each without a click."""

_RATIO_LABELS: Final = {1: "1/4", 5: "1/2", 9: "1", 13: "2", 17: "4"}


def metadata(figures: Figures, measures: Measures, status: Status | None = None) -> dict[str, Any]:
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
    told = {} if status is None else {"shards by asset": {"md": status.markdown()}, **status.sentences()}
    shown = {**dict(plots[:1]), **dict(pictures), **dict(plots[1:])}
    return {"summary": summary(figures), **told, **shown, **counts}


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
    return ["0", *(_short_number(int(edge)) for edge in edges[:-1]), f"{_short_number(int(edges[-1]))}+"]


def _short_number(number: int) -> str:
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if number >= size:
            return f"{number // size}{unit}"
    return str(number)


def _sheet(name: str, strips: Sequence[str]) -> list[str]:
    return [f"**{name}**", " ".join(strips)] if strips else []


@dataclass(frozen=True)
class AssetStatus:
    """Shards of an asset; each raw shard that there is counts once, but for ``proven``.

    Args:
        made: made, and not outdated.
        failed: planned by a run that has ended, and not made.
        stale: outdated: made from other raw data, code or settings than now, or not as it was written.
        missing: never made.
        running: a run that has not ended is to make it.
        proven: as it was written when it was last read; None: not known, or nothing is proven of this asset.
    """

    made: int
    failed: int
    stale: int
    missing: int
    running: int
    proven: int | None = None


@dataclass(frozen=True)
class Quarantined:
    """Items of raw shards in quarantine, of all items of those shards whose curated rows have been proven."""

    items: int
    of_items: int
    shards: int

    @property
    def share(self) -> float:
        return self.items / self.of_items if self.of_items else 0.0


@dataclass(frozen=True)
class OldestFailure:
    """The shard that has been failing for longest: in its first asset, with the reason of the last run."""

    shard: str
    asset: str
    since: str
    run: str
    reason: str


@dataclass(frozen=True)
class LastProof:
    """The last run that read outputs again.

    Args:
        at: time of its last look at a shard.
        by: what has started it.
        outputs: in how many of them it has read shards; ``shards`` of the one with the most.
        read: shards in all outputs; ``differing`` of them are not as they were written.
    """

    at: str
    run: str
    by: str
    outputs: int
    shards: int
    read: int
    differing: int


@dataclass(frozen=True)
class Status:
    """What is made of the raw shards; times are in UTC, in ISO 8601.

    Args:
        raw_shards: those that there are.
        gone: shards with a partition whose raw shard is not there any more.
        assets: in the order of the graph.
        training_set: whether it is ``current``.
        failing_checks: shards that fail each check, as of the last run, by ``asset.check``.
        unfinished_erasures: their ids.
        warnings: lines on what could not be looked at.
    """

    raw_shards: int
    gone: int
    assets: Mapping[str, AssetStatus]
    quarantine: Quarantined | None
    oldest_failure: OldestFailure | None
    last_proof: LastProof | None
    training_set: str = "none"
    failing_checks: Mapping[str, int] = field(default_factory=dict)
    unfinished_erasures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of the assets, with its header."""
        names = [entry.name for entry in fields(AssetStatus)]
        found = [("asset", *names)]
        for asset, counts in self.assets.items():
            values = (getattr(counts, name) for name in names)
            found.append((asset, *("" if value is None else f"{value:,}" for value in values)))
        return found

    def markdown(self) -> str:
        """Return the table as Markdown."""
        header, *assets = self.rows()
        rule = ("---", *("--:" for _ in header[1:]))
        return "\n".join(f"|{'|'.join(row)}|" for row in (header, rule, *assets))

    def sentences(self) -> dict[str, str]:
        """Return the other figures in words, by name."""
        shards, failure, proof = self.quarantine, self.oldest_failure, self.last_proof
        erasures = f"{', '.join(self.unfinished_erasures)}; mm-assets erase goes on with them"
        return {
            "in quarantine": "not known: nothing is proven"
            if shards is None
            else f"{shards.items:,} of {counted(shards.of_items, 'item')} ({shards.share:.2%}) of "
            f"{counted(shards.shards, 'proven shard')}",
            "oldest failure": "none"
            if failure is None
            else f"{failure.shard} in {failure.asset}, since {short_time(failure.since)}: {failure.reason}",
            "last proof": "none"
            if proof is None
            else f"{short_time(proof.at)} by {proof.by} (run {proof.run[:8]}): "
            f"{counted(proof.shards, 'shard')} in {counted(proof.outputs, 'output')}, "
            + (f"{proof.differing} of {proof.read} not as written" if proof.differing else "all as written"),
            "checks failed": ", ".join(
                f"{name} of {counted(shards, 'shard')}" for name, shards in self.failing_checks.items()
            )
            or "none",
            "training set": self.training_set,
            **({"unfinished erasures": erasures} if self.unfinished_erasures else {}),
        }


def short_time(text: str) -> str:
    """Return a time of a `Status` to the minute."""
    return f"{text[:16].replace('T', ' ')} UTC"
