"""Reader of PDFs that survives each of them: pdfium runs in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from mm_assets.formats.pdf.answers import (
    Description,
    Keep,
    content_of,
    description_of,
    item_of,
    words_of,
)
from mm_assets.formats.pdf.errors import ProcessLost, UnreadablePdf, nonsense, out_of_memory
from mm_assets.formats.pdf.item import Item, Picture
from mm_assets.formats.pdf.limits import Limits
from mm_assets.formats.pdf.process import PdfProcess
from mm_assets.formats.pdf.wire import Header
from mm_assets.interleaved.faults import Fault

T = TypeVar("T")


class OpenPdf:
    """A PDF that a process has opened. Its items, or its pictures, are read once.

    Raises:
        UnreadablePdf: it cannot be opened.
        ProcessLost: the process has died, or takes too much.
    """

    def __init__(self, process: PdfProcess, data: bytes, limits: Limits) -> None:
        self._process = process
        self._size = len(data)
        self._limits = limits
        process.begin(self._size)
        process.send({"size": self._size}, data)
        self._header, size = self._answer()
        self.description: Description = description_of(process, size, limits.pages)

    def items(self, keep: Keep) -> Iterator[Item]:
        """Yield the items in reading order; ``keep`` takes the bytes of pictures."""
        pages = len(self.description.sizes)
        for count, (header, size) in enumerate(self._read({"read": True})):
            if count == self._limits.items:
                raise nonsense()
            yield item_of(self._process, header, size, pages, keep)

    def pictures(self, boxes: Sequence[tuple[int, Sequence[float]]], keep: Keep) -> Iterator[Picture | Fault]:
        """Yield a picture for each page and box; ``keep`` takes their bytes."""
        messages = self._read({"pictures": True}, json.dumps(boxes).encode())
        for _ in boxes:
            header, size = next(messages, ({}, 0))
            content = content_of(self._process, header, size, keep)
            if isinstance(content, str):
                raise nonsense()
            yield content
        if next(messages, None) is not None:
            raise nonsense()

    def stop(self) -> None:
        """Read nothing of it."""
        self._process.send({"stop": True})
        self._process.idle = True

    def _read(self, request: Header, body: bytes = b"") -> Iterator[tuple[Header, int]]:
        self._process.send(request, body)
        while True:
            header, size = self._answer()
            if "end" in header:
                if size:
                    raise nonsense()
                self._process.check_memory()
                self._process.idle = True
                return
            yield header, size

    def _answer(self) -> tuple[Header, int]:
        header, size = self._process.receive()
        if "memory" in header:
            raise out_of_memory(self._limits.memory_for(self._size))
        if "refused" in header:
            reason = words_of(self._process, size)
            self._process.check_memory()  # then that may be why
            self._process.idle = True
            raise UnreadablePdf(reason)
        return header, size


class PdfReader:
    """A process that reads PDFs one after the other; a new one takes its place when it is gone.

    Use as a context manager, in one thread.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._process: PdfProcess | None = None

    def __enter__(self) -> PdfReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def read(self, data: bytes, take: Callable[[OpenPdf], T]) -> T:
        """Return what ``take`` makes of a PDF.

        A process that has read others before, and dies, says nothing about this one: it is read again in a
        new process, from its beginning.

        Args:
            data: the file.
            take: called with the open PDF, once more in the case above.

        Raises:
            UnreadablePdf: it cannot be used, takes too much, or has killed its process.
            MissingExtra: pypdfium2 is not installed.
            PdfProcessError: no process can be started, or others have ended it.
        """
        while True:
            process, is_new = self._ready()
            try:
                return take(OpenPdf(process, data, self._limits))
            except ProcessLost as error:
                self._end()
                if is_new or error.is_certain:
                    raise UnreadablePdf(str(error)) from error
            finally:
                if not process.idle:  # in the middle of an answer
                    self._end()

    def _ready(self) -> tuple[PdfProcess, bool]:
        """Return a process to read the next PDF, and whether it is new."""
        if self._process is not None:
            # What has been large once may have left something.
            if self._process.memory <= self._limits.memory // 2:
                return self._process, False
            self._end()
        self._process = PdfProcess(self._limits)
        return self._process, True

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()
