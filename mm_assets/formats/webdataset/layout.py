"""Names and constants of the tar layout: what readers look for and the writer puts in (DESIGN 6,
docs/architecture.md).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

SAMPLE_ID = "sample_id"
TEXTS = "texts"
IMAGES = "images"
IMAGE_MEMBERS = "image_members"
ROW_EXTRA = "_row_extra"
ROW_ERRORS = "_row_errors"
BOOKKEEPING = (
    "_mm_assets"  # what the lists only imply, for our own reader: column types, content types, locators
)
REFUSED = (
    "refused"  # in `BOOKKEEPING`: class, reason and locator, where there is nothing of the sample but its id
)
UNPAIRED = "unpaired"  # suffix in the tar that paired ones are merged into: tells of a member of theirs that has no key
SOURCE = "_source"  # passthrough column: what the source record said that rows cannot

OWN_KEYS = frozenset({SAMPLE_ID, TEXTS, IMAGES, IMAGE_MEMBERS, ROW_EXTRA, ROW_ERRORS, BOOKKEEPING})

METADATA_TYPE = "application/json"
TEXT_TYPE = "text/plain"

MAX_MEMBER_BYTES = 1 << 30  # of an image; a larger member is an attack or a mistake
MAX_JSON_BYTES = 256 << 20  # of a json member, likewise

# A list in the json is as long as the largest position: beyond this a single hostile number would exhaust
# memory.
MAX_POSITION = 1_000_000
MAX_FIELDS = 10_000  # passthrough columns of one sample, and what their types are made of, likewise

DEFAULT_IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "tif", "tiff", "webp", "bmp", "gif")
DEFAULT_JSON_EXTENSIONS = ("json",)
TIFF_EXTENSIONS = ("tiff", "tif")

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
PACKED_TAR_SUFFIXES = (  # not read
    *(
        ".tar.bz2",
        ".tbz2",
        ".tbz",
        ".tar.xz",
        ".txz",
        ".tar.zst",
        ".tzst",
        ".tar.lz4",
        ".tar.lzma",
        ".tlz",
        ".tar.lz",
    ),
    *(".tar.br", ".tar.sz", ".tar.z", ".taz"),
)

# What may stand in front of sample ids that start anew in each shard: the name of the partition.
SAMPLE_ID_PREFIXES = ("shard",)


@dataclass(frozen=True)
class RawLayout:
    """How raw samples name their parts: the field and extension arguments of the reader."""

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
                f"sample_id_prefix must be one of {', '.join(SAMPLE_ID_PREFIXES)}, not {self.sample_id_prefix!r}"
            )

    def is_json(self, name: str) -> bool:
        return extension(name) in self.json_extensions

    def is_image(self, name: str) -> bool:
        return extension(name) in self.image_extensions


def extension(name: str) -> str:
    """Lower-case suffix without its dot; empty when there is none."""
    dot, base = name.rfind("."), name.rfind("/") + 1
    if dot <= base or not name[base:dot].strip("."):  # as `posixpath.splitext`, in a third of its time
        return ""
    return name[dot + 1 :].lower()


def sample_stem(name: str) -> str:
    """A member's path without its last suffix: the key of the sample that it tells of."""
    return posixpath.splitext(name)[0]


def normal_extensions(extensions: tuple[str, ...]) -> tuple[str, ...]:
    """Extensions in lower case, without a leading dot."""
    return tuple(item.lower().lstrip(".") for item in extensions)


def is_native_layout(payload: dict[str, object]) -> bool:
    """Whether a json is of our layout (or the three-format notebook's), whose references are WebDataset keys."""
    extra = payload.get(ROW_EXTRA)
    return isinstance(extra, dict) and extra.keys() <= {"text", "image", "metadata"}
