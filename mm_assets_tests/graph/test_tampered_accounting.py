"""Every file of the accounting, changed by another hand in six ways: the job `prove` names it, or does not
believe it and makes it anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.proof import ProofStore, ShardProof
from mm_assets.storage.small_files import unseal
from mm_assets_tests.graph.deployment import Deployment, prove, write_tar
from mm_assets_tests.graph.published import account, record_in, rewrite
from mm_assets_tests.graph.samples import PNG, samples
from mm_assets_tests.quick_instance import quick_instance

OUTPUTS = ("arrow_cache", "curated_parquet", "filtered_parquet", "final_tars", "lance_table")


def _flipped(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def _of_other_shard(path: Path) -> bytes:
    """What the same folder has of another shard; where it has none, what somebody could write himself."""
    others = [other for other in sorted(path.parent.glob(f"*{path.suffix}")) if other.name != path.name]
    return others[0].read_bytes() if others else path.read_bytes() + b"\n"


def _forged(path: Path) -> bytes:
    """Other numbers, and where there is a seal, that of before."""
    data = path.read_bytes()
    for digit, other in zip(b"123456789", b"912345678", strict=True):
        if (at := data.rfind(digit, 0, len(data) * 2 // 3)) > 0:
            return data[:at] + bytes([other]) + data[at + 1 :]
    return data[:-1]


TAMPERINGS: dict[str, Callable[[Path], bytes | None]] = {
    "removed": lambda path: None,
    "emptied": lambda path: b"",
    "cut": lambda path: path.read_bytes()[: path.stat().st_size // 2],
    "flipped": _flipped,
    "of another shard": _of_other_shard,
    "forged": _forged,
}
MENDED = ("removed", "of another shard", "forged")  # `test_torn_files` has the others, without a proof before


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two shards, one with items that are filtered and one that is quarantined, proven."""
    folder = tmp_path_factory.mktemp("lossy")
    write_tar(folder / "raw" / "a.tar", {**samples(3), "bad.json": b"{nope", "stray.png": PNG})
    write_tar(folder / "raw" / "b.tar", samples(2, "g"))
    with quick_instance(tmp_path_factory.mktemp("home")) as instance:
        environment = {"MM_WORKERS": "1", "MM_MIN_ASPECT_RATIO": "50", "MM_MAX_ASPECT_RATIO": "60"}
        deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, environment)
        assert deployment.run().success
        assert prove(deployment)[0]
        yield deployment


def _tamper(deployment: Deployment, tampering: str, *patterns: str) -> dict[str, bytes]:
    """Change these files, times as they were; what they held, by path below the storage."""
    storage = Path(deployment.storage)
    paths = sorted(
        path
        for pattern in patterns
        for path in storage.glob(pattern)
        if path.is_file() and not path.name.startswith(".")
    )
    changed = {path: TAMPERINGS[tampering](path) for path in paths}
    before = {str(path.relative_to(storage)): path.read_bytes() for path in paths}
    for path, data in changed.items():
        found = path.stat()
        if data is None:
            path.unlink()
            continue
        path.write_bytes(data)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    return before


def _now(deployment: Deployment, paths: dict[str, bytes]) -> dict[str, bytes]:
    return {path: (Path(deployment.storage) / path).read_bytes() for path in paths}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_scores_and_quarantine_are_named_and_mended(copied: Deployment, tampering: str) -> None:
    before = _tamper(copied, tampering, "scores/*", "quarantine/*")
    assert len(before) == 3
    success, found, _ = prove(copied)
    told = "\n".join(line for shards in found.values() for lines in shards.values() for line in lines)
    assert not success
    assert [path for path in before if path not in told] == []
    if tampering in MENDED:
        assert copied.run(assets=["quarantine", "image_scores", "sample_scores"]).success
        assert _now(copied, before) == before
        assert prove(copied)[:2] == (True, {})


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_accounts_are_not_believed_and_made_again(copied: Deployment, tampering: str) -> None:
    assets = (*OUTPUTS, "image_scores", "quarantine")
    storage = Path(copied.storage)
    rows = {path: pq.read_table(path) for path in (storage / "ledger" / "accounts").glob("*/*")}
    before = _tamper(copied, tampering, *(f"ledger/accounts/{asset}/*" for asset in assets))
    assert len(before) == 14
    success, found, _ = prove(copied)
    assert not success
    assert {asset: sorted(shards) for asset, shards in found.items()} == {
        asset: ["a", "b"] for asset in OUTPUTS
    }
    reasons = ("no record says what was written", "/accounts/")  # where only rows were changed
    assert all(
        any(reason in lines[0] for reason in reasons)
        for shards in found.values()
        for lines in shards.values()
    )
    if tampering in MENDED:
        assert copied.run().success
        for path in before:
            record = record_in(storage / path)
            assert (record["asset"], f"{record['key']}.parquet") == tuple(path.split("/")[2:])
        assert [path for path in rows if not pq.read_table(path).equals(rows[path])] == []
        assert prove(copied)[:2] == (True, {})


@pytest.mark.parametrize("tampering", [name for name in TAMPERINGS if name != "removed"])
@pytest.mark.parametrize("asset", ["image_scores", "sample_scores", "quarantine"])
def test_accounts_of_files_beside_an_output_are_named_and_made_again(
    copied: Deployment, tampering: str, asset: str
) -> None:
    before = _tamper(copied, tampering, f"ledger/accounts/{asset}/a.parquet")
    success, found, _ = prove(copied)
    assert not success
    ((path, _),) = before.items()
    assert [line.partition(":")[0] for line in found.pop("curated_parquet")["a"]] == [path]
    assert found == {}
    assert copied.run().success
    assert prove(copied)[:2] == (True, {})


def test_rows_of_an_account_that_another_hand_has_changed_are_named_and_mended(copied: Deployment) -> None:
    """With the record as it was."""
    path = account(copied.storage, "filtered_parquet", "a")
    rows = pq.read_table(path)
    rewrite(path, record_in(path), rows.slice(1))
    success, found, _ = prove(copied)
    assert not success
    assert found == {
        "filtered_parquet": {"a": [f"{path.relative_to(copied.storage)}: other rows than were written"]}
    }
    assert copied.run().success
    assert pq.read_table(path).equals(rows)
    assert prove(copied)[:2] == (True, {})


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_proofs_are_not_believed_and_made_again(copied: Deployment, tampering: str) -> None:
    proofs = _proofs(copied)
    before = _tamper(copied, tampering, "proof/*/*.parquet", "proof/proof.json")
    assert len(before) == 6
    assert prove(copied)[:2] == (True, {})
    assert _proofs(copied) == proofs
    summary = Path(copied.storage) / "proof" / "proof.json"
    assert unseal(summary.read_bytes()) == unseal(before["proof/proof.json"])


def _proofs(deployment: Deployment) -> dict[str, list[ShardProof]]:
    """All proofs, without their times."""
    found = {asset: ProofStore(deployment.storage).read(asset, ["a", "b"]) for asset in OUTPUTS}
    return {asset: [replace(one, examined_at="") for one in of.values()] for asset, of in found.items()}


def test_a_whole_record_of_another_making_is_told_by_the_event_log(copied: Deployment) -> None:
    """Sealed anew, it is as good as ours; but the event log knows the version."""
    path = account(copied.storage, "final_tars", "a")
    record = record_in(path)
    rewrite(path, {**record, "version": "0" * len(record["version"])})
    success, found, _ = prove(copied)
    assert not success
    assert list(found) == ["final_tars"] and list(found["final_tars"]) == ["a"]
    assert "the event log of" in found["final_tars"]["a"][0]
