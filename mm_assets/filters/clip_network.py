"""Networks over the CLIP embedding: a score of a user's own, such as aesthetics or unsafe content.

A network is a file of weights in safetensors, never a pickle: linear layers, in the order of their names.
Its score is made of the stored `ClipEmbedding`: other weights measure again, and no image is decoded for it.

* `clip_networks`: the measures that the setting ``clip_networks`` names.
* `Network`: the layers, and what they make of vectors.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from reprlib import repr
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from mm_assets.filters.clip import ClipEmbedding, tensor_header
from mm_assets.filters.measure import DerivedMeasure, MeasureFileError, file_content
from mm_assets.settings_file import given_settings
from mm_assets.storage.files import absolute

_SETTING: Final = "MM_CLIP_NETWORKS"
_MOST_BYTES: Final = 64 << 20
_MOST_DIMENSIONS: Final = 2  # of the tensors of linear layers
_AT_ONCE: Final = 256  # vectors: a layer makes no more than some megabytes of them
_DECIMALS: Final = 4  # as of the embedding
_NAME = re.compile("[a-z][a-z0-9_]*")
_TYPES: Final[Mapping[str, str]] = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}
_ACTIVATIONS: Final = ("identity", "relu")
_OUTPUTS: Final = ("identity", "sigmoid")

Vectors = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Network:
    """Linear layers, one after the other.

    Args:
        layers: weights (outputs x inputs) and bias of each; the last has one output.
        activation: behind each layer but the last: ``identity`` or ``relu``.
        output: behind the last: ``identity`` or ``sigmoid``.
    """

    layers: Sequence[tuple[Vectors, Vectors]]
    activation: str
    output: str

    @classmethod
    def of(cls, data: bytes, path: str) -> Self:
        """Return the network of a safetensors file.

        Args:
            path: how the user knows it.

        Raises:
            MeasureFileError: in one line, it is no such file, or has other tensors than layers.
        """
        tensors, notes = _tensors(data, path)
        stems = sorted({name.rpartition(".")[0] for name in tensors}, key=_in_order)
        layers: list[tuple[Vectors, Vectors]] = []
        for stem in stems:
            weight = tensors.pop(f"{stem}.weight", None)
            if weight is None or weight.ndim != 2:
                raise MeasureFileError(f"{path}: {stem}.weight must be there, with outputs x inputs")
            bias = tensors.pop(f"{stem}.bias", np.zeros(len(weight)))
            if bias.shape != weight.shape[:1]:
                raise MeasureFileError(f"{path}: {stem}.bias must have {weight.shape[0]} numbers")
            if layers and len(layers[-1][1]) != weight.shape[1]:
                raise MeasureFileError(
                    f"{path}: {stem}.weight takes {weight.shape[1]} numbers, "
                    f"the layer before it gives {len(layers[-1][1])}"
                )
            layers.append((weight, bias))
        if tensors:
            raise MeasureFileError(f"{path}: {min(tensors)} is no weight or bias of a linear layer")
        if not layers or len(layers[-1][1]) != 1:
            raise MeasureFileError(f"{path}: the last layer must have one output")
        activation = notes.get("activation", "identity" if len(layers) == 1 else None)
        output = notes.get("output", "identity")
        if activation not in _ACTIVATIONS or output not in _OUTPUTS:
            raise MeasureFileError(
                f"{path}: its metadata must state activation, one of {', '.join(_ACTIVATIONS)}, "
                f"and may state output, one of {', '.join(_OUTPUTS)}; "
                f"not {repr(activation)} and {repr(output)}"
            )
        return cls(layers, activation, output)

    @property
    def inputs(self) -> int:
        """Numbers of a vector."""
        return int(self.layers[0][0].shape[1])

    def __call__(self, vectors: Vectors) -> Vectors:
        """Return a number for each vector."""
        for number, (weight, bias) in enumerate(self.layers):
            if number and self.activation == "relu":
                vectors = np.maximum(vectors, 0)
            vectors = vectors @ weight.T + bias
        found = vectors[:, 0]
        if self.output == "sigmoid":
            with np.errstate(over="ignore"):
                found = 1 / (1 + np.exp(-found))
        return found


def _in_order(name: str) -> list[Any]:
    """Return a key that sorts layers.2 before layers.10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _tensors(data: bytes, path: str) -> tuple[dict[str, Vectors], Mapping[str, Any]]:
    """Return tensors by name, and the metadata of their file."""
    file = io.BytesIO(data)
    header = dict(tensor_header(file, len(data), path))
    body = memoryview(data)[file.tell() :]  # else each tensor copies its part
    notes = header.pop("__metadata__", {})
    found: dict[str, Vectors] = {}
    raws: dict[str, tuple[npt.NDArray[Any], str, list[int]]] = {}  # views
    places: list[tuple[int, int, str]] = []
    for name, tensor in header.items():
        try:
            kind, shape, (start, end) = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
            if kind not in _TYPES:
                raise MeasureFileError(f"{path}: {name} is of type {repr(kind)}, not {', '.join(_TYPES)}")
            if any(type(size) is not int or size < 1 for size in (*shape, end - start)) or start < 0:
                raise ValueError(shape)
            if len(shape) > _MOST_DIMENSIONS:
                raise MeasureFileError(
                    f"{path}: {name} has {len(shape)} dimensions, at most {_MOST_DIMENSIONS}"
                )
            places.append((start, end, name))
            raw = np.frombuffer(body[start:end], _TYPES[kind])
            if end > len(body) or len(raw) != math.prod(shape):
                raise ValueError(end)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, MeasureFileError):
                raise
            raise MeasureFileError(f"{path}: damaged: {name} does not fit its place in the file") from error
        raws[name] = (raw, kind, shape)
    places.sort()
    for (_, end, one), (start, _, other) in pairwise(places):
        if start < end:
            raise MeasureFileError(f"{path}: damaged: {one} and {other} are at the same place in the file")
    for name, (raw, kind, shape) in raws.items():
        wide = (raw.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else raw
        found[name] = wide.astype(np.float64).reshape(shape)
        if not np.isfinite(found[name]).all():
            raise MeasureFileError(f"{path}: {name} has numbers that are not finite")
    return found, notes if isinstance(notes, dict) else {}


@lru_cache(maxsize=8)
def _loaded(file: str, digest: str) -> Network:
    """Return the network of a file, loaded once a process."""
    return Network.of(file_content(file, _MOST_BYTES, digest), file)


@dataclass(frozen=True)
class ClipNetwork(DerivedMeasure):
    """The number that a network makes of the CLIP embedding of an image.

    Args:
        name: that of the score.
        model: digest of the CLIP model.
        weights: digest of the file; both identify the values.
        file: where it is on this machine, and on those of workers.
    """

    name: str = ""  # type: ignore[misc]
    model: str = ""
    weights: str = ""
    file: str = field(default="", compare=False, repr=False)

    of = ClipEmbedding.name
    type = pa.float64()
    version = "1"
    meaning = "what a network of yours makes of clip_embedding"

    def configured(self) -> Self:
        model = ClipEmbedding().configured().model
        try:
            data = file_content(self.file, _MOST_BYTES)
            Network.of(data, self.file)
        except MeasureFileError as error:
            raise MeasureFileError(f"{given_settings().place(_SETTING)}: {error}") from error
        return replace(self, model=model, weights=xxhash.xxh3_128_hexdigest(data))

    def measure_all(self, values: Sequence[Any]) -> Sequence[float | None]:
        network = _loaded(self.file, self.weights)
        there = [place for place, value in enumerate(values) if value is not None]
        found: list[float | None] = [None] * len(values)
        for start in range(0, len(there), _AT_ONCE):
            places = there[start : start + _AT_ONCE]
            vectors = np.stack([_vector(values[place]) for place in places])
            if vectors.shape[1] != network.inputs:
                raise MeasureFileError(
                    f"{self.file}: it takes vectors of {network.inputs} numbers, "
                    f"{self.of} has {vectors.shape[1]}: it was made for another CLIP model"
                )
            for place, number in zip(places, network(vectors).tolist(), strict=True):
                found[place] = round(number, _DECIMALS)
        return found


def _vector(value: Any) -> Vectors:
    """Return an embedding: an array, or the Arrow scalar of a stored one."""
    stored = value.values.to_numpy() if isinstance(value, pa.ListScalar) else value
    return np.asarray(stored, np.float64)


def clip_networks(taken: Iterable[str]) -> list[ClipNetwork]:
    """Return the measures that the setting names, each as ``name=file``.

    Args:
        taken: names of other scores.

    Raises:
        MeasureFileError: in one line, for a name that is none, or is taken.
    """
    given = given_settings()
    found: list[ClipNetwork] = []
    names = set(taken)
    for text in given.get(_SETTING, "").split():
        name, _, location = text.partition("=")
        if not _NAME.fullmatch(name) or not location:
            raise MeasureFileError(
                f"{given.place(_SETTING)}: {text!r}: write name=file, in lower-case letters"
            )
        if name in names:
            raise MeasureFileError(f"{given.place(_SETTING)}: {text!r}: the score {name} is there already")
        names.add(name)
        found.append(ClipNetwork(name, file=absolute(location)))
    return found
