"""Measures by a CLIP model: how well an image fits the texts of its sample, and its embedding.

The model is in a folder that the setting ``clip_model`` names. Only workers load it.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from mm_assets.filters.measures.clip_folder import ClipModelError, model_identity
from mm_assets.filters.measures.clip_model import (
    ClipModel,
    Square,
    Vectors,
    loaded_model,
    middle_square,
    texts_to_compare,
)
from mm_assets.filters.measures.image_content import ImageContent
from mm_assets.filters.measures.image_measure import BatchedMeasure
from mm_assets.interleaved.extras import require
from mm_assets.settings_file import given_settings

_SETTING = "MM_CLIP_MODEL"
_DECIMALS = 4  # machines differ in the seventh


class _Picture:
    """What a model sees of an image, then its unit vector; the measures of an image share it."""

    def __init__(self, square: Square) -> None:
        self.square: Square | None = square
        self.vector: Vectors | None = None


class _Kept(NamedTuple):
    """What is kept of an image until there is a batch."""

    picture: _Picture
    texts: Sequence[str]


@dataclass(frozen=True)
class ClipMeasure(BatchedMeasure):
    """A measure by a CLIP model.

    Args:
        model: digest of the model, which identifies the values.
        folder: where it is on this machine, and on those of workers.
    """

    model: str = ""
    folder: str = field(default="", compare=False, repr=False)

    version = "1"

    def configured(self) -> Self:
        given = given_settings()
        folder = given.get(_SETTING, "")
        if not folder:
            raise ClipModelError(
                f"score {self.name!r}: set {_SETTING}, or clip_model in mm_assets.toml, "
                "to the folder of a CLIP model"
            )
        require("torch", "transformers")
        folder = os.path.abspath(os.path.expanduser(folder))
        try:
            return replace(self, model=model_identity(folder), folder=folder)
        except ClipModelError as error:
            raise ClipModelError(f"{given.place(_SETTING)}: {error}") from error

    def measure(self, image: ImageContent) -> _Kept | None:
        pixels = image.pixels  # before all else: whether an image is damaged does not depend on its texts
        if self.needs_texts and not any(map(str.strip, image.texts)):
            return None
        picture = image.shared(
            f"clip {self.model}", lambda: _Picture(middle_square(pixels, self._model().pictures))
        )
        return _Kept(picture, image.texts)

    def measure_all(self, kept: Sequence[_Kept | None]) -> Sequence[Any]:
        model = self._model()
        pictures = dict.fromkeys(one.picture for one in kept if one is not None)
        new = [picture for picture in pictures if picture.vector is None]
        if new:
            squares = [picture.square for picture in new if picture.square is not None]
            for picture, vector in zip(new, model.image_vectors(squares), strict=True):
                picture.vector, picture.square = vector, None
        return self._values(model, kept)

    def _model(self) -> ClipModel:
        return loaded_model(self.folder, self.model)

    @abstractmethod
    def _values(self, model: ClipModel, kept: Sequence[_Kept | None]) -> Sequence[Any]:
        """Return the values of images whose vectors are there."""


@dataclass(frozen=True)
class ClipSimilarity(ClipMeasure):
    """The greatest cosine between an image and a text of its sample."""

    name = "clip_similarity"
    type = pa.float64()
    meaning = "greatest cosine (-1..1) of the image and a text of its sample, by a CLIP model"
    needs_texts = True

    def _values(self, model: ClipModel, kept: Sequence[_Kept | None]) -> Sequence[float | None]:
        by_texts: dict[int, Vectors] = {}  # images of one sample have the same list
        values: list[float | None] = []
        for one in kept:
            if one is None or one.picture.vector is None:
                values.append(None)
                continue
            if id(one.texts) not in by_texts:
                by_texts[id(one.texts)] = model.text_vectors(texts_to_compare(one.texts))
            values.append(round(float((by_texts[id(one.texts)] @ one.picture.vector).max()), _DECIMALS))
        return values


@dataclass(frozen=True)
class ClipEmbedding(ClipMeasure):
    """The unit vector that a CLIP model makes of an image."""

    name = "clip_embedding"
    type = pa.list_(pa.field("element", pa.float32()))  # as Parquet names it: the digest counts the name
    meaning = "unit vector of the image by a CLIP model"

    def _values(self, model: ClipModel, kept: Sequence[_Kept | None]) -> Sequence[Any]:
        return [
            None if one is None or one.picture.vector is None else np.round(one.picture.vector, _DECIMALS)
            for one in kept
        ]
