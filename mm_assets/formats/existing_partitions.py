"""Which of the partitions to be written exist already, from which source, and what becomes of those."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from mm_assets.formats.origins import Note, Origin, OriginNotes
from mm_assets.formats.storage import StorageOptions
from mm_assets.interleaved.errors import MmAssetsError

# What becomes of a partition that is there already and came from another source: it is replaced, refused, or
# left alone. Without a mode it is refused where a note says so, and nothing is noted where nothing was.
MODES = ("overwrite", "error", "ignore")

NEW, SAME = "new", "from the same source"
OTHER, UNKNOWN = "from another source", "from a source that is not recorded"


class PartitionsExist(MmAssetsError, ValueError):
    """Partitions are there already, from another source, and the mode is ``error``; the message names them."""


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
    """What a writer's output has of the partitions that are to be written (``sources``: name -> files it is
    read from).

    ``states`` says of each whether it is new, or where it came from. An output without a note was written by
    an older version, from batches that came from no file, or by somebody else.

    A new partition is noted just before it is published: whoever is killed then leaves a note without an
    output. One in the place of another data set's is noted when it has landed: whoever is killed before has
    still to be told to replace it.
    """

    def __init__(self, writer: PartitionOutputs, sources: Mapping[str, Sequence[str]]) -> None:
        self._writer = writer
        self._notes = OriginNotes(writer.folder, writer.storage_options)
        self._names = {partition: writer.note_name(partition) for partition in sources}
        self._before = self._notes.read(self._names.values())
        self._in_place: set[str] = set()  # written where they are read: they stay what they came from
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
        """Partitions that are there already, and not known to be from the same source (without a mode: known
        to be from another).
        """
        conflicting = (OTHER,) if self._writer.mode is None else (OTHER, UNKNOWN)
        return [partition for partition, state in self.states.items() if state in conflicting]

    def skipped(self) -> set[str]:
        """Partitions that are not to be written.

        Raises `PartitionsExist` if there are some that the mode refuses to replace.
        """
        conflicts = self.conflicts()
        if conflicts and self._writer.mode in (None, "error"):
            raise PartitionsExist(self._refusal(conflicts))
        return set(conflicts) if self._writer.mode == "ignore" else set()

    def note_of(self, partition: str) -> Note | None:
        """The note to write, in whatever process, before the partition is published; None where that has to
        wait.
        """
        return None if self.states[partition] in (OTHER, UNKNOWN) else self._note(partition)

    def note_landed(self, landed: Collection[str]) -> None:
        """Note the sources of those that had to wait, and have landed."""
        for partition in landed:
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
            f"{self._writer.describe(first)} is there already, {self.states[first]}{others}; nothing was written "
            "(--mode, mode=: overwrite replaces, ignore leaves alone)"
        )
