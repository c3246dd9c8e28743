"""Plots as small SVG files, below `INLINE` characters as Markdown whatever is counted.

Text comes from data in part: it is escaped, and cut. Colours have enough contrast on white and on black.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from mm_assets.overview.markdown import INLINE, svg_image

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
