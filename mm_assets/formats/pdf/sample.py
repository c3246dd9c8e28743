"""One PDF as members of a tar in the native layout: its images, then the json of the sample."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import IO, Any

import pyarrow as pa

from mm_assets.formats.pdf.block_file import parse_blocks
from mm_assets.formats.pdf.document import open_document, unreadable
from mm_assets.formats.pdf.images import Picture
from mm_assets.formats.pdf.items import Item, items_by_blocks, items_by_layout, page_sizes
from mm_assets.formats.pdf.names import block_name
from mm_assets.formats.pdf.source import PdfInput
from mm_assets.formats.tar.writer import FileRange
from mm_assets.formats.webdataset.layout import (
    BOOKKEEPING,
    IMAGE_MEMBERS,
    IMAGES,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    TEXTS,
)
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.faults import Fault
from mm_assets.interleaved.json_values import build_column, dumps, json_field
from mm_assets.interleaved.schema_text import schema_to_text
from mm_assets.interleaved.source_ref import build_source_ref

MAX_IMAGE_BYTES = 1 << 30  # of all images of a document
MAX_TEXT = 64 << 20  # characters of all texts of a document

# The same for every PDF, so that shards do not differ in their columns.
SCHEMA = pa.schema(
    [
        pa.field("pages", pa.int64()),
        pa.field("title", pa.string()),
        pa.field("author", pa.string()),
        json_field("page_sizes"),
        pa.field("page", pa.int64()),
        pa.field("box", pa.list_(pa.float64())),
        pa.field("block_type", pa.string()),
    ]
)


class Scratch:
    """A temporary file for the images of one PDF at a time, so that they are not held in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = 0

    def clear(self) -> None:
        """Forget all bytes."""
        self._file.truncate(0)
        self._size = 0

    def add(self, data: bytes, place: str) -> FileRange:
        """Return where the bytes are now.

        Raises:
            SampleError: the images of the document named ``place`` are too large together.
        """
        if self._size + len(data) > MAX_IMAGE_BYTES:
            raise unreadable(place, f"its images take more than {MAX_IMAGE_BYTES} bytes")
        self._file.seek(self._size)
        self._file.write(data)
        self._file.flush()
        self._size += len(data)
        return FileRange(self._file.fileno(), self._size - len(data), len(data))


def members_of(
    pdf: PdfInput, sample_id: str, stem: str, scratch: Scratch
) -> list[tuple[str, FileRange | bytes]]:
    """Return the members of one PDF, the json last.

    Args:
        pdf: the file.
        sample_id: id of the sample.
        stem: beginning of all names of members.
        scratch: takes the images; what was in it is forgotten.

    Raises:
        SampleError: the PDF, or its block file, cannot be used.
    """
    scratch.clear()
    data = pdf.read()
    members: list[tuple[str, FileRange | bytes]] = []
    sample = _Sample(pdf)
    with open_document(data, pdf.place) as document:
        sample.add_metadata(page_sizes(document, pdf.place), document.get_metadata_dict())
        with closing(_items(document, data, pdf)) as items:
            for item in items:
                name = sample.add(item)
                if isinstance(item.content, Picture):
                    members.append((f"{stem}.{name}", scratch.add(item.content.data, pdf.place)))
    return [*members, (f"{stem}.json", dumps(sample.payload(sample_id, stem)).encode())]


def _items(document: Any, data: bytes, pdf: PdfInput) -> Generator[Item, None, None]:
    if pdf.blocks is None:
        return items_by_layout(document, data, pdf.place)
    try:
        blocks = parse_blocks(pdf.blocks.read(), len(document), pdf.blocks.place)
    except SampleError as error:
        error.source_ref = pdf.blocks.ref
        raise
    return items_by_blocks(document, data, blocks, pdf.place)


class _Sample:
    """The json of a sample as it grows."""

    def __init__(self, pdf: PdfInput) -> None:
        self._pdf = pdf
        self._texts: list[str | None] = []
        self._images: list[str | None] = []
        self._extras: dict[str, list[dict[str, Any] | None]] = {"text": [], "image": []}
        self._errors: list[dict[str, Any]] = []
        self._metadata: dict[str, Any] = {}
        self._refs = [pdf.ref]
        self._rows: dict[str, Any] = {"metadata": {"ref": 0}, "text": {}, "image": {}}
        self._characters = 0

    def add_metadata(self, sizes: Sequence[Sequence[float]], information: dict[str, str]) -> None:
        self._metadata = {
            "pages": len(sizes),
            "title": _clean(information.get("Title")),
            "author": _clean(information.get("Author")),
            "page_sizes": [list(size) for size in sizes],
        }

    def add(self, item: Item) -> str | None:
        """Add an item at the next position, and return the name of its picture."""
        position, content = len(self._texts), item.content
        text = content if isinstance(content, str) else None
        self._characters += len(text or "")
        if self._characters > MAX_TEXT:
            raise unreadable(self._pdf.place, f"more than {MAX_TEXT} characters of text")
        name = f"{position}.{content.suffix}" if isinstance(content, Picture) else None
        modality = "text" if text is not None else "image"
        extra = _encoded({"page": item.page, "box": item.box, "block_type": item.kind})
        self._texts.append(text)
        self._images.append(name)
        self._extras["text"].append(extra if text is not None else None)
        self._extras["image"].append(extra if name is not None else None)
        self._rows[modality][str(position)] = {"ref": len(self._refs)}
        self._refs.append(self._ref(item))
        if isinstance(content, Fault):
            self._errors.append(
                {
                    "modality": modality,
                    "position": position,
                    "materialize_error": content.message,
                    "extra": extra,
                }
            )
        return name

    def _ref(self, item: Item) -> str:
        """Return the locator of an item: a picture that lies in the file as it is has a place in bytes."""
        name = block_name(self._pdf.member, item.page, item.number)
        if isinstance(item.content, Picture) and item.content.offset is not None:
            at = self._pdf.offset + item.content.offset
            return build_source_ref(self._pdf.path, name, at, len(item.content.data))
        return build_source_ref(self._pdf.path, name)

    def payload(self, sample_id: str, stem: str) -> dict[str, Any]:
        return {
            SAMPLE_ID: sample_id,
            TEXTS: self._texts,
            IMAGES: self._images,
            IMAGE_MEMBERS: [None if name is None else f"{stem}.{name}" for name in self._images],
            ROW_EXTRA: {"metadata": _encoded(self._metadata), **self._extras},
            ROW_ERRORS: self._errors,
            BOOKKEEPING: {"schema": schema_to_text(SCHEMA), "refs": self._refs, "rows": self._rows},
        }


def _encoded(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of columns as a json of ours has them."""
    encoded = {}
    for name, value in values.items():
        column = SCHEMA.field(name)
        encoded[name] = json_codec.encode(build_column([value], column), column)[0]
    return {name: value for name, value in encoded.items() if value is not None}


def _clean(text: str | None) -> str | None:
    """Return an entry of the document's information; None for none. Half a surrogate pair is replaced."""
    if not text:
        return None
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "")
