"""Settings of the image validation, as a Dagster resource."""

from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.filters.readable import MAX_PIXELS


class ImageValidation(dg.ConfigurableResource[Any]):
    """Settings of the image validation.

    Header and end of every image are checked. A sample, chosen by sample id and position, is decoded in full.
    """

    decode_fraction: float = Field(
        default=0.01, ge=0, le=1, description="Share of the images that is decoded: 0 none, 1 all."
    )
    max_pixels: int = Field(
        default=MAX_PIXELS, gt=0, description="An image of more pixels counts as a decompression bomb."
    )
