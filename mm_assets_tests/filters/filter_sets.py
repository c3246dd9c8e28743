"""Samples of a few rows, and random ones with random sets of filters."""

from __future__ import annotations

import io
import math
from functools import cache
from typing import Any

from hypothesis import strategies as st
from PIL import Image

from mm_assets.filters import DROP_ITEM, DROP_SAMPLE, FLAG
from mm_assets.filters.condition import ImageCondition, SampleCondition, TextCondition
from mm_assets.filters.registry import FILTERS as FILTER_CLASSES
from mm_assets.filters.registry import (
    AspectRatioFilter,
    ByteSizeFilter,
    ImageCountFilter,
    ImageSizeFilter,
    WordCountFilter,
)
from mm_assets_tests.formats.datasets import item

_MADE = {kind.__name__: kind for kind in FILTER_CLASSES}
TextWordsFilter, SampleWordLengthFilter = _MADE["TextWordsFilter"], _MADE["SampleWordLengthFilter"]


@cache
def png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("1", (width, height)).save(out, "PNG")
    return out.getvalue()


def sample(name: str, *contents: str | bytes | None) -> list[dict[str, Any]]:
    """Rows of a sample: texts, images, and images without bytes."""
    rows = [item(name, content_type="application/json")]
    for position, content in enumerate(contents):
        if isinstance(content, str):
            rows.append(item(name, position, text_content=content))
        else:
            error = "gone" if content is None else None
            rows.append(
                item(
                    name, position, "image", binary_content=content, materialize_error=error, source_ref="{}"
                )
            )
    return rows


SHAPES = [(4, 4), (30, 30), (90, 10), (10, 90), (40, 20), (60, 50)]
CONTENTS = st.one_of(
    st.sampled_from(["", "one", "one two three", "x " * 20]),
    st.sampled_from([png(*shape) for shape in SHAPES]),
    st.just(b"no image"),
    st.none(),
)
SAMPLES = st.lists(st.lists(CONTENTS, max_size=5), max_size=6)
ITEM_ACTIONS, SAMPLE_ACTIONS = (DROP_ITEM, DROP_SAMPLE, FLAG), (DROP_SAMPLE, FLAG)
FILTERS = st.lists(
    st.one_of(
        st.builds(AspectRatioFilter, st.just(0.5), st.just(2.0), action=st.sampled_from(ITEM_ACTIONS)),
        st.builds(ImageSizeFilter, st.just(10), st.just(math.inf), action=st.sampled_from(ITEM_ACTIONS)),
        st.builds(
            ByteSizeFilter, st.just(0), st.sampled_from([75, 80]), action=st.sampled_from(ITEM_ACTIONS)
        ),
        st.builds(ImageCondition, st.just("width < 60"), action=st.sampled_from(ITEM_ACTIONS)),
        st.builds(WordCountFilter, st.just(1), st.just(10), action=st.sampled_from(SAMPLE_ACTIONS)),
        st.builds(ImageCountFilter, st.just(1), st.just(2), action=st.sampled_from(SAMPLE_ACTIONS)),
        st.builds(SampleCondition, st.just("texts < 3"), action=st.sampled_from(SAMPLE_ACTIONS)),
        st.builds(
            TextWordsFilter, st.sampled_from([0, 1]), st.just(10), action=st.sampled_from(ITEM_ACTIONS)
        ),
        st.builds(
            TextCondition, st.just("words < 4 or word_length > 1"), action=st.sampled_from(ITEM_ACTIONS)
        ),
        st.builds(SampleWordLengthFilter, st.just(1.0), st.just(3.5), action=st.sampled_from(SAMPLE_ACTIONS)),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda made: made.name,
)
