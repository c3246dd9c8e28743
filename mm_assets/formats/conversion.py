"""Convert datasets between formats, partition by partition: the one path that the CLI and the Dagster workers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.writer import InterleavedWriter, PartitionReport
from mm_assets.interleaved.steps import Step

DEFAULT_BATCH_BYTES = 32 << 20  # a worker holds a few batches at once: source, transformed, being written


@dataclass(frozen=True)
class Conversion:
    """One partition to read, transform and write; picklable, so that any process can carry it out."""

    reader: InterleavedReader
    partition: Partition
    writer: InterleavedWriter
    steps: tuple[Step, ...] = ()

    def run(self, before_publish: Callable[[PartitionReport], None] | None = None) -> PartitionReport:
        """Read, transform, write, publish."""
        return self.writer.write_partition(self.reader.open(self.partition).through(self.steps), before_publish)


def run_conversion(conversion: Conversion) -> PartitionReport:
    """`Conversion.run` as a plain function, for worker processes."""
    return conversion.run()


def plan_conversions(reader: InterleavedReader, writer: InterleavedWriter, steps: Sequence[Step] = ()) -> list[Conversion]:
    """One conversion per partition of ``reader``, with the writer prepared for all of their schemas."""
    partitions = reader.partitions()
    if writer.needs_schemas:
        writer = writer.prepared([reader.open(partition).schema for partition in partitions])
    return [Conversion(reader, partition, writer, tuple(steps)) for partition in partitions]
