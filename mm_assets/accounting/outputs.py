"""The outputs of the graph: where each lies below the storage root, in which format, and what it is made
from.
"""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import join


@dataclass(frozen=True)
class Output:
    """One asset of interleaved rows. ``kind`` is its format, ``source`` the output that it is made from
    (None: raw shards).

    It lies in a ``folder`` of one file a shard, each with ``suffix``, or (no suffix) in one table. Of a
    cache, which is a folder itself, the suffix names the file in it that tells of the others.
    """

    asset: str
    kind: str
    folder: str
    suffix: str = ""
    source: str | None = None

    def uri(self, root: str, partition: str) -> str:
        """The file of a shard, or the one table."""
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
# Assets without samples, by the output that they are made from: what they wrote is proven with its shards.
DERIVED = {CURATED.asset: ("image_scores", "quarantine")}


def made_from(asset: str) -> tuple[Output, ...]:
    """The outputs whose source an asset is."""
    return tuple(output for output in OUTPUTS if output.source == asset)
