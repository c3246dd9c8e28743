"""What the files beside a tar say of it: Energon's index of its samples, and its entries in those of the
folder (docs/tar_layout.md).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mm_assets.formats.storage import StorageOptions, filesystem, join

_IDX, _WIDS, _INFO, _SPLIT = ".idx", "index.json", ".nv-meta/.info.json", ".nv-meta/split.yaml"


def has_index(uri: str, offsets: Sequence[int], options: StorageOptions | None = None) -> bool:
    """Whether the tar's own index leads to its samples, which begin at ``offsets``; the last of these is the
    end.
    """
    return _content(f"{uri}{_IDX}", options) == struct.pack(f"<{len(offsets)}Q", *offsets)


def folder_problems(uri: str, samples: int, nbytes: int, options: StorageOptions | None = None) -> list[str]:
    """One line for each index file of the folder that does not say how many samples the tar has, in how many
    bytes.
    """
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


@lru_cache(maxsize=1)  # it is the same for all shards that a process examines
def _listed(text: bytes) -> Mapping[str, Any]:
    """Entries of a wids index, by file; none of what is no such index."""
    try:
        return {entry["url"]: entry for entry in json.loads(text)["shardlist"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


@lru_cache(maxsize=1)
def _counted(text: bytes) -> Mapping[str, Any]:
    """How many samples Energon's file says that each tar has."""
    try:
        return dict(json.loads(text)["shard_counts"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


@lru_cache(maxsize=1)
def _named(text: bytes) -> Mapping[str, Any]:
    """The tars that Energon's split names, each in a line of its own."""
    try:
        return dict.fromkeys(
            (json.loads(line[4:]) for line in text.splitlines() if line.startswith(b'  - "')), True
        )
    except ValueError:
        return {}
