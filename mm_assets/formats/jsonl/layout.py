"""File names of the format: the lines of a partition, and the tar with their images."""

from __future__ import annotations

import posixpath
import re

from mm_assets.formats.format_table import format_of

SUFFIXES = format_of("jsonl").suffixes
WRITTEN = format_of("jsonl").written
IMAGES_SUFFIX = ".images.tar"
IMAGES_TAR = "images_tar"  # field of a line: name of the tar with its images

_IMAGES = re.compile(rf"(.+)\.[0-9a-f]{{16}}{re.escape(IMAGES_SUFFIX)}")

# Lines of others name no tar: theirs has the same name as the lines, with one of these suffixes.
TARS_OF_OTHERS = (IMAGES_SUFFIX, ".tar")


def stem_of(uri: str) -> str:
    """Return the path of a file of lines without its suffix."""
    return next((uri[: -len(suffix)] for suffix in SUFFIXES if uri.lower().endswith(suffix)), uri)


def images_name(stem: str, digest: str) -> str:
    """Return the name of a tar of images.

    Other bytes have another name, so that no tar is ever overwritten.
    """
    return f"{posixpath.basename(stem)}.{digest}{IMAGES_SUFFIX}"


def lines_of(name: str) -> str | None:
    """Return the name of the lines, without suffix, that a tar of images belongs to; None for other tars."""
    found = _IMAGES.fullmatch(name)
    return None if found is None else found[1]


def is_plain_name(name: object) -> bool:
    """Return whether a value names a tar of images in the same folder, and nothing elsewhere."""
    return (
        isinstance(name, str)
        and name.endswith(IMAGES_SUFFIX)
        and "/" not in name
        and not name.startswith(".")
    )
