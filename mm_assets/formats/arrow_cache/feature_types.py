"""What the fields of an example are: how each is stored in Arrow, and how it comes back."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, overload

import numpy as np
import pyarrow as pa

from mm_assets.formats.arrow_cache.pictures import decode_image, encode_image
from mm_assets.formats.arrow_cache.scalars import exact_types, stored_scalar

__all__ = ["Array3D", "ClassLabel", "Image", "Sequence", "Value", "Video"]

_NUMBER_IN_LIST = 40  # bytes that a Python number and its place in a list take


class FeatureType:
    """One field of an example. Features are equal when their definitions are."""

    def to_arrow_type(self) -> pa.DataType:
        """The Arrow type of the stored column."""
        raise NotImplementedError

    def definition(self) -> dict[str, Any]:
        """Everything that makes this feature what it is, as JSON values; `features.feature_of` reverses it."""
        return {"_type": type(self).__name__, **self._arguments()}

    def encode(self, value: Any) -> Any:
        """A value, never None, as it is stored.

        Raises ``ValueError`` or ``TypeError`` for one that does not fit.
        """
        return value

    def decode(self, stored: Any) -> Any:
        """A stored value, never None, as a user wants it."""
        return stored

    def held_bytes(self, stored: Any) -> int:
        """Memory that a stored value takes while it waits for its batch."""
        return sys.getsizeof(stored)

    def _arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureType) and self.definition() == other.definition()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._arguments().items())})"


class Value(FeatureType):
    """A scalar. ``dtype`` is the name of an Arrow type: int32, float64, bool, string, large_binary,
    timestamp[us] …

    Stored exactly or refused; only floats may be rounded, and not to an infinity. NaT is stored as null.
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
            return value  # the usual, at once
        return stored_scalar(value, self._type)

    def encode_all(self, values: Iterable[Any]) -> list[Any]:
        """Values, or None, as `encode` stores each."""
        dtype = getattr(values, "dtype", None)
        if (
            isinstance(dtype, np.dtype)
            and dtype.kind in "iuf"
            and self._numpy is not None
            and np.can_cast(dtype, self._numpy)
        ):
            return list(np.asarray(values).tolist())
        if hasattr(values, "tolist") and getattr(dtype, "kind", "") not in (
            "m",
            "M",
        ):  # those would become integers
            values = values.tolist()
        return [None if value is None else self.encode(value) for value in values]


class ClassLabel(FeatureType):
    """A class, stored as its number (int64). -1 stands for an unknown one.

    Give ``names``, or ``num_classes`` for the names "0", "1", …. Raises ``ValueError`` for neither, a
    mismatch of both, and equal names.
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
    def str2int(self, values: str) -> int: ...  # type: ignore[overload-overlap]  # a text is iterable, too
    @overload
    def str2int(self, values: Iterable[str]) -> list[int]: ...
    def str2int(self, values: str | Iterable[str]) -> int | list[int]:
        """The number of a name, or of each name. Raises ``ValueError`` for an unknown one."""
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
        """The name of a number, or of each number. Raises ``ValueError`` for one out of range."""
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

    Taken: bytes, a path, a PIL image, a numpy array. Comes back as PIL image.
    """

    def to_arrow_type(self) -> pa.DataType:
        return pa.large_binary()  # a batch may hold more than 2 GiB

    def encode(self, value: Any) -> bytes:
        return encode_image(value)

    def decode(self, stored: Any) -> Any:
        return decode_image(stored)


class Video(FeatureType):
    """The path of a video file, stored as text; the file is not looked at."""

    def to_arrow_type(self) -> pa.DataType:
        return pa.string()

    def encode(self, value: Any) -> str:
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


class Array3D(FeatureType):
    """A numeric array of three axes, stored as its bytes (C order, little-endian). The first axis may be
    None: of any length.

    Comes back as a writable numpy array. Values that ``dtype`` cannot hold raise ``ValueError``; a float
    ``dtype`` may round them, but not to an infinity.
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
        given, stored = np.asarray(value), np.dtype(self.dtype).newbyteorder("<")
        if given.ndim != 3 or any(
            want not in (None, have) for want, have in zip(self.shape, given.shape, strict=True)
        ):
            raise ValueError(f"an array of shape {given.shape}, not {self.shape}")
        if isinstance(value, list | tuple) and given.dtype.kind + stored.kind in ("fi", "fu"):
            given = np.asarray(
                value, object
            )  # numpy makes floats, rounded, of integers of which some need uint64
        with np.errstate(all="ignore"):
            array = given.astype(stored)
            if not np.can_cast(given.dtype, stored) and not _holds(array, given):
                raise ValueError(f"values of {given.dtype} that {self.dtype} cannot hold")
        return array.tobytes()

    def decode(self, stored: Any) -> Any:
        shape = tuple(-1 if length is None else length for length in self.shape)
        return np.frombuffer(stored, np.dtype(self.dtype).newbyteorder("<")).astype(self.dtype).reshape(shape)


def _holds(array: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> bool:
    """Whether an array is what was given: rounded to floats, else the same."""
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
    """A list of any length of one feature. Taken: anything iterable but text and bytes. Comes back as list."""

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
