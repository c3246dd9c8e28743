"""Words and numbers of a preview, the same on a page and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from mm_assets.accounting.outputs import CURATED
from mm_assets.filters.filter import FLAG, Filter
from mm_assets.filters.sample_filter import SampleFilter
from mm_assets.interleaved.counted import counted
from mm_assets.preview.bounds import Numbers
from mm_assets.preview.score_records import RAW_CHANGED
from mm_assets.preview.stored_scores import IMAGES, SAMPLES, StoredScores, how_to_measure, shard_name
from mm_assets.preview.study import Study
from mm_assets.preview.what_if import Count, FilterCount
from mm_assets.sample_view.captions import byte_size

HEADS: Final = (
    "filter",
    "drops alone: items",
    "images",
    "samples",
    "bytes",
    "only it drops: items",
    "action",
)
QUANTILES: Final = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
TOGETHER: Final = "all together"
HOW_TO_SET: Final = (
    "set a bound: mm-assets preview --set min_image_side=200 (mm-assets convert --help lists all)"
)

HOW_TO_RENEW: Final = f"make them again: mm-assets run --changed --assets {CURATED.asset},{IMAGES},{SAMPLES}"


def title(stored: StoredScores) -> str:
    """Return which shards were looked at."""
    shards = f"{len(stored.shards):,} of {counted_in_thousands(stored.of_shards, 'shard')}"
    return f"preview of {shards}, from stored scores"


def summary(study: Study) -> list[str]:
    """Return what there is, and what stays of it."""
    counts = study.counts
    given = counts.given
    lines = [f"there are {_amounts(given)}"]
    if counts.filters:
        lines.append(f"all filters together keep {_kept(given, counts.dropped)}")
    if counts.unreadable:
        images = counted_in_thousands(counts.unreadable, "image")
        lines.append(f"{images} could not be measured: no filter judges them, MM_ON_MATERIALIZE_ERROR does")
    return lines


def count_rows(study: Study) -> list[list[str]]:
    """Return a row for each filter, with the columns `HEADS`, and one for all of them."""
    given = study.counts.given
    rows = [
        [
            named(count.filter),
            *_shares(count.alone, given),
            _share(count.only_it.items, given.items),
            _action(count),
        ]
        for count in study.counts.by_filter
    ]
    return [*rows, [TOGETHER, *_shares(study.counts.dropped, given), "", ""]] if rows else []


def faults(stored: StoredScores, study: Study) -> list[str]:
    """Return a line for each filter that was left out, and for shards without scores."""
    lines = []
    for name, missing in study.left_out.items():
        shards = counted_in_thousands(max(missing.values()), "shard")
        lines.append(
            f"filter {name} is left out: {shards} of {len(stored.shards):,} without {', '.join(missing)}; "
            + how_to_measure(list(missing))
        )
    return [*lines, *left_out(stored)]


def left_out(stored: StoredScores) -> list[str]:
    """Return a line for each reason to leave out shards, with what to run."""
    lines = []
    for reason, shards in stored.left_out.items():
        others = f" and {len(shards) - 1:,} more" if len(shards) > 1 else ""
        how = HOW_TO_RENEW if reason == RAW_CHANGED else how_to_measure()
        lines.append(f"shard {shard_name(shards[0])!r}{others} left out, {reason}; {how}")
    return lines


def distribution_rows(study: Study) -> list[list[str]]:
    """Return heads, then the quantiles of each stored score."""
    heads = ["score", "least", "5%", "25%", "half", "75%", "95%", "greatest"]
    return [heads] + [
        [name, *(f"{value:.6g}" for value in np.quantile(values, QUANTILES))]
        for name, values in study.distributions.items()
    ]


def named(judge: Filter[Any]) -> str:
    """Return a filter with the settings that turn it on."""
    given = []
    for name, known in judge.settings().items():
        value = getattr(judge, name)
        if value != type(judge).__dataclass_fields__[name].default:
            given.append(f"{known.name}={_value(value)}")
    return f"{judge.name} ({' '.join(given)})" if given else judge.name


def unit(judge: Filter[Any]) -> str:
    """Return what a filter judges."""
    return "samples" if isinstance(judge, SampleFilter) else "images"


def number(value: float | None) -> str:
    """Return a score."""
    return "" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def kept_and_dropped(given: int, dropped: int, in_bytes: bool = False) -> tuple[str, str]:
    """Return two amounts with their shares."""
    return _share(given - dropped, given, in_bytes), _share(dropped, given, in_bytes)


def counted_in_thousands(amount: int, one: str) -> str:
    """Return a number, with thousands set apart, and what is counted."""
    return f"{amount:,} {counted(amount, one).partition(' ')[2]}"


def of_values(values: Numbers | Sequence[Any], count: int, what: str) -> str:
    """Return how many values something was made of, where that is not all."""
    return f"made of {len(values):,} of {count:,} {what}, drawn by lot" if len(values) < count else ""


def _shares(dropped: Count, given: Count) -> list[str]:
    return [
        _share(dropped.items, given.items),
        _share(dropped.images, given.images),
        _share(dropped.samples, given.samples),
        _share(dropped.nbytes, given.nbytes, in_bytes=True),
    ]


def _share(part: int, whole: int, in_bytes: bool = False) -> str:
    amount = byte_size(part) if in_bytes else f"{part:,}"
    return f"{amount} ({part / whole:.1%})" if whole else amount


def _action(count: FilterCount) -> str:
    if count.filter.action != FLAG:
        return count.filter.action
    return f"{FLAG}s {count.flagged:,} {unit(count.filter)}"


def _amounts(count: Count) -> str:
    items, images, samples = (
        counted_in_thousands(amount, one)
        for amount, one in ((count.items, "item"), (count.images, "image"), (count.samples, "sample"))
    )
    return f"{items} in {samples}, among them {images} of {byte_size(count.nbytes)}"


def _kept(given: Count, dropped: Count) -> str:
    kept = given - dropped
    return (
        f"{_share(kept.items, given.items)} items, {_share(kept.images, given.images)} images, "
        f"{_share(kept.samples, given.samples)} samples, {_share(kept.nbytes, given.nbytes, True)} of images"
    )


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)
