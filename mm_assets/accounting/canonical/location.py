"""Location of rows for a canonical reader: a file, a table or one partition of it, a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mm_assets.formats.format_table import format_of


@dataclass(frozen=True)
class CanonicalLocation:
    """Location of rows of one format.

    Args:
        kind: name of the format.
        uri: path or URL of a file, a table or the folder of a cache; empty if nothing was written.
        partition: the one partition of a table that is meant (None: the whole table); the name of the
            partition that a file is. Files are read whole.
        relative_to: folder that locators are relative to, in files of others.
        layout: arguments for the reader of files of others.
        options: options of the file system.
    """

    kind: str
    uri: str | None
    partition: str | None = None
    relative_to: str | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    options: dict[str, Any] | None = None

    @property
    def is_part_of_table(self) -> bool:
        """Whether this is one of the partitions that share a table."""
        return format_of(self.kind).is_table and self.partition is not None
