"""Addresses of PDFs, and the files that a shard of PDFs is made of.

* `PdfAddress`: one URL for some locations, with a tar for each folder of PDFs in them.
* `PdfSource`: a PDF file, or a tar with PDF files in it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from mm_assets.formats.names import (
    BLOCKS_SUFFIX,
    PDF_SUFFIXES,
    TAR_SUFFIXES,
    blocks_beside,
    is_block_file,
    is_pdf,
)
from mm_assets.formats.partitions import partition_name, root_of_locations
from mm_assets.formats.tar.scan import Member, TarIndex, read_member, scan_tolerant
from mm_assets.formats.tar.spool import open_tar
from mm_assets.formats.webdataset import MAX_JSON_BYTES, PDF_PROTOCOL, SampleError, extension
from mm_assets.formats.webdataset.virtual_tars import FolderedAddress, by_shard, name_of_folder, plain_path
from mm_assets.model.errors import OVERSIZED_MEMBER, UNREADABLE_MEMBER
from mm_assets.model.samples import build_source_ref
from mm_assets.storage.errors import is_utf8, not_utf8
from mm_assets.storage.files import absolute, open_binary, size_of
from mm_assets.storage.listing import Expansion, expand
from mm_assets.storage.stamps import existing_files

MAX_PDF_BYTES = 256 << 20


@dataclass(frozen=True)
class Input:
    """A file, or a member of a tar.

    Attributes:
        path: the file in locators and messages.
        max_bytes: a larger one is refused.
        uri: of a file: path or URL.
        member: of a member of a tar: where it is.
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
        blocks = None
        if source.blocks is not None:
            blocks = Input(blocks_beside(source.name), MAX_JSON_BYTES, source.blocks)
        key = posixpath.splitext(posixpath.basename(source.uri))[0]
        return OpenSource([PdfInput(source.name, MAX_PDF_BYTES, source.uri, key=key, blocks=blocks)])
    descriptor = stack.enter_context(open_tar(source.uri, source.name))
    index = scan_tolerant(descriptor, source.name)
    return _in_tar(source.name, index, descriptor)


def _in_tar(name: str, index: TarIndex, descriptor: int) -> OpenSource:
    pdfs = [member for member in index.members if extension(member.name) == "pdf"]
    block_names = {blocks_beside(member.name) for member in pdfs}
    given = {member.name: member for member in _block_files(index, block_names)}
    found = []
    for member in pdfs:
        blocks = given.get(blocks_beside(member.name))
        found.append(
            PdfInput(
                name,
                MAX_PDF_BYTES,
                entry=member,
                descriptor=descriptor,
                key=posixpath.splitext(member.name)[0],
                blocks=None
                if blocks is None
                else Input(name, MAX_JSON_BYTES, entry=blocks, descriptor=descriptor),
            )
        )
    used = {id(member) for member in [*pdfs, *given.values()]}
    return OpenSource(found, [member for member in index.members if id(member) not in used], index)


def _block_files(index: TarIndex, names: set[str]) -> Iterator[Member]:
    for member in index.members:
        if member.name in names and member.name.endswith(BLOCKS_SUFFIX):
            yield member


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
