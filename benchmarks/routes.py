"""The four ways through both programs, with what is aimed at on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.documents import Layout

MIN_ASPECT_RATIO, MAX_ASPECT_RATIO = 1.0, 2.0
"""Of the filter that both programs apply."""

PER_IMAGE_FIELDS = ("image_metadata",)
"""Lists of the shards' json with an entry for each image, which both programs spread over the image rows."""

_SHORT = {"webdataset": "WDS", "parquet": "Parquet", "lance": "Lance"}


@dataclass(frozen=True)
class Route:
    """From one format to another; ``goals`` are how many times less CPU than the peer is aimed at, for each
    layout of the raw shards.
    """

    source: str
    target: str
    goals: Mapping[Layout, float]

    @property
    def name(self) -> str:
        return f"{_SHORT[self.source]} → {_SHORT[self.target]}"


ROUTES = (
    Route("webdataset", "parquet", {"tiff": 35, "members": 5}),
    Route("webdataset", "webdataset", {"tiff": 35, "members": 8}),
    Route("parquet", "parquet", {"tiff": 6, "members": 6}),
    Route("parquet", "webdataset", {"tiff": 15, "members": 12}),
)
