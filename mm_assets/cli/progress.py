"""Progress line on a terminal; silent elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from mm_assets.terminal import ProgressLine


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
