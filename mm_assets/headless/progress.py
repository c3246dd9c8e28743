"""Progress of a headless run on a terminal: shards, samples a second and time left, for each asset."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import dagster as dg


class RunProgress:
    """Progress line on stderr, if that is a terminal; silent elsewhere.

    Args:
        total: shards to make, counted once for each asset.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._asset = ""
        self._of_asset = self._samples = 0
        self._asset_started = 0.0
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> RunProgress:
        return self

    def follow(self, instance: dg.DagsterInstance, run_id: str) -> None:
        """Show the shards of a run as they land."""
        if self._is_shown:
            instance.add_event_listener(run_id, self._note)

    def line(self, text: str) -> None:
        """Print a line above the progress line, or alone where none is shown."""
        self._clear()
        print(text, flush=True)

    def _note(self, entry: dg.EventLogEntry) -> None:
        event = entry.dagster_event
        if event is None or not event.is_step_materialization:
            return
        materialization = event.step_materialization_data.materialization
        asset = materialization.asset_key.to_user_string()
        if asset != self._asset:
            self._asset, self._of_asset, self._samples = asset, 0, 0
            self._asset_started = time.monotonic()
        samples = materialization.metadata.get("samples")
        self._samples += int(str(samples.value)) if samples is not None else 0
        self._of_asset += 1
        self._done += 1
        self._show()

    def _show(self) -> None:
        width = 24
        filled = width * self._done // max(self._total, 1)
        bar = "#" * filled + "-" * (width - filled)
        seconds = time.monotonic() - self._started
        left = seconds / self._done * (self._total - self._done)
        rate = self._samples / max(time.monotonic() - self._asset_started, 0.001)
        samples = f", {rate:.0f} samples/s" if self._samples else ""
        text = f"[{bar}] {self._asset}: {self._of_asset} shards{samples}; {seconds:.0f} s, {left:.0f} s left"
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._clear()
