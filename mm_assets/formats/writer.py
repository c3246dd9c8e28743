"""Base class of all writers: error policy, alignment of columns, checks, reports, atomic publication.

* `absent_content` finds items without content before rows are written, so that the error policy applies to
  them.
* `RowTally` has counts, digests and losses of the rows that a writer writes.
* `ExistingPartitions` tells which partitions an output already has, from which sources, and whether a new
  conversion may replace them.
"""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.materialize import locator_of, materialize_parts
from mm_assets.formats.names import partition_filename
from mm_assets.formats.reader import InterleavedReader, grouped_streams
from mm_assets.formats.reports import PartitionReport, WriteReport
from mm_assets.model import json_codec
from mm_assets.model.digest import ContentDigest
from mm_assets.model.errors import MISSING_CONTENT, Fault, MmAssetsError, ShardError
from mm_assets.model.json_codec import is_json
from mm_assets.model.losses import ItemError, Loss, apply_policy, check_policy, with_errors
from mm_assets.model.nested_types import refuse_broken_text
from mm_assets.model.samples import ROWS_CHANGED, BatchStream, InterleavedBatch, UniqueSamples, sort_items
from mm_assets.model.schema import REQUIRED_COLUMNS, align_table, canonical_schema, resolve_schema
from mm_assets.storage.errors import cause_line
from mm_assets.storage.files import StorageOptions, join, lasting
from mm_assets.storage.stamps import Note, Origin, OriginNotes, existing_files

__all__ = ["InterleavedWriter", "PartitionReport", "Sink", "WriteReport"]


# What happens to an existing partition of another source: replace it, refuse to write, or leave it alone.
# Without a mode, writing is refused only where a note proves another source, and no notes are added to an
# output without them.
MODES = ("overwrite", "error", "ignore")

NEW, SAME = "new", "from the same source"
OTHER, UNKNOWN = "from another source", "from a source that is not recorded"


class PartitionsExist(MmAssetsError, ValueError):
    """Partitions exist already, from another source, and the mode is ``error``; the message names them."""


class PartitionOutputs(Protocol):
    """What is asked of a writer: its mode, and where its partitions lie."""

    mode: str | None
    storage_options: StorageOptions | None

    @property
    def folder(self) -> str: ...
    def describe(self, partition: str) -> str: ...
    def note_name(self, partition: str) -> str: ...
    def file_of(self, partition: str) -> str: ...
    def existing(self, partitions: Iterable[str]) -> set[str]: ...


class ExistingPartitions:
    """The partitions to be written that a writer's output already has.

    ``states`` has for each partition ``NEW``, ``SAME``, ``OTHER`` or ``UNKNOWN``. An output without a note
    (``UNKNOWN``) was written by an older version, from batches that came from no file, or by another tool.

    A new partition is noted just before it is published: a process killed in between leaves a note without an
    output, which is harmless. A partition that replaces one of another source is noted after it is published:
    if the process is killed before, the next conversion asks again whether to replace it.

    Args:
        writer: the writer of the output.
        sources: name of each partition to be written -> files it is read from.
    """

    def __init__(self, writer: PartitionOutputs, sources: Mapping[str, Sequence[str]]) -> None:
        self._writer = writer
        self._notes = OriginNotes(writer.folder, writer.storage_options)
        self._names = {partition: writer.note_name(partition) for partition in sources}
        self._before = self._notes.read(self._names.values())
        self._in_place: set[str] = set()  # read and written in the same place: their origin stays
        self._origins: dict[str, Origin | None] = {}
        for partition, files in sources.items():
            origin = Origin.of(files) if files else None
            if origin is not None and origin.is_same(Origin.of([writer.file_of(partition)])):
                self._in_place.add(partition)
                origin = self._before.get(self._names[partition])
            self._origins[partition] = origin
        existing = writer.existing(sources)
        self.states = {name: self._state(name) if name in existing else NEW for name in sources}

    def conflicts(self) -> list[str]:
        """Return the existing partitions that are not known to come from the same source.

        Without a mode: those known to come from another source.
        """
        conflicting = (OTHER,) if self._writer.mode is None else (OTHER, UNKNOWN)
        return [partition for partition, state in self.states.items() if state in conflicting]

    def skipped(self) -> set[str]:
        """Return the partitions that are not to be written (mode ``ignore``).

        Raises:
            PartitionsExist: the mode refuses to replace some.
        """
        conflicts = self.conflicts()
        if conflicts and self._writer.mode in (None, "error"):
            raise PartitionsExist(self._refusal(conflicts))
        return set(conflicts) if self._writer.mode == "ignore" else set()

    def note_of(self, partition: str) -> Note | None:
        """Return the note to write just before publishing, in any process; None if it must wait."""
        return None if self.states[partition] in (OTHER, UNKNOWN) else self._note(partition)

    def note_published(self, published: Collection[str]) -> None:
        """Write the notes that had to wait until these partitions were published."""
        for partition in published:
            if self.note_of(partition) is None:
                self._note(partition).write()

    def _note(self, partition: str) -> Note:
        name = self._names[partition]
        before = self._before.get(name)
        now = None if self._writer.mode is None and before is None else self._origins[partition]
        return Note(self._notes, name, self._writer.describe(partition), before, now)

    def _state(self, partition: str) -> str:
        before, now = self._before.get(self._names[partition]), self._origins[partition]
        if partition in self._in_place:
            return SAME
        if before is None or now is None:
            return UNKNOWN
        return SAME if before.is_same(now) else OTHER

    def _refusal(self, conflicts: Sequence[str]) -> str:
        first = conflicts[0]
        others = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        return (
            f"{self._writer.describe(first)} is there already, {self.states[first]}{others}; "
            "nothing was written (--mode, mode=: overwrite replaces, ignore leaves alone)"
        )


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


_NO_TEXT = Fault(MISSING_CONTENT, "missing content: a text row without text")
_NO_LOCATOR = Fault(MISSING_CONTENT, "missing content: an image without bytes and without a locator")
_NO_BYTES = Fault(MISSING_CONTENT, "missing content: an image of 0 bytes")


def absent_content(table: pa.Table) -> dict[int, Fault]:
    """Return the fault of each item without content that has no error yet, by row number.

    Such items are text rows without text, image rows of 0 bytes, and image rows without bytes whose locator
    is missing or invalid. An image row with a valid locator has content: its bytes can be fetched later.
    Metadata rows need no content.

    Args:
        table: rows with all reserved columns.
    """
    is_unmarked = pc.is_null(table.column("materialize_error"))
    modality = table.column("modality")
    binary, texts = table.column("binary_content"), table.column("text_content")
    has_no_bytes = pc.fill_null(pc.equal(pc.binary_length(binary), 0), True)
    images = pc.and_(pc.equal(modality, "image"), has_no_bytes)
    without_text = pc.and_(pc.equal(modality, "text"), pc.is_null(texts))
    rows = pc.indices_nonzero(pc.and_(is_unmarked, pc.or_(images, without_text)))
    found = table.select(["modality", "source_ref"]).take(rows).to_pylist()
    lacks_bytes = pc.is_null(binary).take(rows).to_pylist()
    faults: dict[int, Fault] = {}
    for row, item, is_null in zip(rows.to_pylist(), found, lacks_bytes, strict=True):
        if item["modality"] == "text":
            faults[row] = _NO_TEXT
        elif not is_null:
            faults[row] = _NO_BYTES
        elif (fault := _unusable(item["source_ref"])) is not None:
            faults[row] = fault
    return faults


def _unusable(source_ref: str | None) -> Fault | None:
    if source_ref is None:
        return _NO_LOCATOR
    try:
        locator_of(source_ref)
    except (TypeError, ValueError) as error:
        words = f"missing content: an image without bytes, and its locator names none: {error}"
        return Fault(MISSING_CONTENT, words)
    return None


_FETCHED_BYTES = 32 << 20  # limit of bytes fetched from locators at a time, however large the batch


class Sink(ABC):
    """The output of one partition while it is written."""

    extra: dict[str, Any] = {}

    @abstractmethod
    def write(self, tables: Iterator[pa.Table]) -> None:
        """Write all tables (whole samples, in the sink's schema); called once."""

    @abstractmethod
    def publish(self) -> tuple[str | None, int]:
        """Make the output visible under its final name.

        Returns:
            The URI, or None when nothing was written, and the size in bytes.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove everything written."""


class InterleavedWriter(ABC):
    """Base of writers of `InterleavedBatch` streams; every output file appears as a whole or not at all.

    Args:
        path: a folder (one file per partition), the path of one file of this format, or a URL, but none of a
            file system that ends with this process.
        on_materialize_error: ``error`` (default), ``warn``, ``drop_row`` or ``drop_sample``; applied after
            fetching to errors of any stage and to items without content, see `absent_content`.
        schema: strict target schema: columns outside it are left out, and named in the report.
        schema_overrides: types of some columns; the others stay as they are.
        materialize: fetch the bytes of image rows that have only a source_ref.
        roots: folders or URL prefixes that a source_ref may point into; None trusts the data.
        storage_options: for the file system of ``path`` and of the sources fetched.
        mode: what `write` does with existing partitions that did not come from the same source:
            ``overwrite``, ``error`` (nothing is written) or ``ignore`` (they are left alone). Their sources
            are noted beside the data, in the folder ``.origins``. None: ``error`` for those that a note says
            came from another source; nothing is noted where no notes were.

    Raises:
        ValueError: an unknown mode or policy, an empty path, or one that does not last.
    """

    suffix: str
    needs_schemas = False  # whether `prepared` uses the schemas

    def __init__(
        self,
        path: Any,
        *,
        on_materialize_error: str = "error",
        schema: pa.Schema | None = None,
        schema_overrides: Mapping[str, pa.DataType] | None = None,
        materialize: bool = True,
        roots: Sequence[str] | None = None,
        storage_options: StorageOptions | None = None,
        mode: str | None = None,
    ) -> None:
        if mode is not None and mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        if not os.fspath(path):
            raise ValueError(
                "the path of an output is empty: is a variable not set? The folder at hand is '.'"
            )
        self.path = lasting(str(path), storage_options)
        self.on_materialize_error = check_policy(on_materialize_error)
        self.target = resolve_schema(schema, schema_overrides)
        self.is_strict = schema is not None
        self.materialize = materialize
        self.roots = tuple(roots) if roots is not None else None
        self.storage_options = storage_options
        self.mode = mode

    def __repr__(self) -> str:
        mode = f", mode={self.mode!r}" if self.mode else ""
        policy = f"on_materialize_error={self.on_materialize_error!r}"
        return f"<{type(self).__name__} into {self.path}, {policy}{mode}>"

    @property
    def is_single_file(self) -> bool:
        """True if ``path`` names one output file rather than a folder."""
        return self.path.rstrip("/").lower().endswith(self.suffix)

    def uri_of(self, partition: str) -> str:
        """Return the location of a partition's file: deterministic, independent of where the input lies."""
        return (
            self.path if self.is_single_file else join(self.path, partition_filename(partition) + self.suffix)
        )

    @property
    def folder(self) -> str:
        """The folder that contains all outputs."""
        return posixpath.dirname(self.uri_of("any")) or "."

    def describe(self, partition: str) -> str:
        """Return the name of a partition's output for messages."""
        return self.uri_of(partition)

    def note_name(self, partition: str) -> str:
        """Return the base name of notes on a partition beside the data."""
        return posixpath.basename(self.uri_of(partition))

    def existing(self, partitions: Iterable[str]) -> set[str]:
        """Return those of some partitions that have an output."""
        uris = {partition: self.file_of(partition) for partition in partitions}
        found = existing_files(uris.values(), self.storage_options)
        return {partition for partition, uri in uris.items() if uri in found}

    def file_of(self, partition: str) -> str:
        """Return the file whose existence means that a partition's output exists."""
        return self.uri_of(partition)

    @abstractmethod
    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink: ...

    def write(
        self, batches: InterleavedReader | InterleavedBatch | Iterable[InterleavedBatch]
    ) -> WriteReport:
        """Write all batches and publish them.

        Batches whose schema is not known ahead (of a generator) are spooled to disk first.

        Raises:
            ValueError: two inputs would become the same partition.
            PartitionsExist: the mode refuses to replace existing partitions.
        """
        streams = list(grouped_streams(batches, "part-00000" if self.is_single_file else None))
        names = Counter(stream.partition for stream in streams)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise ValueError(
                f"two inputs would both become partition {repeated[0]!r}: "
                "the second would overwrite the first"
            )
        existing = ExistingPartitions(self, {stream.partition: stream.files for stream in streams})
        skipped = existing.skipped()
        streams = [stream for stream in streams if stream.partition not in skipped]
        writer = self.prepared([stream.schema for stream in streams])
        reports: list[PartitionReport] = []
        for stream in streams:
            note = existing.note_of(stream.partition)
            reports.append(writer.write_partition(stream, partial(_write_note, note)))
        writer.finish(reports)
        existing.note_published([report.partition for report in reports])
        return WriteReport(self.path, tuple(reports))

    def prepared(self, schemas: Sequence[pa.Schema]) -> Self:
        """Return the writer for partitions of these schemas.

        A format whose partitions share one table decides its columns here.
        """
        return self

    def write_partition(
        self, stream: BatchStream, before_publish: Callable[[PartitionReport], None] | None = None
    ) -> PartitionReport:
        """Write one partition and publish its file. May run in any process.

        Args:
            stream: the batches of the partition.
            before_publish: called with the report (without uri and bytes) once everything is written; if it
                raises, the file is not published.

        Raises:
            ShardError: a column has a type that this format cannot store, or an input is not interleaved
                data.
        """
        schema, left_out = self._output_schema(stream.schema)
        try:
            for field in schema:
                json_codec.check_type(field)  # types without an exact JSON form cannot be digested
            sink = self._open_sink(stream.partition, schema, stream.files)
        except (ValueError, TypeError) as error:
            raise _located(error, ", ".join(stream.files[:3])) from error
        tally = RowTally(stream.schema, schema)
        try:
            sink.write(self._tables(stream, schema, tally))
            report = tally.report(stream, schema, left_out)
            if before_publish is not None:
                before_publish(report)
            uri, nbytes = sink.publish()
        except BaseException:
            sink.discard()
            raise
        return replace(report, uri=uri, nbytes=nbytes, extra=sink.extra)

    def finish(self, reports: Sequence[PartitionReport]) -> None:  # noqa: B027 (most formats have nothing to do)
        """Bring dataset-level files up to date; called once per chunk of partitions, in one process."""

    def _tables(self, stream: BatchStream, schema: pa.Schema, tally: RowTally) -> Iterator[pa.Table]:
        for batch in stream:
            for table in self._fetched(batch, stream.has_sound_text):
                table = self._prepare(table, ", ".join(batch.source_files[:3]), tally)
                if table.num_rows:
                    yield tally.count(table, schema)

    def _fetched(self, batch: InterleavedBatch, has_sound_text: bool) -> Iterator[pa.Table]:
        source = ", ".join(batch.source_files[:3])
        try:
            table = align_table(sort_items(batch.data), canonical_schema(batch.data.schema))
        except ValueError as error:
            refuse_broken_text(batch.data, source)
            raise _located(error, source) from error
        if not has_sound_text:
            refuse_broken_text(table, source)
        if not self.materialize:
            yield table
            return
        yield from materialize_parts(table, _FETCHED_BYTES, self.roots, self.storage_options)

    def _prepare(self, table: pa.Table, source: str, tally: RowTally) -> pa.Table:
        absent = absent_content(table)
        tally.changed += len(absent)
        outcome = apply_policy(with_errors(table, absent), self.on_materialize_error, source)
        tally.errors.extend(outcome.errors)
        if outcome.dropped is not None:
            tally.losses.extend(outcome.losses)
            tally.lost.observe(outcome.dropped)
        try:
            tally.unique.observe(outcome.table)
        except ValueError as error:
            raise _located(error, source) from error
        return outcome.table

    def _output_schema(self, found: pa.Schema) -> tuple[pa.Schema, tuple[str, ...]]:
        found = canonical_schema(found)
        if self.target is None:
            return found, ()
        if self.is_strict:
            absent = [name for name in REQUIRED_COLUMNS if name not in self.target.names]
            if absent:
                raise ValueError(
                    f"schema= has no column {absent[0]!r}: without it rows are not those of a sample"
                )
            return self.target, tuple(name for name in found.names if name not in self.target.names)
        declared = set(self.target.names)
        return pa.schema([*self.target, *(f for f in found if f.name not in declared)]), ()


def _write_note(note: Note | None, _report: PartitionReport) -> None:
    if note is not None:
        note.write()


def _located(error: ValueError | TypeError, source: str) -> ValueError | TypeError:
    line = cause_line(error, source) if isinstance(error, UnicodeError) else str(error)
    return ShardError(f"{source}: {line}") if source else error
