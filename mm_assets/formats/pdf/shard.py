"""Shard of PDFs as a tar in the native layout: one sample for each PDF.

* `PdfFileSystem`: the read-only fsspec file system ``pdf://``, in which each folder of PDFs appears as one
  tar of samples.
* `members_of`: one PDF as members of the tar: its images, then the json of the sample.
* Block files have what a layout model found in a PDF, as a JSON list of blocks in reading order:
  `parse_blocks`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any, NamedTuple

import pyarrow as pa

from mm_assets.formats.names import block_name, sample_key
from mm_assets.formats.pdf import Item, Limits, Picture, UnreadablePdf
from mm_assets.formats.pdf.address import OpenSource, PdfAddress, PdfInput, PdfSource, open_source
from mm_assets.formats.pdf.process import MAX_TEXT, Description, Keep, OpenPdf, PdfReader
from mm_assets.formats.tar import FileRange, TarWriter
from mm_assets.formats.tar.scan import Member
from mm_assets.formats.webdataset import PDF_PROTOCOL, SampleError, native_payload, parse_payload
from mm_assets.formats.webdataset.virtual_tars import (
    VirtualTars,
    refusal,
    virtual_info,
    write_unpaired,
    write_unread,
)
from mm_assets.model import json_codec
from mm_assets.model.errors import BAD_LAYOUT, UNREADABLE_PDF, Fault
from mm_assets.model.json_codec import build_column, dumps, json_field
from mm_assets.model.samples import build_source_ref
from mm_assets.model.schema import schema_to_text

MAX_BLOCKS = 100_000

IMAGE = "image"
_BLOCKS = "blocks"
_FIELDS = ("page", "box", "type", "text")


class GivenBlock(NamedTuple):
    """A block of a block file; ``text`` is None for an image."""

    page: int
    box: tuple[float, ...]
    type: str
    text: str | None


def parse_blocks(data: bytes, pages: int, place: str) -> list[GivenBlock]:
    """Return the blocks of a file.

    Args:
        data: the file.
        pages: how many pages the PDF has.
        place: the file's name in errors.

    Raises:
        SampleError: it is not JSON, no list, or a block in it is none of this PDF.
    """
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"[":
        raise SampleError(BAD_LAYOUT, f"{place}: no JSON list of blocks")
    # The list is put into an object, for the strict parser of samples.
    payload = parse_payload(b'{"%s": %s}' % (_BLOCKS.encode(), data.removeprefix(b"\xef\xbb\xbf")), place)
    if list(payload) != [_BLOCKS]:
        raise SampleError(BAD_LAYOUT, f"{place}: no JSON list of blocks")
    entries = payload[_BLOCKS]
    if len(entries) > MAX_BLOCKS:
        raise SampleError(BAD_LAYOUT, f"{place}: {len(entries)} blocks, at most {MAX_BLOCKS}")
    return [_block(entry, pages, f"{place}: block {at}") for at, entry in enumerate(entries, 1)]


def _block(entry: Any, pages: int, place: str) -> GivenBlock:
    if not isinstance(entry, dict):
        raise _bad(place, "no object", entry)
    if unknown := [name for name in entry if name not in _FIELDS]:
        raise _bad(place, f"field {unknown[0]!r:.100} is none of {', '.join(_FIELDS)}", entry)
    page, kind, text = (entry.get(name) for name in ("page", "type", "text"))
    box: Any = entry.get("box")
    if type(page) is not int or not 1 <= page <= pages:
        raise _bad(place, f"'page' is no number from 1 to {pages}", page)
    if not _is_box(box):
        raise _bad(place, "'box' is no [left, top, right, bottom] in shares of the page from 0 to 1", box)
    if not isinstance(kind, str) or not kind:
        raise _bad(place, "'type' is no text", kind)
    if kind == IMAGE and text is not None:
        raise _bad(place, "an image has no 'text'; give its words a block of their own", text)
    if kind != IMAGE and not isinstance(text, str):
        raise _bad(place, f"'text' of a block of type {kind!r:.100} is no text", text)
    return GivenBlock(page, tuple(float(side) for side in box), kind, text)


def _is_box(box: object) -> bool:
    if not isinstance(box, list) or len(box) != 4:
        return False
    if not all(type(side) in (int, float) and 0 <= side <= 1 for side in box):
        return False
    return bool(box[0] < box[2] and box[1] < box[3])


def _bad(place: str, reason: str, found: Any) -> SampleError:
    return SampleError(BAD_LAYOUT, f"{place}: {reason}: {json.dumps(found):.100}")


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
        extra = {"metadata": _encoded(self._metadata), **self._extras}
        lists = self._texts, self._images, extra, self._errors
        return native_payload(sample_id, stem, *lists, schema_to_text(SCHEMA), self._refs, self._rows)


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


def write_shard(
    sources: Sequence[PdfSource], target: str | os.PathLike[str], limits: Limits | None = None
) -> None:
    """Write a sample for each PDF of some sources, in their order.

    The id is the PDF's name without suffix. A PDF that cannot be used gives a sample that readers refuse and
    account for, as does a damaged range of a tar. Members of a tar that belong to no PDF become
    unreferenced members.

    Memory: the bytes and the texts of one PDF; images wait in a temporary file. The process that reads them
    takes what `Limits` allow: one PDF that takes more, or kills it, is refused.

    Args:
        sources: PDF files and tars of them.
        target: path of the tar.
        limits: those of each PDF.

    Raises:
        OSError: a file cannot be read.
        TarDamage: a packed tar is damaged.
        PdfProcessError: no process for PDFs can be started, or others have ended it.
    """
    stems: set[str] = set()
    with (
        TarWriter(target) as tar,
        tempfile.TemporaryFile(prefix="mm-assets-") as file,
        PdfReader(limits) as reader,
    ):
        scratch = Scratch(file)
        for source in sources:
            with ExitStack() as stack:
                opened = open_source(source, stack)
                for pdf in opened.pdfs:
                    _write(tar, pdf, _stem(pdf, stems), scratch, reader)
                _write_others(tar, source.name, opened)


def _stem(pdf: PdfInput, taken: set[str]) -> str:
    """Return the stem of a PDF's members; a second PDF of a key has another stem, and becomes a duplicate."""
    stem = sample_key(pdf.key)
    while stem in taken:
        stem = sample_key(f"{len(taken)}/{pdf.key}")
    taken.add(stem)
    return stem


def _write(tar: TarWriter, pdf: PdfInput, stem: str, scratch: Scratch, reader: PdfReader) -> None:
    try:
        members: Sequence[tuple[str, Any]] = members_of(pdf, pdf.key, stem, scratch, reader)
    except SampleError as error:
        ref = error.source_ref or pdf.ref
        members = [(f"{stem}.json", dumps(refusal(pdf.key, error.kind, str(error), ref)).encode())]
    tar.write_group(members)


def _write_others(tar: TarWriter, name: str, opened: OpenSource) -> None:
    if opened.index is None:
        return
    write_unread(tar, name, opened.index)
    for member in opened.others:
        _write_other(tar, name, member)
    for skipped in opened.index.skipped:
        if not skipped.has_lost_bytes:
            ref = build_source_ref(name, skipped.name, skipped.header_offset)
            write_unpaired(tar, f"{name}/{skipped.name}", f"{name}: {skipped.name}", ref, skipped.reason)


def _write_other(tar: TarWriter, name: str, member: Member) -> None:
    broken = member.broken is not None
    ref = (
        build_source_ref(name, member.name)
        if broken
        else build_source_ref(name, member.name, member.offset, member.size)
    )
    write_unpaired(tar, f"{name}/{member.name}", f"{name}: {member.name}", ref, None)


_REVISION = "1"  # of the content of these tars: part of their identity, so a new one makes outputs again


class PdfFileSystem(VirtualTars[list[PdfSource]]):
    """``pdf://ADDRESS``: a folder with a tar ``NAME.tar`` for each shard.

    ``pdf://ADDRESS/NAME/FILE`` is an original file, as named by locators. See `PdfAddress` and `write_shard`.
    """

    protocol = PDF_PROTOCOL
    called = "folder of PDFs"

    def shards(self, token: str) -> Mapping[str, list[PdfSource]]:
        return PdfAddress.parse(token).names()

    def shard_info(self, path: str, shard: list[PdfSource]) -> dict[str, Any]:
        files = {name: uri for source in shard for name, uri in source.files.items()}
        return virtual_info(
            path, (_REVISION,), ((os.path.basename(name), uri) for name, uri in files.items())
        )

    def write(self, token: str, name: str, shard: list[PdfSource], target: str) -> None:
        write_shard(shard, target)

    def original(self, shards: Mapping[str, list[PdfSource]], name: str) -> str | None:
        sources = shards.get(name.rpartition("/")[0], [])
        return next((source.files[name] for source in sources if name in source.files), None)
