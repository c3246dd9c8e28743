"""Reader of JSON lines, ours and those of others."""

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
    """Reads files with a JSON document per line, and their images from the tar beside them.

    The arguments are those of `InterleavedWebdatasetReader`. A line without ``sample_id`` gets the
    partition's name and the line's number as sample id.
    """

    suffixes = SUFFIXES

    def _source(self, uri: str, partition: Partition, ids: SampleIds | None) -> FileSource:
        rows_prefix = id_prefix(ROWS_PREFIX, partition.name, partition.files, uri)
        return self._opened(uri, partition, ids, partial(JsonlSamples, rows_prefix=rows_prefix))
