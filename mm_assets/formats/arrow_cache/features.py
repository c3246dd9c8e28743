"""Features of an Arrow cache: the fields of an example by name, their types, and encoding of examples.

* A type of field says how values are stored in Arrow and decoded; its definition is JSON.
* Python and numpy scalars are stored exactly (`stored_scalar`), pictures as the bytes of image files.
* `cache_fingerprint` names the folder of a cache: other data gets another name.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import operator
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = [
    "Array3D",
    "ClassLabel",
    "Features",
    "Image",
    "Sequence",
    "Value",
    "Video",
    "cache_fingerprint",
    "decode_example",
    "encode_example",
]


_ATTOSECONDS = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18}
# Years and months have no fixed length.
_ATTOSECONDS |= {"m": 60 * 10**18, "h": 3600 * 10**18, "D": 86_400 * 10**18, "W": 604_800 * 10**18}


def exact_types(kind: pa.DataType) -> frozenset[type]:
    """Return the Python types whose values Arrow stores exactly as ``kind``, or refuses."""
    if pa.types.is_integer(kind):
        return frozenset({int})
    if pa.types.is_floating(kind):
        return frozenset({int, float}) if kind.bit_width == 64 else frozenset({int})
    return frozenset({bool}) if pa.types.is_boolean(kind) else frozenset({str, bytes})


def stored_scalar(value: Any, kind: pa.DataType) -> Any:
    """Return a scalar as a Python value that Arrow stores as ``kind`` without a change.

    Only floats may be rounded. The buffer of a bytearray or memoryview is copied, because its owner may reuse
    it. NaT becomes None. An aware datetime becomes UTC.

    Raises:
        ValueError, TypeError, OverflowError, pa.ArrowException: The value would change, or could not be read
            back.
    """
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        return _time(value, kind)
    if hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, str | bytes):
        return value
    stored = pa.scalar(value, kind).as_py()
    if pa.types.is_floating(kind):
        if math.isinf(stored) and value not in (math.inf, -math.inf):
            raise ValueError(f"{value!r} is out of the range of {kind}")
        return float(value)
    if pa.types.is_temporal(kind) and type(value) is int:
        return value  # a count of the type's units
    comparable: Any = stored
    if isinstance(value, datetime):
        if isinstance(stored, datetime):
            value = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        elif pa.types.is_date(kind):
            comparable = datetime.combine(stored, time.min)
    if comparable != value:
        raise ValueError(f"{value!r} would be stored as {stored!r} in {kind}")
    return stored


def _time(value: Any, kind: pa.DataType) -> Any:
    """Return a numpy datetime or timedelta of any unit as a Python value."""
    (unit, multiple), number = np.datetime_data(value.dtype), int(value.astype(np.int64).item())
    if number == np.iinfo(np.int64).min:
        return None  # NaT
    is_moment = value.dtype.kind == "M"
    if is_moment and pa.types.is_date(kind):
        kind, target_unit = pa.date32(), "D"
    elif pa.types.is_timestamp(kind) if is_moment else pa.types.is_duration(kind):
        target_unit = kind.unit
    else:
        raise ValueError(f"{value!r} is no {kind}")
    if unit not in _ATTOSECONDS:
        raise ValueError(f"{value!r} has no unit that has a length")
    count, rest = divmod(number * multiple * _ATTOSECONDS[unit], _ATTOSECONDS[target_unit])
    if rest:
        raise ValueError(f"{value!r} is between two values of {kind}")
    return pa.scalar(count, kind).as_py()


# Options to save a picture again in its own format without more loss. Pillow's defaults are JPEG quality 75
# and lossy WebP.
_LOSSLESS_OPTIONS: dict[str, dict[str, Any]] = {"JPEG": {"quality": "keep"}, "WEBP": {"lossless": True}}
_WITH_EXIF = ("JPEG", "PNG", "WEBP")
_AS_PNG = ("RGBA", "LA", "PA", "P")


def encode_image(image: Any) -> bytes:
    """Return the bytes of an image file.

    Bytes and the file of a path are taken as they are. A PIL image that was opened from a file is saved in
    the file's format (a JPEG with its own quantization tables), with its EXIF data. A PIL image with alpha, a
    palette or no format is saved as PNG. A numpy array becomes a PNG.

    Raises:
        TypeError: The value is something else.
        ValueError: Pillow cannot save the picture in that format.
    """
    from PIL import Image  # the code location loads without it

    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | Path):
        return Path(image).read_bytes()
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        raise TypeError(f"no picture: {type(image).__name__}")
    kind = image.format if image.format is not None and image.mode not in _AS_PNG else "PNG"
    options = dict(_LOSSLESS_OPTIONS.get(kind, {}))
    if kind in _WITH_EXIF and image.info.get("exif"):
        options["exif"] = image.info["exif"]
    file = io.BytesIO()
    try:
        image.save(file, format=kind, **options)
    # A format that Pillow only reads; a mode that the format lacks; a damaged file.
    except (KeyError, OSError, SyntaxError, EOFError) as error:
        raise ValueError(f"a picture of mode {image.mode} cannot be saved as {kind}: {error}") from error
    return file.getvalue()


def decode_image(data: bytes) -> Picture:
    """Return the decoded picture of an image file's bytes; raise Pillow's errors."""
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    image.load()
    return image


_NUMBER_IN_LIST = 40  # bytes of a Python number and its slot in a list


class FeatureType:
    """One field of an example. Features are equal if their definitions are equal."""

    def to_arrow_type(self) -> pa.DataType:
        """Return the Arrow type of the stored column."""
        raise NotImplementedError

    def definition(self) -> dict[str, Any]:
        """Return the definition of this feature as JSON values; `features.feature_of` reverses it."""
        return {"_type": type(self).__name__, **self._arguments()}

    def encode(self, value: Any) -> Any:
        """Return a value, never None, as it is stored.

        Raises:
            ValueError, TypeError: The value does not fit.
        """
        return value

    def decode(self, stored: Any) -> Any:
        """Return a stored value, never None, for users."""
        return stored

    def held_bytes(self, stored: Any) -> int:
        """Return the bytes of memory that a stored value takes until its batch is written."""
        return sys.getsizeof(stored)

    def _arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureType) and self.definition() == other.definition()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self._arguments().items())
        return f"{type(self).__name__}({arguments})"


class Value(FeatureType):
    """A scalar, of the Arrow type named ``dtype``.

    Examples are int32, float64, bool, string, large_binary and timestamp[us].
    Values are stored exactly or refused. Only floats may be rounded, and not to an infinity. NaT is stored as
    null.
    """

    def __init__(self, dtype: str) -> None:
        if not isinstance(dtype, str):
            raise TypeError(f"the dtype of a Value is the name of an Arrow type, not {dtype!r}")
        self.dtype = dtype
        self._type = pa.type_for_alias(dtype)  # raises ValueError
        self._exact = exact_types(self._type)
        is_number = pa.types.is_integer(self._type) or pa.types.is_floating(self._type)
        self._numpy = np.dtype(self._type.to_pandas_dtype()) if is_number else None
        self._largest_float = (
            float(np.finfo(self._numpy).max) if self._numpy is not None and self._numpy.kind == "f" else -1.0
        )

    def to_arrow_type(self) -> pa.DataType:
        return self._type

    def encode(self, value: Any) -> Any:
        if type(value) in self._exact or (type(value) is float and abs(value) <= self._largest_float):
            return value  # fast path for the usual types
        return stored_scalar(value, self._type)

    def encode_all(self, values: Iterable[Any]) -> list[Any]:
        """Return values, each as `encode` stores it; None stays None."""
        dtype = getattr(values, "dtype", None)
        if (
            isinstance(dtype, np.dtype)
            and dtype.kind in "iuf"
            and self._numpy is not None
            and np.can_cast(dtype, self._numpy)
        ):
            return list(np.asarray(values).tolist())
        # Not for times and durations, which would become integers.
        if hasattr(values, "tolist") and getattr(dtype, "kind", "") not in ("m", "M"):
            values = values.tolist()
        return [None if value is None else self.encode(value) for value in values]


class ClassLabel(FeatureType):
    """A class, stored as its number (int64). -1 stands for an unknown class.

    Args:
        num_classes: Number of classes, named "0", "1", … if there are no ``names``.
        names: Names of the classes.

    Raises:
        ValueError: Neither argument is given, they disagree, or names are equal.
    """

    def __init__(self, num_classes: int | None = None, names: Iterable[str] | None = None) -> None:
        if names is None:
            if num_classes is None:
                raise ValueError("ClassLabel needs names or num_classes")
            names = map(str, range(num_classes))
        self.names = [str(name) for name in names]
        if num_classes not in (None, len(self.names)):
            raise ValueError(f"ClassLabel has {len(self.names)} names and num_classes={num_classes}")
        self._numbers = {name: number for number, name in enumerate(self.names)}
        if len(self._numbers) < len(self.names):
            raise ValueError("ClassLabel has equal names")

    @property
    def num_classes(self) -> int:
        return len(self.names)

    def to_arrow_type(self) -> pa.DataType:
        return pa.int64()

    @overload
    def str2int(self, values: str) -> int: ...  # type: ignore[overload-overlap]  # a string is iterable, too
    @overload
    def str2int(self, values: Iterable[str]) -> list[int]: ...
    def str2int(self, values: str | Iterable[str]) -> int | list[int]:
        """Return the number of a name, or of each name; raise ``ValueError`` for an unknown one."""
        if not isinstance(values, str):
            return [self.str2int(name) for name in values]
        if values not in self._numbers:
            raise ValueError(f"{values!r} is none of the {self.num_classes} classes")
        return self._numbers[values]

    @overload
    def int2str(self, values: int) -> str: ...
    @overload
    def int2str(self, values: Iterable[int]) -> list[str]: ...
    def int2str(self, values: int | Iterable[int]) -> str | list[str]:
        """Return the name of a number, or of each number; raise ``ValueError`` for one out of range."""
        if isinstance(values, Iterable):
            return [self.int2str(number) for number in values]
        if not 0 <= values < self.num_classes:
            raise ValueError(f"{values} is not the number of a class: there are {self.num_classes}")
        return self.names[values]

    def encode(self, value: Any) -> int:
        number = self.str2int(value) if isinstance(value, str) else operator.index(value)
        if not -1 <= number < self.num_classes:
            raise ValueError(f"{number} is not the number of a class: there are {self.num_classes}")
        return number


class Image(FeatureType):
    """An encoded picture, stored as its bytes.

    It takes bytes, a path, a PIL image or a numpy array, and returns a PIL image.
    """

    def to_arrow_type(self) -> pa.DataType:
        return pa.large_binary()  # a batch may hold more than 2 GiB

    def encode(self, value: Any) -> bytes:
        return encode_image(value)

    def decode(self, stored: Any) -> Any:
        return decode_image(stored)


class Video(FeatureType):
    """The path of a video file, stored as text; the file is not read."""

    def to_arrow_type(self) -> pa.DataType:
        return pa.string()

    def encode(self, value: Any) -> str:
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


class Array3D(FeatureType):
    """A numeric array of three axes, stored as its bytes (C order, little-endian).

    It comes back as a writable numpy array. Values that ``dtype`` cannot hold raise ``ValueError``; a float
    ``dtype`` may round them, but not to an infinity.

    Args:
        shape: Lengths of the axes. The first may be None: any length.
        dtype: Name of a numeric numpy type.

    Raises:
        ValueError: The shape or the type is not one of these.
    """

    def __init__(self, shape: Iterable[int | None], dtype: str = "uint8") -> None:
        self.shape = tuple(None if length is None else operator.index(length) for length in shape)
        self.dtype = dtype
        if (
            len(self.shape) != 3
            or None in self.shape[1:]
            or any(length is not None and length < 0 for length in self.shape)
        ):
            raise ValueError(f"Array3D has three axes, and only the first may be None, not {self.shape}")
        if self.shape[0] is None and 0 in self.shape:
            raise ValueError(
                f"Array3D of shape {self.shape}: bytes of none would not tell the length of the first axis"
            )
        if not isinstance(dtype, str) or np.dtype(dtype).kind not in "biufc":
            raise ValueError(f"Array3D holds numbers of a type given by name, not {dtype!r}")

    def definition(self) -> dict[str, Any]:
        return {**super().definition(), "shape": list(self.shape)}

    def to_arrow_type(self) -> pa.DataType:
        return pa.large_binary()

    def encode(self, value: Any) -> bytes:
        array_like, stored = np.asarray(value), np.dtype(self.dtype).newbyteorder("<")
        if array_like.ndim != 3 or any(
            expected not in (None, actual)
            for expected, actual in zip(self.shape, array_like.shape, strict=True)
        ):
            raise ValueError(f"an array of shape {array_like.shape}, not {self.shape}")
        if isinstance(value, list | tuple) and array_like.dtype.kind + stored.kind in ("fi", "fu"):
            # numpy would round integers to floats if some of them need uint64.
            array_like = np.asarray(value, object)
        with np.errstate(all="ignore"):
            converted = array_like.astype(stored)
            if not np.can_cast(array_like.dtype, stored) and not _is_faithful(converted, array_like):
                raise ValueError(f"values of {array_like.dtype} that {self.dtype} cannot hold")
        return converted.tobytes()

    def decode(self, stored: Any) -> Any:
        shape = tuple(-1 if length is None else length for length in self.shape)
        return np.frombuffer(stored, np.dtype(self.dtype).newbyteorder("<")).astype(self.dtype).reshape(shape)


def _is_faithful(array: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> bool:
    """Return True if ``array`` equals ``given``, apart from the rounding of floats."""
    kinds = given.dtype.kind + array.dtype.kind
    if kinds in ("if", "uf", "ff", "ic", "uc", "fc", "cc"):
        parts = (
            ((array.real, given.real), (array.imag, given.imag)) if kinds == "cc" else ((array.real, given),)
        )
        return not any((np.isinf(have) & ~np.isinf(want)).any() for have, want in parts)
    if kinds in ("fi", "fu") and not (given < float(np.iinfo(array.dtype).max) + 1).all():
        return False  # it may become the largest integer, which compares as equal
    return np.array_equal(array, given)


class Sequence(FeatureType):
    """A list of any length of one feature.

    It takes any iterable except text and bytes, and returns a list.
    """

    def __init__(self, feature: FeatureType) -> None:
        if not isinstance(feature, FeatureType):
            raise TypeError(f"Sequence takes a feature, not {feature!r}")
        self.feature = feature

    def definition(self) -> dict[str, Any]:
        return {**super().definition(), "feature": self.feature.definition()}

    def to_arrow_type(self) -> pa.DataType:
        return pa.list_(self.feature.to_arrow_type())

    def encode(self, value: Any) -> list[Any]:
        if isinstance(value, str | bytes | Mapping):
            raise TypeError(f"a list was expected, not {type(value).__name__}")
        if isinstance(self.feature, Value):
            return self.feature.encode_all(value)
        return [None if item is None else self.feature.encode(item) for item in value]

    def decode(self, stored: Any) -> list[Any]:
        if type(self.feature).decode is FeatureType.decode:
            return list(stored)
        return [None if item is None else self.feature.decode(item) for item in stored]

    def held_bytes(self, stored: Any) -> int:
        if pa.types.is_primitive(self.feature.to_arrow_type()):
            return _NUMBER_IN_LIST * (len(stored) + 1)
        return sys.getsizeof(stored) + sum(
            self.feature.held_bytes(item) for item in stored if item is not None
        )


_KINDS: dict[str, type[FeatureType]] = {
    kind.__name__: kind for kind in (Value, ClassLabel, Image, Video, Array3D, Sequence)
}


class Features(dict[str, FeatureType]):
    """The fields of an example, by name, in the order of the stored columns."""

    def to_arrow_schema(self) -> pa.Schema:
        """Return the schema of the stored columns.

        Raises:
            TypeError: A field is not a feature.
        """
        for name, feature in self.items():
            if not isinstance(feature, FeatureType):
                raise TypeError(
                    f"field {name!r} is no feature but {feature!r}: "
                    "give Value(...), Image(), ... of mm_assets.formats"
                )
        return pa.schema([(name, feature.to_arrow_type()) for name, feature in self.items()])

    def definition(self) -> dict[str, dict[str, Any]]:
        """Return the definition of each feature as JSON values, in order; `features_of` reverses it."""
        return {name: feature.definition() for name, feature in self.items()}


def as_features(given: object) -> Features:
    """Return the features that a caller passed.

    Raises:
        TypeError: They are something else, such as a plain dict, whose values may be anything. The message
            says what to pass.
    """
    if isinstance(given, Features):
        return given
    hint = 'Features({"caption": Value("string"), ...}) of mm_assets.formats'
    raise TypeError(f"features must be {hint}, not {type(given).__name__}")


def feature_of(definition: Any) -> FeatureType:
    """Return the feature that a definition describes.

    Raises:
        ValueError: It describes none.
    """
    if not isinstance(definition, dict) or (kind := _KINDS.get(str(definition.get("_type")))) is None:
        raise ValueError(f"no feature: {definition!r}")
    arguments = {name: value for name, value in definition.items() if name != "_type"}
    if kind is Sequence and "feature" in arguments:
        arguments["feature"] = feature_of(arguments["feature"])
    # A number of classes could be so large that their names do not fit into memory.
    if kind is ClassLabel and not isinstance(arguments.get("names"), list):
        raise ValueError(f"no feature: {definition!r}: a ClassLabel is defined by its names")
    try:
        return kind(**arguments)
    except (TypeError, SyntaxError) as error:  # numpy parses the name of a type
        raise ValueError(f"no feature: {definition!r}: {error}") from error


def features_of(definition: Any) -> Features:
    """Return the features that definitions by name describe.

    Raises:
        ValueError: One of them describes none.
    """
    if not isinstance(definition, dict):
        raise ValueError(f"no features: {definition!r}")
    return Features({name: feature_of(one) for name, one in definition.items()})


def encode_example(example: Mapping[str, Any], features: Features) -> dict[str, Any]:
    """Return an example as Arrow stores it, its fields in the order of the features. None stays None.

    Raises:
        ValueError: A field is missing, not among the features, or its value does not fit (the message names
            the field); or the example is not a mapping.
    """
    if not isinstance(example, Mapping):
        raise ValueError(f"a mapping of fields was expected, not {type(example).__name__}")
    if example.keys() != features.keys():
        missing, unexpected = (
            sorted(features.keys() - example.keys()),
            sorted(example.keys() - features.keys(), key=str),
        )
        raise ValueError(f"missing field(s) {missing}" if missing else f"unexpected field(s) {unexpected}")
    stored = {}
    for name, feature in features.items():
        value = example[name]
        try:
            stored[name] = None if value is None else feature.encode(value)
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise ValueError(f"field {name!r}: {error}") from error
    return stored


def decode_example(stored: Mapping[str, Any], features: Features) -> dict[str, Any]:
    """Return a stored row for users: pictures as PIL images, arrays as numpy arrays, labels as numbers.

    None stays None. Fields that are not in ``stored`` are left out, so rows of some columns can be decoded
    too.
    """
    return {name: None if value is None else features[name].decode(value) for name, value in stored.items()}


def cache_fingerprint(
    cls_name: str,
    version: str,
    config_name: str,
    split: str,
    *,
    source: str | bytes | Iterable[str] | None = None,
    features: Features | None = None,
) -> str:
    """Return the folder name of the cache of one dataset configuration and split.

    It is ``<class>_<config>_<split>_<16 hex digits>``.

    Args:
        cls_name: Class of the dataset.
        version: Its version; goes into the digits.
        config_name: Its configuration.
        split: The split.
        source: Identity of the source data: a digest, or the stamps of the files in their order
            (`mm_assets.storage.stamps`). Goes into the digits if given.
        features: The features of the examples. They go into the digits if given.

    Raises:
        ValueError: A name cannot be part of a file name.
    """
    for part in (cls_name, config_name, split):
        if {"/", "\\", "\0"} & set(part):
            raise ValueError(f"{part!r} cannot be part of a file name")
    key = f"{cls_name}:{version}:{config_name}:{split}"
    if source is not None or features is not None:
        source_id = (
            source.hex()
            if isinstance(source, bytes)
            else source
            if isinstance(source, str) or source is None
            else list(source)
        )
        definition = None if features is None else as_features(features).definition()
        key += "\n" + json.dumps({"source": [type(source) is bytes, source_id], "features": definition})
    return f"{cls_name.lower()}_{config_name}_{split}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
