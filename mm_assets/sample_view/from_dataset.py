"""Documents of a sample in one dataset of any format, without a ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.canonical.accounted_format import accounted_format
from mm_assets.accounting.history import origin_of
from mm_assets.accounting.ledger import locator_columns
from mm_assets.accounting.lookup import in_lance, sample_tar
from mm_assets.formats.error_lines import error_line
from mm_assets.formats.error_places import located
from mm_assets.formats.format_table import format_of
from mm_assets.formats.parquet_source import DOCUMENTS, rows_of
from mm_assets.formats.partitions import Partition
from mm_assets.formats.registry import reader_for
from mm_assets.formats.storage import exists
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.steps import BatchStream
from mm_assets.sample_view.document import Document, Item, Look, Mark, items_of
from mm_assets.sample_view.sample_rows import alike, lance_rows, parquet_ids, parquet_rows

_BYTES_AT_ONCE = 8 << 20


@dataclass
class Search:
    """What was found in a dataset.

    Attributes:
        documents: the sample, once for each partition that has it.
        failures: a line for each partition that cannot be read, or not to its end.
        unsearched: number of partitions that were not looked in, as the sample was found before.
        alike: a few ids that contain the one that was looked for, if it was not found.
    """

    documents: list[Document] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unsearched: int = 0
    alike: list[str] = field(default_factory=list)


def search(source: str, kind: str, layout: Mapping[str, Any], sample_id: str, look: Look) -> Search:
    """Return a sample of a dataset.

    Parquet with a row per item and Lance are asked by their statistics and index, so all partitions are
    looked in. Of other formats one partition after the other is read, ids first, until one has the sample.
    At most a few megabytes of rows are in memory.

    Args:
        source: path, folder, glob or URL.
        kind: its format.
        layout: arguments of the reader that describe documents of others.
        sample_id: the sample.
        look: renders an image.
    """
    result = Search()
    with located(source):
        finder = _Finder(source, kind, layout, sample_id, look)
        partitions = finder.partitions()
    for number, partition in enumerate(partitions, 1):
        try:
            documents = finder.documents(partition)
        except (OSError, ValueError, pa.ArrowException) as error:
            result.failures.append(error_line(error))
            continue
        result.documents += documents
        if documents and not finder.is_indexed(partition):
            result.unsearched = len(partitions) - number
            break
    result.failures += finder.damages
    if not result.documents:
        result.alike = alike(finder.ids(partitions), sample_id)
    return result


class _Finder:
    """A lookup of one sample in partitions of a dataset."""

    def __init__(self, source: str, kind: str, layout: Mapping[str, Any], sample_id: str, look: Look) -> None:
        self.damages: list[str] = []  # lines about damaged ranges, in which more samples may have been
        self._kind = kind
        self._sample_id = sample_id
        self._observe = look
        self._has_prefixes = bool(layout.get("sample_id_prefix"))
        # What cannot be read of a raw shard is told, as in a run, and does not end the search.
        tolerant = {"quarantine_errors": True} if format_of(kind).raw_options else {}
        arguments = {"max_batch_bytes": _BYTES_AT_ONCE, **tolerant, **layout}
        self._reader = reader_for(kind, source, **arguments)
        self._is_raw = "image_extensions" in format_of(kind).raw_options
        self._scout = reader_for(kind, source, materialize=False, **arguments)

    def partitions(self) -> list[Partition]:
        """Return the partitions of the dataset; of Lance the tables."""
        found = self._reader.partitions()
        if self._kind != "lance":
            return found
        return [Partition(table, (table,)) for table in dict.fromkeys(p.files[0] for p in found)]

    def is_indexed(self, partition: Partition) -> bool:
        """Return whether a lookup in other partitions is cheap."""
        return self._kind == "lance" or self._has_item_rows(partition) or self._has_index(partition)

    def documents(self, partition: Partition) -> list[Document]:
        """Return the sample of a partition; none if it is not there."""
        if self._kind == "lance":
            return self._in_table(partition)
        if self._has_item_rows(partition):
            with located(partition.files[0]):
                return self._document(partition, parquet_rows(partition.files[0], [self._sample_id]), [])
        if self._has_index(partition):
            return self._in_indexed_tar(partition)
        scouted = self._scout.open(partition)
        losses = [loss for loss in scouted.losses if loss.sample_id == self._sample_id]
        self.damages += [
            loss.reason for loss in scouted.losses if not loss.is_item and loss.sample_id is None
        ]
        found = self._is_in(self._scouted_ids(scouted, partition))
        rows = self._streamed(partition) if found else iter(())
        return self._document(partition, rows, losses) if found or losses else []

    def ids(self, partitions: list[Partition]) -> Iterator[pa.ChunkedArray]:
        """Yield the ids of partitions, as far as they can be read."""
        for partition in partitions:
            try:
                if self._has_item_rows(partition):
                    yield parquet_ids(partition.files[0])
                else:
                    yield from self._projected_ids(partition)
            except (OSError, ValueError, pa.ArrowException):  # told before
                continue

    def _scouted_ids(self, scouted: BatchStream, partition: Partition) -> Iterator[pa.ChunkedArray]:
        if self._is_raw:  # opening it has read the documents: they are not read again
            return (batch.data.column("sample_id") for batch in scouted)
        return self._projected_ids(partition)

    def _projected_ids(self, partition: Partition) -> Iterator[pa.ChunkedArray]:
        for table in self._scout.project(partition, ["sample_id"])[1]:
            yield table.column("sample_id")

    def _is_in(self, ids: Iterator[pa.ChunkedArray]) -> bool:
        return any(pc.any(pc.equal(column, self._sample_id)).as_py() for column in ids)

    def _streamed(self, partition: Partition) -> Iterator[pa.Table]:
        """Yield the rows of the sample, reading the partition up to it."""
        was_found = False
        for batch in self._reader.open(partition):
            found = batch.data.filter(pc.equal(batch.data.column("sample_id"), self._sample_id))
            if found.num_rows:
                was_found = True
                yield found
            elif was_found:
                return

    def _in_indexed_tar(self, partition: Partition) -> list[Document]:
        with located(partition.files[0]), sample_tar(partition.files[0], self._sample_id, None) as tar:
            if tar is None:
                return []
            cut = Partition(partition.name, (tar,))
            rows = self._streamed(cut)
            return self._document(partition, rows, [])

    def _in_table(self, partition: Partition) -> list[Document]:
        (uri,) = partition.files
        found = in_lance(uri, self._sample_id, ())
        documents = []
        for name in found:
            documents += self._document(
                dataclasses.replace(partition, name=name or ""), lance_rows(uri, self._sample_id), []
            )
        return documents

    def _has_item_rows(self, partition: Partition) -> bool:
        return self._kind == "parquet" and not self._has_prefixes and rows_of(partition.files[0]) != DOCUMENTS

    def _has_index(self, partition: Partition) -> bool:
        """Return whether a tar is ours and has an index beside it: others put other keys into theirs."""
        uri = partition.files[0]
        is_tar = self._kind == "webdataset" and not self._has_prefixes
        return is_tar and exists(f"{uri}.idx") and accounted_format(self._kind).is_ours(uri)

    def _document(
        self, partition: Partition, tables: Iterator[pa.Table], losses: list[Loss]
    ) -> list[Document]:
        items = items_of(tables, self._observe)
        items += [_lost(loss) for loss in losses]
        if not items:
            return []
        document = Document(self._sample_id, partition.name or None, "", items)
        document.sort()
        first = next((item.locator for item in document.items if any(item.locator)), (None,) * 5)
        file = format_of(self._kind).output(partition.files[0])
        is_own = not first[0] or file.endswith(str(first[0]))
        document.origin = file if is_own else f"{file}, which has it from {origin_of(first)}"
        return [document]


def _lost(loss: Loss) -> Item:
    return Item(
        -1 if loss.position is None else loss.position,
        loss.modality or "metadata",
        tuple(locator_columns(loss.source_ref).values()),
        marks=[Mark.of(vars(loss), "")],
    )
