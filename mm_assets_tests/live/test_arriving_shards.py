"""Shards that arrive are made without a click, under a real daemon."""

from __future__ import annotations

from collections import Counter

import pytest

from mm_assets.graph.instance_queries import STARTED_BY
from mm_assets_tests.automation.alerts.receivers import webhook
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.automated import BROKEN, SECONDS, Storage, ended
from mm_assets_tests.live.daemon import wait_for
from tools.demo import make_shards

pytestmark = [pytest.mark.live, pytest.mark.clients]

SHARDS = 6


def test_shards_that_arrive_in_waves(in_postgres: Storage) -> None:
    """All good ones are in every asset, in three runs a wave at most; bad ones fail alone, are told of once
    and are not tried again.
    """
    storage = in_postgres
    spare = storage.folder / "spare"
    tars = make_shards(spare, members=SHARDS, pdf=0, samples=1)
    bad = {tars[1].stem, tars[-1].stem}
    storage.raw.mkdir()
    with webhook() as hook, storage.dev(MM_AUTOMATION="new", MM_ALERTS=hook.url()) as dev:
        for wave, until in enumerate((SHARDS // 2, SHARDS), start=1):
            for tar in tars[:until]:
                if tar.exists():
                    if tar.stem in bad:
                        tar.write_bytes(BROKEN)
                    tar.rename(storage.raw / tar.name)
            landed = {tar.stem for tar in tars[:until]} - bad
            wait_for(lambda landed=landed: storage.tars() == landed, SECONDS, f"wave {wave}")
        dev.wait_for(ended(2), SECONDS, "the end of both backfills")
        with dev.instance() as instance:
            runs = instance.get_runs()
        of_waves = Counter(run.tags["dagster/backfill"] for run in runs)
        assert len(of_waves) == 2 and max(of_waves.values()) <= 3
        assert {run.tags[STARTED_BY] for run in runs} == {"sensor automation"}
        good = {tar.stem for tar in tars} - bad
        assert storage.tars() == good
        for asset in ASSETS:
            assert set(dev.partitions(asset)["materialized"]) == good
            assert set(dev.partitions(asset)["failed"]) == bad
        for shard in bad:

            def messages(shard: str = shard) -> list[str]:
                missing = [each for each in hook.received if "did not land" in each["title"]]
                return [each["title"] for each in missing if f"- {shard}: " in each["message"]]

            wait_for(messages, SECONDS, f"a message about {shard}")
            assert len(messages()) == 1
