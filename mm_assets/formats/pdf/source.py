"""Files that a shard of PDFs is made of: PDF files, and tars with PDF files in them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from mm_assets.formats.pdf.names import BLOCKS_SUFFIX, blocks_beside, is_pdf
from mm_assets.formats.storage import is_remote, local_path, open_binary, size_of
from mm_assets.formats.tar.scan import Member, TarIndex, read_members, scan_tolerant
from mm_assets.formats.tar.spool import local_tar, unpacked_limit
from mm_assets.formats.webdataset.layout import MAX_JSON_BYTES, extension
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved.faults import OVERSIZED_MEMBER, UNREADABLE_MEMBER
from mm_assets.interleaved.source_ref import build_source_ref

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
        data = bytearray(self.entry.size)
        read_members(self.descriptor, [self.entry], memoryview(data), self.path)
        return bytes(data)


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
    limit = unpacked_limit(size_of(source.uri))
    file = (
        stack.enter_context(open_binary(source.uri))
        if is_remote(source.uri)
        else os.path.abspath(local_path(source.uri))
    )
    descriptor = stack.enter_context(local_tar(file, source.name, max_bytes=limit))
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
