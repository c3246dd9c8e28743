"""Presets: settings of filters that have a name together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

NONE: Final = "none"

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    NONE: {},
    "curator": {
        "min_aspect_ratio": 1.0,
        "max_aspect_ratio": 2.0,
        "min_sharpness": 100.0,
        "max_qr_area": 0.05,
    },
    "mint1t": {
        "min_image_side": 150,
        "max_longer_side": 20000,
        "min_aspect_ratio": 0.5,
        "max_aspect_ratio": 2.0,
        "min_images": 1,
        "max_images": 30,
        "languages": ("en",),
        "min_language_probability": 0.65,
    },
}
"""Values by setting. `docs/filters.md` has their sources, and what of them scores cannot say."""


def with_preset(preset: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a preset, with those over it that are set."""
    return {**PRESETS[preset], **{name: value for name, value in values.items() if value is not None}}
