"""Progress line on a terminal; silent elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType


class Progress:
    """Progress line on stderr with finished partitions, samples and bytes, if stderr is a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._samples = self._bytes = 0
        self._started = time.monotonic()
        self._is_shown = sys.stderr.isatty()

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
        if not self._is_shown:
            return
        width = 24
        filled = width * self._done // max(self._total, 1)
        seconds = time.monotonic() - self._started
        bar = "#" * filled + "-" * (width - filled)
        line = (
            f"[{bar}] {self._done}/{self._total} partitions, {self._samples} samples, "
            f"{self._bytes / 1e6:.0f} MB, {seconds:.0f} s"
        )
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._is_shown:
            print(file=sys.stderr)
