"""Location of the raw shards, as a Dagster resource."""

from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.formats.error_lines import readable_store_errors
from mm_assets.formats.raw_shards import Listing, RawLocations
from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings


class RawShards(dg.ConfigurableResource[Any]):
    """The raw shards that ``MM_RAW_SHARDS`` names.

    Locations are paths, globs, brace lists or URLs, separated by whitespace. For paired shards they are
    ``modality=location`` items.
    """

    locations: str = Field(
        description="Paths, globs, brace lists or URLs of raw shards, separated by whitespace."
    )
    excluded: str = Field(
        default="", description="Folder or URL prefix whose files are no raw shards: the outputs."
    )
    missing_keys: str = Field(
        default="skip",
        description="Keys that not all modalities of paired shards have: skip, partial or error.",
    )
    files_per_partition: int = Field(
        default=1, ge=1, description="Raw files that make up one partition, by the numbers in their names."
    )

    def listing(self) -> Listing:
        """Return the current shards by partition key.

        Raises:
            FileNotFoundError: when nothing is found at all.
            StoreError: when a store cannot be reached. Each message is one line.
        """
        with readable_store_errors():
            locations = RawLocations(self.locations, excluded=self.excluded, missing_keys=self.missing_keys)
            try:
                return locations.shards(self.files_per_partition)
            except FileNotFoundError as error:
                if self.locations != Settings.raw_shards or "MM_RAW_SHARDS" in given_settings():
                    raise
                raise FileNotFoundError(f"{error}; MM_RAW_SHARDS is not set") from error

    def roots(self) -> list[str]:
        """Return the folder and URL prefix of all of them; local locators are relative to the folder."""
        return RawLocations(self.locations, missing_keys=self.missing_keys).roots()
