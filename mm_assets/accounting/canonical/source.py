"""Source of plain tables: the rows at a location, read by the canonical reader of their format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from mm_assets.accounting.canonical.accounted_format import accounted_format
from mm_assets.accounting.canonical.location import CanonicalLocation
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.types import normalized


@dataclass(frozen=True)
class CanonicalSource(CanonicalLocation):
    """Rows at a location, read by the canonical reader of its format."""

    def states_types(self) -> bool:
        """Return whether each column has the type that was chosen for the rows here.

        Not so in a Lance table, where the rows of other partitions have a say in it, nor in a raw tar, whose
        types are inferred from its values.
        """
        return accounted_format(self.kind).states_types(self)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows in the types they were written in, some megabytes at a time.

        Where there is only a schema, that is one table without rows.

        Raises:
            FileNotFoundError: nothing is there.
            ValueError: the reader, or the layout, does not allow what is there; the message names the file.
        """
        for part in self.parts():
            yield from part.tables()

    def parts(self) -> Iterator[RowPart]:
        """Yield the same rows as they are read.

        Raises as `tables` does, also while the blobs of a part are asked for.
        """
        if not self.uri:
            return
        for part in accounted_format(self.kind).parts(self):
            yield normalized(part, self.uri)
