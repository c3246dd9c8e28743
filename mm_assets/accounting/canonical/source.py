"""One file, or one Lance table or partition of it, as a source of plain tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets.accounting.accounted_format import accounted_format
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.types import normalized
from mm_assets.formats.format_table import format_of


@dataclass(frozen=True)
class CanonicalSource:
    """Where rows lie: ``kind`` is the name of a format, ``uri`` a file, a table or the folder of a cache
    (path or URL; empty: nothing was written).

    ``partition`` narrows a table to one partition (None: the whole table), and is the name of that of a
    file; files are read whole. Of files of others ``relative_to`` is the folder that locators are relative
    to, ``layout`` what their reader is to know of them. ``options`` are those of the file system.
    """

    kind: str
    uri: str | None
    partition: str | None = None
    relative_to: str | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    options: dict[str, Any] | None = None

    def states_types(self) -> bool:
        """Whether each column has the type that was chosen for the rows here: not in a Lance table, whose
        other rows have a say in it, nor in a raw tar, whose types are told from its values.
        """
        return accounted_format(self.kind).states_types(self)

    @property
    def is_part_of_table(self) -> bool:
        """Whether this is one of the partitions that share a table."""
        return format_of(self.kind).is_table and self.partition is not None

    def tables(self) -> Iterator[pa.Table]:
        """The rows in the types they were written in, some megabytes at a time; a table without rows where
        there is only a schema.

        Raises ``FileNotFoundError``, and ``ValueError`` naming the file for what its reader, or the layout,
        does not allow.
        """
        for part in self.parts():
            yield from part.tables()

    def parts(self) -> Iterator[RowPart]:
        """The same rows as they are read.

        Raises as `tables` does, also while the blobs of a part are asked for.
        """
        if not self.uri:
            return
        for part in accounted_format(self.kind).parts(self):
            yield normalized(part, self.uri)
