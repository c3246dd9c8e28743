"""What the UI shows of each check and shard, by the function that its own query calls."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mm_assets_tests.formats.hostile.pictures import photograph
from mm_assets_tests.graph.deployment import ASSETS, Deployment, write_tar

Deploy = Callable[..., Deployment]

SHARDS = {"p", "q"}
PROVEN = ("curated_parquet", "filtered_parquet", "final_tars", "lance_table", "arrow_cache")


def _seen(deployment: Deployment) -> dict[str, tuple[set[str], set[str]]]:
    """By ``asset.check``: the shards that the UI counts as passed, and as failed. There are no others:
    planned ones are gone.
    """
    states = deployment.check_states()
    for name, state in states.items():
        assert state.keys() <= {"SUCCEEDED", "FAILED"}, (name, state)
    return {
        name: (state.get("SUCCEEDED", set()), state.get("FAILED", set())) for name, state in states.items()
    }


def test_every_check_passes_for_every_shard_after_a_run_a_rerun_and_a_proof(copied: Deployment) -> None:
    first = _seen(copied)
    assert len(first) >= 26
    assert first == {name: (SHARDS, set()) for name in first}
    assert copied.run().success  # nothing is made: new events all the same
    assert _seen(copied) == first
    assert copied.run(["p"]).success  # one shard alone
    assert _seen(copied) == first
    for asset in PROVEN:
        assert copied.check(asset, "zero_loss").success
    assert _seen(copied) == first
    assert {copied.overview(*name.split("."))[0] for name in first} == {True}


def test_damage_is_red_where_it_is_and_in_the_overview(tmp_path: Path, copied: Deployment) -> None:
    deployment = copied
    before = _seen(deployment)
    tar = tmp_path / "storage" / "webdataset" / "p.tar"
    content = bytearray(tar.read_bytes())
    content[700] ^= 1
    tar.write_bytes(content)
    assert not deployment.check("final_tars", "zero_loss").success
    after = _seen(deployment)
    assert after.pop("final_tars.zero_loss") == (SHARDS - {"p"}, {"p"})
    assert after == {name: seen for name, seen in before.items() if name != "final_tars.zero_loss"}
    passed, metadata = deployment.overview("final_tars", "zero_loss")
    assert (passed, list(metadata["shards"]), metadata["failed"], metadata["of"]) == (
        False,
        ["p"],
        1,
        2,
    )
    # A run of other shards does not hide it.
    assert deployment.run(["q"]).success
    assert _seen(deployment)["final_tars.zero_loss"] == (SHARDS - {"p"}, {"p"})
    passed, metadata = deployment.overview("final_tars", "zero_loss")
    assert (passed, list(metadata["shards"]), metadata["evaluated_in_this_run"]) == (False, ["p"], 1)
    # Its own run mends it.
    assert deployment.run().success
    assert _seen(deployment) == before
    assert deployment.overview("final_tars", "zero_loss")[0]


def test_quarantine_is_not_green_when_some_shards_have_records(tmp_path: Path, deploy: Deploy) -> None:
    for name in ("a", "b", "c"):
        sound = {f"{name}-{n}.json": b'{"texts": ["t"], "images": [null]}' for n in range(3)}
        write_tar(
            tmp_path / "raw" / f"{name}.tar", sound | ({f"{name}-bad.json": b"{"} if name != "c" else {})
        )
    deployment = deploy()
    assert deployment.run().success
    seen = _seen(deployment)
    assert seen["quarantine.empty"] == ({"c"}, {"a", "b"})
    assert seen["raw_shards.integrity"] == ({"c"}, {"a", "b"})
    assert deployment.overview("quarantine", "empty")[0] is False
    assert deployment.overview("raw_shards", "integrity")[0] is False


@pytest.mark.parametrize("landed_before", [False, True])
def test_a_check_that_was_not_evaluated_has_not_failed(
    tmp_path: Path, deploy: Deploy, landed_before: bool
) -> None:
    for name in ("a", "b"):
        write_tar(
            tmp_path / "raw" / f"{name}.tar",
            {f"{name}.json": b'{"texts": ["t"], "images": ["x.png"]}', "x.png": photograph("PNG")},
        )
    deployment = deploy()
    if landed_before:
        assert deployment.run().success
    (tmp_path / "raw" / "b.tar").unlink()
    deployment.raw = str(tmp_path / "raw" / "{a,b}.tar")  # named: it is a partition, and fails
    assert not deployment.run().success
    passed = (
        {"a", "b"} if landed_before else {"a"}
    )  # what was published of it before still stands as it was judged
    seen = _seen(deployment)
    for asset in ASSETS:
        for name in [name for name in seen if name.startswith(f"{asset}.")]:
            assert seen[name] == (passed, set()), name
    assert seen["raw_shards.integrity"] == ({"a"}, {"b"})


def test_a_blocking_check_that_fails_is_red_for_its_shard_alone(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", {"a.json": b'{"texts": ["t"], "images": ["gone.png"]}'})
    write_tar(
        tmp_path / "raw" / "b.tar",
        {"b.json": b'{"texts": ["t"], "images": ["x.png"]}', "x.png": photograph("PNG")},
    )
    deployment = deploy(MM_ON_MATERIALIZE_ERROR="error")
    assert not deployment.run().success
    seen = _seen(deployment)
    assert seen["curated_parquet.materialization_errors"] == ({"b"}, {"a"})
    assert seen["filtered_parquet.materialization_errors"] == ({"b"}, set())
    assert deployment.overview("curated_parquet", "materialization_errors")[0] is False
