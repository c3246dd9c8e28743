"""Names of caches: other data gets another name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from mm_assets.formats.arrow_cache.features import Features, as_features

__all__ = ["cache_fingerprint"]


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
            (`mm_assets.formats.file_stamps`). Goes into the digits if given.
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
