"""A re-run of finished shards writes nothing and still reports each; whatever decides the bytes makes exactly
its shards anew.
"""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from mm_assets.graph import Plan, ShardSet
from mm_assets.graph.assets import landed_checks, sharded
from mm_assets_tests.graph.io_manager import toy, toy_job
from mm_assets_tests.graph.io_manager.conftest import Toy


def files(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Everything below a folder with content, inode and time: equal only if nothing was written."""
    found = (p for p in folder.rglob("*") if p.is_file())
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_ino, p.stat().st_mtime_ns) for p in found
    }


def worked(deployment: Toy, asset: str, keys: list[str]) -> list[str]:
    """Shards whose latest event tells of work."""
    return sorted(
        key for key, event in deployment.latest(asset, keys).items() if "unchanged" not in event.metadata
    )


def test_second_run_writes_nothing_and_logs_everything(deployment: Toy) -> None:
    keys = deployment.shards(3)
    first = deployment.run("all", "k01", "k03")
    before, was = files(deployment.root), deployment.latest("filtered", keys)
    second = deployment.run("all", "k01", "k03")
    assert first.success and second.success
    assert files(deployment.root) == before
    for asset in ("curated", "scores", "filtered", "table"):
        assert deployment.landed(asset, second) == keys
        assert worked(deployment, asset, keys) == []
    for key, event in deployment.latest("filtered", keys).items():
        assert event.version == was[key].version
        assert {**event.metadata} == {**was[key].metadata, "unchanged": True}


def test_unchanged_shards_log_their_checks_again(deployment: Toy) -> None:
    keys = deployment.shards(2)
    deployment.run("two", "k01", "k02")
    second = deployment.run("two", "k01", "k02")
    evaluations = [e for e in second.get_asset_check_evaluations() if e.partition is not None]
    assert sorted((e.check_name, e.partition) for e in evaluations) == [
        (name, key) for name in ("not_empty", "short_lines") for key in keys
    ]
    assert all(e.passed for e in evaluations)
    assert [e.metadata["lines"].value for e in evaluations if e.check_name == "not_empty"] == [3, 3]


def test_no_worker_starts_when_there_is_nothing_to_do(
    deployment: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.shards(1)
    deployment.run("two", "k01")
    monkeypatch.setattr("mm_assets.pool.workers.start", lambda _: pytest.fail("a worker was started"))
    assert deployment.run("two", "k01").success


def change_raw(deployment: Toy) -> None:
    deployment.shard("k02", "another text\n")


def remove_output(deployment: Toy) -> None:
    (deployment.root / "curated" / "k02.out").unlink()


def edit_output(deployment: Toy) -> None:
    (deployment.root / "curated" / "k02.out").write_text("edited by hand")


def remove_record(deployment: Toy) -> None:
    (deployment.root / "ledger" / "accounts" / "curated" / "k02.parquet").unlink()


def damage_record(deployment: Toy) -> None:
    (deployment.root / "ledger" / "accounts" / "curated" / "k02.parquet").write_text("{")


@pytest.mark.parametrize("change", [change_raw, remove_output, edit_output, remove_record, damage_record])
def test_one_shard_is_made_anew(deployment: Toy, change: Any) -> None:
    keys = deployment.shards(3)
    deployment.run("two", "k01", "k03")
    change(deployment)
    assert deployment.run("two", "k01", "k03").success
    assert worked(deployment, "curated", keys) == ["k02"]
    # The next asset only where the content differs: equal bytes have an equal version.
    assert worked(deployment, "scores", keys) == (["k02"] if change is change_raw else [])
    assert (deployment.root / "curated" / "k02.out").read_text() == (
        deployment.raw / "k02.txt"
    ).read_text().upper()


def variant(code_version: str = "1", steps: tuple[Any, ...] = (toy_job.Upper(),)) -> list[Any]:
    @sharded(code_version=code_version, checks=toy.CHECKS, name="curated")
    def curated(raw_shards: ShardSet) -> Plan:
        return Plan(raw_shards, steps)

    return [toy.raw_shards, curated]


@pytest.mark.parametrize(
    ("config", "anew"),
    [
        ({}, []),
        ({"processes": 1}, []),
        ({"code_version": "2"}, ["k01", "k02"]),
        ({"steps": (toy_job.Lower(),)}, ["k01", "k02"]),
        ({"suffix": "!"}, ["k01", "k02"]),
    ],
)
def test_code_plan_and_configuration_count(deployment: Toy, config: dict[str, Any], anew: list[str]) -> None:
    keys = deployment.shards(2)
    deployment.config |= {"assets": variant(), "jobs": {"go": dg.AssetSelection.assets("curated")}}
    assert deployment.run("go", "k01", "k02").success
    assets = variant(**{name: config.pop(name) for name in ("code_version", "steps") if name in config})
    deployment.config |= {"assets": assets, "checks": landed_checks(assets), **config}
    assert deployment.run("go", "k01", "k02").success
    assert worked(deployment, "curated", keys) == anew


def test_changed_side_input_counts(deployment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """`filtered` has the scores as side input: other scores, other result, though its source is the same."""
    keys = deployment.shards(2)
    assert deployment.run("all", "k01", "k02").success
    (deployment.root / "scores" / "k02.out").unlink()
    monkeypatch.setattr(toy.ToyIOManager, "run_job", staticmethod(toy_job.run_longer_scores))
    assert deployment.run("all", "k01", "k02").success
    assert worked(deployment, "curated", keys) == []
    assert worked(deployment, "scores", keys) == worked(deployment, "filtered", keys) == ["k02"]


def test_storage_that_moves_with_its_records_is_unchanged(deployment: Toy) -> None:
    keys = deployment.shards(2)
    deployment.run("all", "k01", "k02")
    before = files(deployment.root)
    deployment.root.rename(deployment.folder / "new place")
    deployment.storage = "new place"
    assert deployment.run("all", "k01", "k02").success
    assert files(deployment.root) == before
    assert deployment.latest("curated", keys)["k01"].uri == f"{deployment.root}/curated/k01.out"


def test_emptied_storage_is_filled_anew(deployment: Toy) -> None:
    keys = deployment.shards(2)
    deployment.run("two", "k01", "k02")
    deployment.root.rename(deployment.folder / "old")
    assert deployment.run("two", "k01", "k02").success
    assert worked(deployment, "curated", keys) == keys
    assert (deployment.root / "scores" / "k01.out").exists()
