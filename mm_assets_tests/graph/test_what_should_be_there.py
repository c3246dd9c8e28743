"""The proof starts from what should be there: what is gone together with its record is missed, and what
nobody has written is told.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.accounting import OUTPUTS
from mm_assets.graph import shard_work
from mm_assets_tests.graph.deployment import Deployment, prove, write_tar
from mm_assets_tests.graph.published import account
from mm_assets_tests.quick_instance import quick_instance
from mm_assets_tests.worker_jobs import die

Deploy = Callable[..., Deployment]

FOLDERS = {
    "curated_parquet": "curated",
    "filtered_parquet": "filtered",
    "final_tars": "webdataset",
    "arrow_cache": "arrow_cache",
}


@pytest.fixture
def fresh(copied: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The same outputs under a Dagster that knows nothing of them."""
    with quick_instance(tmp_path_factory.mktemp("fresh")) as instance:
        yield Deployment(copied.raw, copied.storage, instance, copied.environment)


def _remove(storage: str, *patterns: str) -> None:
    for pattern in patterns:
        for path in Path(storage).glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _traces(asset: str, name: str = "*") -> list[str]:
    """The accounts of an asset with this name, and all its proofs."""
    return [f"ledger/accounts/{asset}/{name}", f"proof/{asset}"]


def test_an_output_that_went_with_its_records_is_missed(copied: Deployment) -> None:
    _remove(copied.storage, "webdataset", "ledger/accounts/final_tars")
    success, found, _ = prove(copied)
    tells = "known from the event log, an earlier proof; nothing is there"
    assert not success
    assert found == {
        "final_tars": {
            k: [f"webdataset/{k}.tar: no record says what was written, {tells}"] for k in ("p", "q")
        }
    }
    assert copied.run().success
    assert prove(copied)[0]


FILES = {"curated_parquet", "filtered_parquet", "final_tars"}


@pytest.mark.parametrize("state", ["intact", "cut", "gone"])
def test_outputs_without_their_records_are_not_proven(state: str, copied: Deployment) -> None:
    """Whatever lies there: nobody knows what was written. The next run makes the shard again."""
    outputs = [output for output in OUTPUTS if state == "intact" or output.asset in FILES]
    for output in outputs:
        account(copied.storage, output.asset, "p").unlink()
        path = Path(output.uri(copied.storage, "p"))
        if state == "cut":
            os.truncate(path, path.stat().st_size // 2)
        elif state == "gone":
            path.unlink()
    success, found, _ = prove(copied)
    assert not success
    for output in outputs:
        assert list(found[output.asset]) == ["p"]
        assert "no record says what was written, known from the event log" in found[output.asset]["p"][0]
    assert copied.run().success
    assert prove(copied)[:2] == (True, {})


@pytest.mark.parametrize(
    ("asset", "output"), [("final_tars", "webdataset/p.tar"), ("curated_parquet", "curated/p.parquet")]
)
def test_without_an_event_log_the_storage_itself_tells(asset: str, output: str, fresh: Deployment) -> None:
    assert prove(fresh)[:2] == (True, {}), "no partition is known, and all that lies there is proven"
    _remove(fresh.storage, output, f"ledger/accounts/{asset}/p.parquet")
    success, found, _ = prove(fresh)
    assert not success
    assert list(found) == [asset] and list(found[asset]) == ["p"]


def test_what_was_made_of_a_shard_tells_of_it(fresh: Deployment) -> None:
    _remove(fresh.storage, "curated/p.parquet", *_traces("curated_parquet", "p.*"))
    success, found, _ = prove(fresh)
    assert not success
    line = (
        "curated/p.parquet: no record says what was written, known from the account of filtered_parquet; "
        "nothing is there"
    )
    assert found == {"curated_parquet": {"p": [line]}}


def test_rows_of_the_table_tell_of_their_shard(fresh: Deployment) -> None:
    _remove(fresh.storage, *_traces("lance_table", "p.*"))
    success, found, _ = prove(fresh)
    assert not success
    assert "known from the table" in found["lance_table"]["p"][0]


def test_data_that_no_shard_has_written_is_told(copied: Deployment) -> None:
    copies = []
    for asset, name in FOLDERS.items():
        folder = Path(copied.storage, name)
        (source,) = folder.glob("q*" if asset == "arrow_cache" else "q.[pt]*[t r]")
        copies.append(copy := folder / source.name.replace("q", "someone's", 1))
        shutil.copytree(source, copy) if source.is_dir() else shutil.copyfile(source, copy)
        (folder / "NOTES.txt").write_text("data of no reader")
    success, found, proof = prove(copied)
    told = {asset: f"{name}/{copy.name}" for (asset, name), copy in zip(FOLDERS.items(), copies, strict=True)}
    told["arrow_cache"] += "/_metadata.json"
    assert not success
    assert found == {}
    assert proof["unknown_files"] == {asset: [line] for asset, line in told.items()}
    for asset, line in told.items():
        passed, metadata = copied.overview(asset, "zero_loss")
        assert (passed, metadata["problems"]) == (False, [f"{line}: no shard has written it"])
    for copy in copies:
        shutil.rmtree(copy) if copy.is_dir() else copy.unlink()
    assert prove(copied)[0]
    for asset in FOLDERS:
        assert copied.overview(asset, "zero_loss")[0]


def test_shards_that_were_never_made_are_named_and_do_not_fail(copied: Deployment) -> None:
    _remove(copied.storage, "arrow_cache", *_traces("arrow_cache"))
    copied.instance.wipe_assets([dg.AssetKey("arrow_cache")])
    success, found, proof = prove(copied)
    assert (success, found, proof["unmade"]) == (True, {}, {"arrow_cache": ["p", "q"]})
    assert copied.run().success
    assert prove(copied)[2]["unmade"] == {}


def test_an_older_version_put_back_with_its_record_is_found(tmp_path: Path, deploy: Deploy) -> None:
    def write(text: str) -> None:
        write_tar(tmp_path / "raw" / "p.tar", {"s.json": json.dumps({"texts": [text]}).encode()})

    deployment = deploy()
    write("old")
    assert deployment.run().success
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "storage", kept)
    write("new")
    assert deployment.run().success
    for name in ("webdataset", "ledger/accounts/final_tars", "proof/final_tars"):
        shutil.rmtree(tmp_path / "storage" / name)
        shutil.copytree(kept / name, tmp_path / "storage" / name)
    success, found, _ = prove(deployment)
    assert not success
    assert list(found) == ["final_tars"]
    assert any("the record is of version" in line for line in found["final_tars"]["p"])
    assert deployment.run().success  # and does not report the old one as what it made
    assert prove(deployment)[:2] == (True, {})
    assert b"new" in (tmp_path / "storage" / "webdataset" / "p.tar").read_bytes()


def test_a_proof_that_could_not_be_done_is_no_proof(
    tmp_path: Path, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies over a shard leaves a verdict of today, not the one of yesterday.

    Of one shard: each death is a new worker, which is most of what the test takes.
    """
    write_tar(tmp_path / "raw" / "p.tar", {"s.json": json.dumps({"texts": ["x"]}).encode()})
    deployment = deploy()
    assert deployment.run().success and prove(deployment)[0]
    monkeypatch.setattr(shard_work, "prove_shard", die)
    success, found, proof = prove(deployment)
    assert not success
    assert set(found) == {output.asset for output in OUTPUTS}
    assert all("worker killed" in lines[0] for shards in found.values() for lines in shards.values())
    assert all(len(entry["problems"]) == entry["shards"] for entry in proof["assets"].values())
