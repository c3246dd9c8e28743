"""What each filter of a chain would drop alone, and images near bounds, noted while a shard is filtered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mm_assets.filters.decisions import ImageRefusals, RowKeys
from mm_assets.filters.filter import Filter
from mm_assets.filters.filter_chain import FilterChain
from mm_assets.filters.image_score import ImageScore, image_views
from mm_assets.filters.sample_scores import SampleScores
from mm_assets.formats.images.thumbnails import ThumbnailStrip, thumbnail
from mm_assets.overview.markdown import image
from mm_assets.overview.plots import DROPPED, rows
from mm_assets.preview.bounds import bounds_of, distances, measured

_MOST_FILTERS: Final = 2  # of which there are images: more do not fit into a strip
_LARGEST: Final = 1 << 20  # bytes of an image; each of four is kept until the shard is done


class FilterObserver:
    """Watches a chain.

    Attributes:
        alone: each filter, and a chain of it alone.
    """

    def __init__(self, chain: FilterChain) -> None:
        self._chain = chain
        filters: tuple[Filter[Any], ...] = (*chain.images, *chain.samples)
        self.alone = [(judge, FilterChain.of([judge])) for judge in filters]
        self._items: dict[str, int] = dict.fromkeys((judge.name for judge in filters), 0)
        with_bounds = [judge.name for judge in chain.images if bounds_of(judge)][:_MOST_FILTERS]
        self._nearest: dict[tuple[str, bool], tuple[float, bytes]] = {
            (name, is_refused): (np.inf, b"") for name in with_bounds for is_refused in (False, True)
        }

    def observed(self) -> FilterChain:
        """Return the chain, which tells what it sees."""
        return replace(self._chain, observer=self._observe)

    def pictures(self) -> dict[str, str]:
        """Return Markdown, each shown without a click: items by filter, and images on both sides of bounds.

        Of each of the first filters that have bounds, the nearest image that it keeps and the nearest that it
        refuses, in this order.
        """
        found = {"preview_filters": rows(self._items, DROPPED)}
        near = [thumbnail(memoryview(data)) for _, data in self._nearest.values() if data]
        strip = ThumbnailStrip(pictures=[picture for picture in near if picture is not None]).webp()
        if strip:
            found["preview_borderline"] = image(strip, "image/webp")
        return found

    def _observe(
        self,
        table: pa.Table,
        row_keys: RowKeys,
        image_refusals: ImageRefusals,
        sample_scores: Callable[[], SampleScores],
    ) -> None:
        for judge, chain in self.alone:
            decisions = chain.decide(row_keys, image_refusals, sample_scores)
            self._items[judge.name] += len(decisions.refusals) + len(decisions.flags)
            if (judge.name, False) in self._nearest:
                self._note_nearest(judge, table, image_refusals)

    def _note_nearest(
        self, judge: Filter[ImageScore], table: pa.Table, image_refusals: ImageRefusals
    ) -> None:
        scores, refused = image_refusals.scores, image_refusals.of(judge)
        within = [row for row, score in scores.items() if 0 < (score.byte_size or 0) <= _LARGEST]
        far = distances(judge, measured(judge, [scores[row] for row in within]))
        is_refused = np.array([row in refused for row in within], bool)
        for side in (False, True):
            of_side = np.where(is_refused == side, far, np.inf)
            best = int(of_side.argmin()) if len(of_side) else -1
            if best >= 0 and of_side[best] < self._nearest[judge.name, side][0]:
                (view,) = image_views(table, [within[best]])
                if view is not None and len(view) <= _LARGEST:
                    self._nearest[judge.name, side] = float(of_side[best]), bytes(view)
