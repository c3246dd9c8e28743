"""Variance of the Laplacian of a picture, in little memory and without rounding."""

from __future__ import annotations

from typing import Final

from mm_assets.formats.images.pixels import Pixels

STRIP_VALUES: Final = 1 << 20
"""Values (pixels times channels) of a strip: two bytes for each are in memory at once, and one row more."""


def laplacian_variance(picture: Pixels) -> float:
    """Return the variance of the Laplacian over all pixels and channels.

    The Laplacian of a value is the sum of its four neighbours less four times itself; beyond the edges the
    picture is mirrored. It is taken in strips, each with a row of its neighbours, in 16-bit integers, and
    summed as integers.

    Args:
        picture: height x width, or height x width x channels.
    """
    import cv2

    height = picture.shape[0]
    rows = max(1, STRIP_VALUES // (picture.size // height))
    total = squares = 0
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        above, below = int(top > 0), int(bottom < height)
        strip = cv2.Laplacian(picture[top - above : bottom + below], cv2.CV_16S)
        strip = strip[above : above + bottom - top]
        total += round(sum(cv2.sumElems(strip)))
        squares += round(cv2.norm(strip, cv2.NORM_L2SQR))
    return (picture.size * squares - total * total) / picture.size**2
