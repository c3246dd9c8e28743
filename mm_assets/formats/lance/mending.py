"""Repair of a table before a commit: damage in partitions about to be replaced must not prevent it."""

from __future__ import annotations

from collections.abc import Collection

from mm_assets.formats.lance.damage import unreadable_fragments
from mm_assets.formats.lance.indexes import has_sound_indexes, rebuild
from mm_assets.formats.lance.ownership import removal_operation
from mm_assets.formats.lance.snapshot import retry_on_conflict
from mm_assets.formats.lance.table import LanceTable


class MendingTable(LanceTable):
    """A `LanceTable` whose damaged files can be removed.

    Each method may be repeated, also after a crash.
    """

    def drop_damaged_records(self, partitions: Collection[str]) -> None:
        """Delete unreadable records of these partitions, which are about to be written again."""
        self._records.drop_damaged(partitions)

    def take_out_unreadable(self, partitions: Collection[str]) -> None:
        """Remove unreadable fragments of partitions that are about to be written again, in one commit."""

        def attempt() -> None:
            snapshot, records = self._consistent(lambda: self._records.of(partitions))
            operation = removal_operation(snapshot, unreadable_fragments(self.uri, snapshot, records), {})
            if operation is not None:
                self._apply(snapshot.dataset, operation, {})

        retry_on_conflict(attempt)

    def mend_indexes(self, partitions: Collection[str]) -> None:
        """Rebuild the indexes if they do not find all rows of these partitions."""
        snapshot, records = retry_on_conflict(lambda: self._consistent(lambda: self._records.of(partitions)))
        if not has_sound_indexes(self.uri, snapshot, records):
            retry_on_conflict(lambda: rebuild(self.dataset()))
