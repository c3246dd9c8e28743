"""The fields of an example by name, their definitions as JSON, and examples in their stored form."""

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
        """Raises ``TypeError`` for a field that is not a feature."""
        for name, feature in self.items():
            if not isinstance(feature, FeatureType):
                raise TypeError(
                    f"field {name!r} is no feature but {feature!r}: give Value(...), Image(), ... of mm_assets.formats"
                )
        return pa.schema([(name, feature.to_arrow_type()) for name, feature in self.items()])

    def definition(self) -> dict[str, dict[str, Any]]:
        """The definition of each feature as JSON values, in order; `features_of` reverses it."""
        return {name: feature.definition() for name, feature in self.items()}


def as_features(given: object) -> Features:
    """The features that a caller gave.

    Raises ``TypeError`` that says what to give, for a plain dict too: its values may be anything.
    """
    if isinstance(given, Features):
        return given
    hint = 'Features({"caption": Value("string"), ...}) of mm_assets.formats'
    raise TypeError(f"features must be {hint}, not {type(given).__name__}")


def feature_of(definition: Any) -> FeatureType:
    """The feature that a definition describes. Raises ``ValueError`` if it describes none."""
    if not isinstance(definition, dict) or (kind := _KINDS.get(str(definition.get("_type")))) is None:
        raise ValueError(f"no feature: {definition!r}")
    arguments = {name: value for name, value in definition.items() if name != "_type"}
    if kind is Sequence and "feature" in arguments:
        arguments["feature"] = feature_of(arguments["feature"])
    if kind is ClassLabel and not isinstance(
        arguments.get("names"), list
    ):  # a number could ask for names beyond all memory
        raise ValueError(f"no feature: {definition!r}: a ClassLabel is defined by its names")
    try:
        return kind(**arguments)
    except (TypeError, SyntaxError) as error:  # numpy parses the name of a type
        raise ValueError(f"no feature: {definition!r}: {error}") from error


def features_of(definition: Any) -> Features:
    """The features that definitions by name describe. Raises ``ValueError``."""
    if not isinstance(definition, dict):
        raise ValueError(f"no features: {definition!r}")
    return Features({name: feature_of(one) for name, one in definition.items()})


def encode_example(example: Mapping[str, Any], features: Features) -> dict[str, Any]:
    """An example as Arrow takes it, its fields in the order of the features. None stays None.

    Raises ``ValueError`` naming the field that is missing, that is not among the features, or whose value
    does not fit, and for an example that is no mapping.
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
    """A stored row as users have it: pictures as PIL images, arrays as numpy arrays, labels as numbers. None
    stays None.

    Fields that are not in ``stored`` are left out: rows of some columns can be decoded, too.
    """
    return {name: None if value is None else features[name].decode(value) for name, value in stored.items()}
