"""Canonical sources of a dataset that a user names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mm_assets.accounting.canonical.source import CanonicalSource
from mm_assets.formats.format_table import format_of
from mm_assets.formats.listing import expand_paths
from mm_assets.formats.local_tree import ORIGINS_BESIDE
from mm_assets.formats.partitions import partition_name, root_of_locations
from mm_assets.formats.registry import SUFFIXES, detect_format, reader_for
from mm_assets.formats.storage import absolute, exists, is_remote, join


def canonical_sources(
    source: str, layout_of: Callable[[str, str], Mapping[str, Any]] = lambda *_: {}
) -> list[CanonicalSource]:
    """Return the files, or Lance tables, of a file, folder, glob, brace list or URL of one format.

    Args:
        source: path or URL.
        layout_of: returns for a format and source how files of other tools are read. Their locators and
            partitions are named as in ``mm-assets convert``.

    An output into which only inputs without samples were converted has none: no empty tar is written, but the
    inputs are noted.

    Raises as `detect_format` does.
    """
    source = absolute(source)
    try:
        kind = detect_format(source)
    except FileNotFoundError:
        if exists(join(source, ORIGINS_BESIDE)):
            return []
        raise
    entry = format_of(kind)
    if entry.is_table:
        return [
            CanonicalSource(kind, uri)
            for uri in dict.fromkeys(part.files[0] for part in reader_for(kind, source).partitions())
        ]
    root = root_of_locations([source], SUFFIXES)
    relative_to = None if is_remote(source) else root
    layout = layout_of(kind, source)
    files = expand_paths(source, entry.suffixes)
    return [CanonicalSource(kind, file, partition_name(file, root), relative_to, layout) for file in files]
