"""Conversion of datasets between formats, partition by partition, for the CLI and the Dagster workers.

`FreeMemory` gives back what allocators keep after a job, so that a worker's peak is that of one job.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from mm_assets.formats.names import output_of
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.writer import InterleavedWriter, PartitionReport
from mm_assets.model.samples import Step
from mm_assets.storage.errors import located

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


_MAX_GROWTH = 32 << 20  # bytes that may stay: releasing less costs more than it is worth
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Options of glibc's malloc. With an arena for each of Lance's threads, memory freed by one thread is not
# reused by others. Blocks of at least _LARGE_BLOCK go back to the system when freed; by default glibc raises
# that threshold to the largest block freed so far, and keeps such blocks. Smaller ones stay, up to _KEPT at
# the end of the heap: the system would clear their pages again for the next batch.
_M_ARENA_MAX, _ARENAS = -8, 2
_M_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 16 << 20
_M_TRIM_THRESHOLD, _KEPT = -1, 32 << 20


class FreeMemory:
    """Memory that this process holds but does not need. Linux only; elsewhere nothing is done.

    Create it before the threads that allocate: their memory is less fragmented then.
    """

    def __init__(self) -> None:
        self._baseline = _resident()
        option = getattr(ctypes.CDLL(None), "mallopt", None)
        if option is not None:
            option(_M_ARENA_MAX, _ARENAS)
            option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
            option(_M_TRIM_THRESHOLD, _KEPT)

    def release_to_os(self) -> None:
        """Return free memory to the system if the process has grown since the last call."""
        if _resident() < self._baseline + _MAX_GROWTH:
            return
        if (arrow := sys.modules.get("pyarrow")) is not None:
            arrow.default_memory_pool().release_unused()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        self._baseline = _resident()


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0
