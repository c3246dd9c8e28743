"""Read JSON lines, ours and those of others, as interleaved batches."""

from __future__ import annotations

from functools import partial

from mm_assets.formats.jsonl.layout import SUFFIXES
from mm_assets.formats.jsonl.samples import JsonlSamples
from mm_assets.formats.parquet_source import ROWS_PREFIX
from mm_assets.formats.partitions import Partition, id_prefix
from mm_assets.formats.reader import FileSource
from mm_assets.formats.sample_ids import SampleIds
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader

__all__ = ["InterleavedJsonlReader"]


class InterleavedJsonlReader(InterleavedWebdatasetReader):
    """Reads files with a JSON document a line, and their images from the tar beside them; the arguments are
    those of `InterleavedWebdatasetReader`.

    The sample of a line that has no ``sample_id`` is called after the partition and the number of the line.
    """

    suffixes = SUFFIXES

    def _source(self, uri: str, partition: Partition, ids: SampleIds | None) -> FileSource:
        rows_prefix = id_prefix(ROWS_PREFIX, partition.name, partition.files, uri)
        return self._opened(uri, partition, ids, partial(JsonlSamples, rows_prefix=rows_prefix))
