"""Where the raw shards are."""

from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.formats.raw_shards import Listing, RawLocations


class RawShards(dg.ConfigurableResource[Any]):
    """The raw shards that ``MM_RAW_SHARDS`` names: paths, globs, brace lists or URLs, separated by whitespace."""

    locations: str = Field(description="Paths, globs, brace lists or URLs of raw shards, separated by whitespace.")
    excluded: str = Field(default="", description="Folder or URL prefix whose files are no raw shards: the outputs.")
    files_per_partition: int = Field(default=1, ge=1, description="Raw files that make up one partition.")

    def listing(self) -> Listing:
        """The shards as they are now, by partition key. Raises ``FileNotFoundError`` when nothing is found at all."""
        return RawLocations(self.locations, excluded=self.excluded).shards(self.files_per_partition)

    def roots(self) -> list[str]:
        """The folder and URL prefix that hold all of them; local locators are stored relative to the folder."""
        return RawLocations(self.locations).roots()
