"""A CLIP model in the memory of a worker: what it makes of pictures and texts, as unit vectors."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from mm_assets.filters.measures.clip_folder import (
    ClipModelError,
    PictureSettings,
    model_identity,
    picture_settings,
)

T = TypeVar("T")
Square = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]

MOST_TEXTS = 256
"""Texts of a sample that an image is compared with; of more, so many evenly spread ones."""

_MOST_CHARACTERS = 16_384  # far more than a model takes: the tokenizer need not see all of a book
_REMEMBERED_TEXTS = 4096
# On a CPU a batch gains next to nothing beyond these sizes, and batches of one size have an image or a text
# give the same bits whatever else is measured.
_IMAGES_AT_ONCE = {"cpu": 4, "cuda": 32}
_TEXTS_AT_ONCE = {"cpu": 1, "cuda": 32}


def middle_square(pixels: npt.NDArray[np.uint8], settings: PictureSettings) -> Square:
    """Return what a model sees of a picture: size x size x 3.

    Only the square is made, not the scaled picture around it: one of 10 x 100,000 pixels costs no more.
    """
    from PIL import Image

    image = Image.fromarray(pixels)
    short, long = sorted(image.size)
    scaled = int(settings.edge * long / short)
    width, height = (settings.edge, scaled) if image.width <= image.height else (scaled, settings.edge)
    left, top = (width - settings.size) // 2, (height - settings.size) // 2
    across, down = image.width / width, image.height / height
    box = (left * across, top * down, (left + settings.size) * across, (top + settings.size) * down)
    size = (settings.size, settings.size)
    return np.asarray(image.resize(size, Image.Resampling(settings.resample), box=box))


def texts_to_compare(texts: Iterable[str]) -> list[str]:
    """Return the texts that images of a sample are compared with: no blank ones, at most `MOST_TEXTS`."""
    found = list(dict.fromkeys(cut for text in texts if (cut := text[:_MOST_CHARACTERS].strip())))
    if len(found) <= MOST_TEXTS:
        return found
    return [found[index * len(found) // MOST_TEXTS] for index in range(MOST_TEXTS)]


@lru_cache(maxsize=1)
def loaded_model(folder: str, identity: str) -> ClipModel:
    """Return the model of a folder, loaded once a process.

    Raises:
        ClipModelError: in one line, for another model than the ``identity`` says, or one that does not work.
    """
    if model_identity(folder) != identity:
        raise ClipModelError(f"{folder}: another model here than where the run was planned")
    return ClipModel(folder)


class ClipModel:
    """Model and tokenizer of a folder; nothing is fetched, and no code of the folder is run.

    Attributes:
        pictures: what it sees of a picture.

    Raises:
        ClipModelError: in one line, the parts do not fit together.
    """

    def __init__(self, folder: str) -> None:
        # Read when the libraries are loaded. A worker is one of as many as there are cores.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import torch
        from transformers import CLIPModel, CLIPTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        if self._device == "cpu":
            torch.set_num_threads(1)
        try:
            model, report = CLIPModel.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
            )
            self._tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
            line = " ".join(str(error).split())
            raise ClipModelError(f"{folder}: the model cannot be loaded: {line[:300]}") from error
        if missing := sorted(report["missing_keys"]):
            raise ClipModelError(f"{folder}: {len(missing)} weights are missing, the first is {missing[0]}")
        sizes = model.config.text_config
        if len(self._tokenizer) > sizes.vocab_size:
            raise ClipModelError(
                f"{folder}: the tokenizer has {len(self._tokenizer)} tokens, the model {sizes.vocab_size}"
            )
        self._model = model.eval().to(self._device)
        self._most_tokens = sizes.max_position_embeddings
        self.pictures = picture_settings(folder)
        self._texts: OrderedDict[bytes, Vectors] = OrderedDict()

    def image_vectors(self, squares: Sequence[Square]) -> Vectors:
        """Return a unit vector for each picture, as `middle_square` gives it."""
        import torch

        mean, std = (np.array(v, np.float32) for v in (self.pictures.mean, self.pictures.std))
        size = _IMAGES_AT_ONCE[self._device]
        found = []
        for batch in _batches(squares, size):
            colours = (np.stack(batch).astype(np.float32) / np.float32(255) - mean) / std
            filled = np.zeros((size, *colours.shape[1:]), np.float32)
            filled[: len(batch)] = colours
            inputs = torch.from_numpy(filled.transpose(0, 3, 1, 2)).contiguous().to(self._device)
            with torch.inference_mode():
                features = self._model.get_image_features(pixel_values=inputs).pooler_output
            found.append(_unit(features)[: len(batch)])
        return np.concatenate(found)

    def text_vectors(self, texts: Sequence[str]) -> Vectors:
        """Return a unit vector for each text; of a long one, for as many tokens as the model takes.

        Those of the last texts are remembered: images of one sample have the same, and many pages have the
        same lines.
        """
        keys = [xxhash.xxh3_128_digest(text.encode()) for text in texts]
        found = {key: self._texts[key] for key in keys if key in self._texts}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        by_length: dict[int, list[tuple[bytes, list[int]]]] = {}
        for key, text in new.items():
            tokens = self._tokenizer(text, truncation=True, max_length=self._most_tokens)["input_ids"]
            by_length.setdefault(len(tokens), []).append((key, tokens))
        for same in by_length.values():  # nothing is filled up, so no vector depends on the longest text
            for batch in _batches(same, _TEXTS_AT_ONCE[self._device]):
                vectors = self._text_vectors([tokens for _, tokens in batch])
                found |= zip((key for key, _ in batch), vectors, strict=True)
        for key in keys:
            self._texts[key] = found[key]
            self._texts.move_to_end(key)
        while len(self._texts) > _REMEMBERED_TEXTS:
            self._texts.popitem(last=False)
        return np.stack([found[key] for key in keys])

    def _text_vectors(self, tokens: list[list[int]]) -> Vectors:
        import torch

        inputs = torch.tensor(tokens, device=self._device)
        with torch.inference_mode():
            features = self._model.get_text_features(input_ids=inputs).pooler_output
        return _unit(features)


def _unit(features: Any) -> Vectors:
    import torch

    return (features / torch.linalg.vector_norm(features, dim=-1, keepdim=True)).cpu().numpy()


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
