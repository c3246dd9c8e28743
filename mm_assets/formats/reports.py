"""What a writer says about what it wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets.interleaved.policies import ItemError
from mm_assets.interleaved.steps import Dropped


@dataclass(frozen=True)
class PartitionReport:
    """What one partition's output holds. ``uri`` is None when there was nothing to write (an empty tar is never written)."""

    partition: str
    uri: str | None
    rows: int
    samples: int
    images: int
    texts: int
    nbytes: int
    image_bytes: int
    schema: pa.Schema
    digest: str
    source_files: tuple[str, ...] = ()
    filtered: tuple[Dropped, ...] = ()
    errors: tuple[ItemError, ...] = ()
    policy_dropped_rows: int = 0
    dropped_columns: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WriteReport:
    """All partitions of one `InterleavedWriter.write` call; the counts are their sums."""

    path: str
    partitions: tuple[PartitionReport, ...]

    def _sum(self, name: str) -> int:
        return sum(getattr(report, name) for report in self.partitions)

    @property
    def rows(self) -> int:
        return self._sum("rows")

    @property
    def samples(self) -> int:
        return self._sum("samples")

    @property
    def images(self) -> int:
        return self._sum("images")

    @property
    def texts(self) -> int:
        return self._sum("texts")

    @property
    def nbytes(self) -> int:
        return self._sum("nbytes")

    @property
    def errors(self) -> tuple[ItemError, ...]:
        return tuple(error for report in self.partitions for error in report.errors)

    @property
    def filtered(self) -> tuple[Dropped, ...]:
        return tuple(item for report in self.partitions for item in report.filtered)

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for report in self.partitions for name in report.dropped_columns))

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(report.uri for report in self.partitions if report.uri is not None)
