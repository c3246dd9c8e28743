"""Photographs made here, which compress no further than real ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 3072
"""Pixels: no photograph is wider or higher."""

_SMALLEST = 24
_OCTAVES = ((6, 80.0), (24, 45.0), (96, 24.0), (384, 12.0), (1024, 7.0))  # cells a side, amplitude
_GRAIN = 7.0
_GREY = 0.08  # share without colour

Pixels = npt.NDArray[np.int16]


class Photographs:
    """Photographs cut out of a few large textures of coloured noise; the same seed gives the same pixels."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._textures = [_texture(rng) for _ in range(3)]
        self._grain: Pixels = (rng.standard_normal((SIDE, SIDE, 1)) * _GRAIN).astype(np.int16)

    def take(self, rng: np.random.Generator, width: int, height: int) -> Image.Image:
        """A photograph of this size in pixels."""
        texture = self._textures[int(rng.integers(len(self._textures)))]
        pixels = _window(rng, texture, width, height) + _window(rng, self._grain, width, height)
        picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        return picture.convert("L") if rng.random() < _GREY else picture


def draw_size(rng: np.random.Generator, area: float) -> tuple[int, int]:
    """Width and height of about ``area`` pixels; 45 of 100 photographs are outside of width/height 1.0 to
    2.0.
    """
    kind = rng.random()
    if kind < 0.08:
        ratio = rng.uniform(0.12, 0.45)
    elif kind < 0.15:
        ratio = rng.uniform(2.2, 6.0)
    elif kind < 0.45:
        ratio = rng.uniform(0.6, 0.95)
    else:
        ratio = rng.uniform(1.02, 1.9)
    area *= float(np.exp(rng.normal(0, 0.45) - 0.1))
    width, height = int((area * ratio) ** 0.5), int((area / ratio) ** 0.5)
    return max(_SMALLEST, min(width, SIDE)), max(_SMALLEST, min(height, SIDE))


def _texture(rng: np.random.Generator) -> Pixels:
    light = np.zeros((SIDE, SIDE), np.float32)
    for cells, amplitude in _OCTAVES:
        grid = Image.fromarray(rng.standard_normal((cells, cells)).astype(np.float32))
        light += np.asarray(grid.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) * amplitude
    tints = zip(rng.uniform(0.7, 1.2, 3), rng.uniform(-25, 25, 3), strict=True)
    return np.stack(
        [np.clip(128 + light * gain + shift, 0, 255).astype(np.int16) for gain, shift in tints], -1
    )


def _window(rng: np.random.Generator, texture: Pixels, width: int, height: int) -> Pixels:
    top, left = int(rng.integers(SIDE - height + 1)), int(rng.integers(SIDE - width + 1))
    return texture[top : top + height, left : left + width]
