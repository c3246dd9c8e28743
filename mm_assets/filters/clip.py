"""CLIP measures: how well an image fits the texts of its sample, and the embedding of an image.

The model is in a folder that the setting ``clip_model`` names. It has the files that Hugging Face's
`CLIPModel` saves. Weights are in safetensors, never in a pickle.

* The folder is judged without loading a model, as far as that goes: `model_identity`, `picture_settings`.
* `ClipModel` is a model in memory: what it makes of pictures and texts, as unit vectors. Only workers load
  it.
* `ClipSimilarity` and `ClipEmbedding` are the measures.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from reprlib import repr
from typing import IO, Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from mm_assets.filters.measure import BatchedMeasure, ImageContent, MeasureFileError
from mm_assets.model.errors import require
from mm_assets.settings_file import given_settings
from mm_assets.storage.files import NoRegularFile, regular_file

_CONFIG = "config.json"
_PICTURES = ("processor_config.json", "preprocessor_config.json")
_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"))
_OTHERS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_TENSORS = ("logit_scale", "text_projection.weight", "visual_projection.weight")
_MOST_JSON = 100 << 20
_AT_ONCE = 1 << 20


class ClipModelError(MeasureFileError):
    """A CLIP model cannot be used; the message names its folder."""


@dataclass(frozen=True)
class PictureSettings:
    """What a model sees of a picture: the middle square, when its shorter side is scaled to ``edge`` pixels.

    Args:
        edge: pixels of the scaled shorter side.
        size: side of the square.
        mean: subtracted from each colour (0..1); the result is divided by ``std``.
        resample: number of Pillow's filter.
    """

    edge: int = 224
    size: int = 224
    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
    resample: int = 3


def model_identity(folder: str) -> str:
    """Return the digest of all files that a model's values depend on, wherever the folder is.

    Computed once a process as long as the files do not change.

    Raises:
        ClipModelError: in one line, the folder has no such model, or only weights that are not loaded.
    """
    files = _files(Path(folder))
    stamps = tuple((str(path), status.st_size, status.st_mtime_ns) for path, status in files)
    return _digest(stamps)


def picture_settings(folder: str) -> PictureSettings:
    """Return what a model sees of a picture: what its files say, else what CLIP was published with.

    Raises:
        ClipModelError: pictures are prepared in a way that is not known here.
    """
    path, given = _given_pictures(Path(folder))
    side = _object(Path(folder) / _CONFIG).get("vision_config", {}).get("image_size", 224)
    default = PictureSettings(edge=side, size=side)
    edge, crop = given.get("size", default.edge), given.get("crop_size", default.size)
    edge = edge.get("shortest_edge") if isinstance(edge, dict) else edge
    if isinstance(crop, dict):
        crop = crop.get("height") if crop.get("height") == crop.get("width") else None
    mean, std = given.get("image_mean", default.mean), given.get("image_std", default.std)
    resample, scale = given.get("resample", default.resample), given.get("rescale_factor", 1 / 255)
    switched_off = [
        name
        for name in ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
        if given.get(name) is False
    ]
    if switched_off:
        raise ClipModelError(f"{path}: {switched_off[0]} is false: no preparation of CLIP")
    if not (isinstance(edge, int) and _is_count(edge) and crop == side and edge >= side):
        raise ClipModelError(
            f"{path}: pictures of this model are no middle square of {side} pixels "
            f"(size {repr(given.get('size'))}, crop_size {repr(given.get('crop_size'))})"
        )
    if not (_are_numbers(mean) and _are_numbers(std) and all(std) and resample in range(6)):
        raise ClipModelError(f"{path}: image_mean and image_std must be three numbers, resample 0..5")
    if scale not in (1 / 255, round(1 / 255, 10)):
        raise ClipModelError(f"{path}: rescale_factor must be 1/255")
    return PictureSettings(edge, side, tuple(mean), tuple(std), resample)


def _given_pictures(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return how pictures are prepared, as a file says, and the file."""
    processor, older = (folder / name for name in _PICTURES)
    nested = _object(processor).get("image_processor") if processor.is_file() else None
    if isinstance(nested, dict):
        return processor, nested
    return older, _object(older) if older.is_file() else {}


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the files of a model with their state, by name, after a look at what they are."""
    if not folder.is_dir():
        raise ClipModelError(f"{folder}: no such folder")
    config = _object(folder / _CONFIG)
    if config.get("model_type") != "clip":
        raise ClipModelError(
            f"{folder / _CONFIG}: model_type is {repr(config.get('model_type'))}: "
            "no model of the class CLIPModel"
        )
    if not all(isinstance(config.get(name), dict) for name in ("text_config", "vision_config")):
        raise ClipModelError(f"{folder / _CONFIG}: text_config and vision_config must be given")
    if not _is_count(config["vision_config"].get("image_size", 224)):
        raise ClipModelError(f"{folder / _CONFIG}: image_size of vision_config must be a number of pixels")
    picture_settings(str(folder))
    weights = _weights(folder)
    if missing := [name for name in _TENSORS if name not in set(_tensors(weights))]:
        raise ClipModelError(f"{weights[0]}: no weights of a CLIPModel: {missing[0]} is missing")
    tokenizer = next((kind for kind in _TOKENIZERS if all((folder / name).is_file() for name in kind)), None)
    if tokenizer is None:
        raise ClipModelError(f"{folder}: no tokenizer: tokenizer.json, or vocab.json and merges.txt")
    every = {_CONFIG, *_PICTURES, _INDEX, *(name for kind in _TOKENIZERS for name in kind), *_OTHERS}
    there = {folder / name for name in every if (folder / name).is_file()}
    return [(path, path.stat()) for path in sorted({*there, *weights}, key=lambda path: path.name)]


def _weights(folder: Path) -> list[Path]:
    """Return the files with the weights."""
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    if (folder / _INDEX).is_file():
        names = _object(folder / _INDEX).get("weight_map")
        found = sorted(set(map(str, names.values()))) if isinstance(names, dict) else []
        for name in found:
            if name != os.path.basename(name) or not (folder / name).is_file():
                raise ClipModelError(f"{folder / _INDEX}: {name!r} is no file of this folder")
        if found:
            return [folder / name for name in found]
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ClipModelError(
            f"{folder}: no {_WEIGHTS}, and pickles such as {pickles[0]} are never loaded: "
            "save the model again with save_pretrained()"
        )
    raise ClipModelError(f"{folder}: no weights: {_WEIGHTS} is missing")


def _tensors(weights: list[Path]) -> Iterator[str]:
    """Yield the names of the tensors in safetensors files, from their headers."""
    for path in weights:
        with path.open("rb") as file:
            yield from tensor_header(file, path.stat().st_size, str(path))


def tensor_header(file: IO[bytes], size: int, path: str) -> Mapping[str, Any]:
    """Return the header of a safetensors file: its tensors by name.

    Args:
        size: bytes of the file.
        path: how the user knows it.

    Raises:
        ClipModelError: in one line, it has none.
    """
    try:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_MOST_JSON, size):
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(file.read(length), object_pairs_hook=_unique)
    except _Repeated as error:
        raise ClipModelError(f"{path}: damaged: its header has {error!s:.100} twice") from error
    except ValueError as error:
        raise ClipModelError(f"{path}: damaged: no safetensors file") from error
    except RecursionError as error:
        raise ClipModelError(f"{path}: damaged: its header is nested too deep") from error
    if not isinstance(header, dict):
        raise ClipModelError(f"{path}: damaged: no safetensors file")
    return header


class _Repeated(ValueError):
    """A name that an object of JSON has twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Repeated(ascii(name))
        found[name] = value
    return found


def _object(path: Path) -> Mapping[str, Any]:
    """Return the object in a JSON file."""
    try:
        with open(regular_file(str(path)), "rb") as file:
            value = json.loads(file.read(_MOST_JSON))
    except FileNotFoundError as error:
        raise ClipModelError(f"{path.parent}: no CLIP model: {path.name} is missing") from error
    except NoRegularFile as error:
        raise ClipModelError(str(error)) from error
    except RecursionError as error:
        raise ClipModelError(f"{path}: nested too deep") from error
    except ValueError as error:
        raise ClipModelError(f"{path}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ClipModelError(f"{path}: must be an object")
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 4096


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and [type(v) in (int, float) for v in value] == [True] * 3


@lru_cache(maxsize=8)
def _digest(stamps: tuple[tuple[str, int, int], ...]) -> str:
    digest = xxhash.xxh3_128()
    for name, size, _ in stamps:
        digest.update(f"{os.path.basename(name)}:{size};".encode())
        with open(name, "rb") as file:
            while chunk := file.read(_AT_ONCE):
                digest.update(chunk)
    return digest.hexdigest()


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
