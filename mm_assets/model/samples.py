"""Interleaved samples in memory: batches of whole samples, steps on them, and streams of them.

* `InterleavedBatch` is one or more whole samples as an Arrow table, with their lineage.
* Functions find the boundaries of samples in a table, and put rows in the canonical order of items.
* A `Step` transforms batches, as filters do. It works on a `BatchStream`, the batches of one partition.
* The locator of an item (``source_ref``) is its place in the file that it was first read from, as JSON text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring_ascii
from typing import Any, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.model.digest import ContentDigest
from mm_assets.model.errors import DataError, counted, first_and_more, html_table, html_text
from mm_assets.model.json_codec import is_json, json_value
from mm_assets.model.losses import Loss, with_source_refs
from mm_assets.model.nested_types import take_rows
from mm_assets.model.schema import INTERLEAVED_SCHEMA, METADATA_POSITION, MODALITIES, REQUIRED_COLUMNS

__all__ = ["InterleavedBatch", "SourceRef", "build_source_ref", "parse_source_ref"]


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
        of = f" of {first_and_more(self.source_files)}" if self.source_files else ""
        return f"<InterleavedBatch{of}: {size}>"

    def _repr_html_(self) -> str:
        return f"<p>{html_text(repr(self))}</p>{rows_html(self.data)}"

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


_SHOWN_ROWS = 10
_SHOWN_CHARACTERS = 80


def rows_html(table: pa.Table) -> str:
    """Return the first rows of a table for a notebook: of bytes their number, of texts their beginning."""
    first = table.slice(0, _SHOWN_ROWS)
    columns = [[_shown(value.as_py()) for value in column] for column in first.columns]
    more = f"<p>… and {counted(table.num_rows - _SHOWN_ROWS, 'more row')}</p>"
    rows = html_table(table.column_names, zip(*columns, strict=True))
    return rows + (more if table.num_rows > _SHOWN_ROWS else "")


def _shown(value: Any) -> str:
    if value is None:
        return ""
    text = f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


Offsets = npt.NDArray[np.int64]

MAX_INT32 = 2**31 - 1


def sample_offsets(table: pa.Table) -> Offsets:
    """Return the row offsets of the samples of a table.

    ``offsets[i]:offsets[i+1]`` are the rows of the i-th run of one sample_id.
    """
    if table.num_rows == 0:
        return np.zeros(1, np.int64)
    ids = table.column("sample_id")
    if not pa.types.is_string(ids.type):  # run_end_encode takes no dictionaries and views
        ids = ids.cast(pa.large_string())
    ids = ids.combine_chunks()
    if isinstance(ids, pa.ChunkedArray):  # more text than 32-bit offsets can address
        ids = ids.cast(pa.large_string()).combine_chunks()
    ends = pc.run_end_encode(ids, run_end_type=pa.int64()).run_ends.to_numpy(zero_copy_only=False)
    return np.concatenate([np.zeros(1, np.int64), ends])


def sample_codes(ids: pa.Array) -> tuple[pa.Array, Offsets]:
    """Return the distinct ids in order of first occurrence, and for each id its index among them."""
    encoded = pc.dictionary_encode(ids, null_encoding="encode")
    return encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def group_samples(table: pa.Table) -> pa.Table:
    """Return the table with all rows of a sample consecutive, samples in the order of their first rows.

    The same table object is returned if that is already so.
    """
    offsets = sample_offsets(table)
    ids = table.column("sample_id").take(pa.array(offsets[:-1], pa.int64()))
    distinct, samples = sample_codes(ids.cast(pa.large_string()).combine_chunks())
    if len(distinct) == len(samples):
        return table
    return take_rows(table, np.argsort(np.repeat(samples, np.diff(offsets)), kind="stable"))


def sort_items(table: pa.Table) -> pa.Table:
    """Sort the rows of each sample into canonical order: metadata, then by position, text before image.

    Sample order is kept.

    Raises:
        DataError: No output layout has a place for a row: a modality other than metadata, text and image; a
            position that does not fit its modality (or 32 bits); a null in one of the three columns; two
            items of one modality at one position. The message names sample and position.
    """
    if table.num_rows == 0:
        return table
    for name in ("sample_id", "position", "modality"):
        if table.column(name).null_count:
            at = pc.index(pc.is_null(table.column(name)), True).as_py()
            raise DataError(f"{_item(table, at)}: {name} is null")
    offsets = sample_offsets(table)
    ranks = _modality_ranks(table)
    positions = table.column("position").cast(pa.int64()).to_numpy()
    if positions.max() > MAX_INT32:
        raise DataError(f"{_item(table, int(positions.argmax()))}: the position does not fit 32 bits")
    misplaced = (ranks == 0) != (positions == METADATA_POSITION)
    if misplaced.any() or (positions < METADATA_POSITION).any():
        at = int(np.argmax(misplaced | (positions < METADATA_POSITION)))
        raise DataError(f"{_item(table, at)}: metadata rows have position -1, text and image rows 0 or more")
    keys = positions * len(MODALITIES) + ranks
    key_steps = np.diff(keys)
    within_sample = np.ones(table.num_rows - 1, bool)
    within_sample[offsets[1:-1] - 1] = False
    if (key_steps[within_sample] < 0).any():
        sample_of_row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        order = np.lexsort((keys, sample_of_row))
        table, keys = table.take(pa.array(order)), keys[order]
        key_steps = np.diff(keys)
    repeated = within_sample & (key_steps == 0)
    if repeated.any():
        at = int(np.argmax(repeated)) + 1
        if table.column("modality")[at].as_py() == "metadata":
            raise DataError(f"sample id {table.column('sample_id')[at].as_py()!r} occurs twice")
        raise DataError(f"{_item(table, at)}: a second item of this modality at this position")
    return table


def _modality_ranks(table: pa.Table) -> Offsets:
    ranks = pc.index_in(table.column("modality").cast(pa.string()), pa.array(MODALITIES)).combine_chunks()
    if ranks.null_count:
        at = pc.index(pc.is_null(ranks), True).as_py()
        raise DataError(f"{_item(table, at)}: modality is none of {', '.join(MODALITIES)}")
    return ranks.to_numpy(zero_copy_only=False).astype(np.int64)


def _item(table: pa.Table, row: int) -> str:
    sample, position, modality = (table.column(c)[row].as_py() for c in ("sample_id", "position", "modality"))
    return f"sample {sample!r}, position {position}, modality {modality!r}"


Document = dict[str, Any]
"""A sample as training gets it, see `document_of`."""

_READ = [name for name in INTERLEAVED_SCHEMA.names if name != "source_ref"]
_NO_EXTRAS = {*INTERLEAVED_SCHEMA.names, "_source"}


def document_of(rows: Sequence[pa.RecordBatch], schema: pa.Schema) -> Document:
    """Return one sample ``{"sample_id", "items", "metadata"}`` of its rows.

    An item is ``{"modality", "position", "content_type", "text" or "image", "metadata"}``, and has
    ``"error"`` if its row has one. An image is the bytes of its file, None if there are none. The metadata of
    the sample has all passthrough columns, that of an item those that are not null. JSON columns are decoded.

    Args:
        rows: in canonical order.
        schema: their columns.
    """
    extras = [field for field in schema if field.name not in _NO_EXTRAS]
    columns = {name: [value for batch in rows for value in batch.column(name).to_pylist()] for name in _READ}
    values = {
        field.name: [
            _decoded(value, field) for batch in rows for value in batch.column(field.name).to_pylist()
        ]
        for field in extras
    }
    document: Document = {"sample_id": columns["sample_id"][0], "items": [], "metadata": {}}
    for row, modality in enumerate(columns["modality"]):
        row_values = {name: column[row] for name, column in values.items()}
        if modality == "metadata":
            document["metadata"] = row_values
            continue
        item = {
            "modality": modality,
            "position": columns["position"][row],
            "content_type": columns["content_type"][row],
        }
        item[modality] = columns["text_content" if modality == "text" else "binary_content"][row]
        if (error := columns["materialize_error"][row]) is not None:
            item["error"] = error
        item["metadata"] = {name: value for name, value in row_values.items() if value is not None}
        document["items"].append(item)
    return document


def item_order(item: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the key by which the items of a document are sorted: by position, text before image."""
    return item["position"], item["modality"] == "image"


def _decoded(stored: Any, field: pa.Field) -> Any:
    return json_value(stored) if stored is not None and is_json(field) else stored


class UniqueSamples:
    """Guard against a repeated sample id, which would overwrite or merge with the first sample of that id."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def observe(self, table: pa.Table) -> int:
        """Register the samples of a table and return their number.

        Raises:
            DataError: An id occurred before; the message names it.
        """
        offsets = sample_offsets(table)[:-1]
        ids = table.column("sample_id").take(pa.array(offsets, pa.int64())).to_pylist()
        for sample_id in ids:
            if sample_id in self._seen:
                raise DataError(
                    f"sample id {sample_id!r} occurs twice "
                    "(its rows are not consecutive, or it is a duplicate)"
                )
            self._seen.add(sample_id)
        return len(ids)

    @property
    def count(self) -> int:
        """Samples seen so far."""
        return len(self._seen)


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


LATER_FIELD = "later"
"""Key in the metadata of a step's field that steps did not have at first.

It is part of fingerprints only where it is not None, so that outputs without it stay as they are.
"""


class Step(Protocol):
    """A picklable transformation of one batch of whole samples that keeps the schema.

    A step may have a method ``at_end``. It is called with the stream once all batches have been read, and may
    change what the stream tells: its losses and notes.
    """

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
    for step in steps:
        if (at_end := getattr(step, "at_end", None)) is not None:
            at_end(result)


class SourceRef(TypedDict):
    """Place of an item's bytes.

    ``byte_offset`` and ``byte_size`` are bytes of the (uncompressed) file; ``frame_index`` counts from 0.
    """

    path: str | None
    member: str | None
    byte_offset: int | None
    byte_size: int | None
    frame_index: int | None


_KEYS = ("path", "member", "byte_offset", "byte_size", "frame_index")


def build_source_ref(
    path: str | None,
    member: str | None = None,
    byte_offset: int | None = None,
    byte_size: int | None = None,
    frame_index: int | None = None,
) -> str:
    """Return a locator as JSON text; ``frame_index`` only appears when given."""
    # Called for each item: `json.dumps` of a dictionary takes five times as long.
    frame = "" if frame_index is None else f', "frame_index": {frame_index}'
    span = f'"byte_offset": {_number(byte_offset)}, "byte_size": {_number(byte_size)}'
    return f'{{"path": {_text(path)}, "member": {_text(member)}, {span}{frame}}}'


def _text(value: str | None) -> str:
    return "null" if value is None else encode_basestring_ascii(value)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


def parse_source_ref(text: str | None) -> SourceRef:
    """Parse a locator. Null or empty text gives all None; unknown keys are ignored.

    Raises:
        TypeError: The JSON is not an object.
        ValueError: The text is not JSON.
    """
    try:
        parsed = json.loads(text) if text else {}
    except RecursionError as error:
        raise ValueError("source_ref is nested too deeply to be a locator") from error
    if not isinstance(parsed, dict):
        raise TypeError(f"source_ref must be a JSON object, not {type(parsed).__name__}: {text!r:.200}")
    return SourceRef(**{key: parsed.get(key) for key in _KEYS})  # type: ignore[typeddict-item]
