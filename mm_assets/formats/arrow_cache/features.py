"""Features: the fields of an example by name, their definitions as JSON, and encoding of examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from mm_assets.formats.arrow_cache.feature_types import (
    Array3D,
    ClassLabel,
    FeatureType,
    Image,
    Sequence,
    Value,
    Video,
)

__all__ = ["Features", "decode_example", "encode_example"]

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
            the field); or the example is no mapping.
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
