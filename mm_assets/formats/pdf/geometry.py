"""Boxes on a page, and the turn from a PDF's coordinates to those of the page as it is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_DIGITS = 4  # of a share of the page: 0.06 points of a page of 600


class Box(NamedTuple):
    """A rectangle, in points from the top left of the page as it is shown."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def area(self) -> float:
        return max(self.width, 0.0) * max(self.height, 0.0)

    def holds_centre_of(self, other: Box) -> bool:
        """Return whether the centre of another box is in this one."""
        x, y = (other.left + other.right) / 2, (other.top + other.bottom) / 2
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def overlap(self, other: Box) -> float:
        """Return the area of both as a share of that of either (intersection over union)."""
        common = Box(
            max(self.left, other.left),
            max(self.top, other.top),
            min(self.right, other.right),
            min(self.bottom, other.bottom),
        )
        if common.width <= 0 or common.height <= 0:
            return 0.0
        return common.area / (self.area + other.area - common.area)


def union(boxes: Iterable[Box]) -> Box:
    """Return the smallest box around all."""
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return Box(min(lefts), min(tops), max(rights), max(bottoms))


class Frame(NamedTuple):
    """The visible part of a page in the PDF's own coordinates, and the turn it is shown with (degrees)."""

    left: float
    bottom: float
    right: float
    top: float
    turn: int = 0

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the page as it is shown, in points."""
        width, height = self.right - self.left, self.top - self.bottom
        return (height, width) if self.turn in (90, 270) else (width, height)

    def box(self, corners: Sequence[tuple[float, float]]) -> Box:
        """Return the box around points in the PDF's own coordinates; an empty one for broken numbers."""
        if not all(math.isfinite(value) for corner in corners for value in corner):
            return Box(0.0, 0.0, 0.0, 0.0)
        shown = [self._shown(x, y) for x, y in corners]
        return union(Box(x, y, x, y) for x, y in shown)

    def rectangle(self, left: float, bottom: float, right: float, top: float) -> Box:
        """Return the box of an upright rectangle in the PDF's own coordinates, faster than `box`."""
        x, y = self._shown(left, bottom)
        other_x, other_y = self._shown(right, top)
        if x > other_x:
            x, other_x = other_x, x
        return Box(x, y, other_x, other_y) if y < other_y else Box(x, other_y, other_x, y)

    def shares(self, box: Box) -> list[float]:
        """Return a box as shares of the page's width and height, within the page."""
        width, height = self.size
        scaled = (box.left / width, box.top / height, box.right / width, box.bottom / height)
        return [round(min(max(value, 0.0), 1.0), _DIGITS) for value in scaled]

    def of_shares(self, shares: Sequence[float]) -> Box:
        """Return the box that has these shares."""
        width, height = self.size
        left, top, right, bottom = shares
        return Box(left * width, top * height, right * width, bottom * height)

    def _shown(self, x: float, y: float) -> tuple[float, float]:
        if self.turn == 90:
            return y - self.bottom, x - self.left
        if self.turn == 180:
            return self.right - x, y - self.bottom
        if self.turn == 270:
            return self.top - y, self.right - x
        return x - self.left, self.top - y
