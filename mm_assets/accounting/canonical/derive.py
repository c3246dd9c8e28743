"""Counts and digest of rows, derived from the output files themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical.accounted_format import accounted_format
from mm_assets.accounting.canonical.derived import Derived
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.source import CanonicalSource
from mm_assets.accounting.canonical.types import retyped
from mm_assets.interleaved.digest import ContentDigest
from mm_assets.interleaved.unify import unify_schemas


def derive(
    kind: str,
    uri: str | None,
    partition: str | None = None,
    schema: pa.Schema | None = None,
    *,
    options: dict[str, Any] | None = None,
) -> Derived:
    """Count and digest one partition of an output; an empty ``uri`` has no rows.

    Args:
        kind: the format.
        uri: the output.
        partition: for a Lance table, the partition.
        schema: digest these columns in these types: a Lance table may have widened some since they were
            written.
        options: for the file system.

    Raises:
        SchemaMismatch: a column does not fit ``schema``. Others as `CanonicalSource.tables`.
    """
    _keep_freed_memory()
    digest = accounted_format(kind).digest
    if digest is not None and uri and schema is None and (found := digest(uri, options)) is not None:
        return found
    tally = DigestTally()
    for part in CanonicalSource(kind, uri, partition, options=options).parts():
        tally.add(part if schema is None else replace(part, table=retyped(part.table, schema)))
    return tally.derived()


@cache
def _keep_freed_memory() -> None:
    """Make glibc keep freed blocks of image size.

    Until it has seen a block as large freed, it returns the memory of each image to the system, and the page
    faults cost more than reading.
    """
    bytes(16 << 20)


class DigestTally:
    """Running counts and digest of rows."""

    def __init__(self) -> None:
        self.schemas: list[pa.Schema] = []
        self.digest = ContentDigest()
        self.rows = self.samples = 0
        self._counts: Counter[str] = Counter()  # by modality
        self._last: str | None = None  # last sample id: the sample may continue in the next table

    def observe(self, table: pa.Table) -> None:
        """Add the rows of a table, in its types."""
        self.add(RowPart(table))

    def add(self, part: RowPart) -> None:
        """Add rows as a canonical reader yields them."""
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
        """Return the counts so far."""
        schema = unify_schemas(self.schemas) if self.schemas else pa.schema([])
        return Derived(
            self.rows,
            self.samples,
            self._counts["image"],
            self._counts["text"],
            self.digest.hexdigest(),
            schema,
        )
