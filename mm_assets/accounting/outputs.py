"""Outputs of the graph: location below the storage root, format and source of each."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import join


@dataclass(frozen=True)
class Output:
    """One asset of interleaved rows.

    An output is a ``folder`` with one file per shard, each with ``suffix``, or (without suffix) one table. A
    shard of an Arrow cache is a folder itself: the suffix then names the metadata file in it.

    Attributes:
        asset: its name.
        kind: its format.
        folder: its folder below the storage root.
        suffix: the end of the files' names.
        source: the output that it is made from; None: raw shards.
    """

    asset: str
    kind: str
    folder: str
    suffix: str = ""
    source: str | None = None

    def uri(self, root: str, partition: str) -> str:
        """Return the file of a shard, or the one table."""
        return (
            join(root, self.folder, f"{partition_filename(partition)}{self.suffix}")
            if self.suffix
            else join(root, self.folder)
        )


CURATED = Output("curated_parquet", "parquet", "curated", ".parquet")
FILTERED = Output("filtered_parquet", "parquet", "filtered", ".parquet", CURATED.asset)
TARS = Output("final_tars", "webdataset", "webdataset", ".tar", FILTERED.asset)
LANCE = Output("lance_table", "lance", "lance/items.lance", source=FILTERED.asset)
CACHE = Output("arrow_cache", "arrow_cache", "arrow_cache", "/_metadata.json", FILTERED.asset)
OUTPUTS = (CURATED, FILTERED, TARS, LANCE, CACHE)
BY_ASSET = {output.asset: output for output in OUTPUTS}
# Assets without samples, by the output they are made from: their files are proven with its shards.
DERIVED = {CURATED.asset: ("image_scores", "quarantine")}


def made_from(asset: str) -> tuple[Output, ...]:
    """Return the outputs that are made from an asset."""
    return tuple(output for output in OUTPUTS if output.source == asset)
