"""What a canonical reader finds: counts, columns and digest of rows, added up as they come."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.interleaved.digest import ContentDigest
from mm_assets.interleaved.unify import unify_schemas


@dataclass(frozen=True)
class Derived:
    """What a canonical reader finds. ``samples`` are runs of rows of one sample id, ``schema`` the columns,
    each in one type for all.

    ``offsets`` are where the samples of a tar of ours begin and where the last ends, in bytes; None where
    they were not looked at.
    """

    rows: int = 0
    samples: int = 0
    images: int = 0
    texts: int = 0
    digest: str = ContentDigest().hexdigest()
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    offsets: tuple[int, ...] | None = field(default=None, compare=False, repr=False)


class DigestTally:
    """Counts rows as they come."""

    def __init__(self) -> None:
        self.schemas: list[pa.Schema] = []
        self.digest = ContentDigest()
        self.rows = self.samples = 0
        self._counts: Counter[str] = Counter()  # by modality
        self._last: str | None = None  # sample id: a sample may go on in the next table

    def observe(self, table: pa.Table) -> None:
        """Add the rows of a table, in the types it has."""
        self.add(RowPart(table))

    def add(self, part: RowPart) -> None:
        """Add rows as they are read."""
        table, schema = part.table, part.schema
        if not any(schema.equals(known, check_metadata=True) for known in self.schemas):
            self.schemas.append(schema)
        if table.num_rows == 0:
            return
        self.digest.observe(table, part.values())
        self.rows += table.num_rows
        ids = table.column("sample_id").to_pylist()
        self.samples += sum(1 for _ in groupby(ids)) - (ids[0] == self._last)
        self._last = ids[-1]
        self._counts.update(table.column("modality").to_pylist())

    def derived(self) -> Derived:
        """What has been seen so far."""
        schema = unify_schemas(self.schemas) if self.schemas else pa.schema([])
        return Derived(
            self.rows,
            self.samples,
            self._counts["image"],
            self._counts["text"],
            self.digest.hexdigest(),
            schema,
        )
