"""One PDF as members of a tar in the native layout: its images, then the json of the sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa

from mm_assets.formats.pdf.answers import MAX_TEXT, Description, Keep
from mm_assets.formats.pdf.block_file import GivenBlock, parse_blocks
from mm_assets.formats.pdf.errors import UnreadablePdf
from mm_assets.formats.pdf.item import Item, Picture
from mm_assets.formats.pdf.names import block_name
from mm_assets.formats.pdf.reader import OpenPdf, PdfReader
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
from mm_assets.interleaved.faults import UNREADABLE_PDF, Fault
from mm_assets.interleaved.json_values import build_column, dumps, json_field
from mm_assets.interleaved.schema_text import schema_to_text
from mm_assets.interleaved.source_ref import build_source_ref

MAX_IMAGE_BYTES = 1 << 30  # of all images of a document

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

    def add(self, size: int, chunks: Iterator[bytes]) -> FileRange:
        """Take the ``size`` bytes of an image, in pieces, and return where they are now.

        Raises:
            UnreadablePdf: the images of the document are too large together.
        """
        if self._size + size > MAX_IMAGE_BYTES:
            raise UnreadablePdf(f"its images take more than {MAX_IMAGE_BYTES} bytes")
        self._file.seek(self._size)
        for chunk in chunks:
            self._file.write(chunk)
        self._file.flush()
        self._size += size
        return FileRange(self._file.fileno(), self._size - size, size)


def members_of(
    pdf: PdfInput, sample_id: str, stem: str, scratch: Scratch, reader: PdfReader
) -> list[tuple[str, FileRange | bytes]]:
    """Return the members of one PDF, the json last.

    Args:
        pdf: the file.
        sample_id: id of the sample.
        stem: beginning of all names of members.
        scratch: takes the images; what was in it is forgotten.
        reader: reads the PDF.

    Raises:
        SampleError: the PDF, or its block file, cannot be used.
        PdfProcessError: no PDF can be read.
    """
    data = pdf.read()
    members: list[tuple[str, FileRange | bytes]] = []

    def take(document: OpenPdf) -> _Sample:
        scratch.clear()
        members.clear()
        sample = _Sample(pdf, document.description)
        for item in _items(document, pdf, scratch.add):
            name = sample.add(item)
            if isinstance(item.content, Picture):
                members.append((f"{stem}.{name}", item.content.data))
        return sample

    try:
        sample = reader.read(data, take)
    except UnreadablePdf as error:
        raise SampleError(UNREADABLE_PDF, f"{pdf.place}: {error}") from error
    return [*members, (f"{stem}.json", dumps(sample.payload(sample_id, stem)).encode())]


def _items(document: OpenPdf, pdf: PdfInput, keep: Keep) -> Iterator[Item]:
    if pdf.blocks is None:
        yield from document.items(keep)
        return
    try:
        blocks = parse_blocks(pdf.blocks.read(), len(document.description.sizes), pdf.blocks.place)
    except SampleError as error:
        document.stop()
        error.source_ref = pdf.blocks.ref
        raise
    yield from _given_items(document, blocks, keep)


def _given_items(document: OpenPdf, blocks: list[GivenBlock], keep: Keep) -> Iterator[Item]:
    """Yield the items of given blocks, in their order."""
    pictures = document.pictures([(block.page, block.box) for block in blocks if block.text is None], keep)
    numbers: dict[int, int] = {}
    for block in blocks:
        number = numbers[block.page] = numbers.get(block.page, 0) + 1
        content = next(pictures) if block.text is None else block.text
        yield Item(block.page, number, list(block.box), content, block.type)
    next(pictures, None)  # the end of the answer


class _Sample:
    """The json of a sample as it grows."""

    def __init__(self, pdf: PdfInput, description: Description) -> None:
        self._pdf = pdf
        self._texts: list[str | None] = []
        self._images: list[str | None] = []
        self._extras: dict[str, list[dict[str, Any] | None]] = {"text": [], "image": []}
        self._errors: list[dict[str, Any]] = []
        self._metadata = {
            "pages": len(description.sizes),
            "title": _clean(description.title),
            "author": _clean(description.author),
            "page_sizes": description.sizes,
        }
        self._refs = [pdf.ref]
        self._rows: dict[str, Any] = {"metadata": {"ref": 0}, "text": {}, "image": {}}
        self._characters = 0

    def add(self, item: Item) -> str | None:
        """Add an item at the next position, and return the name of its picture."""
        position, content = len(self._texts), item.content
        text = content if isinstance(content, str) else None
        self._characters += len(text or (content.message if isinstance(content, Fault) else ""))
        if self._characters > MAX_TEXT:
            raise UnreadablePdf(f"more than {MAX_TEXT} characters of text")
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
            return build_source_ref(self._pdf.path, name, at, item.content.size)
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
