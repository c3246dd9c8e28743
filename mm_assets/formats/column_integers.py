"""Ranges of the integers in 64-bit columns.

The same columns of other shards may be floats, which cannot hold all 64-bit integers exactly.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.interleaved.json_values import FieldTally


class ColumnIntegers:
    """Tallies of the smallest and largest value of each int64 column, by column name."""

    def __init__(self, schema: pa.Schema) -> None:
        self.tallies = {field.name: FieldTally() for field in schema if pa.types.is_int64(field.type)}

    def observe(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add the values of some rows."""
        for name, tally in self.tallies.items():
            for value in pc.min_max(rows.column(name)).as_py().values():
                tally.observe(value)
