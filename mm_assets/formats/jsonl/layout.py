"""Names of the format: the lines of a partition, and the tar with their images beside them."""

from __future__ import annotations

import posixpath
import re

from mm_assets.formats.format_table import format_of

SUFFIXES = format_of("jsonl").suffixes
WRITTEN = format_of("jsonl").written
IMAGES_SUFFIX = ".images.tar"
IMAGES_TAR = "images_tar"  # field of a line of ours: the name of the tar beside it

_IMAGES = re.compile(rf"(.+)\.[0-9a-f]{{16}}{re.escape(IMAGES_SUFFIX)}")

# Where the images of lines of others are, which name no tar: it is called like the lines.
TARS_OF_OTHERS = (IMAGES_SUFFIX, ".tar")


def stem_of(uri: str) -> str:
    """A file of lines without its suffix."""
    return next((uri[: -len(suffix)] for suffix in SUFFIXES if uri.lower().endswith(suffix)), uri)


def images_name(stem: str, digest: str) -> str:
    """The name of a tar of images: with other bytes it has another name, so that none is ever overwritten."""
    return f"{posixpath.basename(stem)}.{digest}{IMAGES_SUFFIX}"


def lines_of(name: str) -> str | None:
    """The lines, without their suffix, that a tar of this name is of; None where it is no such tar."""
    found = _IMAGES.fullmatch(name)
    return None if found is None else found[1]


def is_plain_name(name: object) -> bool:
    """Whether a line names a tar of images beside it, and nothing elsewhere."""
    return (
        isinstance(name, str)
        and name.endswith(IMAGES_SUFFIX)
        and "/" not in name
        and not name.startswith(".")
    )
