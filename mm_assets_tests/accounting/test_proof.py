"""Proofs of shards, and the one file that sums them up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.proof import ProofStore, ShardProof, damaged_shards
from mm_assets.storage.small_files import unseal


def proof(
    asset: str = "a", partition: str = "p", rows: int = 3, digest: int = 5, **fields: Any
) -> ShardProof:
    facts = {"rows": rows, "samples": 1, "images": 1, "texts": 1, "digest": f"{digest:032x}"}
    return ShardProof(
        asset,
        partition,
        "reader",
        facts,
        facts,
        {"rows": 2, "digest": f"{7:032x}"},
        "config",
        {"size": 1},
        **fields,
    )


def summary(root: Path) -> dict[str, Any]:
    return unseal((root / "proof" / "proof.json").read_bytes())


def test_a_proof_is_read_as_it_was_written(tmp_path: Path) -> None:
    proofs = ProofStore(str(tmp_path))
    bad = proof(partition="dir/with.dots", problems=("one", "two"))
    proofs.write(bad)
    assert proofs.read("a", "dir/with.dots") == bad
    assert not bad.is_equal
    assert proofs.read("a", "other") is None
    (path,) = (tmp_path / "proof" / "a").iterdir()
    path.write_text("{")
    assert proofs.read("a", "dir/with.dots") is None


def test_only_what_is_not_as_it_was_written_is_damaged(tmp_path: Path) -> None:
    """Index files beside an output are derived anew without it."""
    proofs = ProofStore(str(tmp_path))
    problems = {
        "good": ((), ()),
        "index": (("i",), ("i",)),
        "tar": (("t",), ()),
        "both": (("t", "i"), ("i",)),
    }
    for name, (lines, beside) in problems.items():
        proofs.write(proof("tars", name, problems=lines, beside=beside))
    found = {name: proofs.read("tars", name) for name in problems}
    assert {name: one.beside for name, one in found.items() if one} == {
        name: beside for name, (_, beside) in problems.items()
    }
    assert [name for name, one in found.items() if one and one.is_equal] == ["good"]
    assert damaged_shards(str(tmp_path), "tars", [*problems, "unknown"]) == {"tar", "both"}


def written(root: Path, *proofs: ShardProof) -> ProofStore:
    """A store with these proofs and their sums."""
    store = ProofStore(str(root))
    for one in proofs:
        store.write(one)
        store.roll_up(one.asset, [one])
    return store


def shards(root: Path, asset: str = "a") -> list[str]:
    return pq.read_table(root / "proof" / f"{asset}.parquet")["partition"].to_pylist()  # type: ignore[no-any-return]


def test_sums_are_over_all_shards_whichever_were_examined_last(tmp_path: Path) -> None:
    names = enumerate(("p", "q", "r"), 1)
    proofs = written(tmp_path, *(proof(partition=name, digest=(1 << 127) + n) for n, name in names))
    changed = proof(partition="q", rows=4, digest=9)
    proofs.write(changed)
    proofs.roll_up("a", [changed])
    total = summary(tmp_path)["assets"]["a"]
    assert (total["shards"], total["rows"], total["lost_rows"]) == (3, 10, 6)
    assert int(total["digest"], 16) == 1 + 3 + 9
    assert (total["reader"], total["config"], total["is_equal"]) == (["reader"], ["config"], True)
    assert pq.read_table(tmp_path / "proof" / "a.parquet")["rows"].to_pylist() == [3, 4, 3]


def test_one_difference_makes_all_unequal_and_is_told(tmp_path: Path) -> None:
    written(tmp_path, proof("a"), proof("b", problems=("sample 'x', position 1",)))
    told = summary(tmp_path)
    equal = (told["is_equal"], told["assets"]["a"]["is_equal"], told["assets"]["b"]["is_equal"])
    assert equal == (False, True, False)
    problems = {asset: total["problems"] for asset, total in told["assets"].items()}
    assert problems == {"a": {}, "b": {"p": ["sample 'x', position 1"]}}


def test_what_is_known_of_an_asset_outlasts_the_proofs_of_another(tmp_path: Path) -> None:
    proofs = written(tmp_path, proof("a"), proof("b"))
    proofs.roll_up("a", [], unmade=["m", "n"], unknown=["stray.parquet"])
    proofs.roll_up("b", [], unmade=["o"])
    told = proofs.roll_up("a", [proof(partition="m")])
    assert (told["unmade"], told["unknown_files"]) == ({"a": ["n"], "b": ["o"]}, {"a": ["stray.parquet"]})
    assert told["is_equal"] is False


def test_a_lost_or_torn_summary_is_made_again_from_the_proofs(tmp_path: Path) -> None:
    proofs = ProofStore(str(tmp_path))
    for name in ("p", "q"):
        proofs.write(proof(partition=name))
    whole = proofs.roll_up("a", [proof(partition="q")])
    assert whole["assets"]["a"]["shards"] == 2
    for content in ("", "[]", json.dumps({**whole, "assets": {}})):
        (tmp_path / "proof" / "proof.json").write_text(content)
        assert proofs.roll_up("b", []) == whole
        assert summary(tmp_path) == whole


def _torn(table: Path) -> None:
    table.write_bytes(table.read_bytes()[:-20])


def _bit_flipped(table: Path) -> None:
    data = bytearray(table.read_bytes())
    data[40] ^= 1
    table.write_bytes(bytes(data))


def _of_other_columns(table: Path) -> None:
    pq.write_table(pq.read_table(table).drop_columns(["lost_rows"]), table)


@pytest.mark.parametrize("change", [Path.unlink, _torn, _bit_flipped, _of_other_columns])
def test_a_lost_or_changed_table_is_made_again_from_the_proofs(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    proofs = written(tmp_path, *(proof(partition=name) for name in "pqr"))
    table = tmp_path / "proof" / "a.parquet"
    before, sums = table.read_bytes(), summary(tmp_path)
    change(table)
    assert proofs.roll_up("a", [proof(partition="q")]) == sums
    assert table.read_bytes() == before


def test_a_proof_that_was_never_summed_up_is(tmp_path: Path) -> None:
    """A process was killed between the two."""
    proofs = written(tmp_path, proof(partition="p"))
    proofs.write(proof(partition="q", rows=5))
    told = proofs.roll_up("a", [proof(partition="p")])
    assert (told["assets"]["a"]["shards"], told["assets"]["a"]["rows"]) == (2, 8)
    assert shards(tmp_path) == ["p", "q"]


def test_retired_shards_leave_tables_and_sums(tmp_path: Path) -> None:
    proofs = written(tmp_path, *(proof(asset, name) for asset in "ab" for name in "pqr"))
    proofs.roll_up("b", [], unmade=["q", "z"])
    for asset in "ab":
        Path(proofs.uri(asset, "q")).unlink()
    proofs.drop({"q"})
    told = summary(tmp_path)
    assert {asset: total["rows"] for asset, total in told["assets"].items()} == {"a": 6, "b": 6}
    assert told["unmade"] == {"b": ["z"]}
    assert [shards(tmp_path, asset) for asset in "ab"] == [["p", "r"], ["p", "r"]]


def test_what_another_run_has_proven_meanwhile_is_not_lost(tmp_path: Path) -> None:
    """Two runs at once: the one that publishes last must not bring back the other's earlier sums."""
    slow = written(tmp_path, proof("x"), proof("y"))
    publish = slow._publish_summary

    def publish_late(told: dict[str, Any]) -> None:
        if not (tmp_path / "proof" / "x" / "damaged.json").exists():
            written(tmp_path, proof("x", "damaged", problems=("gone",)))
        publish(told)

    slow._publish_summary = publish_late  # type: ignore[method-assign,assignment]
    new = proof("y", "new")
    slow.write(new)
    slow.roll_up("y", [new])
    told = summary(tmp_path)
    assert told["is_equal"] is False
    assert told["assets"]["x"]["problems"] == {"damaged": ["gone"]}


def test_an_unchanged_table_is_not_written_again(tmp_path: Path) -> None:
    proofs = written(tmp_path, proof(partition="p"))
    table = tmp_path / "proof" / "a.parquet"
    before = table.stat().st_ino
    proofs.roll_up("a", [proof(partition="p")])
    assert table.stat().st_ino == before
