"""Progress of a headless run on a terminal: shards, samples a second and time left, for each asset."""

from __future__ import annotations

import time
from types import TracebackType

import dagster as dg

from mm_assets.terminal import ProgressLine


class RunProgress:
    """Progress line on stderr, if that is a terminal; silent elsewhere.

    Args:
        total: shards to make, counted once for each asset.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._line = ProgressLine(total)
        self._done = 0
        self._started = time.monotonic()
        self._asset = ""
        self._shards_of_run = 0
        self._of_asset = self._samples = 0
        self._asset_started = 0.0

    def __enter__(self) -> RunProgress:
        return self

    def follow(self, instance: dg.DagsterInstance, run_id: str, shards: int) -> None:
        """Show the shards of a run as they land."""
        self._asset, self._shards_of_run = "", shards
        if self._line.is_shown:
            instance.add_event_listener(run_id, self._note)

    def print(self, text: str) -> None:
        """Print a line above the progress line, or alone where none is shown."""
        self._line.clear()
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
        seconds = time.monotonic() - self._started
        left = seconds / self._done * (self._total - self._done)
        rate = self._samples / max(time.monotonic() - self._asset_started, 0.001)
        samples = f", {rate:.0f} samples/s" if self._samples else ""
        shards = f"{self._asset} {self._of_asset}/{self._shards_of_run}"
        self._line.show(self._done, f"{shards}{samples}, {seconds:.0f} s, {left:.0f} s left")

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._line.end()
