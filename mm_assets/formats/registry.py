"""Registry of formats: detection of a dataset's format, its reader and writer by name, and conversions.

* `Conversion`: one partition to read, transform and write, for the CLI and the Dagster workers;
  `resolve_duplicates` finds the sample ids that several share.
* `FreeMemory` gives back what allocators keep after a job, so that a worker's peak is that of one job.
"""

from __future__ import annotations

import ctypes
import os
import posixpath
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.names import (
    ARRAY_SUFFIXES,
    LINES_SUFFIXES,
    PARQUET_SUFFIXES,
    SHOWN,
    TAR_SUFFIXES,
    ZIP_SUFFIXES,
    first_kind,
    format_by_suffix,
    format_of,
    is_lines,
    listed,
    output_of,
    passed_over_lines,
    without_sidecars,
)
from mm_assets.formats.names import FORMATS as FORMATS
from mm_assets.formats.names import SUFFIXES as SUFFIXES
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.writer import InterleavedWriter, PartitionReport
from mm_assets.model.errors import DUPLICATE_ID, warn_user
from mm_assets.model.losses import Loss
from mm_assets.model.nested_types import take_rows
from mm_assets.model.samples import InterleavedBatch, Step, StepResult
from mm_assets.storage.errors import absent, located
from mm_assets.storage.files import StorageOptions, filesystem
from mm_assets.storage.listing import expand_paths, names_in, packed_line, pdf_line

_NO_LINES = (*TAR_SUFFIXES, *PARQUET_SUFFIXES, *ZIP_SUFFIXES)


def detect_format(
    source: str,
    options: StorageOptions | None = None,
    tell_ignored: Callable[[str], None] = warn_user,
) -> str:
    """Return the format of a file, folder, glob or URL, by names alone.

    Parquet files beside tars, and JSON lines beside any other data, are ignored.

    Args:
        tell_ignored: called with a line about files that are ignored.

    Raises:
        FileNotFoundError: for a path that does not exist, and for a folder without data.
        ValueError: for a folder with several formats, and for a file of an unknown kind.
    """
    named = format_by_suffix(os.fspath(source))
    if named is not None:
        return named.name
    fs, path = filesystem(source, options)
    if not fs.isdir(path):
        if fs.exists(path) and source.lower().endswith(ARRAY_SUFFIXES):
            return "jsonl"
        if fs.exists(path):
            raise ValueError("".join(packed_line(source, [source])) or f"{source}: no {SHOWN}")
        if not any(c in source for c in "*?[{"):
            raise absent(source, fs, path, "file or folder")
        names = expand_paths(source, SUFFIXES, options)
    else:
        names = names_in(source, options)
    if _are_images_of_lines(source, names, options):
        return "jsonl"
    names, incidental = _without_incidental(names)
    if incidental:
        tell_ignored(_incidental_line(source, incidental))
    chosen, passed_over = first_kind([name for name in names if name.lower().endswith(_NO_LINES)])
    found = _formats_of(set(names).difference(passed_over))
    if passed_over and len(found) == 1:
        for line in passed_over_lines(source, chosen, passed_over):
            tell_ignored(line)
    elif passed_over:
        found |= _formats_of(passed_over)
    if not found:
        nothing = f"{source}: no {SHOWN} here"
        raise FileNotFoundError("; ".join([nothing, *packed_line(source, names), *pdf_line(source, names)]))
    if len(found) > 1:
        raise ValueError(
            f"{source}: holds {' and '.join(sorted(found))}; "
            "name one of them, by its folder or a pattern of its files"
        )
    return found.pop()


def _are_images_of_lines(source: str, names: Iterable[str], options: StorageOptions | None) -> bool:
    """Return whether the tars among some files have the images of the JSON lines beside them."""
    if _formats_of(names) != {"jsonl", "webdataset"}:
        return False
    from mm_assets.formats.jsonl import without_images

    files = without_images(expand_paths(source, (*LINES_SUFFIXES, *TAR_SUFFIXES), options), options)
    return all(map(is_lines, files))


def other_formats(folder: str, kind: str) -> list[str]:
    """Return the formats of data in a folder or below a URL prefix other than ``kind``, sorted.

    The list is empty for a folder that does not exist, and for a table: its records are files, too.
    """
    fs, path = filesystem(folder)
    if not fs.isdir(path) or (format_of(kind).is_table and format_of(kind).has(path)):
        return []
    names, _ = _without_incidental(names_in(folder))
    return sorted(_formats_of(names) - {kind})


def reader_for(kind: str, source: str | list[str], **arguments: Any) -> InterleavedReader:
    """Return a reader of the named format."""
    reader: InterleavedReader = _imported(format_of(kind).reader)(source, **arguments)
    return reader


def writer_for(kind: str, path: str, **arguments: Any) -> InterleavedWriter:
    """Return a writer of the named format."""
    writer: InterleavedWriter = _imported(format_of(kind).writer)(path, **arguments)
    return writer


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def _without_incidental(names: list[str]) -> tuple[list[str], list[str]]:
    """Split names into data, without sidecars, and files of formats that give way to the others there.

    Where a format has sidecars, its files are data.
    """
    data = without_sidecars(names)
    ways = {name for name in _formats_of(data) if format_of(name).gives_way}
    if len(data) < len(names) or ways == _formats_of(data):
        return data, []
    incidental = [name for name in data if _formats_of([name]) & ways]
    return [name for name in data if name not in set(incidental)], incidental


def _incidental_line(source: str, names: list[str]) -> str:
    """Return the line about files that are ignored beside other data."""
    many = f"{len(names)} files" if len(names) > 1 else "1 file"
    kinds = listed(format_of(name).title for name in sorted(_formats_of(names)))
    example = posixpath.basename(names[0])
    ignored = f"{many} of {kinds} beside other data ignored, such as {example}"
    return f"{source}: {ignored}; name the files to read them"


def _formats_of(names: Iterable[str]) -> set[str]:
    return {found.name for name in names if (found := format_by_suffix(name)) is not None}


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
        return output_of(self.sources[0]) if self.sources else self.partition.name

    @property
    def sources(self) -> tuple[str, ...]:
        """The files that it reads; none where code gives the rows."""
        return self.reader.sources(self.partition)

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
            [schema for p in partitions if (schema := readable_schema(reader, p)) is not None]
        )
    return [Conversion(reader, partition, writer, tuple(steps)) for partition in partitions]


def readable_schema(reader: InterleavedReader, partition: Partition) -> pa.Schema | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the conversion itself warns again
            return reader.open(partition).schema
    except (ValueError, TypeError, OSError):
        return None


@dataclass(frozen=True)
class QuarantineRepeatedIds:
    """Step that takes out samples whose id another partition keeps (``owners``: sample id -> partition)."""

    owners: Mapping[str, str]

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        table = batch.data
        is_taken = pc.is_in(table.column("sample_id"), pa.array(list(self.owners), pa.string())).to_numpy()
        if not is_taken.any():
            return StepResult(batch)
        removed = take_rows(table, np.flatnonzero(is_taken))
        return StepResult(
            batch.with_data(take_rows(table, np.flatnonzero(~is_taken))), self._losses(removed), removed
        )

    def _losses(self, removed: pa.Table) -> tuple[Loss, ...]:
        seen: set[str] = set()
        losses = []
        for row in removed.select(["sample_id", "position", "modality"]).to_pylist():
            sample_id = row["sample_id"]
            is_cause = sample_id not in seen  # the sample's first row, its metadata
            seen.add(sample_id)
            reason = f"sample id {sample_id!r:.200} is already in partition {self.owners[sample_id]!r}"
            losses.append(
                Loss(**row, outcome="quarantined", kind=DUPLICATE_ID, reason=reason, is_cause=is_cause)
            )
        return tuple(losses)


def resolve_duplicates(
    conversions: Sequence[Conversion],
    map_: Callable[
        [Callable[[Conversion], pa.Array], Sequence[Conversion]], Iterable[tuple[Conversion, Any]]
    ],
    hides: Callable[[str], bool] = lambda _: False,
) -> tuple[list[Conversion], list[str]]:
    """Resolve sample ids that several partitions share: they are unique in the output.

    The first partition with an id owns it. Under the policy ``error`` a later partition with that id is left
    out; under the others it quarantines those samples. The graph resolves the same among all shards that ever
    existed (`mm_assets.accounting.survey_store`), and a published shard comes before others. A conversion
    reads the ids of its inputs, and their order decides.

    Args:
        map_: applies a function to each, in processes; an answer that is no array is a failure.
        hides: whether a sample of an id may not come in anywhere: then nobody owns the id.

    Returns:
        The conversions that together make an output without duplicate ids, in order, and a message for each
        one left out.
    """
    if len(conversions) < 2:
        return list(conversions), []
    answers = map_(sample_ids, conversions)
    # A partition that cannot be read fails when it is converted.
    found = {conversion.partition.name: ids for conversion, ids in answers if isinstance(ids, pa.Array)}
    repeated = {
        name: [sample_id for sample_id in ids if not hides(sample_id)]
        for name, ids in _repeated(found).items()
    }
    owners: dict[str, Partition] = {}
    resolved: list[Conversion] = []
    messages: list[str] = []
    for conversion in conversions:
        partition = conversion.partition
        shared = repeated.get(partition.name, [])
        claimed_ids = {sample_id: owners[sample_id] for sample_id in shared if sample_id in owners}
        if claimed_ids and conversion.writer.on_materialize_error == "error":
            messages.append(_duplicate_message(partition, claimed_ids))
            continue
        owners.update({sample_id: partition for sample_id in shared if sample_id not in claimed_ids})
        if claimed_ids:
            step = QuarantineRepeatedIds({sample_id: owner.name for sample_id, owner in claimed_ids.items()})
            conversion = replace(conversion, steps=(step, *conversion.steps))
        resolved.append(conversion)
    return resolved, messages


def sample_ids(conversion: Conversion) -> pa.Array:
    """Return the distinct ids of a partition, without reading any image.

    Samples that the policy will drop because an item has an error do not own their id.
    """
    ids = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the conversion itself warns again
        _, tables = conversion.reader.project(conversion.partition, ["sample_id", "materialize_error"])
        for table in tables:
            column = table.column("sample_id")
            if conversion.writer.on_materialize_error == "drop_sample":
                faulty = column.filter(pc.is_valid(table.column("materialize_error")))
                column = column.filter(pc.invert(pc.is_in(column, faulty)))
            ids += column.chunks
    return pc.unique(pa.chunked_array(ids, pa.string()))


def _repeated(found: Mapping[str, pa.Array]) -> dict[str, list[str]]:
    """Return for each partition the ids that another one has too."""
    counts = pc.value_counts(pa.chunked_array(list(found.values()), pa.string()))
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if not len(repeated):
        return {}
    return {name: ids.filter(pc.is_in(ids, repeated)).to_pylist() for name, ids in found.items()}


def _duplicate_message(partition: Partition, claimed_ids: Mapping[str, Partition]) -> str:
    sample_id, owner = next(iter(claimed_ids.items()))
    more = f" (and {len(claimed_ids) - 1} more ids that others have)" if len(claimed_ids) > 1 else ""
    hint = (
        ""
        if len(claimed_ids) == 1
        else "; ids that start anew in each tar are told apart by --sample-id-prefix shard"
    )
    return f"{_place(partition)}: sample id {sample_id!r:.200} is already in {_place(owner)}{more}{hint}"


def _place(partition: Partition) -> str:
    files = ", ".join(partition.files[:3])
    return f"{files}, partition {partition.name!r}" if partition.fragments else files


_MAX_GROWTH = 32 << 20  # bytes that may stay: releasing less costs more than it is worth
# Bytes beyond a worker's start that may stay between jobs: with a third less, jobs took a tenth more CPU.
_MOST_KEPT = 192 << 20
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
        self._start = self._baseline = _resident()
        option = getattr(ctypes.CDLL(None), "mallopt", None)
        if option is not None:
            option(_M_ARENA_MAX, _ARENAS)
            option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
            option(_M_TRIM_THRESHOLD, _KEPT)

    def release_to_os(self) -> None:
        """Return free memory to the system if the process has grown since the last call."""
        if _resident() >= self._baseline + _MAX_GROWTH:
            self._release()

    def release_surplus(self) -> None:
        """Return free memory if the process has much more than when it started, and has grown since.

        Blocks of other sizes than the next job needs stay beside what that takes.
        """
        if _resident() >= max(self._start + _MOST_KEPT, self._baseline + _MAX_GROWTH):
            self._release()

    def _release(self) -> None:
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
