"""A table made fit for a commit: what is damaged of the partitions about to be written is no hindrance to it."""

from __future__ import annotations

from collections.abc import Collection

from mm_assets.formats.lance.damage import unreadable_fragments
from mm_assets.formats.lance.indexes import has_sound_indexes, rebuild
from mm_assets.formats.lance.ownership import taking_out
from mm_assets.formats.lance.snapshot import retry_on_conflict
from mm_assets.formats.lance.table import LanceTable


class MendingTable(LanceTable):
    """A `LanceTable` of which damaged files can be taken out.

    Each method may be repeated, also after a crash.
    """

    def drop_damaged_records(self, partitions: Collection[str]) -> None:
        """Forget records of these partitions that cannot be read: they are about to be written again, or to
        be looked at for that.
        """
        self._records.drop_damaged(partitions)

    def take_out_unreadable(self, partitions: Collection[str]) -> None:
        """Take out, in a commit of its own, what cannot be read any more of partitions that are about to be
        written again.
        """

        def once() -> None:
            snapshot, records = self._consistent(lambda: self._records.of(partitions))
            operation = taking_out(snapshot, unreadable_fragments(self.uri, snapshot, records), {})
            if operation is not None:
                self._apply(snapshot.dataset, operation, {})

        retry_on_conflict(once)

    def mend_indexes(self, partitions: Collection[str]) -> None:
        """Make the indexes anew if they do not find all rows of these partitions."""
        snapshot, records = retry_on_conflict(lambda: self._consistent(lambda: self._records.of(partitions)))
        if not has_sound_indexes(self.uri, snapshot, records):
            retry_on_conflict(lambda: rebuild(self.dataset()))
