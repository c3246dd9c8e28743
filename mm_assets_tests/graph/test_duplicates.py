"""Duplicates in the graph: shards without verdicts fail, the job finds them and has others made again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

from mm_assets.definitions import build_definitions
from mm_assets.graph.assets import DUPLICATES
from mm_assets.settings import Settings
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.commands import run
from mm_assets_tests.graph.deployment import FILTERED, Deployment

Deploy = Callable[..., Deployment]
HOW = "`mm-assets duplicates` finds them, once scores of all shards are stored"


def add_shard(deployment: Deployment, name: str) -> None:
    """A document with the text of all others."""
    make_tar(Path(deployment.raw, f"{name}.tar"), [(f"{name}.json", {"texts": ["one text of all"]})])


def kept(deployment: Deployment) -> list[str]:
    found = Path(deployment.storage, "filtered").glob("*.parquet")
    return sorted({row for path in found for row in pq.read_table(path)["sample_id"].to_pylist()})


def find(deployment: Deployment) -> bool:
    """Run the job in a code location; whether it succeeded."""
    storage, mode = deployment.storage, deployment.environment["MM_DEDUP_DOCUMENTS"]
    resources = {"bounds": {"dedup_documents": mode, "root": storage}, "maintained": {"root": storage}}
    config = {
        "resources": {name: {"config": given} for name, given in resources.items()},
        "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
    }
    location = ReconstructableRepository.for_module("mm_assets.definitions", "defs")
    job = location.get_reconstructable_job("duplicates")
    return dg.execute_job(job, instance=deployment.instance, run_config=config).success


def test_job_finds_duplicates_and_launches_what_they_change(deploy: Deploy) -> None:
    deployment = deploy(MM_DEDUP_DOCUMENTS="exact")
    add_shard(deployment, "b")
    add_shard(deployment, "c")
    result = deployment.run(assets=FILTERED)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert failed.step_failure_data.user_failure_data.description == (
        f"dedup_documents: no duplicates were looked for: {HOW}"
    )

    assert find(deployment)
    (backfill,) = deployment.instance.get_backfills()
    assert backfill.title == "2 shards with other duplicates"
    event = deployment.instance.get_latest_materialization_event(DUPLICATES)
    assert event is not None and event.asset_materialization is not None
    metadata = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert metadata["documents"] == 2
    assert metadata["document_copies"] == 1
    assert metadata["largest_of_documents"] == {"b": 1}
    assert deployment.run(assets=FILTERED).success
    assert kept(deployment) == ["b"]

    add_shard(deployment, "a")
    result = deployment.run(assets=FILTERED)
    assert not result.success
    errors = [
        entry.user_message for entry in deployment.instance.all_logs(result.run_id) if entry.level >= 40
    ]
    assert any(f"no duplicates were looked for in it: {HOW}" in error for error in errors)
    assert kept(deployment) == ["b"]  # what has verdicts is made
    assert find(deployment)
    assert deployment.instance.get_backfills()[0].title == "3 shards with other duplicates"
    assert deployment.run(assets=FILTERED).success
    assert kept(deployment) == ["a"]


def test_settings_that_verdicts_were_not_found_with_are_refused(deploy: Deploy) -> None:
    deployment = deploy(MM_DEDUP_DOCUMENTS="exact")
    add_shard(deployment, "a")
    deployment.run(assets=FILTERED)
    assert find(deployment)
    deployment.environment["MM_DEDUP_JACCARD"] = "0.9"
    refused = run(deployment, "preview", "--set", "dedup_documents=exact", "--set", "dedup_jaccard=0.9")
    assert refused.stderr == (
        f"mm-assets: dedup_documents: duplicates were looked for with other settings: {HOW}\n"
    )


def test_the_asset_is_there_where_duplicates_are_dropped(deploy: Deploy) -> None:
    for mode, is_there in (("near", True), ("off", False)):
        with deploy(MM_DEDUP_IMAGES=mode)._configured():
            assert (DUPLICATES in build_definitions().resolve_asset_graph().get_all_asset_keys()) == is_there


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"MM_DEDUP_IMAGES": "exactly"}, "MM_DEDUP_IMAGES: it is one of off, exact, near, not 'exactly'"),
        ({"MM_DEDUP_IMAGES": "near", "MM_DEDUP_DISTANCE": "65"}, "MM_DEDUP_DISTANCE: it is 0 to 64, not 65"),
        (
            {"MM_DEDUP_IMAGES": "exact", "MM_DEDUP_CLIP": "0.9"},
            "MM_DEDUP_CLIP: only with dedup_images=near",
        ),
        ({"MM_DEDUP_IMAGES": "near", "MM_DEDUP_CLIP": "0.5"}, "MM_DEDUP_CLIP: it is 0.8 to 1, not 0.5"),
        (
            {"MM_DEDUP_IMAGES": "exact", "MM_FILTER_ACTIONS": "dedup_images=drop_sample"},
            "'dedup_images=drop_sample': the action of dedup_images is one of drop_item, flag",
        ),
        (
            {"MM_DEDUP_DOCUMENTS": "near", "MM_DEDUP_JACCARD": "0"},
            "MM_DEDUP_JACCARD: it is above 0, and at most 1, not 0",
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, str], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Settings.load(settings).active_filters()
    assert Settings.load({"MM_DEDUP_IMAGES": "off", "MM_DEDUP_DISTANCE": "3"}).active_filters() == ()
