"""Reader of raw shards: tars, and Parquet files of other tools."""

from __future__ import annotations

from mm_assets.formats.parquet_source import open_source
from mm_assets.formats.partitions import Partition, ref_path
from mm_assets.formats.raw_files import RAW_SUFFIXES, is_parquet
from mm_assets.formats.reader import FileSource
from mm_assets.formats.sample_ids import SampleIds
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader


class RawReader(InterleavedWebdatasetReader):
    """Reader that chooses the format of each file by its suffix; arguments as `InterleavedWebdatasetReader`.

    In Parquet, field names are column names. Extensions, the image member and per-item fields only apply to
    tars.
    """

    suffixes = RAW_SUFFIXES

    def _source(self, uri: str, partition: Partition, ids: SampleIds | None) -> FileSource:
        if not is_parquet(uri):
            return super()._source(uri, partition, ids)
        path = ref_path(uri, self.relative_to)
        return open_source(
            uri, self.layout, path, partition, ids, self.max_member_bytes, self.storage_options
        )
