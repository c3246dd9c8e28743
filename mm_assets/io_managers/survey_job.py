"""Worker side of the integrity gate: survey one raw shard. Imports no Dagster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_assets.accounting.shard_survey import ShardSurvey, layout_digest, survey_shard
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.formats.raw_shards import files_of
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader


@dataclass(frozen=True)
class SurveyJob:
    """One raw shard in one version, to be surveyed.

    Args:
        layout: arguments of the reader, with ``max_member_bytes``.
        relative_to: the folder that locators are relative to.
        root: the storage root.
    """

    key: str
    uri: str
    version: str
    layout: Mapping[str, Any]
    relative_to: str | None
    root: str


def survey_raw_shard(job: SurveyJob) -> ShardSurvey:
    """Survey the shard, keep the result in the store, and return it."""
    reader = InterleavedWebdatasetReader((), **job.layout)
    limit = job.layout["max_member_bytes"]
    survey = survey_shard(
        job.key, files_of(job.uri), job.version, reader.layout, job.relative_to, max_member_bytes=limit
    )
    SurveyStore(job.root).write(job.key, survey)
    return survey


def digest_of_layout(layout: Mapping[str, Any]) -> str:
    """Return the digest of a layout, which its surveys are stored with."""
    return layout_digest(InterleavedWebdatasetReader((), **layout).layout, layout["max_member_bytes"])
