"""The name of a cache: another one for other data."""

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
    """The folder name of the cache of a dataset's variant and split: ``<class>_<config>_<split>_<16 hex
    digits>``.

    ``source`` says what the examples are made from: a digest, or the stamps of the files in their order
    (`mm_assets.formats.file_stamps`). It and ``features`` go into the digits when they are given. Raises
    ``ValueError`` for a name that cannot be part of a file name.
    """
    for part in (cls_name, config_name, split):
        if {"/", "\\", "\0"} & set(part):
            raise ValueError(f"{part!r} cannot be part of a file name")
    key = f"{cls_name}:{version}:{config_name}:{split}"
    if source is not None or features is not None:
        made_of = (
            source.hex()
            if isinstance(source, bytes)
            else source
            if isinstance(source, str) or source is None
            else list(source)
        )
        definition = None if features is None else as_features(features).definition()
        key += "\n" + json.dumps({"source": [type(source) is bytes, made_of], "features": definition})
    return f"{cls_name.lower()}_{config_name}_{split}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
