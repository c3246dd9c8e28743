"""Curves of what a bound would keep wherever it lay, over the distribution of the score, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from xml.sax.saxutils import escape

import numpy as np

from mm_assets.filters.filter import Filter
from mm_assets.overview.plots import DROPPED, KEPT
from mm_assets.preview.bounds import Bound, Numbers, measured

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


def _bars(values: Numbers, axis: _Axis, colour: str = "#8886") -> str:
    edges = axis.edges()
    counts, _ = np.histogram(np.maximum(values, axis.low) if axis.is_logarithmic else values, edges)
    top = max(int(counts.max()), 1)
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
    return f"<path d='M{_LEFT} {_BOTTOM}h{_WIDTH}' stroke='#888'/>" + "".join(
        f"<path d='M{axis.x(mark):.1f} {_BOTTOM}v5' stroke='#888'/>"
        + _text(axis.x(mark), _BOTTOM + 18, f"{mark:,.6g}", "middle")
        for mark in axis.ticks()
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y}' text-anchor='{anchor}'>{text}</text>"


def _svg(title: str, body: str) -> str:
    box = f"0 0 {_LEFT + _WIDTH + 16} {_BOTTOM + 26}"
    return (
        f"<svg viewBox='{box}' role='img' font-size='12' "
        f"fill='currentColor'><title>{escape(title)}</title>{body}</svg>"
    )
