"""The partitions that are about to be written: which of them are there already, from which source, and what becomes of those."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from mm_assets.formats.origins import Note, Origin, OriginNotes, at_once, origin_of

if TYPE_CHECKING:
    from mm_assets.formats.writer import InterleavedWriter

# What becomes of a partition that is there already and came from another source: it is replaced, refused, or left alone. Without a mode
# it is refused, too, but one of which nobody knows the source, or which comes from nobody knows where, is replaced.
MODES = ("overwrite", "error", "ignore")

NEW, SAME = "new", "from the same source"
OTHER, UNKNOWN = "from another source", "from a source that is not recorded"
_SHOWN = 3


class PartitionsExist(ValueError):
    """Partitions are there already, from another source, and the mode is ``error``; the message names them."""


class Claims:
    """The partitions (by name, with the files they are read from) that a writer is about to write.

    ``states`` says of each whether it is new, or where it came from. An output without a note was written by an older version, from batches
    that came from no file, or by somebody else.
    """

    def __init__(self, writer: InterleavedWriter, sources: Mapping[str, Sequence[str]]) -> None:
        self._writer = writer
        self._notes = OriginNotes(writer.folder, writer.storage_options)
        self._names = {partition: writer.note_name(partition) for partition in sources}
        self._before = self._notes.read(self._names.values())
        self._origins = dict(zip(sources, self._origins_of(list(sources.values())), strict=True))
        existing = writer.existing(sources)
        self.states = {partition: self._state(partition) if partition in existing else NEW for partition in sources}

    def foreign(self) -> list[str]:
        """Partitions that are there already, and not known to be from the same source (without a mode: known to be from another)."""
        foreign = (OTHER,) if self._writer.mode is None else (OTHER, UNKNOWN)
        return [partition for partition, state in self.states.items() if state in foreign]

    def left_alone(self) -> set[str]:
        """Partitions that are not to be written. Raises `PartitionsExist` if there are some that the mode refuses to replace."""
        foreign = self.foreign()
        if foreign and self._writer.mode in (None, "error"):
            raise PartitionsExist(self._complaint(foreign))
        return set(foreign) if self._writer.mode == "ignore" else set()

    def note_of(self, partition: str) -> Note:
        """The note to write, in whatever process, when the partition is about to be published."""
        name = self._names[partition]
        return Note(self._notes, name, self._before.get(name), self._origins[partition])

    def restore(self, landed: Collection[str]) -> None:
        """Put back the notes of those that did not land: what lies there is what was there before."""
        names = [name for partition, name in self._names.items() if partition not in landed]
        now = self._notes.read(names)
        self._notes.write({name: self._before.get(name) for name in names if self._before.get(name) != now.get(name)})

    def _origins_of(self, sources: Sequence[Sequence[str]]) -> list[Origin | None]:
        options = self._writer.storage_options
        where = next((file for files in sources for file in files), "")
        return at_once(lambda files: origin_of(files, options) if files else None, sources, where)

    def _state(self, partition: str) -> str:
        before, now = self._before.get(self._names[partition]), self._origins[partition]
        if before is None or now is None:
            return UNKNOWN
        return SAME if before.is_same(now) else OTHER

    def _complaint(self, foreign: Sequence[str]) -> str:
        first = foreign[0]
        others = f", and so are {len(foreign) - 1} more" if len(foreign) > 1 else ""
        return (
            f"{self._writer.describe(first)} is there already, {self.states[first]}{others}; nothing was written "
            "(--mode, mode=: overwrite replaces, ignore leaves alone)"
        )
