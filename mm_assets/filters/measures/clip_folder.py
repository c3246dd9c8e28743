"""The folder with a CLIP model, as far as it can be judged without loading one.

It has the files that Hugging Face's `CLIPModel` saves. Weights are in safetensors, never in a pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from reprlib import repr  # of a value from a file, which may be nested too deep for the built-in one
from typing import Any

import xxhash

from mm_assets.formats.storage import NoRegularFile, regular_file
from mm_assets.interleaved.errors import MmAssetsError

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


class ClipModelError(MmAssetsError, ValueError):
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
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > min(_MOST_JSON, path.stat().st_size):
                    raise ClipModelError(f"{path}: damaged: no safetensors file")
                header = json.loads(file.read(length))
        except ValueError as error:
            if isinstance(error, ClipModelError):
                raise
            raise ClipModelError(f"{path}: damaged: no safetensors file") from error
        except RecursionError as error:
            raise ClipModelError(f"{path}: damaged: its header is nested too deep") from error
        if not isinstance(header, dict):
            raise ClipModelError(f"{path}: damaged: no safetensors file")
        yield from header


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
