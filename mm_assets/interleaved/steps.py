"""Steps (transformations of batches, such as filters), and the stream of batches they work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.counted import counted, first_and_more
from mm_assets.interleaved.digest import ContentDigest
from mm_assets.interleaved.losses import Loss, with_source_refs

# Key of the count of rows that steps changed by setting an error. Their digests differ from those of the
# input.
ROWS_CHANGED = "rows_changed"
EXAMPLES = 20  # that are kept of each kind


@dataclass(frozen=True)
class Example:
    """One item that a step counted, and a few words on it."""

    sample_id: str | None
    position: int | None
    text: str = ""


def examples_of(rows: pa.Table, text: str = "") -> tuple[Example, ...]:
    """The first `EXAMPLES` rows of an interleaved table as examples, all with the same ``text``."""
    first = rows.select(["sample_id", "position"]).slice(0, EXAMPLES).to_pylist()
    return tuple(Example(row["sample_id"], row["position"], text) for row in first)


@dataclass(frozen=True)
class StepResult:
    """Result of a step on one batch.

    ``batch`` is what is left. ``removed`` has the rows taken out, ``losses`` one reason for each of them in
    the same order. ``counts`` adds to the counters of the stream; ``examples`` has examples of what was
    counted, under the same names. ``flags`` lists rows that stay, each with what is said against it.
    """

    batch: InterleavedBatch
    losses: tuple[Loss, ...] = ()
    removed: pa.Table | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, Sequence[Example]] = field(default_factory=dict)
    flags: tuple[Loss, ...] = ()


class Step(Protocol):
    """A picklable transformation of one batch of whole samples that keeps the schema."""

    def __call__(self, batch: InterleavedBatch) -> StepResult: ...


class BatchStream:
    """The batches of one partition, read once, one batch in memory at a time; the schema is known in advance.

    ``items`` is the number of items that the source declares (headers, json, footers), None if it does not
    say. ``losses`` are the items that are not among the batches, and flags of those that are. ``removed`` is
    the digest of the rows that steps took out, ``counts`` sums the counters of steps, ``examples`` has the
    first `EXAMPLES` of each counter. These are complete once the stream has been read. ``has_sound_text`` is
    True if text of the batches has been looked at: all is UTF-8.
    """

    def __init__(
        self,
        partition: str,
        schema: pa.Schema,
        batches: Callable[[], Iterable[InterleavedBatch]],
        files: tuple[str, ...] = (),
        items: int | None = None,
        has_sound_text: bool = False,
    ) -> None:
        self.has_sound_text = has_sound_text
        self.partition = partition
        self.schema = schema
        self.files = files
        self.items = items
        self.losses: list[Loss] = []
        self.removed = ContentDigest()
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[Example]] = {}
        self.notes: dict[str, Any] = {}
        self._batches = batches

    def __iter__(self) -> Iterator[InterleavedBatch]:
        return iter(self._batches())

    def __repr__(self) -> str:
        columns = counted(len(self.schema), "column")
        return f"<BatchStream {self.partition!r} of {first_and_more(self.files)}: {columns}>"

    def through(self, steps: Iterable[Step]) -> BatchStream:
        """Return the stream with steps applied; ``losses`` and ``removed`` collect what they take out."""
        steps = tuple(steps)
        if not steps:
            return self
        result = BatchStream(
            self.partition, self.schema, lambda: _run(self, steps, result), self.files, self.items
        )
        # Shared, so that they cover all steps, however many calls added them.
        result.losses, result.removed, result.notes = self.losses, self.removed, self.notes
        result.counts, result.examples = self.counts, self.examples
        return result


def _run(source: BatchStream, steps: tuple[Step, ...], result: BatchStream) -> Iterator[InterleavedBatch]:
    for batch in source:
        for step in steps:
            outcome = step(batch)
            if outcome.losses or outcome.removed is not None:
                removed = outcome.removed if outcome.removed is not None else batch.data.slice(0, 0)
                result.losses.extend(with_source_refs(outcome.losses, removed))
                result.removed.observe(removed)
            result.losses.extend(outcome.flags)
            result.counts.update(outcome.counts)
            for name, found in outcome.examples.items():
                known = result.examples.setdefault(name, [])
                known.extend(found[: EXAMPLES - len(known)])
            batch = outcome.batch
        yield batch
