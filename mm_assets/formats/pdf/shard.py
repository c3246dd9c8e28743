"""Shard of PDFs: where they lie, and the tar in the native layout that they become, one sample for each.

* `PdfAddress`: one URL for some locations, with a tar for each folder of PDFs in them.
* `PdfFileSystem`: the read-only fsspec file system ``pdf://`` of such addresses. `write_shard` makes a tar.
* `members_of`: one PDF as members of the tar: its images, then the json of the sample.
* Block files have what a layout model found in a PDF, as a JSON list of blocks in reading order:
  `parse_blocks`.
"""

from __future__ import annotations

import json
import os
import posixpath
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from mm_assets.formats.names import (
    BLOCKS_SUFFIX,
    PDF_SUFFIXES,
    TAR_SUFFIXES,
    block_name,
    blocks_beside,
    is_block_file,
    is_pdf,
    sample_key,
)
from mm_assets.formats.partitions import partition_name, root_of_locations
from mm_assets.formats.pdf import MAX_TEXT, Item, Limits, Picture, UnreadablePdf
from mm_assets.formats.tar import FileRange, TarWriter
from mm_assets.formats.tar.scan import Member, TarIndex, read_member, scan_tolerant
from mm_assets.formats.tar.spool import open_tar
from mm_assets.formats.webdataset import (
    MAX_JSON_BYTES,
    PDF_PROTOCOL,
    SampleError,
    extension,
    native_payload,
    parse_payload,
)
from mm_assets.formats.webdataset.virtual_tars import (
    FolderedAddress,
    VirtualTars,
    by_shard,
    name_of_folder,
    plain_path,
    refusal,
    virtual_info,
    write_unpaired,
    write_unread,
)
from mm_assets.model import json_codec
from mm_assets.model.errors import BAD_LAYOUT, OVERSIZED_MEMBER, UNREADABLE_MEMBER, UNREADABLE_PDF, Fault
from mm_assets.model.json_codec import build_column, dumps, json_field
from mm_assets.model.samples import build_source_ref
from mm_assets.model.schema import schema_to_text
from mm_assets.storage.errors import is_utf8, not_utf8
from mm_assets.storage.files import absolute, open_binary, size_of
from mm_assets.storage.listing import Expansion, expand
from mm_assets.storage.stamps import existing_files

if TYPE_CHECKING:
    from mm_assets.formats.pdf.process import Description, Keep, OpenPdf, PdfReader, Scratch

MAX_PDF_BYTES = 256 << 20


@dataclass(frozen=True)
class Input:
    """A file, or a member of a tar.

    Attributes:
        path: the file in locators and messages.
        max_bytes: a larger one is refused.
        uri: of a file: path or URL.
        entry: of a member of a tar: where it is.
        descriptor: of a member: the open tar.
    """

    path: str
    max_bytes: int
    uri: str = ""
    entry: Member | None = None
    descriptor: int = -1

    @property
    def member(self) -> str | None:
        """Name of the member; None for a file."""
        return None if self.entry is None else self.entry.name

    @property
    def place(self) -> str:
        """File and member, for messages."""
        return self.path if self.entry is None else f"{self.path}: {self.entry.name}"

    @property
    def offset(self) -> int:
        """Where its bytes begin in the file."""
        return 0 if self.entry is None else self.entry.offset

    @property
    def size(self) -> int:
        """Bytes of it."""
        return size_of(self.uri) if self.entry is None else self.entry.size

    @property
    def ref(self) -> str:
        """Its locator."""
        if self.entry is not None and self.entry.broken is not None:
            return build_source_ref(self.path, self.entry.name, self.entry.header_offset)
        return build_source_ref(self.path, self.member, self.offset, self.size)

    def read(self) -> bytes:
        """Return its bytes.

        Raises:
            SampleError: there are too many, or it is a link that leads nowhere.
        """
        error = None
        if self.entry is not None and self.entry.broken is not None:
            error = SampleError(UNREADABLE_MEMBER, f"{self.place}: {self.entry.broken}")
        elif (size := self.size) > self.max_bytes:
            error = SampleError(OVERSIZED_MEMBER, f"{self.place}: {size} bytes, at most {self.max_bytes}")
        if error is not None:
            error.source_ref = self.ref
            raise error
        if self.entry is None:
            with open_binary(self.uri) as file:
                return file.read(self.max_bytes)
        return read_member(self.descriptor, self.entry, self.path)


@dataclass(frozen=True)
class PdfInput(Input):
    """A PDF, with its key (its name without suffix), and its block file if there is one."""

    key: str = ""
    blocks: Input | None = None


@dataclass(frozen=True)
class PdfSource:
    """A PDF file, or a tar of PDF files, with the name that locators give it.

    ``blocks`` is the block file beside a PDF file, if there is one.
    """

    uri: str
    name: str
    blocks: str | None = None

    @property
    def files(self) -> dict[str, str]:
        """Its files by their names in locators."""
        found = {self.name: self.uri}
        return found if self.blocks is None else {**found, blocks_beside(self.name): self.blocks}


@dataclass(frozen=True)
class OpenSource:
    """The PDFs of a source; ``index`` is that of a tar, whose ``others`` belong to no PDF."""

    pdfs: Sequence[PdfInput]
    others: Sequence[Member] = ()
    index: TarIndex | None = None


def open_source(source: PdfSource, stack: ExitStack) -> OpenSource:
    """Return the PDFs of a source; a tar stays open until the stack is closed.

    Raises:
        FileNotFoundError: the file is gone.
        TarDamage: a packed tar is damaged.
    """
    if is_pdf(source.uri):
        beside = blocks_beside(source.name)
        blocks = None if source.blocks is None else Input(beside, MAX_JSON_BYTES, source.blocks)
        key = posixpath.splitext(posixpath.basename(source.uri))[0]
        return OpenSource([PdfInput(source.name, MAX_PDF_BYTES, source.uri, key=key, blocks=blocks)])
    descriptor = stack.enter_context(open_tar(source.uri, source.name))
    index = scan_tolerant(descriptor, source.name)
    return _in_tar(source.name, index, descriptor)


def _in_tar(name: str, index: TarIndex, descriptor: int) -> OpenSource:
    pdfs = [member for member in index.members if extension(member.name) == "pdf"]
    block_names = {blocks_beside(member.name) for member in pdfs}
    given = {member.name: member for member in index.members if member.name in block_names}
    found = []
    for pdf in pdfs:
        entry = given.get(blocks_beside(pdf.name))
        blocks = None if entry is None else Input(name, MAX_JSON_BYTES, "", entry, descriptor)
        key = posixpath.splitext(pdf.name)[0]
        found.append(PdfInput(name, MAX_PDF_BYTES, "", pdf, descriptor, key, blocks))
    used = {id(member) for member in [*pdfs, *given.values()]}
    return OpenSource(found, [member for member in index.members if id(member) not in used], index)


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
            place = {"modality": modality, "position": position}
            self._errors.append({**place, "materialize_error": content.message, "extra": extra})
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
    from mm_assets.formats.pdf.process import PdfReader, Scratch

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
        place = (member.offset, member.size) if member.broken is None else ()
        ref = build_source_ref(name, member.name, *place)
        write_unpaired(tar, f"{name}/{member.name}", f"{name}: {member.name}", ref, None)
    for skipped in opened.index.skipped:
        if not skipped.has_lost_bytes:
            ref = build_source_ref(name, skipped.name, skipped.header_offset)
            write_unpaired(tar, f"{name}/{skipped.name}", f"{name}: {skipped.name}", ref, skipped.reason)


_SUFFIXES = (*PDF_SUFFIXES, *TAR_SUFFIXES)
_SUFFIXES_WITH_BLOCKS = (*_SUFFIXES, BLOCKS_SUFFIX)


@dataclass(frozen=True)
class PdfAddress(FolderedAddress):
    """Locations of PDFs: files, folders (at any depth), patterns, brace lists or URLs.

    Each folder with PDFs in it is a shard, and so is each tar. In a folder, tars only count where there are
    no PDFs.
    """

    protocol = PDF_PROTOCOL

    def names(self) -> dict[str, list[PdfSource]]:
        """Return the sources of each shard by its name, sorted.

        A folder is called as its path below the locations' common folder, and that folder itself by its own
        name; a tar as its path without suffix.

        Raises:
            FileNotFoundError: a location has no PDFs.
            DataError: two folders would have the same name.
        """
        root = plain_path(root_of_locations(self.places, _SUFFIXES))
        files = sorted({file for place in self.places for file in _found(place).files})
        with_blocks = existing_files(map(blocks_beside, filter(is_pdf, files)))

        def source(file: str) -> tuple[str, str, PdfSource]:
            name, origin = _shard_of(plain_path(file), root)
            blocks = blocks_beside(file) if is_pdf(file) else None
            source_name = f"{name}/{posixpath.basename(file)}"
            return name, origin, PdfSource(file, source_name, blocks if blocks in with_blocks else None)

        return by_shard(map(source, files))

    def originals(self, shard: str) -> list[str]:
        """Return the names in locators of the files that a shard is made of."""
        return [name for source in self.names().get(shard, []) for name in source.files]

    def passed_over(self) -> list[str]:
        """Return a line for everything in the locations that looks like data, but is not read."""
        lines = [line for place in self.places for line in _found(place).passed_over]
        return [*dict.fromkeys(lines), *self._blocks_without_pdf()]

    def _blocks_without_pdf(self) -> list[str]:
        """Return one line on the block files in the locations that belong to no PDF; none without."""
        found = [expand(place, _SUFFIXES_WITH_BLOCKS).files for place in self.places]
        files = {file for files in found for file in files if is_utf8(file)}
        used = {blocks_beside(file) for file in files if is_pdf(file)}
        lost = sorted(file for file in files - used if is_block_file(file))
        if not lost:
            return []
        which = lost[0] if len(lost) == 1 else f"{len(lost)} block files, the first of them {lost[0]}"
        return [f"{which}: not read: no PDF of this name beside it (upper and lower case count)"]


def pdf_location(item: str) -> str | None:
    """Return the location of PDFs that an item names: ``pdf=docs``, or what ends in ``.pdf``; else None."""
    if (named := PdfAddress.location(item)) is not None:
        return named
    return absolute(item) if is_pdf(item) and not item.startswith(f"{PDF_PROTOCOL}://") else None


def _shard_of(file: str, root: str) -> tuple[str, str]:
    """Return the name of a file's shard, and what the shard is made of: a folder of PDFs, or a tar."""
    if not is_pdf(file):
        return partition_name(file, root), file
    folder = posixpath.dirname(file)
    return name_of_folder(folder, root), folder


def _found(place: str) -> Expansion:
    """Return the PDFs of a location; where it has none, its tars."""
    found = expand(place, _SUFFIXES)
    named = [file for file in found.files if is_utf8(file)]
    pdfs = [file for file in named if is_pdf(file)]
    tars = [file for file in named if file.lower().endswith(TAR_SUFFIXES)]
    if not (pdfs or tars):
        raise FileNotFoundError(f"{place}: no .pdf file, and no tar of them")
    unreadable = [not_utf8(file) for file in found.files if not is_utf8(file)]
    return Expansion(pdfs or tars, [*found.passed_over, *unreadable])


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
        named = ((os.path.basename(name), uri) for name, uri in files.items())
        return virtual_info(path, (_REVISION,), named)

    def write(self, token: str, name: str, shard: list[PdfSource], target: str) -> None:
        write_shard(shard, target)

    def original(self, shards: Mapping[str, list[PdfSource]], name: str) -> str | None:
        sources = shards.get(name.rpartition("/")[0], [])
        return next((source.files[name] for source in sources if name in source.files), None)
