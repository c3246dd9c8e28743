"""Steps (transformations of batches, such as filters), and the stream of batches they work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.digest import ContentDigest
from mm_assets.interleaved.losses import Loss, with_source_refs

# Key of the count of rows that steps changed by setting an error. Their digests differ from those of the
# input.
ROWS_CHANGED = "rows_changed"


@dataclass(frozen=True)
class StepResult:
    """Result of a step on one batch.

    ``batch`` is what is left. ``removed`` has the rows taken out, ``losses`` one reason for each of them in
    the same order. ``counts`` adds to the counters of the stream.
    """

    batch: InterleavedBatch
    losses: tuple[Loss, ...] = ()
    removed: pa.Table | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class Step(Protocol):
    """A picklable transformation of one batch of whole samples that keeps the schema."""

    def __call__(self, batch: InterleavedBatch) -> StepResult: ...


class BatchStream:
    """The batches of one partition, read once, one batch in memory at a time; the schema is known in advance.

    ``items`` is the number of items that the source declares (headers, json, footers), None if it does not
    say. ``losses`` are the items that are not among the batches, ``removed`` is the digest of the rows that
    steps took out, ``counts`` sums the counters of steps. These are complete once the stream has been read.
    """

    def __init__(
        self,
        partition: str,
        schema: pa.Schema,
        batches: Callable[[], Iterable[InterleavedBatch]],
        files: tuple[str, ...] = (),
        items: int | None = None,
    ) -> None:
        self.partition = partition
        self.schema = schema
        self.files = files
        self.items = items
        self.losses: list[Loss] = []
        self.removed = ContentDigest()
        self.counts: Counter[str] = Counter()
        self.notes: dict[str, Any] = {}
        self._batches = batches

    def __iter__(self) -> Iterator[InterleavedBatch]:
        return iter(self._batches())

    def through(self, steps: Iterable[Step]) -> BatchStream:
        """Return the stream with steps applied; ``losses`` and ``removed`` collect what they take out."""
        steps = tuple(steps)
        if not steps:
            return self
        result = BatchStream(
            self.partition, self.schema, lambda: _run(self, steps, result), self.files, self.items
        )
        # Shared, so that they cover all steps, however many calls added them.
        result.losses, result.removed, result.counts, result.notes = (
            self.losses,
            self.removed,
            self.counts,
            self.notes,
        )
        return result


def _run(source: BatchStream, steps: tuple[Step, ...], result: BatchStream) -> Iterator[InterleavedBatch]:
    for batch in source:
        for step in steps:
            outcome = step(batch)
            if outcome.losses or outcome.removed is not None:
                removed = outcome.removed if outcome.removed is not None else batch.data.slice(0, 0)
                result.losses.extend(with_source_refs(outcome.losses, removed))
                result.removed.observe(removed)
            result.counts.update(outcome.counts)
            batch = outcome.batch
        yield batch
