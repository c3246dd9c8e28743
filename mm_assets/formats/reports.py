"""What a writer says about what it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.policies import ItemError

__all__ = ["PartitionReport", "WriteReport"]


@dataclass(frozen=True)
class PartitionReport:
    """What one partition's output holds. ``uri`` is None when there was nothing to write (an empty tar is
    never written).

    ``items`` is how many items the input holds by its own account (None: it does not say); each of them is
    among the ``rows`` or the ``losses``. ``digest`` is of the rows as written, ``source_digest`` of the same
    rows before their columns took the output's types, ``lost_digest`` of the rows that steps and the policy
    took out.
    """

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
    items: int | None = None
    source_digest: str = ""
    lost_digest: str = ""
    losses: tuple[Loss, ...] = ()
    errors: tuple[ItemError, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    dropped_columns: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def filtered(self) -> tuple[Loss, ...]:
        """Items that filters took out."""
        return tuple(loss for loss in self.losses if loss.outcome == "filtered")

    @property
    def quarantined(self) -> tuple[Loss, ...]:
        """Items quarantined for a fault, theirs or their sample's, and damaged ranges of files."""
        return tuple(loss for loss in self.losses if loss.outcome == "quarantined")


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
    def losses(self) -> tuple[Loss, ...]:
        return tuple(loss for report in self.partitions for loss in report.losses)

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for report in self.partitions for name in report.dropped_columns))

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(report.uri for report in self.partitions if report.uri is not None)


class PartitionsRefused(MmAssetsError, ValueError):
    """Partitions were not published (``complaints``: why, by name; ``reasons``: each once), the others of the
    chunk were.
    """

    def __init__(self, complaints: Mapping[str, str]) -> None:
        self.complaints = dict(complaints)
        self.reasons = list(dict.fromkeys(complaints.values()))
        super().__init__("; ".join(self.reasons))
