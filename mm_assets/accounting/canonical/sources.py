"""Where the rows of a dataset lie that a user names."""

from __future__ import annotations

from mm_assets.accounting.canonical.place import Place
from mm_assets.formats.listing import expand_paths
from mm_assets.formats.partitions import root_of_locations
from mm_assets.formats.registry import SUFFIXES, detect_format, reader_for
from mm_assets.formats.storage import absolute, is_remote


def places_of(source: str) -> list[Place]:
    """The files, or Lance tables, of a file, folder, glob, brace list or URL of one format.

    The locators of local raw tars are relative to the same folder as in ``mm-assets convert``. Raises as `detect_format` does.
    """
    source = absolute(source)
    kind = detect_format(source)
    if kind == "lance":
        return [Place(kind, uri) for uri in dict.fromkeys(part.files[0] for part in reader_for(kind, source).partitions())]
    root = None if is_remote(source) else root_of_locations([source], SUFFIXES)
    files = expand_paths(source, reader_for(kind, source).suffixes)
    return [Place(kind, file, relative_to=root) for file in files]
