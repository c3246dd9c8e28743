"""Checks of the index files beside a tar: Energon's index of its samples, and its entries in folder indexes.

The files are described in docs/tar_layout.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mm_assets.formats.storage import StorageOptions, filesystem, join

_IDX, _WIDS, _INFO, _SPLIT = ".idx", "index.json", ".nv-meta/.info.json", ".nv-meta/split.yaml"
_STATS = ".mm_assets/{}.json"
FOLDER_FILES = (_WIDS, "README.md", _INFO, _SPLIT, ".nv-meta/dataset.yaml")  # what all tars of a folder share


def tar_files(uri: str) -> list[str]:
    """Return a tar and the files that belong to it alone, existing or not."""
    folder, _, name = uri.rpartition("/")
    return [uri, f"{uri}{_IDX}", join(folder, _STATS.format(name))]


def has_index(uri: str, offsets: Sequence[int], options: StorageOptions | None = None) -> bool:
    """Return whether the tar's own index has exactly these sample ``offsets``, the last being the end."""
    return _content(f"{uri}{_IDX}", options) == struct.pack(f"<{len(offsets)}Q", *offsets)


def folder_problems(uri: str, samples: int, nbytes: int, options: StorageOptions | None = None) -> list[str]:
    """Return a line for each index file of the folder with another count of samples or bytes of the tar."""
    folder, _, file = uri.rpartition("/")
    problems = []
    for name, parse, expected in (
        (_WIDS, _listed, {"url": file, "nsamples": samples, "filesize": nbytes}),
        (_INFO, _counted, samples),
        (_SPLIT, _named, True),
    ):
        found = parse(_content(join(folder, name), options)).get(file)
        if found != expected:
            problems.append(
                f"{join(folder, name)}: has {json.dumps(found)} of {file}, not {json.dumps(expected)}"
            )
    return problems


def _content(uri: str, options: StorageOptions | None) -> bytes:
    fs, path = filesystem(uri, options)
    try:
        return bytes(fs.cat_file(path))
    except FileNotFoundError:
        return b""


@lru_cache(maxsize=1)  # the same file for all shards that a process examines
def _listed(text: bytes) -> Mapping[str, Any]:
    """Return the entries of a wids index by file; none if it is no such index."""
    try:
        return {entry["url"]: entry for entry in json.loads(text)["shardlist"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


@lru_cache(maxsize=1)
def _counted(text: bytes) -> Mapping[str, Any]:
    """Return the number of samples of each tar in Energon's info file."""
    try:
        return dict(json.loads(text)["shard_counts"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


@lru_cache(maxsize=1)
def _named(text: bytes) -> Mapping[str, Any]:
    """Return the tars in Energon's split file, which has one per line."""
    try:
        return dict.fromkeys(
            (json.loads(line[4:]) for line in text.splitlines() if line.startswith(b'  - "')), True
        )
    except ValueError:
        return {}
