"""A failed check reaches a webhook through a real daemon; a restart of everything repeats nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm_assets_tests.automation.alerts.receivers import Webhook, webhook
from mm_assets_tests.live.automated import ended_ticks
from mm_assets_tests.live.daemon import STOCK_YAML, DagsterDev, wait_for

pytestmark = pytest.mark.live

TICK = 30.0
SLACK = 20.0  # the daemon's own loop, on a busy machine


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as server:
        yield server


def test_a_failed_check_is_told_within_two_ticks_and_once(hook: Webhook, tmp_path: Path) -> None:
    raw, out, home = tmp_path / "raw", tmp_path / "out", tmp_path / "home"
    raw.mkdir()
    (raw / "k01.txt").write_text("fine\n")
    (raw / "k02.txt").write_text("")  # the check `not_empty` fails, and keeps the shard from being published
    environment = {
        "TOY_RAW": str(raw),
        "TOY_ROOT": str(out),
        "MM_ALERTS": hook.url("s3cret"),
        "MM_UI_URL": "http://ui:3000",
    }
    dev = DagsterDev("mm_assets_tests.live.alerting_location", home, environment, STOCK_YAML)
    with dev.instance() as instance:
        instance.add_dynamic_partitions("shards", ["k01", "k02"])
    tags = {"dagster/asset_partition_range_start": "k01", "dagster/asset_partition_range_end": "k02"}
    hook.answers = [503, 503]
    with dev:
        run = dev.launch_run("two", tags)
        assert dev.wait_for_run(run) == "FAILURE"
        wait_for(lambda: hook.received, 2 * TICK + SLACK, "the message")
        (missing,) = hook.received
        assert missing["title"] == f"mm_assets: 1 of 2 shards did not land: curated in run {run[:8]}"
        assert "- k02: blocking check failed: not_empty" in missing["message"].splitlines()
        assert "failed checks: curated.not_empty (1)" in missing["message"].splitlines()
        assert missing["message"].endswith("Page: http://ui:3000/assets/curated?view=partitions")
        assert "s3cret" not in dev.log()
    (raw / "k02.txt").write_text("mended\n")
    begun = time.time()
    with dev:
        dev.wait_for(
            lambda instance: ended_ticks(instance, begun), 2 * TICK + SLACK, "a tick after the restart"
        )
        assert len(hook.received) == 1
        assert dev.wait_for_run(dev.launch_run("two", tags)) == "SUCCESS"
        wait_for(lambda: len(hook.received) == 2, 2 * TICK + SLACK, "the all-clear")
    assert hook.titles[1] == (f"mm_assets: all clear: 1 of 2 shards did not land: curated in run {run[:8]}")
