"""What can be wrong with image bytes."""

from __future__ import annotations

from mm_assets.interleaved.errors import MmAssetsError


class ImageError(MmAssetsError, ValueError):
    """The bytes are no image that we can read: damaged, cut short, empty or of an unknown format."""


class DecompressionBomb(ImageError):
    """Decoding would cost more than the image is worth: it was not tried."""


class LosslessSplitError(ImageError):
    """The TIFF may be sound, but a frame of it cannot be taken out without losing something."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot split losslessly: {reason}")
