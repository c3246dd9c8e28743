"""What is noted while a shard is filtered: each filter alone, and images on both sides of bounds."""

from __future__ import annotations

import base64
import io
import re
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from PIL import Image

from mm_assets.filters import FLAG, Filter
from mm_assets.filters.condition import ImageCondition
from mm_assets.filters.registry import AspectRatioFilter, ImageSizeFilter, WordCountFilter, chain_of
from mm_assets.view import INLINE
from mm_assets.view.preview_scores import FilterObserver
from mm_assets_tests.filters.filter_sets import png, sample
from mm_assets_tests.formats.datasets import batch_of


def observe(filters: list[Filter[Any]], *batches: list[dict[str, Any]]) -> dict[str, str]:
    """The pictures, after a check that the chain does what it does unobserved."""
    chain = chain_of(filters)
    assert chain is not None
    observer = FilterObserver(chain)
    for rows in batches:
        plain, seen = chain(batch_of(rows)), observer.observed()(batch_of(rows))
        assert (seen.losses, seen.flags) == (plain.losses, plain.flags)
        assert seen.batch.data.equals(plain.batch.data)
    found = observer.pictures()
    assert all(len(markdown) <= INLINE for markdown in found.values())
    return found


def bars(markdown: str) -> list[str | None]:
    svg = unquote(markdown.removeprefix("![](<data:image/svg+xml,").removesuffix(">)"))
    return [text.text for text in ElementTree.fromstring(svg).iter() if text.text]


def widths(markdown: str) -> list[int]:
    """Columns of a strip that are white from top to bottom part its pictures."""
    (data,) = re.fullmatch(r"!\[\]\(data:image/webp;base64,(.+)\)", markdown).groups()  # type: ignore[union-attr]
    with Image.open(io.BytesIO(base64.b64decode(data))) as strip:
        return [strip.width, strip.height]


def test_items_that_each_filter_alone_refuses() -> None:
    filters = [AspectRatioFilter(0, 2), ImageSizeFilter(20, action=FLAG), WordCountFilter(2)]
    one = [*sample("a", "one two", png(90, 10), png(30, 30)), *sample("b", "one", png(40, 30))]
    found = observe(filters, one, sample("c", "one", png(90, 10)))
    assert bars(found["preview_filters"]) == ["6 words", "2 aspect_ratio", "2 image_size"]


def test_images_on_both_sides_of_the_bounds() -> None:
    batches = [sample("a", png(90, 10)), sample("b", png(40, 20), png(50, 20)), sample("c", png(10, 20))]
    found = observe([AspectRatioFilter(max_ratio=2)], *batches)
    # 40x20 is kept, and 50x20 is dropped; they stand side by side
    assert widths(found["preview_borderline"]) == [40 + 4 + 50, 20]


def test_without_bounds_or_images_there_is_no_strip() -> None:
    rows = [*sample("a", "one", png(30, 30)), *sample("b", b"no image")]
    assert list(observe([ImageCondition("width > 40"), WordCountFilter(2)], rows)) == ["preview_filters"]
    assert list(observe([ImageSizeFilter(20)], sample("a", "one"))) == ["preview_filters"]
