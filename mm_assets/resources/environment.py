"""All resources of the code location, from environment variables."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

from mm_assets.filters.readable import MAX_PIXELS
from mm_assets.formats.paired.raw.address import MISSING_KEY_POLICIES
from mm_assets.formats.partitions import parse_bytes
from mm_assets.formats.storage import is_remote, local_path
from mm_assets.interleaved.policies import POLICIES
from mm_assets.io_managers.arrow_cache import ArrowCacheIOManager
from mm_assets.io_managers.lance import LanceIOManager
from mm_assets.io_managers.parquet import IngestIOManager, ParquetIOManager
from mm_assets.io_managers.prover import Prover
from mm_assets.io_managers.quarantine import QuarantineIOManager
from mm_assets.io_managers.raw import RawShardIOManager
from mm_assets.io_managers.raw_gate import SCHEMA_CHANGES, RawGate
from mm_assets.io_managers.scores import ScoresIOManager
from mm_assets.io_managers.webdataset import WebdatasetIOManager
from mm_assets.io_managers.workers import Workers
from mm_assets.resources.filter_bounds import FilterBounds
from mm_assets.resources.image_looks import ImageLooks
from mm_assets.resources.raw_shards import RawShards

N = TypeVar("N", int, float)


def resources_from_environment() -> dict[str, Any]:
    """Resources by key. Read when the code location loads:

    ``MM_RAW_SHARDS`` (default ``demo/raw``), ``MM_STORAGE`` (``demo/storage``), ``MM_WORKERS`` (0: all cores),
    ``MM_ON_MATERIALIZE_ERROR`` (``drop_sample``), ``MM_MIN_ASPECT_RATIO`` (1.0), ``MM_MAX_ASPECT_RATIO`` (2.0),
    ``MM_SAMPLE_ID_FIELD``, ``MM_PER_IMAGE_FIELDS``, ``MM_PER_TEXT_FIELDS`` (comma-separated), ``MM_DECODE_FRACTION`` (0.01),
    ``MM_MAX_IMAGE_PIXELS`` (Pillow's limit), ``MM_MAX_MEMBER_BYTES`` (1 GiB), ``MM_SCHEMA_CHANGES`` (``refuse``),
    ``MM_MISSING_KEYS`` (``skip``; of paired shards).
    """
    root = _storage_root(_get("MM_STORAGE", "demo/storage"))
    missing_keys = _get("MM_MISSING_KEYS", MISSING_KEY_POLICIES[0])
    if missing_keys not in MISSING_KEY_POLICIES:
        raise ValueError(f"MM_MISSING_KEYS must be one of {', '.join(MISSING_KEY_POLICIES)}, not {missing_keys!r}")
    raw = RawShards(locations=_get("MM_RAW_SHARDS", "demo/raw"), excluded=root, missing_keys=missing_keys)
    workers = Workers(processes=_number("MM_WORKERS", 0, int))
    policy = _get("MM_ON_MATERIALIZE_ERROR", "drop_sample")
    if policy not in POLICIES:
        raise ValueError(f"MM_ON_MATERIALIZE_ERROR must be one of {', '.join(POLICIES)}, not {policy!r}")
    changes = _get("MM_SCHEMA_CHANGES", SCHEMA_CHANGES[0])
    if changes not in SCHEMA_CHANGES:
        raise ValueError(f"MM_SCHEMA_CHANGES must be one of {', '.join(SCHEMA_CHANGES)}, not {changes!r}")
    fraction = _number("MM_DECODE_FRACTION", 0.01, float)
    if fraction > 1:
        raise ValueError(f"MM_DECODE_FRACTION must be at most 1, not {fraction:g}")
    low, high = _number("MM_MIN_ASPECT_RATIO", 1.0, float), _number("MM_MAX_ASPECT_RATIO", 2.0, float)
    if low > high:
        raise ValueError(f"MM_MIN_ASPECT_RATIO is {low:g}, more than MM_MAX_ASPECT_RATIO, which is {high:g}")
    layout: dict[str, Any] = {
        "sample_id_field": _get("MM_SAMPLE_ID_FIELD", ""),
        "per_image_fields": _names("MM_PER_IMAGE_FIELDS"),
        "per_text_fields": _names("MM_PER_TEXT_FIELDS"),
        "max_member_bytes": _size("MM_MAX_MEMBER_BYTES", "1GiB"),
    }
    gate = RawGate(raw=raw, workers=workers, root=root, schema_changes=changes, **layout)
    return {
        "raw": raw,
        "workers": workers,
        "bounds": FilterBounds(min_aspect_ratio=low, max_aspect_ratio=high),
        "looks": ImageLooks(decode_fraction=fraction, max_pixels=_number("MM_MAX_IMAGE_PIXELS", MAX_PIXELS, int)),
        "gate": gate,
        "prover": Prover(root=root, workers=workers),
        "raw_io_manager": RawShardIOManager(raw=raw),
        "ingest_io_manager": IngestIOManager(raw=raw, gate=gate, workers=workers, root=root, on_materialize_error=policy),
        "quarantine_io_manager": QuarantineIOManager(raw=raw, workers=workers, root=root),
        "scores_io_manager": ScoresIOManager(workers=workers, root=root),
        "parquet_io_manager": ParquetIOManager(workers=workers, root=root, on_materialize_error=policy),
        "webdataset_io_manager": WebdatasetIOManager(workers=workers, root=root, on_materialize_error=policy),
        "lance_io_manager": LanceIOManager(workers=workers, root=root, on_materialize_error=policy),
        "arrow_cache_io_manager": ArrowCacheIOManager(workers=workers, root=root, on_materialize_error=policy),
    }


def _get(name: str, default: str) -> str:
    return os.environ.get(name) or default


def _storage_root(location: str) -> str:
    """A URL as it is, a folder as absolute path: daemon, runs and workers need not share a working directory."""
    return location.rstrip("/") if is_remote(location) else os.path.abspath(local_path(location))


def _number(variable: str, default: N, kind: Callable[[str], N]) -> N:
    """A variable as a number of a kind, not negative. Raises ``ValueError`` naming the variable."""
    text = os.environ.get(variable) or str(default)
    try:
        value = kind(text)
    except ValueError as error:
        raise ValueError(f"{variable} must be a number, not {text!r}") from error
    if not value >= 0:
        raise ValueError(f"{variable} must not be negative: {text}")
    return value


def _size(variable: str, default: str) -> str:
    """A variable that is a size in bytes, as written. Raises ``ValueError`` naming the variable."""
    text = _get(variable, default)
    try:
        parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from error
    return text


def _names(variable: str) -> list[str]:
    return [name for name in _get(variable, "").split(",") if name]
