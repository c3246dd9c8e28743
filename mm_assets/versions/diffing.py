"""Diff of two tags, or of a tag and the current state."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

from mm_assets.accounting.ledger import Ledger
from mm_assets.accounting.records import ShardRecords
from mm_assets.formats.storage import StorageOptions, join
from mm_assets.interleaved.errors import DataError
from mm_assets.versions.capture import FOLDER, CaptureJob, capture
from mm_assets.versions.current_state import CurrentState
from mm_assets.versions.differences import Comparison, Difference
from mm_assets.versions.manifest import Manifest
from mm_assets.versions.output_state import Group, merged
from mm_assets.versions.sample_store import SampleStore
from mm_assets.versions.tag_names import NOW
from mm_assets.workers import WorkerFailure, WorkerPool


class Diff:
    """Differences between two states, each a tag or ``now``, in sorted order of partitions and samples.

    A context manager: what is read of the current state stays in a temporary folder until its end.

    Raises:
        FileNotFoundError: there is no such tag.
    """

    def __init__(
        self, root: str, before: str, after: str, pool: WorkerPool, options: StorageOptions | None = None
    ) -> None:
        self._root, self._options, self._pool = root, options, pool
        self._names = (before, after)
        self._tags = [Manifest(root, name, options) if name != NOW else None for name in self._names]
        self._stack = ExitStack()

    def __enter__(self) -> Diff:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mm-assets-"))
        self._folder = folder
        self._scratch = SampleStore(folder)
        self._kept = SampleStore(join(self._root, FOLDER), self._options)
        self._stores = [[self._kept] if name != NOW else [self._kept, self._scratch] for name in self._names]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def partitions(self) -> Iterator[tuple[str, Group, Group, list[Difference]]]:
        """Yield each partition that differs: its states in both, and its differing samples."""
        if NOW in self._names:
            self._capture_current()
        comparison = Comparison(*self._stores)
        for partition, before, after in self._pairs():
            if _differs(before, after):
                yield partition, before, after, comparison.differences(partition, before, after)

    def _pairs(self) -> Iterator[tuple[str, Group, Group]]:
        left, right = (
            CurrentState(self._root, self._options).groups() if tag is None else tag.groups()
            for tag in self._tags
        )
        return merged(left, right)

    def _capture_current(self) -> None:
        """Read sample digests and lost items of the outputs that are not those of the tag."""
        for _, answer in self._pool.map(capture, self._unknown()):
            if isinstance(answer, WorkerFailure):
                raise DataError(str(answer))

    def _unknown(self) -> Iterator[CaptureJob]:
        ledger, records = Ledger(self._root, self._options), ShardRecords(self._root)
        is_now_first = self._names[0] == NOW
        for partition, before, after in self._pairs():
            now, tagged = (before, after) if is_now_first else (after, before)
            if not _differs(now, tagged):
                continue
            for state in now.values():
                if state.losses:
                    self._scratch.copy_losses(state.losses, ledger.items_uri(state.asset, partition))
            changed = [
                state.asset
                for state in now.values()
                if state.has_rows
                and (state.asset not in tagged or tagged[state.asset].version != state.version)
                and not self._kept.has(state.version)
            ]
            found = [record for asset in changed for record in records.read(asset, [partition]).values()]
            if found:
                yield CaptureJob(self._root, found, self._folder, reads_files=False, options=self._options)


def _differs(before: Group, after: Group) -> bool:
    assets = before.keys() | after.keys()
    return any(
        (before[asset].version if asset in before else None)
        != (after[asset].version if asset in after else None)
        for asset in assets
    )
