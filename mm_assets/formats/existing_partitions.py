"""Partitions that an output already has, their sources, and whether a new conversion may replace them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from mm_assets.formats.origins import Note, Origin, OriginNotes
from mm_assets.formats.storage import StorageOptions
from mm_assets.interleaved.errors import MmAssetsError

# What happens to an existing partition of another source: replace it, refuse to write, or leave it alone.
# Without a mode, writing is refused only where a note proves another source, and no notes are added to an
# output without them.
MODES = ("overwrite", "error", "ignore")

NEW, SAME = "new", "from the same source"
OTHER, UNKNOWN = "from another source", "from a source that is not recorded"


class PartitionsExist(MmAssetsError, ValueError):
    """Partitions exist already, from another source, and the mode is ``error``; the message names them."""


class PartitionOutputs(Protocol):
    """What is asked of a writer: its mode, and where its partitions lie."""

    mode: str | None
    storage_options: StorageOptions | None

    @property
    def folder(self) -> str: ...
    def describe(self, partition: str) -> str: ...
    def note_name(self, partition: str) -> str: ...
    def file_of(self, partition: str) -> str: ...
    def existing(self, partitions: Iterable[str]) -> set[str]: ...


class ExistingPartitions:
    """The partitions to be written that a writer's output already has.

    ``states`` has for each partition ``NEW``, ``SAME``, ``OTHER`` or ``UNKNOWN``. An output without a note
    (``UNKNOWN``) was written by an older version, from batches that came from no file, or by another tool.

    A new partition is noted just before it is published: a process killed in between leaves a note without an
    output, which is harmless. A partition that replaces one of another source is noted after it is published:
    if the process is killed before, the next conversion asks again whether to replace it.

    Args:
        writer: the writer of the output.
        sources: name of each partition to be written -> files it is read from.
    """

    def __init__(self, writer: PartitionOutputs, sources: Mapping[str, Sequence[str]]) -> None:
        self._writer = writer
        self._notes = OriginNotes(writer.folder, writer.storage_options)
        self._names = {partition: writer.note_name(partition) for partition in sources}
        self._before = self._notes.read(self._names.values())
        self._in_place: set[str] = set()  # read and written in the same place: their origin stays
        self._origins: dict[str, Origin | None] = {}
        for partition, files in sources.items():
            origin = Origin.of(files) if files else None
            if origin is not None and origin.is_same(Origin.of([writer.file_of(partition)])):
                self._in_place.add(partition)
                origin = self._before.get(self._names[partition])
            self._origins[partition] = origin
        existing = writer.existing(sources)
        self.states = {name: self._state(name) if name in existing else NEW for name in sources}

    def conflicts(self) -> list[str]:
        """Return the existing partitions that are not known to come from the same source.

        Without a mode: those known to come from another source.
        """
        conflicting = (OTHER,) if self._writer.mode is None else (OTHER, UNKNOWN)
        return [partition for partition, state in self.states.items() if state in conflicting]

    def skipped(self) -> set[str]:
        """Return the partitions that are not to be written (mode ``ignore``).

        Raises:
            PartitionsExist: the mode refuses to replace some.
        """
        conflicts = self.conflicts()
        if conflicts and self._writer.mode in (None, "error"):
            raise PartitionsExist(self._refusal(conflicts))
        return set(conflicts) if self._writer.mode == "ignore" else set()

    def note_of(self, partition: str) -> Note | None:
        """Return the note to write just before publishing, in any process; None if it must wait."""
        return None if self.states[partition] in (OTHER, UNKNOWN) else self._note(partition)

    def note_published(self, published: Collection[str]) -> None:
        """Write the notes that had to wait until these partitions were published."""
        for partition in published:
            if self.note_of(partition) is None:
                self._note(partition).write()

    def _note(self, partition: str) -> Note:
        name = self._names[partition]
        before = self._before.get(name)
        now = None if self._writer.mode is None and before is None else self._origins[partition]
        return Note(self._notes, name, self._writer.describe(partition), before, now)

    def _state(self, partition: str) -> str:
        before, now = self._before.get(self._names[partition]), self._origins[partition]
        if partition in self._in_place:
            return SAME
        if before is None or now is None:
            return UNKNOWN
        return SAME if before.is_same(now) else OTHER

    def _refusal(self, conflicts: Sequence[str]) -> str:
        first = conflicts[0]
        others = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        return (
            f"{self._writer.describe(first)} is there already, {self.states[first]}{others}; "
            "nothing was written (--mode, mode=: overwrite replaces, ignore leaves alone)"
        )
