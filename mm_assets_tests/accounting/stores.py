"""Stores of the accounting, filled."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.accounting import CURATED, PUBLISHED, ShardRecord
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.contract import Published
from mm_assets.accounting.survey import merge_files
from mm_assets.accounting.survey_store import SurveyStore, duplicates, published_to_text
from mm_assets.formats.parquet import publish_table
from mm_assets.formats.reader import FileSurvey, SurveyedSample

NO_COLUMNS = Published(pa.schema([]))


def publish(root: str, partition: str, ids: Iterable[str], published: Published = NO_COLUMNS) -> None:
    """A curated shard that has nothing but sample ids, and its account."""
    uri = CURATED.uri(root, partition)
    publish_table(uri, pa.table({"sample_id": pa.array(ids, pa.string())}))
    account = {PUBLISHED: published_to_text(published)}
    Ledger(root).write(ShardRecord(CURATED.asset, partition, "", "v1", uri, account=account))


def store_of(root: Path, shards: dict[str, str], published: dict[str, str] | None = None) -> SurveyStore:
    """Surveys of shards, and the ids of what is published; each letter is a sample id."""
    store = SurveyStore(str(root))
    for partition, ids in shards.items():
        facts = tuple(SurveyedSample(letter, f"{letter}.json", 512, 10, 1, 0) for letter in ids)
        store.write(partition, merge_files([(f"{partition}.tar", FileSurvey(samples=facts))], "v1", "layout"))
    for partition, ids in (published or {}).items():
        publish(str(root), partition, ids)
    return store


def claimed_ids(
    store: SurveyStore, run: Iterable[str], *args: Any, **options: Any
) -> dict[str, dict[str, str]]:
    """`duplicates` in a run of these partitions, whose raw shards are as surveyed."""
    return duplicates(store, dict(store.sample_ids(run)), *args, **options)
