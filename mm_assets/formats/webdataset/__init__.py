"""WebDataset tars: names and limits of our layout (see docs/tar_layout.md), and its strict JSON.

`RawLayout` says where raw samples have their fields. `parse_payload` parses a sample's json member strictly:
nothing in it is lost silently. The readers of raw samples and of our layout, and the writer of the latter,
are the modules of this room.
"""

from __future__ import annotations

import codecs
import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mm_assets.formats.document_layouts import LAYOUT_NAMES
from mm_assets.model.errors import BAD_JSON, FAULTS, LONE_SURROGATE, NOT_AN_OBJECT, NOT_UTF8, ShardError
from mm_assets.model.json_codec import is_too_deep

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
PLUGIN_PROTOCOL = "plugin"  # of URLs of tars that are made of documents of a plugin
FOLDER_PROTOCOL = "folder"  # of URLs of tars that have the files of folders
# Of tars with samples in our layout; then of all that are made when they are opened.
MADE_SCHEMES = tuple(f"{protocol}://" for protocol in (MERGED_PROTOCOL, PDF_PROTOCOL, PLUGIN_PROTOCOL))
VIRTUAL_SCHEMES = (*MADE_SCHEMES, f"{FOLDER_PROTOCOL}://")

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
    document_layout: str | None = None  # None: found by looking at the documents
    images_from: str = ""
    declared_digests: str | None = None  # one of `DECLARED_DIGESTS`

    def __post_init__(self) -> None:
        if self.sample_id_prefix not in (None, *SAMPLE_ID_PREFIXES):
            raise ValueError(
                f"sample_id_prefix must be one of {', '.join(SAMPLE_ID_PREFIXES)}, "
                f"not {self.sample_id_prefix!r}"
            )
        if self.document_layout not in (None, *LAYOUT_NAMES):
            raise ValueError(
                f"document_layout must be one of {', '.join(LAYOUT_NAMES)}, not {self.document_layout!r}"
            )

    @property
    def looks(self) -> bool:
        """True if documents are looked at to find their layout. Lists with a value per item name one."""
        return self.document_layout is None and not (self.per_image_fields or self.per_text_fields)

    def is_json(self, name: str) -> bool:
        return extension(name) in self.json_extensions

    def is_image(self, name: str) -> bool:
        return extension(name) in self.image_extensions


_LATER_FIELDS = ("document_layout", "images_from", "declared_digests")


def stated_fields(layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `RawLayout`, without what is not set and was not known to older outputs.

    Digests of layouts, and of what is made with them, stay as they were.
    """
    return {name: value for name, value in layout.items() if value or name not in _LATER_FIELDS}


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


def native_payload(
    sample_id: str,
    key: str,
    texts: Sequence[str | None],
    images: Sequence[str | None],
    extra: Mapping[str, Any],
    errors: Sequence[Mapping[str, Any]],
    types: str,
    refs: Sequence[str],
    rows: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the json of a sample in our native layout (see docs/tar_layout.md).

    Args:
        sample_id: its id.
        key: its WebDataset key.
        texts: the texts by position.
        images: ``<position>.<ext>`` by position.
        extra: values of columns by modality.
        errors: the rows with an error, or without content.
        types: the types of the columns, as text.
        refs: the locators.
        rows: by modality and position, what the lists do not say of a row.
    """
    return {
        SAMPLE_ID: sample_id,
        TEXTS: texts,
        IMAGES: images,
        IMAGE_MEMBERS: [None if image is None else f"{key}.{image}" for image in images],
        ROW_EXTRA: extra,
        ROW_ERRORS: errors,
        BOOKKEEPING: {"schema": types, "refs": refs, "rows": rows},
    }


# Results of number literals beyond float64. Python's JSON writes infinities as names, not as numbers.
_INFINITE = (float("inf"), float("-inf"))
# Found in any number beyond float64. Without a match, numbers need no slow `parse_float` callback.
_MAYBE_INFINITE = re.compile(r"[eE]\+?\d{3}|\d{200}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class SampleError(ShardError):
    """One sample cannot be read.

    ``kind`` is the fault class (see `mm_assets.model.errors`); the message names file, member and
    field. ``sample_id`` is the id that the sample states, if that could be read. ``source_ref`` locates the
    fault, if it is not in the sample's json.
    """

    def __init__(self, kind: str, message: str) -> None:
        if kind not in FAULTS:
            raise ValueError(f"no class of faults: {kind!r}")
        super().__init__(message)
        self.kind = kind
        self.sample_id: str | None = None
        self.source_ref: str | None = None


@contextmanager
def naming_sample(sample_id: str) -> Iterator[None]:
    """Set the sample id of errors raised in the block."""
    try:
        yield
    except SampleError as error:
        error.sample_id = sample_id
        raise


def parse_payload(data: bytes, place: str) -> dict[str, Any]:
    """Return the JSON object of a sample.

    Raises:
        SampleError: Bad JSON, bad UTF-8, a repeated key, a number beyond float64, a lone surrogate, or no
            object.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        utf16, utf32 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), codecs.BOM_UTF32_LE
        if data.startswith(utf16) and not data.startswith(utf32):
            raise SampleError(NOT_UTF8, f"{place}: not UTF-8, but UTF-16: write it as UTF-8") from error
        raise SampleError(NOT_UTF8, f"{place}: not UTF-8: {error}") from error
    try:
        if is_too_deep(text):  # it could not be written again
            raise RecursionError
        parse_float = _finite if _MAYBE_INFINITE.search(text) else None
        payload = json.loads(text, object_pairs_hook=_object, parse_float=parse_float)
    except RecursionError as error:
        raise SampleError(BAD_JSON, f"{place}: JSON is nested too deeply") from error
    except ValueError as error:
        raise SampleError(BAD_JSON, f"{place}: not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise SampleError(NOT_AN_OBJECT, f"{place}: JSON is no object but {type(payload).__name__}")
    if _SURROGATE.search(data):
        try:
            json.dumps(payload, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise SampleError(
                LONE_SURROGATE, f"{place}: lone surrogate in JSON: {error.object[error.start]!a}"
            ) from error
    return payload


def _finite(literal: str) -> float:
    value = float(literal)
    if value in _INFINITE:
        raise ValueError(f"the number {literal:.100} is larger than any float64")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {repeated!r:.200} occurs twice in one object")
    return result
