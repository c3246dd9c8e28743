"""Histograms of images, from the stored scores and the ledger of some shards; no image is read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.ledger import Ledger
from mm_assets.accounting.outputs import FILTERED
from mm_assets.formats.parquet_file import UnreadableFile, read_small_table
from mm_assets.overview.figures import evenly_spread

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
