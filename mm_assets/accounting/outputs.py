"""Outputs of the graph: location below the storage root, format and source of each."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.formats.format_table import Format, format_of
from mm_assets.formats.storage import join


@dataclass(frozen=True)
class Output:
    """One asset of interleaved rows, below ``folder`` of the storage root.

    ``kind`` is its format, ``source`` the output that it is made from (None: raw shards).
    """

    asset: str
    kind: str
    folder: str
    source: str | None = None

    @property
    def format(self) -> Format:
        """The record of its format."""
        return format_of(self.kind)

    def uri(self, root: str, partition: str) -> str:
        """Return the file of a shard (for a cache its metadata), or the one table."""
        return self.format.uri(join(root, self.folder), partition)

    def place(self, root: str, partition: str) -> str:
        """Return the location of a shard's output: the file or the folder, or the one table."""
        return self.format.output(self.uri(root, partition))


CURATED = Output("curated_parquet", "parquet", "curated")
FILTERED = Output("filtered_parquet", "parquet", "filtered", CURATED.asset)
TARS = Output("final_tars", "webdataset", "webdataset", FILTERED.asset)
LANCE = Output("lance_table", "lance", "lance/items.lance", FILTERED.asset)
CACHE = Output("arrow_cache", "arrow_cache", "arrow_cache", FILTERED.asset)
OUTPUTS = (CURATED, FILTERED, TARS, LANCE, CACHE)
BY_ASSET = {output.asset: output for output in OUTPUTS}
# Assets without samples, by the output they are made from: their files are proven with its shards.
DERIVED = {CURATED.asset: ("image_scores", "sample_scores", "quarantine")}
# Their folders below the storage root, with a Parquet file for each shard.
DERIVED_FOLDERS = {"image_scores": "scores", "sample_scores": "sample_scores", "quarantine": "quarantine"}


def made_from(asset: str) -> tuple[Output, ...]:
    """Return the outputs that are made from an asset."""
    return tuple(output for output in OUTPUTS if output.source == asset)
