"""How closely images are looked at, as one thing to configure."""

from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.filters.readable import MAX_PIXELS


class ImageValidation(dg.ConfigurableResource[Any]):
    """Every image's header and end are looked at; a sample is decoded to the last pixel, chosen by sample id
    and position.
    """

    decode_fraction: float = Field(
        default=0.01, ge=0, le=1, description="Share of the images that is decoded: 0 none, 1 all."
    )
    max_pixels: int = Field(
        default=MAX_PIXELS, gt=0, description="An image of more pixels counts as a decompression bomb."
    )
