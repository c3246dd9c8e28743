"""What nobody sees fail: another share than usual, nothing new for too long, a run that does nothing. A real
daemon tells it, to a target that answers late, beside one that refuses and one that never answers.
"""

import os
import signal
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

import dagster as dg
import pytest
from PIL import Image

from mm_assets_tests.automation.alerts.conftest import brief
from mm_assets_tests.automation.alerts.receivers import webhook
from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.live.daemon import DagsterDev, wait_for

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("shared_workers")]

TOLD = 150.0  # seconds: two ticks, each as long as the targets may take, on a busy machine
FRESH = 100
SILENT = 40


def shard(path: Path, size: tuple[int, int]) -> None:
    out = BytesIO()
    Image.new("RGB", size).save(out, "PNG")
    document = {"texts": ["x", None, None], "images": [None, "0.png", "1.png"]}
    make_tar(path, [(f"{path.stem}.json", document), ("0.png", out.getvalue()), ("1.png", out.getvalue())])


def test_drift_freshness_and_hanging_reach_a_late_target_though_others_are_down(tmp_path: Path) -> None:
    raw, home = tmp_path / "raw", tmp_path / "home"
    with ExitStack() as stack:
        late, broken, silent = (stack.enter_context(webhook()) for _ in range(3))
        late.silence, broken.answers, silent.silence = 5.0, [500] * 10_000, 10_000.0
        settings = {
            "MM_RAW_SHARDS": str(raw),
            "MM_STORAGE": str(tmp_path / "storage"),
            "MM_WORKERS": "1",
            "MM_MIN_ASPECT_RATIO": "1.0",
        }
        environment = {
            **settings,
            "MM_ALERTS": " ".join(hook.url() for hook in (late, broken, silent)),
            "MM_FRESH_WITHIN": f"{FRESH}s",
            "TEST_SILENT": str(tmp_path / "silent"),
        }
        dev = DagsterDev("mm_assets_tests.live.watched_location", home, environment)
        for number in range(6):  # what is usual, made by commands in the same home
            shard(raw / f"s{number}.tar", (30, 20))
            assert fine(run("run", **settings, DAGSTER_HOME=str(home))).startswith("materializing all ")
        shard(raw / "tall.tar", (20, 30))
        stack.enter_context(dev)
        dev.wait_for(lambda instance: instance.has_dynamic_partition("shards", "tall"), 90, "the shard")

        def told(what: str, kind: str = "") -> None:
            """All-clears of one tick are one message."""
            wait_for(
                lambda: any(what in each["message"] and kind in each["type"] for each in late.received),
                TOLD,
                what,
            )

        assert dev.wait_for_run(dev.launch_run("all_assets", {"dagster/partition": "tall"})) == "SUCCESS"
        told("filtered_parquet keeps another share of items than usual")
        told("Not fresh")
        assert dev.wait_for_run(dev.launch_run("all_assets", {"dagster/partition": "s0"})) == "SUCCESS"
        told("Not fresh", "success")

        shard(raw / "s0.tar", (40, 20))
        stopped = dev.launch_run("all_assets", {"dagster/partition": "s0"})
        wait_for(lambda: dev.run_status(stopped) == "STARTED", 180, "the run to begin")
        process = dev.run_process(stopped)
        os.kill(process, signal.SIGSTOP)
        (tmp_path / "silent").write_text(str(SILENT))
        told("Hangs")
        os.kill(process, signal.SIGCONT)
        assert dev.wait_for_run(stopped) == "SUCCESS"
        told("Hangs", "success")
        alarms = [brief(each["title"]) for each in late.received if each["type"] != "success"]
        assert [title for title in alarms if not title.startswith("Not fresh")] == [
            "filtered_parquet keeps another share of items than usual in run",
            "Hangs: all_assets in run",
        ], "each once"
        assert (broken.received, silent.received) == ([], [])
        assert len(broken.attempts) > 1 and len(silent.attempts) > 0
        with dev.instance() as instance:
            assert _outcomes_of_ticks(instance) == {"SKIPPED"}


def _outcomes_of_ticks(instance: dg.DagsterInstance) -> set[str]:
    return {
        tick.status.value
        for state in instance.all_instigator_state()
        if state.instigator_name == "alerts"
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id)
        if tick.status.value != "STARTED"
    }
