"""Which format a dataset is in, and the reader and writer of a format by its name."""

from __future__ import annotations

import os
from typing import Any

from mm_assets.formats.absent_paths import absent
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.storage import StorageOptions, expand_paths, filesystem, is_beside
from mm_assets.formats.writer import InterleavedWriter

FORMATS = ("parquet", "webdataset", "lance", "arrow_cache")
_SUFFIXES = {
    ".parquet": "parquet",
    ".tar": "webdataset",
    ".tar.gz": "webdataset",
    ".tgz": "webdataset",
    ".lance": "lance",
    "/_metadata.json": "arrow_cache",
}
SUFFIXES = tuple(_SUFFIXES)


def detect_format(source: str, options: StorageOptions | None = None) -> str:
    """The format of a file, folder, glob or URL, from names alone.

    Raises ``FileNotFoundError`` for what is not there and for a folder without data, ``ValueError`` for one with several formats and for
    a file of another kind.
    """
    named = _by_suffix(source)
    if named is not None:
        return named
    fs, path = filesystem(source, options)
    if not fs.isdir(path):
        if fs.exists(path):
            raise ValueError(f"{source}: no .tar, .parquet, .lance or _metadata.json of a cache")
        if not any(c in source for c in "*?[{"):
            raise absent(source, fs, path, "file or folder")
        names = expand_paths(source, tuple(_SUFFIXES), options)
    else:
        names = _entries(fs, path)
    found = {kind for name in names if (kind := _by_suffix(name)) is not None}
    if not found:
        raise FileNotFoundError(f"{source}: no .tar, .parquet, .lance or _metadata.json of a cache here")
    if len(found) > 1:
        raise ValueError(f"{source}: holds {' and '.join(sorted(found))}; name one of them, by its folder or a pattern of its files")
    return found.pop()


def reader_for(kind: str, source: str | list[str], **arguments: Any) -> InterleavedReader:
    """A reader of the named format."""
    if kind == "parquet":
        from mm_assets.formats.parquet import InterleavedParquetReader

        return InterleavedParquetReader(source, **arguments)
    if kind == "webdataset":
        from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader

        return InterleavedWebdatasetReader(source, **arguments)
    if kind == "lance":
        from mm_assets.formats.lance.reader import InterleavedLanceReader

        return InterleavedLanceReader(source, **arguments)
    if kind == "arrow_cache":
        from mm_assets.formats.arrow_cache.interleaved_reader import InterleavedArrowCacheReader

        return InterleavedArrowCacheReader(source, **arguments)
    raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {kind!r}")


def writer_for(kind: str, path: str, **arguments: Any) -> InterleavedWriter:
    """A writer of the named format."""
    if kind == "parquet":
        from mm_assets.formats.parquet import InterleavedParquetWriter

        return InterleavedParquetWriter(path, **arguments)
    if kind == "webdataset":
        from mm_assets.formats.webdataset.writer import InterleavedWebdatasetWriter

        return InterleavedWebdatasetWriter(path, **arguments)
    if kind == "lance":
        from mm_assets.formats.lance.writer import InterleavedLanceWriter

        return InterleavedLanceWriter(path, **arguments)
    if kind == "arrow_cache":
        from mm_assets.formats.arrow_cache.interleaved_writer import InterleavedArrowCacheWriter

        return InterleavedArrowCacheWriter(path, **arguments)
    raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {kind!r}")


def _by_suffix(name: str) -> str | None:
    lowered = f"/{os.fspath(name).rstrip('/').lower()}"
    return next((kind for suffix, kind in _SUFFIXES.items() if lowered.endswith(suffix)), None)


def _entries(fs: Any, path: str) -> list[str]:
    """Names below a folder, not looking into Lance datasets or folders beside the data."""
    names: list[str] = []
    for folder, folders, files in fs.walk(path):
        names.extend(files)
        names.extend(name for name in list(folders) if name.endswith(".lance"))
        for name in [n for n in list(folders) if n.endswith(".lance") or is_beside(n)]:
            if isinstance(folders, dict):
                folders.pop(name)
            else:
                folders.remove(name)
        del folder
    return names
