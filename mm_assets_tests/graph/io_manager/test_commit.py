"""Formats that publish by one commit per chunk: events come after it, and a commit that fails leaves none."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mm_assets.graph import ShardJob, ShardResult
from mm_assets_tests.graph.io_manager import toy, toy_job
from mm_assets_tests.graph.io_manager.conftest import Toy


def rows(deployment: Toy) -> dict[str, list[str]]:
    return json.loads((deployment.root / "table.json").read_text())


def test_one_commit_then_one_event_for_each_shard(deployment: Toy) -> None:
    keys = deployment.shards(3)
    run = deployment.run("all", "k01", "k03")
    assert run.success and deployment.landed("table", run) == keys
    assert rows(deployment) == {key: [f"FIRST OF {key.upper()}", key.upper()] for key in keys}
    for event in deployment.latest("table", keys).values():
        assert event.metadata["commit"] == 3
        assert event.metadata["fields"] == keys  # what prepare_chunk told the workers
        assert event.uri == f"{deployment.root}/table.json"


def test_events_are_logged_after_the_commit(deployment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.shards(3)
    seen: list[int] = []
    commit = toy.ToyTableIOManager.publish_chunk

    def watched(self: toy.ToyTableIOManager, results: Sequence[ShardResult]) -> Sequence[ShardResult]:
        seen.append(len(deployment.history("table")))
        return commit(self, results)

    monkeypatch.setattr(toy.ToyTableIOManager, "publish_chunk", watched)
    assert deployment.run("all", "k01", "k03").success
    assert seen == [0] and len(deployment.history("table")) == 3


def test_commit_takes_only_good_and_changed_shards(deployment: Toy) -> None:
    keys = deployment.shards(4)
    deployment.shard("k03", "RAISE")
    deployment.run("all", "k01", "k02")
    run = deployment.run("all", "k01", "k04")
    assert deployment.landed("table", run) == ["k01", "k02", "k04"]
    latest = deployment.latest("table", keys)
    assert [latest[key].metadata["commit"] for key in ("k01", "k02", "k04")] == [2, 2, 1]
    assert ["unchanged" in latest[key].metadata for key in ("k01", "k02", "k04")] == [True, True, False]
    assert sorted(rows(deployment)) == ["k01", "k02", "k04"]


def test_failed_commit_fails_the_chunk_with_one_error_and_no_event(deployment: Toy) -> None:
    keys = deployment.shards(3)
    deployment.root.mkdir()
    (deployment.root / "refuse-commit").touch()
    run = deployment.run("all", "k01", "k03")
    assert not run.success
    assert deployment.history("table") == [] and len(deployment.landed("filtered", run)) == 3
    assert deployment.status("table", keys) == dict.fromkeys(keys, "FAILED")
    line = "commit of the chunk failed: the table refuses the commit"
    errors = deployment.log(run)
    assert [e.splitlines()[0] for e in errors] == [f"shard '{key}' of table: {line}" for key in keys]
    assert [len(e.splitlines()) > 1 for e in errors] == [True, False, False]  # the traceback once
    assert not (deployment.root / "ledger" / "accounts" / "table").exists()
    (deployment.root / "refuse-commit").unlink()
    again = deployment.run("all", "k01", "k03")
    assert again.success and deployment.landed("table", again) == sorted(rows(deployment)) == keys


def test_shard_that_the_commit_left_out_fails(deployment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.shards(2)
    monkeypatch.setattr(
        toy.ToyTableIOManager, "publish_chunk", lambda self, results: [d for d in results if d.key == "k02"]
    )
    run = deployment.run("all", "k01", "k02")
    assert deployment.landed("table", run) == []  # k02 is claimed to be published, but is not there
    assert [line.splitlines()[0] for line in deployment.log(run)] == [
        "shard 'k01' of table: publish_chunk left this shard out",
        f"shard 'k02' of table: run_job says it published {deployment.root}/table.json, but nothing is there",
    ]


def test_commit_may_refuse_single_shards(deployment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.shards(2)
    commit = toy.ToyTableIOManager.publish_chunk

    def choosy(self: toy.ToyTableIOManager, results: Sequence[ShardResult]) -> Sequence[ShardResult]:
        return [*commit(self, results[1:]), replace(results[0], ok=False, error="schema differs")]

    monkeypatch.setattr(toy.ToyTableIOManager, "publish_chunk", choosy)
    run = deployment.run("all", "k01", "k02")
    assert deployment.landed("table", run) == ["k02"]
    assert deployment.log(run) == ["shard 'k01' of table: schema differs"]


def test_prepare_chunk_must_keep_the_shards(deployment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.shards(2)

    def lossy(self: toy.ToyTableIOManager, jobs: Sequence[ShardJob]) -> Sequence[ShardJob]:
        return jobs[1:]

    monkeypatch.setattr(toy.ToyTableIOManager, "prepare_chunk", lossy)
    run = deployment.run("all", "k01", "k02")
    assert "prepare_chunk must return one item for each job it was given" in deployment.failures(run)["table"]


def test_prepare_chunk_may_fail_single_shards(deployment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.shards(3)

    def choosy(self: toy.ToyIOManager, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        return [
            ShardResult(job.key, ok=False, error="no schema") if job.key == "k02" else job for job in jobs
        ]

    monkeypatch.setattr(toy.ToyIOManager, "prepare_chunk", choosy)
    run = deployment.run("two", "k01", "k03")
    assert deployment.landed("scores", run) == ["k01", "k03"]
    assert deployment.log(run)[0] == "shard 'k02' of curated: no schema"


def test_outputs_of_a_commit_are_looked_at_once(deployment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a table for each of its shards would cost the square of their number."""
    deployment.shards(3)
    asked: list[list[str]] = []
    look = toy.ToyTableIOManager.stat_outputs

    def counted(
        self: toy.ToyTableIOManager, dests: Mapping[str, str]
    ) -> Mapping[str, Mapping[str, Any] | None]:
        asked.append(sorted(dests))
        return look(self, dests)

    monkeypatch.setattr(toy.ToyTableIOManager, "stat_outputs", counted)
    assert deployment.run("all", "k01", "k03").success
    assert asked == [[], ["k01", "k02", "k03"]]


def test_record_that_cannot_be_written_fails_its_shard(
    deployment: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.shards(2)
    monkeypatch.setattr(toy.ToyIOManager, "run_job", staticmethod(toy_job.run_and_fill_disk))
    run = deployment.run("two", "k01", "k02")
    assert deployment.landed("scores", run) == ["k02"]
    line = "shard 'k01' of curated: published, but its record could not be written: No space left on device"
    assert deployment.log(run)[0] == line


def test_answers_against_the_contract_are_failures_of_their_shards(
    deployment: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.shards(5)
    monkeypatch.setattr(toy.ToyIOManager, "run_job", staticmethod(toy_job.run_badly))
    run = deployment.run("two", "k01", "k05")
    assert deployment.landed("curated", run) == ["k05"]
    errors = sorted(
        line
        for line in deployment.log(run)
        if " of curated: " in line.splitlines()[0] and "scores" not in line
    )
    assert [e.split(" of curated: ")[1] for e in errors] == [
        "run_job returned None for this shard",
        "run_job returned " + repr(ShardResult("k99", True)) + " for this shard",
        "no reason given",
        "sorry\nbecause",
    ]
