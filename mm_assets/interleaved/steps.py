"""Transformations of batches: what a filter returns, and the stream it works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from mm_assets.interleaved.batch import InterleavedBatch


@dataclass(frozen=True)
class Dropped:
    """One item a filter took out: which filter, why, the measured score and the threshold it missed."""

    sample_id: str
    position: int
    modality: str
    filter: str
    reason: str
    score: float | None = None
    threshold: str | None = None


@dataclass(frozen=True)
class StepResult:
    """What a step leaves of a batch, and each item it took out."""

    batch: InterleavedBatch
    dropped: tuple[Dropped, ...] = ()


class Step(Protocol):
    """A picklable transformation of one batch of whole samples that keeps the schema."""

    def __call__(self, batch: InterleavedBatch) -> StepResult: ...


class BatchStream:
    """The batches of one partition: schema known before the first, read once, one batch in memory at a time."""

    def __init__(
        self, partition: str, schema: pa.Schema, batches: Callable[[], Iterable[InterleavedBatch]], files: tuple[str, ...] = ()
    ) -> None:
        self.partition = partition
        self.schema = schema
        self.files = files
        self.dropped: list[Dropped] = []
        self.notes: dict[str, Any] = {}
        self._batches = batches

    def __iter__(self) -> Iterator[InterleavedBatch]:
        return iter(self._batches())

    def through(self, steps: Iterable[Step]) -> BatchStream:
        """The same stream after some steps; items they drop are collected in ``dropped``."""
        steps = tuple(steps)
        if not steps:
            return self
        result = BatchStream(self.partition, self.schema, lambda: _run(self, steps, result), self.files)
        result.dropped, result.notes = self.dropped, self.notes  # of all steps, however many calls added them
        return result


def _run(source: BatchStream, steps: tuple[Step, ...], result: BatchStream) -> Iterator[InterleavedBatch]:
    for batch in source:
        for step in steps:
            outcome = step(batch)
            result.dropped.extend(outcome.dropped)
            batch = outcome.batch
        yield batch
