"""Main function of a process that reads PDFs: the only one in which pdfium runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

from mm_assets.formats.pdf.budget import Budget, confine
from mm_assets.formats.pdf.document import open_document
from mm_assets.formats.pdf.errors import UnreadablePdf
from mm_assets.formats.pdf.item import Picture
from mm_assets.formats.pdf.items import items_by_layout, page_sizes, pictures_in
from mm_assets.formats.pdf.limits import Limits
from mm_assets.formats.pdf.wire import MAX_DESCRIPTION, MAX_WORDS, ChildEnd, Header
from mm_assets.interleaved.faults import Fault

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

_BUFFER = 1 << 16


def serve(descriptor: int, limits: Limits) -> None:
    """Read documents until the parent is gone.

    Args:
        descriptor: this end of the connection.
        limits: those of each document.
    """
    import pypdfium2.raw  # noqa: F401  (what it takes is no document's)

    confine()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb", _BUFFER) as file:
        child = _Child(ChildEnd(cast(BinaryIO, file)), limits)
        child.end.send({"ready": True})
        while (request := child.end.receive()) is not None:
            child.answer(request[1])


class _Child:
    def __init__(self, end: ChildEnd, limits: Limits) -> None:
        self.end = end
        self._limits = limits
        self._budget = Budget(limits)

    def answer(self, size: int) -> None:
        """Read one document, of ``size`` bytes, and send what is found."""
        self._budget.begin(size)
        try:
            self._read(self.end.body(size))
        except UnreadablePdf as error:
            self._refuse(str(error))
        except MemoryError:
            self.end.send({"memory": True})
        # Those are not the document's: this process ends, and its parent says so.
        except (ImportError, ConnectionError):
            raise
        # Libraries raise whatever they run into.
        except Exception as error:  # noqa: BLE001
            self._refuse(f"reading it fails: {type(error).__name__}: {error}")
        self._budget.end()

    def _read(self, data: bytes) -> None:
        with open_document(data, self._limits.pages) as document:
            self._describe(document)
            if (request := self.end.receive()) is None or "stop" in request[0]:
                return
            for header, body in self._items(document, data, request):
                self.end.send(header, body)
            self.end.send({"end": True})

    def _describe(self, document: PdfDocument) -> None:
        sizes = page_sizes(document, self._step)
        information = document.get_metadata_dict()
        title, author = (information.get(name) for name in ("Title", "Author"))
        description = json.dumps({"sizes": sizes, "title": title, "author": author}).encode()
        if len(description) > MAX_DESCRIPTION:
            raise UnreadablePdf(f"its title and author take more than {MAX_DESCRIPTION} bytes")
        self.end.send({"document": True}, description)

    def _items(
        self, document: PdfDocument, data: bytes, request: tuple[Header, int]
    ) -> Iterator[tuple[Header, bytes]]:
        header, size = request
        if "pictures" in header:
            boxes = json.loads(self.end.body(size))
            for picture in pictures_in(document, data, boxes, self._limits.items, self._step):
                yield _message(picture)
            return
        for item in items_by_layout(document, data, self._limits.items, self._step):
            content, body = _message(item.content)
            yield {"page": item.page, "number": item.number, "box": item.box, **content}, body

    def _step(self, page: int) -> None:
        """Begin a page, and say so."""
        self._budget.step()
        self.end.send({"page": page})
        self.end.flush()

    def _refuse(self, reason: str) -> None:
        self.end.send({"refused": True}, _words(reason))


def _message(content: str | Picture | Fault) -> tuple[Header, bytes]:
    if isinstance(content, str):
        return {"content": "text"}, content.encode()
    if isinstance(content, Fault):
        return {"content": "fault", "fault": content.kind}, _words(content.message)
    assert isinstance(content.data, bytes)
    return {"content": "picture", "suffix": content.suffix, "offset": content.offset}, content.data


def _words(text: str) -> bytes:
    return text.encode(errors="replace")[:MAX_WORDS]
