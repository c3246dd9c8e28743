"""Tally of the rows that a writer writes: counts, digests and losses."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.reports import PartitionReport
from mm_assets.interleaved.digest import ContentDigest
from mm_assets.interleaved.json_values import is_json
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.policies import ItemError
from mm_assets.interleaved.samples import UniqueSamples
from mm_assets.interleaved.schema import align_table, canonical_schema
from mm_assets.interleaved.steps import ROWS_CHANGED, BatchStream


class RowTally:
    """Counts and digests of the rows written.

    Args:
        found: the columns as they come.
        written: the columns as they are written.
    """

    def __init__(self, found: pa.Schema, written: pa.Schema) -> None:
        self.rows = self.samples = self.images = self.texts = self.image_bytes = 0
        self.changed = 0  # rows that got an error here
        self.errors: list[ItemError] = []
        self.losses: list[Loss] = []
        self.lost = ContentDigest()
        self.unique = UniqueSamples()
        self._digest = ContentDigest()
        # Other types give another digest. The rows are also digested as they came, to prove that the input
        # is complete.
        self._source = self._digest if _keeps_columns(found, written) else ContentDigest()

    def count(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Count a table and return it as it is to be written."""
        self.rows += table.num_rows
        for entry in table.column("modality").value_counts().to_pylist():
            if entry["values"] == "image":
                self.images += entry["counts"]
            elif entry["values"] == "text":
                self.texts += entry["counts"]
        self.image_bytes += pc.sum(pc.binary_length(table.column("binary_content"))).as_py() or 0
        aligned = align_table(table, schema)
        self._digest.observe(aligned)
        if self._source is not self._digest:
            self._source.observe(table)
        return aligned

    def report(self, stream: BatchStream, schema: pa.Schema, left_out: tuple[str, ...]) -> PartitionReport:
        """Return the report on the partition, without uri and bytes."""
        return PartitionReport(
            partition=stream.partition,
            uri=None,
            rows=self.rows,
            samples=self.unique.count,
            images=self.images,
            texts=self.texts,
            nbytes=0,
            image_bytes=self.image_bytes,
            schema=schema,
            digest=self._digest.hexdigest(),
            source_digest=self._source.hexdigest(),
            source_files=stream.files,
            items=stream.items,
            lost_digest=stream.removed.plus(self.lost).hexdigest(),
            losses=(*stream.losses, *self.losses),
            errors=tuple(self.errors),
            counts={**stream.counts, ROWS_CHANGED: stream.counts[ROWS_CHANGED] + self.changed},
            examples={name: tuple(found) for name, found in stream.examples.items()},
            dropped_columns=left_out,
            notes=stream.notes,
        )


def _keeps_columns(found: pa.Schema, written: pa.Schema) -> bool:
    """Return whether every column of ``found`` is written in the same type."""
    kept = {field.name: (field.type, is_json(field)) for field in written}
    return all(kept.get(field.name) == (field.type, is_json(field)) for field in canonical_schema(found))
