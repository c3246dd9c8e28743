"""`InterleavedBatch`: one or more whole samples as an Arrow table, with their lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.interleaved.counted import counted, first_and_more
from mm_assets.interleaved.schema import REQUIRED_COLUMNS

__all__ = ["InterleavedBatch"]


@dataclass(frozen=True, repr=False)
class InterleavedBatch:
    """One or more whole samples.

    A sample is one document; its text blocks and images are items. ``data`` has one row per item, in the
    columns of `INTERLEAVED_SCHEMA` plus passthrough columns. The rows of a sample should be consecutive;
    writers regroup them otherwise.

    ``source_files`` is the lineage: the files that these rows were read from. ``partition`` names the output
    file they belong to. ``measured`` holds image measurements by row number, passed from one step to the
    next; it is dropped together with the rows.
    """

    data: pa.Table
    source_files: Sequence[str] = ()
    partition: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    measured: Mapping[int, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.data, pa.RecordBatch):
            object.__setattr__(self, "data", pa.Table.from_batches([self.data]))
        if not isinstance(self.data, pa.Table):
            raise TypeError(f"InterleavedBatch.data must be a pyarrow.Table, not {type(self.data).__name__}")
        files: Sequence[str] = (
            (self.source_files,) if isinstance(self.source_files, str) else self.source_files
        )
        object.__setattr__(self, "source_files", [str(file) for file in files])

    def __repr__(self) -> str:
        size = f"{counted(self.num_rows, 'row')}, {counted(self.data.num_columns, 'column')}"
        return f"<InterleavedBatch of {first_and_more(self.source_files)}: {size}>"

    @property
    def num_rows(self) -> int:
        return self.data.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the Arrow buffers that these rows use."""
        return self.data.nbytes

    @property
    def num_samples(self) -> int:
        """Number of distinct sample ids."""
        return len(pc.unique(self.data.column("sample_id"))) if "sample_id" in self.data.column_names else 0

    def count(self, modality: str) -> int:
        """Number of rows of a modality."""
        return pc.sum(pc.equal(self.data.column("modality"), modality)).as_py() or 0

    def missing_columns(self) -> list[str]:
        """Required columns that this batch lacks."""
        return [name for name in REQUIRED_COLUMNS if name not in self.data.column_names]

    def validate(self) -> bool:
        """Return True if there are rows and all required columns."""
        return self.num_rows > 0 and not self.missing_columns()

    def with_data(self, data: pa.Table, measured: Mapping[int, Any] | None = None) -> InterleavedBatch:
        """Return a batch of another table with the same lineage; ``measured`` describes its rows."""
        return replace(self, data=data, measured=measured or {})
