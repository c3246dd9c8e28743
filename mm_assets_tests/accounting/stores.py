"""Stores of the accounting, filled."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from mm_assets.accounting.contract import Published
from mm_assets.accounting.survey import merge_files
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.formats.reader import FileSurvey, SurveyedSample


def store_of(root: Path, shards: dict[str, str], published: dict[str, str] | None = None) -> SurveyStore:
    """Surveys of shards, and the ids of what is published; each letter is a sample id."""
    store = SurveyStore(str(root))
    for partition, ids in shards.items():
        facts = tuple(SurveyedSample(letter, f"{letter}.json", 512, 10, 1, 0) for letter in ids)
        store.write(partition, merge_files([(f"{partition}.tar", FileSurvey(samples=facts))], "v1", "layout"))
    for partition, ids in (published or {}).items():
        store.write_published(partition, Published(pa.schema([])), ids)
    return store
