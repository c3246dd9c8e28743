"""Which format a dataset is in, and the reader and writer of a format by its name."""

from __future__ import annotations

import os
from typing import Any

from mm_assets.formats.absent_paths import absent
from mm_assets.formats.listing import expand_paths, names_in, packed_line
from mm_assets.formats.raw_files import passed_over_line, tars_first
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.storage import StorageOptions, filesystem
from mm_assets.formats.writer import InterleavedWriter
from mm_assets.interleaved.notices import warn_user

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

    Parquet files beside tars are passed over, with a warning. Raises ``FileNotFoundError`` for what is not
    there and for a folder without data, ``ValueError`` for one with several others and for a file of another
    kind.
    """
    named = _by_suffix(source)
    if named is not None:
        return named
    fs, path = filesystem(source, options)
    if not fs.isdir(path):
        if fs.exists(path):
            raise ValueError(
                "".join(packed_line(source, [source]))
                or f"{source}: no .tar, .parquet, .lance or _metadata.json of a cache"
            )
        if not any(c in source for c in "*?[{"):
            raise absent(source, fs, path, "file or folder")
        names = expand_paths(source, tuple(_SUFFIXES), options)
    else:
        names = names_in(source, options)
    names, passed_over = tars_first(names)
    found = {kind for name in names if (kind := _by_suffix(name)) is not None}
    if passed_over and found == {"webdataset"}:
        warn_user(passed_over_line(source, passed_over))
    elif passed_over:
        found.add("parquet")
    if not found:
        nothing = f"{source}: no .tar, .parquet, .lance or _metadata.json of a cache here"
        raise FileNotFoundError("; ".join([nothing, *packed_line(source, names)]))
    if len(found) > 1:
        raise ValueError(
            f"{source}: holds {' and '.join(sorted(found))}; name one of them, by its folder or a pattern of its files"
        )
    return found.pop()


def other_formats(folder: str, kind: str, options: StorageOptions | None = None) -> list[str]:
    """The formats of data in a folder or below a URL prefix but ``kind``, sorted; none where there is no
    folder.
    """
    fs, path = filesystem(folder, options)
    if not fs.isdir(path):
        return []
    return sorted(
        {found for name in names_in(folder, options) if (found := _by_suffix(name)) is not None} - {kind}
    )


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
