"""Base of all writers: error policy, alignment of columns, checks, reports, atomic publication."""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import pyarrow as pa

from mm_assets.formats.absent_content import absent_content
from mm_assets.formats.error_lines import cause_line
from mm_assets.formats.existing_partitions import MODES, ExistingPartitions
from mm_assets.formats.file_stamps import existing_files
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.materialize import materialize_parts
from mm_assets.formats.origins import Note
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.reports import PartitionReport, WriteReport
from mm_assets.formats.spooling import grouped_streams
from mm_assets.formats.storage import StorageOptions, join, lasting
from mm_assets.formats.tally import RowTally
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.policies import apply_policy, check_policy, with_errors
from mm_assets.interleaved.samples import sort_items
from mm_assets.interleaved.schema import REQUIRED_COLUMNS, align_table, canonical_schema, resolve_schema
from mm_assets.interleaved.steps import BatchStream
from mm_assets.interleaved.text_validity import refuse_broken_text

__all__ = ["InterleavedWriter", "PartitionReport", "Sink", "WriteReport"]

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
