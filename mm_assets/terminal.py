"""Terminal behaviour of all commands: output in any encoding, progress, one line per error, exit codes."""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from mm_assets.model.errors import explained, on_screen, show_warnings_as_lines, write_line
from mm_assets.storage.errors import error_line, is_of_store, located, place_of

if TYPE_CHECKING:
    from PIL.Image import Image

FAILED = 1
USAGE = 2  # as argparse ends
INTERRUPTED = 130  # as in shells: 128 plus the signal's number
_BAR = 24  # characters of a progress bar

# Packages whose errors derive from no standard exception, such as those of a database. Recognised by name, so
# that none is imported.
_EXPECTED_PACKAGES = frozenset({"pyarrow", "sqlalchemy"})


def run_command(work: Callable[[], int]) -> int:
    """Run a command and return its exit code.

    Errors of data, paths, settings or the system are one line on stderr and exit code 1. Any other error is a
    bug of the program, and is raised. Nothing is left in the streams that the interpreter could fail to write
    when it ends, which would be exit code 120 without a word.
    """
    code = _code_of(work)
    # With a full disk behind stderr, only the exit code can tell that something was said.
    return code if not _discard_unwritable(sys.stderr) else code or FAILED


def _code_of(work: Callable[[], int]) -> int:
    try:
        prepare_streams()
        show_warnings_as_lines()
        try:
            code = work()
        except SystemExit as end:  # argparse: wrong usage, --help, --version
            code = FAILED if isinstance(end.code, str) else end.code or 0
        with located("standard output"):
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _discard_unwritable(sys.stdout)
        return interrupted()
    except BrokenPipeError:  # the reader of our output (head, less) has closed it
        _discard_unwritable(sys.stdout)
        return FAILED
    except Exception as error:
        if not _is_expected(error):
            raise
        is_unwritable = _discard_unwritable(sys.stdout)
        if is_unwritable and isinstance(error, OSError) and place_of(error) is None:
            error = OSError(error.errno, error.strerror, "standard output")
        fail(error_line(error))
        return FAILED


def end_process(code: int) -> NoReturn:
    """End the process, with all that is registered for its end, but without taking its modules apart.

    That would be a tenth of a short command. Threads that are not to be cut off may still need them.
    """
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.exit(code)
    atexit._run_exitfuncs()
    if _discard_unwritable(sys.stdout) or _discard_unwritable(sys.stderr):
        code = code or FAILED
    os._exit(code)


def interrupted() -> int:
    """Print that Ctrl-C has ended the command, and return its exit code."""
    fail("interrupted; nothing half-written was published")
    return INTERRUPTED


def fail(line: str) -> None:
    """Print an error line on stderr."""
    write_line(f"mm-assets: {line}")


def fail_each(lines: Sequence[str]) -> int:
    """Print lines about what failed, and return the exit code."""
    for line in lines:
        fail(line)
    return FAILED if lines else 0


def _notebook() -> Any:
    """Return what displays in a notebook; None elsewhere."""
    ipython = sys.modules.get("IPython")
    is_notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    return ipython.display if is_notebook and ipython is not None else None


class ProgressLine:
    """Line with a bar on stderr, drawn over itself, or in a notebook; silent where there is neither."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._notebook = _notebook()
        self._shown: Any = None  # what the notebook shows
        self.is_shown = sys.stderr.isatty() and self._notebook is None
        # The terminal itself: Dagster leads stderr into a file while a step is executed.
        self._terminal = os.dup(sys.stderr.fileno()) if self.is_shown else None
        self._line = ""
        if self.is_shown:
            on_screen.append(self)

    def show(self, done: int, text: str) -> None:
        """Draw the line, cut to the width of the terminal: a longer one could not be drawn over."""
        if self._terminal is None and self._notebook is None:
            return
        filled = _BAR * done // max(self._total, 1)
        line = f"[{'#' * filled}{'-' * (_BAR - filled)}] {text}"
        if self._terminal is None:
            self._show_in_notebook(line)
            return
        columns = os.get_terminal_size(self._terminal).columns or 80
        self._line = line[: columns - 1]
        self.redraw()

    def _show_in_notebook(self, line: str) -> None:
        if self._shown is None:
            self._shown = self._notebook.display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._shown.update({"text/plain": line}, raw=True)

    def redraw(self) -> None:
        """Draw the line again, after it was removed."""
        self._draw(self._line)

    def clear(self) -> None:
        """Remove the line."""
        self._draw("")

    def end(self, is_kept: bool = False) -> None:
        """Draw nothing more, and leave the line there, or not."""
        if self._terminal is None:
            return
        on_screen.remove(self)
        if is_kept:
            os.write(self._terminal, b"\n")
        else:
            self.clear()
        os.close(self._terminal)
        self._terminal = None

    def _draw(self, line: str) -> None:
        if self._terminal is not None:
            os.write(self._terminal, f"\r{line}\x1b[K".encode(errors="backslashreplace"))


@contextmanager
def shard_progress() -> Iterator[Callable[[int, int], None]]:
    """Progress line of what is told of the shards that are done, and their number."""
    line = ProgressLine(_BAR)
    try:
        yield lambda done, of: line.show(_BAR * done // of, f"{done} of {of} shards")
    finally:
        line.end()


class Progress:
    """Progress line on stderr, if that is a terminal: partitions, samples, rate, bytes, time left."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._line = ProgressLine(total)
        self._done = self._samples = self._bytes = 0
        self._started = time.monotonic()

    def __enter__(self) -> Progress:
        self._show()
        return self

    def add(self, samples: int, nbytes: int) -> None:
        """Count one more finished partition."""
        self._done += 1
        self._samples += samples
        self._bytes += nbytes
        self._show()

    def _show(self) -> None:
        seconds = time.monotonic() - self._started
        parts = [f"{self._done}/{self._total} partitions", f"{self._samples} samples"]
        if self._done:
            parts.append(f"{self._samples / max(seconds, 0.001):.0f} samples/s")
        parts += [f"{self._bytes / 1e6:.0f} MB", f"{seconds:.0f} s"]
        if self._done:
            parts.append(f"{seconds / self._done * (self._total - self._done):.0f} s left")
        self._line.show(self._done, ", ".join(parts))

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._line.end(is_kept=True)


def printable(text: str) -> str:
    """Return text that cannot move the terminal's cursor or end the line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def prepare_streams() -> None:
    """Escape characters that the terminal cannot show, and replace closed streams by the null device."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
            os.set_inheritable(number, True)  # otherwise a worker's first file would become its stderr
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_unwritable(stream: TextIO) -> bool:
    """Write what waits in a stream; where that is impossible, discard it and return True."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return True
    return False


def _is_expected(error: Exception) -> bool:
    if isinstance(error, ImportError):
        error = explained(error)
    known = isinstance(error, ValueError | OSError | TypeError | MemoryError)
    return known or is_of_store(error) or type(error).__module__.partition(".")[0] in _EXPECTED_PACKAGES


_RESET: Final = "\x1b[0m"
_HALF_BLOCK: Final = "▀"


def half_blocks(picture: Image) -> Iterator[str]:
    """Yield the lines of a picture in RGB: each character is two pixels, one above the other."""
    pixels = picture.load()
    assert pixels is not None
    for top in range(0, picture.height, 2):
        cells = []
        for left in range(picture.width):
            upper = pixels[left, top]
            lower = pixels[left, top + 1] if top + 1 < picture.height else None
            background = "" if lower is None else f"\x1b[48;2;{_colour(lower)}m"
            cells.append(f"\x1b[38;2;{_colour(upper)}m{background}{_HALF_BLOCK}")
        yield "".join(cells) + _RESET


def _colour(pixel: object) -> str:
    assert isinstance(pixel, tuple)
    return ";".join(str(int(channel)) for channel in pixel[:3])


def side_by_side(left: str, right: str) -> str:
    """Return two pictures of half blocks as one."""
    ours, theirs = left.split("\n"), right.split("\n")
    width = ours[0].count(_HALF_BLOCK)
    pairs = zip_longest(ours, theirs, fillvalue="")
    return "\n".join(f"{one or ' ' * width}  {other}".rstrip() for one, other in pairs) if right else left
