"""Conversion of datasets between formats, partition by partition, for the CLI and the Dagster workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from mm_assets.formats.error_places import located
from mm_assets.formats.format_table import output_of
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.writer import InterleavedWriter, PartitionReport
from mm_assets.interleaved.steps import Step

DEFAULT_BATCH_BYTES = 16 << 20  # a worker holds several batches at once: read, transformed, being written


@dataclass(frozen=True)
class Conversion:
    """One partition to read, transform and write; picklable, so that any process can run it."""

    reader: InterleavedReader
    partition: Partition
    writer: InterleavedWriter
    steps: tuple[Step, ...] = ()

    @property
    def place(self) -> str:
        """What it reads first: warnings and errors name that."""
        return output_of(self.partition.files[0])

    def run(self, before_publish: Callable[[PartitionReport], None] | None = None) -> PartitionReport:
        """Read, transform, write and publish the partition.

        Args:
            before_publish: see `InterleavedWriter.write_partition`.
        """
        with located(self.writer.uri_of(self.partition.name)):  # errors of reading name their own file
            return self.writer.write_partition(
                self.reader.open(self.partition).through(self.steps), before_publish
            )


def plan_conversions(
    reader: InterleavedReader, writer: InterleavedWriter, steps: Sequence[Step] = ()
) -> list[Conversion]:
    """Return one conversion per partition of ``reader``, with the writer prepared for all their schemas.

    A partition that cannot be read is ignored here: its own conversion fails later, the others go on.

    Raises:
        ValueError: several partitions would go into one output file.
    """
    partitions = reader.partitions()
    if writer.is_single_file and len(partitions) > 1:
        raise ValueError(
            f"{writer.path}: {len(partitions)} partitions do not go into one file; name a folder"
        )
    if writer.needs_schemas:
        writer = writer.prepared(
            [schema for p in partitions if (schema := _readable_schema(reader, p)) is not None]
        )
    return [Conversion(reader, partition, writer, tuple(steps)) for partition in partitions]


def _readable_schema(reader: InterleavedReader, partition: Partition) -> pa.Schema | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the conversion itself warns again
            return reader.open(partition).schema
    except (ValueError, TypeError, OSError):
        return None
