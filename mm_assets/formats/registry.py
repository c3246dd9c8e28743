"""Registry of formats: detection of a dataset's format, and its reader and writer by name."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from mm_assets.formats.names import FORMATS as FORMATS
from mm_assets.formats.names import (
    SHOWN,
    format_by_suffix,
    format_of,
    listed,
    passed_over_line,
    tars_first,
    without_sidecars,
)
from mm_assets.formats.names import SUFFIXES as SUFFIXES
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.writer import InterleavedWriter
from mm_assets.model.errors import warn_user
from mm_assets.storage.errors import absent
from mm_assets.storage.files import StorageOptions, filesystem
from mm_assets.storage.listing import expand_paths, names_in, packed_line, pdf_line


def detect_format(source: str, options: StorageOptions | None = None) -> str:
    """Return the format of a file, folder, glob or URL, by names alone.

    Parquet files beside tars, and JSON lines beside any other data, are ignored, with a warning.

    Raises:
        FileNotFoundError: for a path that does not exist, and for a folder without data.
        ValueError: for a folder with several formats, and for a file of an unknown kind.
    """
    named = format_by_suffix(os.fspath(source))
    if named is not None:
        return named.name
    fs, path = filesystem(source, options)
    if not fs.isdir(path):
        if fs.exists(path):
            raise ValueError("".join(packed_line(source, [source])) or f"{source}: no {SHOWN}")
        if not any(c in source for c in "*?[{"):
            raise absent(source, fs, path, "file or folder")
        names = expand_paths(source, SUFFIXES, options)
    else:
        names = names_in(source, options)
    names, incidental = _without_incidental(names)
    if incidental:
        warn_user(_incidental_line(source, incidental))
    names, passed_over = tars_first(names)
    found = _formats_of(names)
    if passed_over and len(found) == 1:
        warn_user(passed_over_line(source, passed_over))
    elif passed_over:
        found |= _formats_of(passed_over)
    if not found:
        nothing = f"{source}: no {SHOWN} here"
        raise FileNotFoundError("; ".join([nothing, *packed_line(source, names), *pdf_line(source, names)]))
    if len(found) > 1:
        raise ValueError(
            f"{source}: holds {' and '.join(sorted(found))}; "
            "name one of them, by its folder or a pattern of its files"
        )
    return found.pop()


def other_formats(folder: str, kind: str, options: StorageOptions | None = None) -> list[str]:
    """Return the formats of data in a folder or below a URL prefix other than ``kind``, sorted.

    The list is empty for a folder that does not exist, and for a table: its records are files, too.
    """
    fs, path = filesystem(folder, options)
    if not fs.isdir(path) or (format_of(kind).is_table and format_of(kind).has(path)):
        return []
    names, _ = _without_incidental(names_in(folder, options))
    return sorted(_formats_of(names) - {kind})


def reader_for(kind: str, source: str | list[str], **arguments: Any) -> InterleavedReader:
    """Return a reader of the named format."""
    reader: InterleavedReader = _imported(format_of(kind).reader)(source, **arguments)
    return reader


def writer_for(kind: str, path: str, **arguments: Any) -> InterleavedWriter:
    """Return a writer of the named format."""
    writer: InterleavedWriter = _imported(format_of(kind).writer)(path, **arguments)
    return writer


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def _without_incidental(names: list[str]) -> tuple[list[str], list[str]]:
    """Split names into data, without sidecars, and files of formats that give way to the others there.

    Where a format has sidecars, its files are data.
    """
    data = without_sidecars(names)
    ways = {name for name in _formats_of(data) if format_of(name).gives_way}
    if len(data) < len(names) or ways == _formats_of(data):
        return data, []
    incidental = [name for name in data if _formats_of([name]) & ways]
    return [name for name in data if name not in set(incidental)], incidental


def _incidental_line(source: str, names: list[str]) -> str:
    """Return the line about files that are ignored beside other data."""
    many = f"{len(names)} files" if len(names) > 1 else "1 file"
    kinds = listed(format_of(name).title for name in sorted(_formats_of(names)))
    example = posixpath.basename(names[0])
    ignored = f"{many} of {kinds} beside other data ignored, such as {example}"
    return f"{source}: {ignored}; name the files to read them"


def _formats_of(names: Iterable[str]) -> set[str]:
    return {found.name for name in names if (found := format_by_suffix(name)) is not None}
