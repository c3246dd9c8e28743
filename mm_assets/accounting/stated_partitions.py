"""Partitions that the files of a folder belong to, as their names state, without opening them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

from mm_assets.formats.parquet_file import read_buffer
from mm_assets.formats.storage import StorageOptions, filesystem

_THREADS = 16  # object stores answer in ~50 ms


def stated_partitions(folder: str, suffix: str, options: StorageOptions | None = None) -> list[str]:
    """Return the partitions that the files of a folder belong to, by name or content; none without a folder.

    A file that tells its partition by neither is listed under its file name.

    Args:
        folder: a folder with one file per partition.
        suffix: suffix of these files; others are left out.
        options: for the file system.
    """
    fs, path = filesystem(folder, options)
    fs.invalidate_cache()
    try:
        files = [str(file) for file in fs.ls(path, detail=False)]
    except FileNotFoundError:
        return []
    names = {file: file.rpartition("/")[2] for file in files}
    stems = {
        file: name.removesuffix(suffix)
        for file, name in names.items()
        if name.endswith(suffix) and not name.startswith(".")
    }

    def partition_inside(file: str) -> str | None:
        try:
            return _stated(fs.cat_file(file), suffix) or stems[file]
        except FileNotFoundError:  # removed since the listing
            return None

    # File names longer than 80 characters are digests: only the content tells the shard's name.
    digests = [file for file, stem in stems.items() if stem.startswith("=")]
    with ThreadPoolExecutor(_THREADS) as threads:
        inside = dict(zip(digests, threads.map(partition_inside, digests), strict=True))
    found = (inside[file] if file in inside else unquote(stem) for file, stem in stems.items())
    return [partition for partition in found if partition is not None]


def _stated(data: bytes, suffix: str) -> str | None:
    """Return the shard named inside a record, a proof or a ledger table; None if it cannot be read."""
    try:
        if suffix == ".parquet":
            return str(read_buffer(data, ["partition"]).column(0)[0].as_py())
        fields = json.loads(data)
        return str(fields.get("key") or fields["partition"])
    except (ValueError, LookupError, AttributeError, OSError, RecursionError):
        return None
