"""Preview of filters as one HTML page, and the words and numbers that the terminal shares with it.

`preview_page` makes the page: counts, curves and contact sheets. A `Curve` is the share that a filter would
keep wherever one of its bounds lay, drawn as SVG over the distribution of the score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from xml.sax.saxutils import escape

import numpy as np

from mm_assets.accounting import CURATED
from mm_assets.filters import DROP_ITEM, DROP_SAMPLE, FLAG, Bound, Filter, TextFilter, bounds_of
from mm_assets.filters.id_list import IdFilter
from mm_assets.filters.score_columns import SampleScoreColumns, ScoreColumns
from mm_assets.filters.scores import SampleScore
from mm_assets.model.errors import counted
from mm_assets.model.errors import html_table as table
from mm_assets.model.errors import html_text as text
from mm_assets.view import note, page
from mm_assets.view.overview import DROPPED, KEPT
from mm_assets.view.preview_scores import (
    IMAGES,
    RAW_CHANGED,
    SAMPLES,
    Numbers,
    StoredScores,
    how_to_measure,
    measured,
    shard_name,
)
from mm_assets.view.preview_study import (
    SCORES_DRAWN,
    Borderline,
    Count,
    FilterCount,
    Pick,
    Study,
    contents_of,
)
from mm_assets.view.sample import Item, byte_size, cut

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


def page_title(stored: StoredScores) -> str:
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
    for count in counts.by_filter:
        if isinstance(count.filter, IdFilter):
            lines += count.filter.unmarked(count.marks)
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


def unit_of(judge: Filter[Any]) -> str:
    """Return what a filter judges."""
    if isinstance(judge, TextFilter):
        return "texts"
    return "samples" if judge.kinds == (SampleScore,) else "images"


def number(value: float | None) -> str:
    """Return a score."""
    return "" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def counted_in_thousands(amount: int, one: str) -> str:
    """Return a number, with thousands set apart, and what is counted."""
    return f"{amount:,} {counted(amount, one).partition(' ')[2]}"


def of_values(values: Numbers | Sequence[Any], count: int, what: str) -> str:
    """Return how many values something was made of, where that is not all."""
    return f"made of {len(values):,} of {count:,} {what}, drawn by lot" if len(values) < count else ""


def _shares(part: Count, given: Count) -> list[str]:
    """Return items, images, samples and bytes, each with its share."""
    return [
        _share(part.items, given.items),
        _share(part.images, given.images),
        _share(part.samples, given.samples),
        _share(part.nbytes, given.nbytes, in_bytes=True),
    ]


def _share(part: int, whole: int, in_bytes: bool = False) -> str:
    amount = byte_size(part) if in_bytes else f"{part:,}"
    return f"{amount} ({part / whole:.1%})" if whole else amount


def _action(count: FilterCount) -> str:
    if count.filter.action != FLAG:
        lists_samples = count.filter.action == DROP_ITEM and SampleScore in count.filter.kinds
        return f"{DROP_SAMPLE}, {DROP_ITEM}" if lists_samples else count.filter.action
    return f"{FLAG}s {count.flagged:,} {unit_of(count.filter)}"


def _amounts(count: Count) -> str:
    items, images, samples = (
        counted_in_thousands(amount, one)
        for amount, one in ((count.items, "item"), (count.images, "image"), (count.samples, "sample"))
    )
    return f"{items} in {samples}, among them {images} of {byte_size(count.nbytes)}"


def _kept(given: Count, dropped: Count) -> str:
    items, images, samples, nbytes = _shares(given - dropped, given)
    return f"{items} items, {images} images, {samples} samples, {nbytes} of images"


def _without_folder(word: str) -> str:
    """Return the name of a file, as a page must not name folders of this machine; other words as they are."""
    is_place = word.startswith("/") or "://" in word
    return word.rstrip("/").rpartition("/")[2] if is_place else word


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_without_folder, value))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


_POINTS: Final = 100
_BINS: Final = 48
_LEFT, _TOP, _WIDTH, _HEIGHT = 44, 24, 580, 160
_BOTTOM: Final = _TOP + _HEIGHT
_OUTER: Final = 0.005  # share of the scores at each end that may lie outside
_LOGARITHMIC: Final = 50  # times that the largest is the smallest


@dataclass(frozen=True)
class Curve:
    """The share (0..1) that a filter keeps by the place of one of its bounds."""

    bound: Bound
    places: Numbers
    shares: Numbers
    values: Numbers


def curve_of(judge: Filter[Any], bound: Bound, scores: Sequence[Any]) -> Curve:
    """Return the curve of one bound, by the verdicts of the filter; its other settings stay.

    Args:
        scores: some scores that stand for all.
    """
    scores = (
        SampleScoreColumns(scores) if scores and isinstance(scores[0], SampleScore) else ScoreColumns(scores)
    )
    values = measured(judge, scores)
    values = values[np.isfinite(values)]
    points = np.quantile(values, np.linspace(0, 1, _POINTS), method="nearest") if len(values) else np.zeros(0)
    points = np.unique([*np.maximum(points, 0), bound.value])
    if judge.settings()[bound.field].kind is int:
        points = np.unique(np.round(points))
    places, shares = [], []
    for point in points.tolist():
        try:
            moved = replace(judge, **{bound.field: point})
        except ValueError:  # beyond the other bound
            continue
        places.append(point)
        shares.append(np.mean([reason is None for reason in moved.verdicts(scores)]) if scores else 1.0)
    return Curve(bound, np.array(places), np.array(shares), values)


def curve_svg(curve: Curve, unit: str) -> str:
    """Return a curve as SVG, with the present bound marked.

    Args:
        unit: what is kept, such as ``images``.
    """
    axis = _Axis.over(curve.values, curve.bound.value)
    inside = (curve.places >= axis.low) & (curve.places <= axis.high)
    # Between two scores nothing changes: an upper bound lets in what lies on it, a lower one what lies above.
    step = "H{0:.1f}V{1:.1f}" if curve.bound.is_upper else "V{1:.1f}H{0:.1f}"
    steps = [
        (axis.x(place), _BOTTOM - share * _HEIGHT)
        for place, share in zip(curve.places[inside].tolist(), curve.shares[inside].tolist(), strict=True)
    ]
    (left, top), *others = steps
    line = f"M{left:.1f} {top:.1f}" + "".join(step.format(*other) for other in others)
    at = axis.x(curve.bound.value)
    label = escape(f"{curve.bound.setting} {curve.bound.value:g}")
    side = "end" if at > _LEFT + _WIDTH / 2 else "start"
    body = (
        _bars(curve.values, axis)
        + _grid(axis)
        + f"<path d='{line}' fill='none' stroke='{KEPT}' stroke-width='2'/>"
        + f"<path d='M{at:.1f} {_TOP - 6}V{_BOTTOM}' stroke='{DROPPED}' stroke-width='2'"
        + " stroke-dasharray='5 3'/>"
        + _text(at + (-6 if side == "end" else 6), _TOP - 10, label, side)
    )
    return _svg(f"share of {unit} kept by {curve.bound.setting}", body)


def histogram_svg(name: str, values: Numbers) -> str:
    """Return the distribution of a score as SVG."""
    axis = _Axis.over(values)
    return _svg(f"distribution of {name}", _bars(values, axis, KEPT) + _ticks(axis))


def spread_svg(name: str, values: Numbers, kept: Numbers, dropped: Numbers) -> str:
    """Return the distribution of a score as SVG: what is dropped stands above what is kept.

    Args:
        values: in order.
        kept: how often each is kept.
        dropped: how often it is dropped.
    """
    counts = kept + dropped
    drawn = np.repeat(values, np.ceil(counts * (SCORES_DRAWN / max(counts.sum(), 1))).astype(np.int64))
    axis = _Axis.over(drawn)
    bars = _bars(values, axis, DROPPED, counts, counts) + _bars(values, axis, KEPT, kept, counts)
    highest, _ = np.histogram(values, axis.edges(), weights=counts)
    most = _text(_LEFT, _TOP - 6, f"up to {int(highest.max()):,}", "start")
    return _svg(f"distribution of {name}", bars + most + _ticks(axis))


@dataclass(frozen=True)
class _Axis:
    """The horizontal axis: from ``low`` to ``high``, by ratios where the values span several magnitudes."""

    low: float
    high: float
    is_logarithmic: bool

    @classmethod
    def over(cls, values: Numbers, *shown: float) -> _Axis:
        ends = np.quantile(values, [_OUTER, 1 - _OUTER]).tolist() if len(values) else []
        low, high = min([*ends, *shown]), max([*ends, *shown])
        if len(values) and shown and high == max(shown):
            high = max(high, float(values.max()))  # what lies beyond a bound is what one asks for
        above = values[values > 0]
        if low <= 0 < len(above):
            # A few zeros, of blank pages for instance, must not press all others against the edge.
            least = min([float(np.quantile(above, _OUTER)), *(value for value in shown if value > 0)])
            if high / least > _LOGARITHMIC and len(above) > len(values) / 2:
                low = least
        if low == high:
            low, high = low - 0.5, high + 0.5
        return cls(low, high, low > 0 and high / low > _LOGARITHMIC)

    def x(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return _LEFT + _WIDTH * (value - low) / (high - low)

    def edges(self) -> Numbers:
        space = np.geomspace if self.is_logarithmic else np.linspace
        return np.asarray(space(self.low, self.high, _BINS + 1))

    def ticks(self) -> list[float]:
        if self.is_logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            marks = [digit * 10.0**decade for decade in decades for digit in (1, 3)]
        else:
            step = 10 ** math.floor(math.log10((self.high - self.low) / 2))
            step *= next(f for f in (1, 2, 5, 10) if (self.high - self.low) / (step * f) <= 8)
            first = math.ceil(self.low / step)
            marks = [round(first + index, 0) * step for index in range(12)]
        return [mark for mark in marks if self.low <= mark <= self.high]


def _bars(
    values: Numbers,
    axis: _Axis,
    colour: str = "#8886",
    times: Numbers | None = None,
    highest: Numbers | None = None,
) -> str:
    """Return bars of values.

    Args:
        times: how often there is each; None: once.
        highest: the same for the bars that are as high as there is room; None: these.
    """
    edges, shown = axis.edges(), np.maximum(values, axis.low) if axis.is_logarithmic else values
    counts, _ = np.histogram(shown, edges, weights=times)
    top = counts.max() if highest is None else np.histogram(shown, edges, weights=highest)[0].max()
    top = max(int(top), 1)
    path = "".join(
        f"M{axis.x(left):.1f} {_BOTTOM}V{_BOTTOM - _HEIGHT * count / top:.1f}H{axis.x(right):.1f}V{_BOTTOM}z"
        for left, right, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
        if count
    )
    return f"<path d='{path}' fill='{colour}'/>"


def _grid(axis: _Axis) -> str:
    lines = "".join(
        f"<path d='M{_LEFT} {y}h{_WIDTH}' stroke='#8884'/>" + _text(_LEFT - 6, y + 4, f"{share}%", "end")
        for share in (0, 25, 50, 75, 100)
        for y in [_BOTTOM - share * _HEIGHT // 100]
    )
    return lines + _ticks(axis)


def _ticks(axis: _Axis) -> str:
    drawn = [f"<path d='M{_LEFT} {_BOTTOM}h{_WIDTH}' stroke='#888'/>"]
    taken: list[tuple[float, float]] = []
    marks = axis.ticks()
    if axis.is_logarithmic:  # powers of ten come first where there is no room for all labels
        marks.sort(key=lambda mark: not f"{mark:e}".startswith("1"))
    for mark in marks:
        x, label = axis.x(mark), _short(mark)
        drawn.append(f"<path d='M{x:.1f} {_BOTTOM}v5' stroke='#888'/>")
        side = (len(label) + 1) * _CHARACTER / 2
        if all(x - side > end or x + side < start for start, end in taken):
            drawn.append(_text(x, _BOTTOM + 18, label, "middle"))
            taken.append((x - side, x + side))
    return "".join(drawn)


_CHARACTER: Final = 10  # width of a digit where an SVG is drawn small, with large letters
_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SHORT: Final = 10_000


def _short(number: float) -> str:
    """Return a number for an axis, as 20k or 1.2M."""
    if abs(number) < _SHORT:
        return f"{number:,.6g}"
    unit, name = next(unit for unit in _UNITS if abs(number) >= unit[0])
    return f"{number / unit:.6g}{name}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y}' text-anchor='{anchor}'>{text}</text>"


def _svg(title: str, body: str) -> str:
    box = f"0 0 {_LEFT + _WIDTH + 16} {_BOTTOM + 26}"
    return (
        f"<svg viewBox='{box}' role='img' font-size='12' "
        f"fill='currentColor'><title>{escape(title)}</title>{body}</svg>"
    )


_MOST_TEXT: Final = 300  # characters
_MOST_ID: Final = 60
SHEET_STYLE: Final = """
body { max-width: 72rem; }
svg { max-width: 44rem; width: 100%; height: auto; display: block; }
td:not(:first-child) { white-space: nowrap; } td:first-child { min-width: 9rem; }
.sheet { display: flex; flex-wrap: wrap; gap: 1rem .75rem; align-items: end; }
.sheet figure { margin: 0; width: 8.5rem; }
.sheet.samples { align-items: start; } .sheet.samples figure { width: 20rem; }
.sheet img { max-height: 8rem; border: 1px solid var(--line); }
.pair { display: flex; gap: .25rem; border: 1px solid var(--line); padding: .25rem; }
.samples img { display: inline-block; max-height: 5rem; margin-inline-end: .25rem; }
figcaption { font-size: .75rem; color: var(--dim); overflow-wrap: anywhere; }
.text { font-size: .8rem; }
h3 { font-size: .9rem; margin: 1.25rem 0 .5rem; }
"""


def preview_page(stored: StoredScores, study: Study) -> str:
    """Return the page: counts, curves and contact sheets.

    Raises:
        ValueError: a curated file is damaged; the message names it.
    """
    picks = [pick for found in study.borderline for pick in (*found.kept, *found.refused)]
    contents = contents_of(
        stored.root, [*picks, *(pick.original for pick in picks if pick.original is not None)]
    )
    title = page_title(stored)
    body = [f"<h1>{text(_sentence(title))}</h1>"]
    body += [f"<p>{text(_sentence(line))}.</p>" for line in summary(study)]
    body += map(note, faults(stored, study))
    if study.counts.filters:
        body += _counts(study)
    else:
        body.append(note(f"No filter is on; {HOW_TO_SET}"))
    for name, values in study.distributions.items():
        body.append(f"<section>\n<h2>{text(name)}</h2>\n{histogram_svg(name, values)}\n</section>")
    for found in study.borderline:
        body += _section(found, contents)
    return page(title, "\n".join(body), SHEET_STYLE)


def _counts(study: Study) -> Iterator[str]:
    yield f'<div class="wide">{table(HEADS, count_rows(study))}</div>'
    given, dropped = study.counts.given, study.counts.dropped
    names = ("items", "images", "samples", "bytes of images")
    amounts = zip(names, _shares(given - dropped, given), _shares(dropped, given), strict=True)
    yield f"<h2>{text(TOGETHER.capitalize())}</h2>"
    yield f'<div class="wide">{table(("", "kept", "dropped"), list(amounts))}</div>'


def _section(found: Borderline, contents: Mapping[Pick, Sequence[Item]]) -> Iterator[str]:
    judge, unit = found.filter, unit_of(found.filter)
    yield f'<section>\n<h2 dir="auto">{text(named(judge))}</h2>'
    bounds = bounds_of(judge)
    for bound in bounds:
        yield curve_svg(curve_of(judge, bound, found.scores), unit)
    if bounds:
        drawn = of_values(found.scores, found.count, unit)
        line = f"The line is the share of {unit} that this filter alone keeps, by the place of its bound; "
        yield note(line + "grey is the distribution of the score" + (f"; {drawn}" if drawn else ""))
    refused = "Flagged" if judge.action == FLAG else "Dropped"
    for name, picks in (("Kept", found.kept), (refused, found.refused)):
        nearest = ", nearest to the bound first" if bounds else ""
        yield f"<h3>{name}{nearest if picks else ': none'}</h3>"
        if picks:
            kind = "sheet samples" if found.is_of_samples else "sheet"
            shown = "\n".join(figures(pick, contents) for pick in picks)
            yield f'<div class="{kind}">\n{shown}\n</div>'
    yield "</section>"


def figures(pick: Pick, contents: Mapping[Pick, Sequence[Item]]) -> str:
    """Return a pick; of a copy, what stays in its place beside it."""
    shown = figure(pick, contents.get(pick, ()))
    if pick.original is None:
        return shown
    return f'<div class="pair">{shown}{figure(pick.original, contents.get(pick.original, ()))}</div>'


def figure(pick: Pick, items: Sequence[Item]) -> str:
    """Return a pick as a figure of a sheet, with its number, its sample and its shard below it."""
    shown = "".join(item.shown or note(item.error or "") for item in items if item.modality == "image")
    texts = "\n".join(item.text for item in items if item.text is not None)
    if texts:
        shown += f'<p class="text" dir="auto">{text(cut(texts, _MOST_TEXT))}</p>'
    if not items:
        shown = note("its curated rows are not there")
    place = "" if pick.position is None else f" [{pick.position}]"
    value = number(pick.value)
    caption = f"<b>{text(value)}</b> " if value else ""
    sample, shard = text(cut(pick.sample_id, _MOST_ID)), text(shard_name(pick.file_name))
    caption += f"<bdi>{sample}</bdi>{place} <bdi>{shard}</bdi>"
    return f"<figure>{shown}<figcaption>{caption}</figcaption></figure>"


def _sentence(line: str) -> str:
    return line[0].upper() + line[1:]
