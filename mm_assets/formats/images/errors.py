"""Errors of image files."""

from __future__ import annotations

from mm_assets.interleaved.errors import MmAssetsError


class ImageError(MmAssetsError, ValueError):
    """The bytes are no readable image: damaged, cut short, empty or of an unknown format."""


class DecompressionBomb(ImageError):
    """Decoding would be too expensive; it was not tried."""


class LosslessSplitError(ImageError):
    """A frame cannot be taken out of the TIFF without loss; the TIFF itself may be sound."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot split losslessly: {reason}")
