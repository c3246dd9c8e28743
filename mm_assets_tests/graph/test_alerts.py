"""What alerts say of the real graph: a shard that is lost for the most part, and shares of the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mm_assets.automation.alerts.tick import State, tick
from mm_assets.definitions import build_definitions
from mm_assets.settings import Settings
from mm_assets_tests.automation.alerts.receivers import webhook
from mm_assets_tests.graph.deployment import Deployment
from tools.demo import make_shards


def test_a_shard_over_max_loss_is_told_once_and_shares_are_known(
    tmp_path: Path, deploy_on_disk: Callable[..., Deployment]
) -> None:
    make_shards(tmp_path / "raw", members=2, pdf=1, samples=3)
    damaged = tmp_path / "raw" / "web-00000.tar"
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 5])
    deployment = deploy_on_disk(MM_MAX_LOSS="0.1", MM_MIN_ASPECT_RATIO="1")
    assert not deployment.run().success
    repository = build_definitions().get_repository_def()
    with webhook() as hook:
        settings = Settings(alerts=(hook.url(),), max_loss=0.1)
        for _ in range(2):
            tick(deployment.instance, repository, settings, time.time(), print)
    (missing,) = hook.received  # the failed check that kept it from landing is no second cause
    assert (
        "1 of 3 shards did not land: curated_parquet (quarantine share over MM_MAX_LOSS)" in missing["title"]
    )
    lines = missing["message"].splitlines()
    assert lines[1].startswith("missing for that in: arrow_cache, filtered_parquet, final_tars, ")
    assert lines[2] == "failed checks: raw_shards.integrity (1)"
    assert lines[3].startswith("- web-00000: ") and "MM_MAX_LOSS is 0.1" in lines[3]
    state = State.load(deployment.instance, time.time())
    (kept,), (lost,) = state.kept.origins.values(), state.lost.origins.values()
    assert 0 < kept.part < kept.whole
    assert (lost.part, lost.above) == (0, 0)
    assert lost.whole > 0
