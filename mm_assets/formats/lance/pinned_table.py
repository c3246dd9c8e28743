"""One version of a Lance table, held while others commit: its partitions, their files, and tags."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mm_assets.formats.lance.damage import naming_table
from mm_assets.formats.lance.location import Location
from mm_assets.formats.lance.partitions import LancePartitionStats, PartitionRecords
from mm_assets.formats.lance.snapshot import Snapshot
from mm_assets.formats.lance.table import LanceTable

DATA = "data"


@dataclass(frozen=True)
class PinnedPartition:
    """A partition of the version, and its data files: paths below the table."""

    stats: LancePartitionStats
    files: tuple[str, ...]


class PinnedTable:
    """The newest version of a table at the time of the call.

    Raises:
        FileNotFoundError: there is no table.
        OSError: its manifest is damaged.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._location = Location(uri, storage_options)
        self._snapshot = Snapshot(LanceTable(uri, storage_options).dataset())
        self._records = PartitionRecords(self._location)

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._snapshot.version

    def partitions(self, names: Collection[str]) -> dict[str, PinnedPartition]:
        """Return those of some partitions that have rows in the version.

        Records are read for these partitions alone. Files that hold rows of several partitions, after a
        compaction, are of none of them.
        """
        found = {}
        lives = (self._snapshot.live(records) for records in self._records.of(names).values())
        for name, stats in self._snapshot.stats(live for live in lives if live is not None).items():
            files = [
                f"{DATA}/{file.path}"
                for id_ in stats.fragment_ids
                for file in self._snapshot.fragments[id_].files
            ]
            found[name] = PinnedPartition(stats, tuple(files))
        return found

    def data_files(self) -> list[str]:
        """Return the paths of all data files of the version, below the table."""
        fragments = self._snapshot.fragments.values()
        return sorted({f"{DATA}/{file.path}" for fragment in fragments for file in fragment.files})

    def tags(self) -> dict[str, int]:
        """Return the version of each tag of the table."""
        with naming_table(self._location.uri):
            return {name: int(tag["version"]) for name, tag in self._snapshot.dataset.tags.list().items()}

    def tag(self, name: str) -> None:
        """Give the version a tag, or move the tag of this name to it. Clean-up keeps tagged versions."""
        tags = self._snapshot.dataset.tags
        with naming_table(self._location.uri):
            if name in self.tags():
                tags.update(name, self.version)
            else:
                tags.create(name, self.version)
