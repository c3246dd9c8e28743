"""The asset `training_set`: made where it is asked for, from the tars of all shards, and proven."""

from __future__ import annotations

import json

import pyarrow.parquet as pq

from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.headless.conftest import ASSETS, Project


def test_it_is_made_where_it_is_asked_for(project: Project) -> None:
    project.shards("abcdef")
    fine(project.run())
    assert not (project.storage / "training").exists()
    assert set(project.made()) == set(ASSETS)
    assert fine(project.run("--assets", "training_set", "--dry-run")).splitlines() == [
        "training_set would be made of the tars there are"
    ]
    settings = {"MM_TRAINING_SPLIT": "train=0.5,validation=0.5", "MM_TRAINING_TOKENS": "words"}
    done = fine(project.run("--assets", "training_set", **settings)).splitlines()
    assert done[0].startswith("training_set: 6 samples in 2 shards, 6 uses, 0 left out; plan ")
    assert done[1].startswith("union: passed, digest ")
    found = fine(run("verify", project.storage / "webdataset", project.storage / "training"))
    assert found.splitlines()[-1] == "equal"
    plan = pq.read_table(project.storage / "training" / "plan.parquet").to_pylist()
    assert {(row["source"], row["tokens"]) for row in plan} == {("webdataset", 2)}, "words are a stored score"
    note = json.loads((project.storage / "ledger" / "training_set.json").read_text())
    assert (note["samples"], note["plan"]) == (6, "training/plan.parquet")


def state(project: Project, **settings: str) -> str:
    lines = project.command("status", **settings).stdout.splitlines()
    (found,) = [line.removeprefix("training set: ") for line in lines if line.startswith("training set: ")]
    return found


def test_new_shards_go_in_with_the_next_one(project: Project) -> None:
    project.shards("ab")
    fine(project.run("--assets", "curated_parquet,image_scores,sample_scores,filtered_parquet,final_tars"))
    assert state(project) == "none"
    fine(project.run("--assets", "training_set"))
    assert state(project) == "current"
    assert state(project, MM_TRAINING_SEED="3") == "stale: its settings are others now"
    project.shards("c")
    fine(project.run())
    assert state(project) == "stale: its tars are others now"
    published = project.command(
        "publish", project.storage.parent / "there", "--outputs", "webdataset,training"
    )
    assert published.returncode == 0 and published.stderr.splitlines() == [
        "mm-assets: warning: training: stale: its tars are others now; "
        "mm-assets run --assets training_set makes it of those",
        f"mm-assets: warning: {project.home}: no database of Dagster is there, "  # it is in memory
        "so nothing is known to be made",
    ]
    assert "training_set: 3 samples" in fine(project.run("--assets", "training_set"))
    assert state(project) == "current"
    tar = project.storage / "training" / "train-000000.tar"
    whole = tar.read_bytes()
    tar.write_bytes(whole.replace(b'"texts"', b'"stxet"'))
    assert "union: passed" in fine(project.run("--assets", "training_set")), "it is mended at once"
    assert tar.read_bytes() == whole


def test_without_tars_it_fails_in_one_line(project: Project) -> None:
    project.shards("a")
    done = project.run("--assets", "training_set")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("mm-assets: ")]
    assert (
        line.startswith("mm-assets: step training_set failed: ")
        and str(project.storage / "webdataset") in line
    )
