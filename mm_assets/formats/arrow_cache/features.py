"""The fields of an example by name, and their definitions as JSON."""

from __future__ import annotations

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

__all__ = ["Features"]

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
