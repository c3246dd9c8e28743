"""Reports of writers on what they wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets.interleaved.counted import counted
from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.policies import ItemError
from mm_assets.interleaved.steps import Example

__all__ = ["PartitionReport", "WriteReport"]

LEFT_OUT_MEMBERS = "left_out_members"  # in the notes on a tar: names of those that macOS or tar had added
_NAMED = 3  # members, or shards, in a line


class _OfCounts:
    """A representation of one line, however many items are listed."""

    def __repr__(self) -> str:
        report: Any = self
        name = report.path if isinstance(self, WriteReport) else repr(report.partition)
        partitions = [len(report.partitions)] if isinstance(self, WriteReport) else []
        counts = [
            *(counted(number, "partition") for number in partitions),
            *(counted(getattr(report, f"{unit}s"), unit) for unit in ("sample", "image", "text")),
            f"{report.nbytes / 1e6:.1f} MB",
            counted(len(report.losses), "loss", "losses"),
            counted(len(report.errors), "error"),
        ]
        return f"<{type(self).__name__} {name}: {', '.join(counts)}>"


@dataclass(frozen=True, repr=False)
class PartitionReport(_OfCounts):
    """Report on one partition's output: counts, digests, losses.

    Attributes:
        partition: its name.
        uri: the output; None when there was nothing to write (an empty tar is never written).
        rows: rows written; ``samples``, ``images`` and ``texts`` are counts among them.
        nbytes: bytes of the output; ``image_bytes`` are those of the images in it.
        schema: the schema as written.
        digest: of the rows as written.
        source_files: the inputs.
        items: how many items the input holds by its own account (None: unknown); each is among the ``rows``
            or the ``losses``.
        source_digest: of the same rows before their columns took the output's types.
        lost_digest: of the rows that steps and the policy took out.
        losses: items that were not written, each with its reason.
        errors: rows written with an error.
        counts: counters of the steps.
        examples: the first items that steps counted, by the name of the counter.
        dropped_columns: columns outside a strict schema.
        notes: facts about the input files, by file.
        extra: facts about the output that only this format has.
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
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)
    dropped_columns: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_of_nothing(self) -> bool:
        """Whether the input holds no samples, so that none were lost either."""
        return not self.rows and not self.losses

    @property
    def filtered(self) -> tuple[Loss, ...]:
        """Items that filters took out."""
        return tuple(loss for loss in self.losses if loss.outcome == "filtered")

    @property
    def flagged(self) -> tuple[Loss, ...]:
        """Items in the output that a filter has something against, and samples by their first rows."""
        return tuple(loss for loss in self.losses if loss.outcome == "flagged")

    @property
    def quarantined(self) -> tuple[Loss, ...]:
        """Items quarantined for a fault of their own or of their sample, and damaged ranges of files."""
        return tuple(loss for loss in self.losses if loss.outcome == "quarantined")


@dataclass(frozen=True, repr=False)
class WriteReport(_OfCounts):
    """Reports on all partitions of one `InterleavedWriter.write` call; the counts are their sums."""

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
        """Rows with an error, of all partitions."""
        return tuple(error for report in self.partitions for error in report.errors)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Items that were not written, of all partitions."""
        return tuple(loss for report in self.partitions for loss in report.losses)

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        """Columns outside a strict schema, each once."""
        return tuple(dict.fromkeys(name for report in self.partitions for name in report.dropped_columns))

    @property
    def files(self) -> tuple[str, ...]:
        """URIs of the outputs."""
        return tuple(report.uri for report in self.partitions if report.uri is not None)


def left_out_of(notes: Mapping[str, Any]) -> list[str]:
    """Return the names of members that macOS or tar programs had added to the tars of a report's notes."""
    return [name for of_file in notes.values() for name in of_file.get(LEFT_OUT_MEMBERS, ())]


def left_out_lines(number: int, first: Sequence[str]) -> list[str]:
    """Return the one line on members that macOS or tar programs had added, and no samples; none without any.

    Args:
        number: how many there are in all tars.
        first: names of some.
    """
    shown = ", ".join(name if name.isprintable() else ascii(name)[1:-1] for name in first[:_NAMED])
    what = f"{counted(number, 'member')} left out, added by macOS or tar and no data"
    return [f"{what}: {shown}{', …' if number > _NAMED else ''}"] if number else []


def empty_shards_lines(names: Sequence[str], of: int) -> list[str]:
    """Return a line on those of ``of`` shards that hold no samples, if there are any."""
    named = f"{', '.join(names[:_NAMED])}{', …' if names[_NAMED:] else ''}"
    return [f"no samples in {len(names)} of {counted(of, 'shard')}: {named}"] if names else []


class PartitionsRefused(MmAssetsError, ValueError):
    """Some partitions of a chunk were not published; the others were.

    ``complaints`` has the reason of each by name, ``reasons`` each reason once.
    """

    def __init__(self, complaints: Mapping[str, str]) -> None:
        self.complaints = dict(complaints)
        self.reasons = list(dict.fromkeys(complaints.values()))
        super().__init__("; ".join(self.reasons))
