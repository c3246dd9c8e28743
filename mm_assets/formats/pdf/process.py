"""A process that reads PDFs, as its parent sees it: started, listened to within limits, ended."""

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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from mm_assets.formats.pdf.errors import (
    PdfProcessError,
    ProcessLost,
    died_of,
    nonsense,
    out_of_memory,
)
from mm_assets.formats.pdf.limits import Limits
from mm_assets.formats.pdf.wire import HEAD, MAX_HEADER, Header, packed
from mm_assets.interleaved.extras import require

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
