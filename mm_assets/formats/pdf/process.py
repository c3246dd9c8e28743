"""Reader of PDFs that survives each of them: pdfium runs in a process of its own.

* `PdfReader` opens PDFs one after the other, as `OpenPdf`.
* `PdfProcess` is the process as its parent sees it: started, listened to within limits, ended.
* What the process has found is taken from its messages, none of which is trusted: a hostile file may have
  taken hold of it. So sizes are bounded before anything is read, names are chosen from what is known, and
  nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, TypeVar

from mm_assets.formats.pdf import (
    HEAD,
    MAX_DESCRIPTION,
    MAX_HEADER,
    MAX_TEXT,
    MAX_WORDS,
    Header,
    Item,
    Limits,
    PdfProcessError,
    Picture,
    ProcessLost,
    UnreadablePdf,
    died_of,
    nonsense,
    out_of_memory,
    packed,
)
from mm_assets.formats.tar import FileRange
from mm_assets.model.errors import ITEM_FAULTS, Fault, require

_START = Path(__file__).with_name("start.py")
_LOOK_SECONDS = 0.05  # between two looks at the memory of the process
_CHUNK = 1 << 18
_END_SECONDS = 10.0  # a process that waits in the kernel cannot be killed: after this time it is left behind
_MOST_OUTPUT = 1 << 12


class PdfProcess:
    """A started process. It dies with its parent, and with the thread that has started it.

    Raises:
        MissingExtra: pypdfium2 is not installed.
        PdfProcessError: it does not start.
    """

    def __init__(self, limits: Limits) -> None:
        require("pypdfium2")
        self._limits = limits
        self._allowed = limits.memory
        self._looked = 0.0
        self._page = 0
        self._signs = 0  # of life
        # The size of each page is read, then each page; given boxes may change the page with each item.
        self._most_signs = 2 * limits.pages + limits.items
        self._received = bytearray()
        self.document_size = 0
        self.idle = True  # no answer is expected
        # A file cannot run full as a pipe can; the process limits it itself.
        self._stderr = tempfile.TemporaryFile(prefix="mm-assets-")  # noqa: SIM115
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(theirs, self._stderr.fileno(), limits)
        except OSError as error:
            self._socket.close()
            self._stderr.close()
            raise PdfProcessError(f"the process that reads PDFs does not start: {error}") from error
        self._socket.setblocking(False)
        self._memory_at_start = 0
        try:
            self.receive()
        except BaseException:
            self.close()
            raise
        self._memory_at_start = self._peak() or 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def memory(self) -> int:
        """The most bytes of memory that it has had beyond those it started with; 0 where nobody tells."""
        return max(0, (self._peak() or 0) - self._memory_at_start)

    def begin(self, size: int) -> None:
        """Allow what a document of ``size`` bytes may take."""
        self.document_size = size
        self._allowed = self._limits.memory_for(size)
        self._page = self._signs = 0

    def send(self, header: Header, body: bytes = b"") -> None:
        """Send a message.

        Raises:
            ProcessLost: the process has died, or takes too much.
            PdfProcessError: others have ended it.
        """
        self.idle = False
        for data in (packed(header, len(body)), body):
            rest = memoryview(data)
            while rest:
                self._wait(select.POLLOUT)
                try:
                    rest = rest[self._socket.send(rest[:_CHUNK]) :]
                except BlockingIOError:
                    continue
                except ConnectionError:
                    self._raise_death()

    def receive(self) -> tuple[Header, int]:
        """Return the next message that is no sign of life, and how many bytes follow it.

        Raises:
            ProcessLost: the process has died, takes too much, or sends nonsense.
            PdfProcessError: others have ended it, or it did not start.
        """
        while True:
            length, size = HEAD.unpack(self._take(HEAD.size))
            if length > MAX_HEADER:
                raise nonsense()
            try:
                header = json.loads(self._take(length))
            except (ValueError, RecursionError) as error:
                raise nonsense() from error
            if not isinstance(header, dict):
                raise nonsense()
            if size or list(header) != ["page"]:
                return header, size
            self._page = header["page"] if type(header["page"]) is int else 0
            self._signs += 1
            if self._signs > self._most_signs:
                raise nonsense()

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the ``size`` bytes that follow a message, in pieces.

        Raises:
            ProcessLost: as for `receive`.
        """
        while size:
            if not self._received:
                self._fill()
            piece = bytes(self._received[:size])
            del self._received[:size]
            size -= len(piece)
            yield piece

    def check_memory(self) -> None:
        """Look whether it has taken more memory than it may.

        Raises:
            ProcessLost: it has.
        """
        self._looked = time.monotonic()
        if self.memory > self._allowed:
            raise out_of_memory(self._allowed)

    def close(self) -> None:
        """End it at once."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._socket.close()
        self._stderr.close()

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            self._fill()
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def _fill(self) -> None:
        self._wait(select.POLLIN)
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._raise_death()
        self._received += data

    def _wait(self, event: int) -> None:
        """Wait until the connection is ready, and look at the memory meanwhile."""
        poll = select.poll()
        poll.register(self._socket, event)
        began = time.monotonic()
        while True:
            is_ready = bool(poll.poll(_LOOK_SECONDS * 1000))
            now = time.monotonic()
            if now - self._looked >= _LOOK_SECONDS:
                self.check_memory()
            if is_ready:
                return
            if now - began > self._limits.silent_seconds:
                seconds = f"{self._limits.silent_seconds:g} s"
                raise ProcessLost(f"took longer than {seconds}{self._where()}", is_certain=True)

    def _peak(self) -> int | None:
        """Return the most address space that it has had, in bytes; None where the system does not tell."""
        try:
            with open(f"/proc/{self.pid}/status", "rb") as file:
                # The process may choose its name, but not begin a line with it.
                peaks = [line.split()[1] for line in file if line.startswith(b"VmPeak:")]
        except OSError:
            return None
        return int(peaks[0]) << 10 if peaks else None

    def _where(self) -> str:
        return f" at page {self._page}" if self._page else " to be opened"

    def _raise_death(self) -> NoReturn:
        """Raise the error of a process that has closed its connection."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise ProcessLost("the process that reads it has closed its connection") from None
        if code == -signal.SIGXCPU:
            seconds = f"{self._limits.page_seconds} s of CPU time"
            raise ProcessLost(f"took longer than {seconds}{self._where()}", is_certain=True)
        raise died_of(code, self._last_line())

    def _last_line(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _MOST_OUTPUT))
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")


def _start(connection: socket.socket, stderr: int, limits: Limits) -> subprocess.Popen[bytes]:
    """Start the process: a new interpreter, as a fork of a process with threads may hang.

    ``-P`` keeps the folder of the script out of its path, and it is as isolated from the environment as this
    one. It is in a process group of its own: Ctrl-C is for the parent.
    """
    settings = {"limits": asdict(limits), "path": [folder for folder in sys.path if os.path.isabs(folder)]}
    isolation = ["-I"] if sys.flags.isolated else ["-E"] if sys.flags.ignore_environment else []
    return subprocess.Popen(
        [sys.executable, *isolation, "-P", str(_START), str(connection.fileno()), json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=[connection.fileno()],
        process_group=0,
    )


_MOST_BYTES = 4  # of a character
_SUFFIXES = ("jpg", "png")
_LARGEST = 1_000_000_000  # of coordinates, in points or shares of a page, and of numbers of items

Keep = Callable[[int, Iterator[bytes]], FileRange]
"""What takes the size and the bytes of a picture, and says where they are."""


MAX_IMAGE_BYTES = 1 << 30  # of all images of a document


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


@dataclass(frozen=True)
class Description:
    """What is known of a document before it is read: sizes of its pages in points, title and author."""

    sizes: list[list[float]]
    title: str | None
    author: str | None


def description_of(process: PdfProcess, size: int, most_pages: int) -> Description:
    """Return the description that the next ``size`` bytes are."""
    if size > MAX_DESCRIPTION:
        raise nonsense()
    try:
        found = json.loads(b"".join(process.chunks(size)))
        sizes, title, author = (found[name] for name in ("sizes", "title", "author"))
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise nonsense() from error
    if not isinstance(sizes, list) or not 0 < len(sizes) <= most_pages:
        raise nonsense()
    if not all(_are_numbers(pair, 2) for pair in sizes):
        raise nonsense()
    if not all(text is None or isinstance(text, str) for text in (title, author)):
        raise nonsense()
    return Description(sizes, title, author)


def item_of(process: PdfProcess, header: Header, size: int, pages: int, keep: Keep) -> Item:
    """Return the item that a message, and the next ``size`` bytes, are."""
    page, number, box = (header.get(name) for name in ("page", "number", "box"))
    if type(page) is not int or not 0 < page <= pages or type(number) is not int:
        raise nonsense()
    if not 1 <= number <= _LARGEST or not _are_numbers(box, 4):
        raise nonsense()
    assert isinstance(box, list)
    return Item(page, number, box, content_of(process, header, size, keep))


def content_of(process: PdfProcess, header: Header, size: int, keep: Keep) -> str | Picture | Fault:
    """Return the text or the picture that a message, and the next ``size`` bytes, are."""
    kind = header.get("content")
    try:
        if kind == "text":
            if size > MAX_TEXT * _MOST_BYTES:
                raise UnreadablePdf(f"more than {MAX_TEXT} characters of text")
            return b"".join(process.chunks(size)).decode()
        if kind == "fault" and header.get("fault") in ITEM_FAULTS:
            return Fault(header["fault"], words_of(process, size))
    except ValueError as error:
        if isinstance(error, UnreadablePdf):
            raise
        raise nonsense() from error
    suffix, offset = header.get("suffix"), header.get("offset")
    if kind != "picture" or suffix not in _SUFFIXES:
        raise nonsense()
    if offset is not None and (type(offset) is not int or not 0 <= offset <= process.document_size - size):
        raise nonsense()
    return Picture(keep(size, process.chunks(size)), suffix, offset)


def words_of(process: PdfProcess, size: int) -> str:
    """Return the message that the next ``size`` bytes are."""
    if size > MAX_WORDS:
        raise nonsense()
    return b"".join(process.chunks(size)).decode(errors="replace")


def _are_numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) in (int, float) and abs(value) <= _LARGEST for value in values)
    )


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
