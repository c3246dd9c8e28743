"""Names and constants of the tar layout, shared by reader and writer (see docs/tar_layout.md)."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

SAMPLE_ID = "sample_id"
TEXTS = "texts"
IMAGES = "images"
IMAGE_MEMBERS = "image_members"
ROW_EXTRA = "_row_extra"
ROW_ERRORS = "_row_errors"
# Column types, content types and locators for our own reader, which the lists only imply.
BOOKKEEPING = "_mm_assets"
# In `BOOKKEEPING`, for a sample of which only the id is known: fault class, reason and locator.
REFUSED = "refused"
# Suffix in a tar that is made when it is opened: stands for an original member that is no part of a sample.
UNPAIRED = "unpaired"
LEFT_OUT = "leftout"  # likewise, for one that macOS or a tar program had added
# Passthrough column with the content of the source record that rows cannot express.
SOURCE = "_source"

OWN_KEYS = frozenset({SAMPLE_ID, TEXTS, IMAGES, IMAGE_MEMBERS, ROW_EXTRA, ROW_ERRORS, BOOKKEEPING})

METADATA_TYPE = "application/json"
TEXT_TYPE = "text/plain"

MAX_MEMBER_BYTES = 1 << 30  # of an image; larger members are malicious or a mistake
MAX_JSON_BYTES = 256 << 20  # of a json member, for the same reason

# A list in the json is as long as the largest position. Without a limit a single malicious number would
# exhaust memory.
MAX_POSITION = 1_000_000
MAX_NAMED = 32  # columns of a tar that each entry names; of more, it names those in which it has a value
# Memory that the columns of one sample may take while built: this much, or in proportion to its json.
MAX_ROOM = 64 << 20
MAX_FIELDS = 10_000  # passthrough columns of one sample with all nested fields, for the same reason

DEFAULT_IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "tif", "tiff", "webp", "bmp", "gif")
DEFAULT_JSON_EXTENSIONS = ("json",)
TIFF_EXTENSIONS = ("tiff", "tif")

_SUFFIX = re.compile(r"[^\s./\\*?\[\]{}]+")

MERGED_PROTOCOL = "paired"  # of URLs of tars that are merged from those of single modalities
PDF_PROTOCOL = "pdf"  # of URLs of tars that are made of PDF files
MADE_WHEN_OPENED = (f"{MERGED_PROTOCOL}://", f"{PDF_PROTOCOL}://")

# Prefixes for sample ids that start anew in each shard: "shard" is the name of the partition.
SAMPLE_ID_PREFIXES = ("shard",)


@dataclass(frozen=True)
class RawLayout:
    """Layout of raw samples: the field and extension arguments of the reader."""

    sample_id_field: str | None = None
    sample_id_prefix: str | None = None
    texts_field: str = TEXTS
    images_field: str = IMAGES
    image_member_field: str | None = None
    per_image_fields: tuple[str, ...] = ()
    per_text_fields: tuple[str, ...] = ()
    image_extensions: tuple[str, ...] = DEFAULT_IMAGE_EXTENSIONS
    json_extensions: tuple[str, ...] = DEFAULT_JSON_EXTENSIONS

    def __post_init__(self) -> None:
        if self.sample_id_prefix not in (None, *SAMPLE_ID_PREFIXES):
            raise ValueError(
                f"sample_id_prefix must be one of {', '.join(SAMPLE_ID_PREFIXES)}, "
                f"not {self.sample_id_prefix!r}"
            )

    def is_json(self, name: str) -> bool:
        return extension(name) in self.json_extensions

    def is_image(self, name: str) -> bool:
        return extension(name) in self.image_extensions


def extension(name: str) -> str:
    """Return the lower-case suffix without its dot; empty if there is none."""
    dot, base = name.rfind("."), name.rfind("/") + 1
    if dot <= base or not name[base:dot].strip("."):  # like `posixpath.splitext`, three times as fast
        return ""
    return name[dot + 1 :].lower()


def sample_stem(name: str) -> str:
    """Return a member's path without its last suffix: the key of its sample."""
    return posixpath.splitext(name)[0]


def normal_extensions(extensions: tuple[str, ...]) -> tuple[str, ...]:
    """Return extensions in lower case, without a leading dot.

    Raises:
        ValueError: one of them has a dot, a slash, a space or a wildcard in it, or nothing.
    """
    found = tuple(item.lower().lstrip(".") for item in extensions)
    for written, suffix in zip(extensions, found, strict=True):
        if not _SUFFIX.fullmatch(suffix):
            raise ValueError(f"{written!r} is no suffix of a file name, such as jpg")
    return found


def is_native_layout(payload: dict[str, object]) -> bool:
    """Return True if a json is in our native layout, or that of the three-format notebook.

    Its references are WebDataset keys.
    """
    extra = payload.get(ROW_EXTRA)
    return isinstance(extra, dict) and extra.keys() <= {"text", "image", "metadata"}
