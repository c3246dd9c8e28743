"""Proofs of shards, and the one file that sums them up."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
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


@pytest.fixture(params=["local", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://proofs-{uuid.uuid4().hex}"


def segments(root: Path, asset: str = "a") -> list[Path]:
    return sorted((root / "proof" / asset).iterdir())


def summary(root: Path) -> dict[str, Any]:
    return unseal((root / "proof" / "proof.json").read_bytes())


def test_a_proof_is_read_as_it_was_written(root: str) -> None:
    proofs = ProofStore(root)
    bad = proof(partition="dir/with.dots", problems=("one", "two"), examined_at="1")
    proofs.add("a", [bad, proof(partition="q")])
    assert ProofStore(root).read("a", ["dir/with.dots", "other"]) == {"dir/with.dots": bad}
    assert not bad.is_equal
    assert (proofs.partitions("a"), proofs.partitions("b")) == (["dir/with.dots", "q"], [])


@pytest.mark.parametrize("times", ["123", "231", "321"], ids=str)
def test_the_last_proof_of_a_shard_counts_whatever_file_it_is_in_and_whatever_the_clock_says(
    tmp_path: Path, times: str
) -> None:
    proofs = ProofStore(str(tmp_path))
    first = "2026-01-01T00:00:00+00:00"
    proofs.add("a", [proof(partition=f"{number:04}", examined_at=first) for number in range(3000)])
    for rows, day in enumerate(times, 10):
        proofs.add("a", [proof(partition="0007", rows=rows, examined_at=f"2025-01-0{day}T00:00:00+00:00")])
        assert proofs.read("a", ["0007"])["0007"].derived["rows"] == rows
    assert len(segments(tmp_path)) == 2  # small ones were merged, the large one was left
    assert len(proofs.partitions("a")) == 3000
    assert proofs.roll_up({"a": []})["assets"]["a"]["rows"] == 3 * 2999 + 12


def test_only_what_is_not_as_it_was_written_is_damaged(tmp_path: Path) -> None:
    """Index files beside an output are derived anew without it."""
    proofs = ProofStore(str(tmp_path))
    problems = {
        "good": ((), ()),
        "index": (("i",), ("i",)),
        "tar": (("t",), ()),
        "both": (("t", "i"), ("i",)),
    }
    proofs.add(
        "tars",
        [proof("tars", name, problems=lines, beside=beside) for name, (lines, beside) in problems.items()],
    )
    found = proofs.read("tars", problems)
    assert {name: one.beside for name, one in found.items()} == {
        name: beside for name, (_, beside) in problems.items()
    }
    assert [name for name, one in found.items() if one.is_equal] == ["good"]
    assert damaged_shards(str(tmp_path), "tars", [*problems, "unknown"]) == {"tar", "both"}


def written(root: Path, *proofs: ShardProof) -> ProofStore:
    """A store with these proofs and their sums."""
    store = ProofStore(str(root))
    for one in proofs:
        store.roll_up({one.asset: [one]})
    return store


def test_sums_are_over_all_shards_whichever_were_examined_last(tmp_path: Path) -> None:
    names = enumerate(("p", "q", "r"), 1)
    proofs = written(tmp_path, *(proof(partition=name, digest=(1 << 127) + n) for n, name in names))
    proofs.roll_up({"a": [proof(partition="q", rows=4, digest=9, examined_at="later")]})
    total = summary(tmp_path)["assets"]["a"]
    assert (total["shards"], total["rows"], total["lost_rows"]) == (3, 10, 6)
    assert int(total["digest"], 16) == 1 + 3 + 9
    assert (total["reader"], total["config"], total["is_equal"]) == (["reader"], ["config"], True)
    (path,) = segments(tmp_path)
    assert pq.read_table(path)["rows"].to_pylist() == [3, 4, 3]


def test_one_difference_makes_all_unequal_and_is_told(tmp_path: Path) -> None:
    written(tmp_path, proof("a"), proof("b", problems=("sample 'x', position 1",)))
    told = summary(tmp_path)
    equal = (told["is_equal"], told["assets"]["a"]["is_equal"], told["assets"]["b"]["is_equal"])
    assert equal == (False, True, False)
    problems = {asset: total["problems"] for asset, total in told["assets"].items()}
    assert problems == {"a": {}, "b": {"p": ["sample 'x', position 1"]}}


def test_what_is_known_of_an_asset_outlasts_the_proofs_of_another(tmp_path: Path) -> None:
    proofs = written(tmp_path, proof("a"), proof("b"))
    proofs.roll_up({"a": []}, unmade={"a": ["m", "n"]}, unknown={"a": ["stray.parquet"]})
    proofs.roll_up({"b": []}, unmade={"b": ["o"]})
    told = proofs.roll_up({"a": [proof(partition="m")]})
    assert (told["unmade"], told["unknown_files"]) == ({"a": ["n"], "b": ["o"]}, {"a": ["stray.parquet"]})
    assert told["is_equal"] is False


def test_a_lost_or_torn_summary_is_made_again_from_the_proofs(tmp_path: Path) -> None:
    proofs = ProofStore(str(tmp_path))
    whole = proofs.roll_up({"a": [proof(partition=name) for name in ("p", "q")]})
    assert whole["assets"]["a"]["shards"] == 2
    for content in ("", "[]", json.dumps({**whole, "assets": {}})):
        (tmp_path / "proof" / "proof.json").write_text(content)
        assert proofs.roll_up({"b": []}) == whole
        assert summary(tmp_path) == whole


def _torn(table: Path) -> None:
    table.write_bytes(table.read_bytes()[:-20])


def _bit_flipped(table: Path) -> None:
    data = bytearray(table.read_bytes())
    data[40] ^= 1
    table.write_bytes(bytes(data))


def _of_other_columns(table: Path) -> None:
    pq.write_table(pq.read_table(table).drop_columns(["lost_rows"]), table)


def _forged(table: Path) -> None:
    rows = pq.read_table(table)
    at = rows.schema.get_field_index("is_equal")
    pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array([True] * rows.num_rows)), table)


@pytest.mark.parametrize("change", [_torn, _bit_flipped, _of_other_columns, _forged])
def test_proofs_in_a_changed_file_are_not_believed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    proofs = written(tmp_path, *(proof(partition=name, problems=("x",)) for name in "pqr"))
    (path,) = segments(tmp_path)
    before, sums = path.read_bytes(), summary(tmp_path)
    change(path)
    assert (proofs.read("a", "pqr"), proofs.partitions("a")) == ({}, [])
    assert proofs.roll_up({"a": [proof(partition=name, problems=("x",)) for name in "pqr"]}) == sums
    assert [(path.name, path.read_bytes()) for path in segments(tmp_path)] == [(path.name, before)]


def test_proofs_of_an_earlier_release_are_read_and_become_one_file(tmp_path: Path) -> None:
    """It had a file for each, and a table of all."""
    known = [proof(partition=name, examined_at="1") for name in "pqr"]
    folder = tmp_path / "proof" / "a"
    folder.mkdir(parents=True)
    for one in known:
        (folder / f"{one.partition}.json").write_bytes(one.to_bytes())
    (folder / "torn.json").write_bytes(b"{")
    (tmp_path / "proof" / "a.parquet").write_bytes(b"a table")
    proofs = ProofStore(str(tmp_path))
    assert proofs.read("a", "pqrs") == {one.partition: one for one in known}
    assert proofs.roll_up({"a": known})["assets"]["a"]["shards"] == 3
    assert [path.suffix for path in segments(tmp_path)] == [".parquet"]
    assert not (tmp_path / "proof" / "a.parquet").exists()
    assert proofs.read("a", "pqrs") == {one.partition: one for one in known}


def test_retired_shards_leave_tables_and_sums(tmp_path: Path) -> None:
    proofs = written(tmp_path, *(proof(asset, name) for asset in "ab" for name in "pqr"))
    proofs.roll_up({"b": []}, unmade={"b": ["q", "z"]})
    proofs.drop({"q"})
    told = summary(tmp_path)
    assert {asset: total["rows"] for asset, total in told["assets"].items()} == {"a": 6, "b": 6}
    assert told["unmade"] == {"b": ["z"]}
    assert [proofs.partitions(asset) for asset in "ab"] == [["p", "r"], ["p", "r"]]
    assert [len(segments(tmp_path, asset)) for asset in "ab"] == [1, 1]


def test_what_another_run_has_proven_meanwhile_is_not_lost(tmp_path: Path) -> None:
    """Two runs at once: the one that publishes last must not bring back the other's earlier sums."""
    slow = written(tmp_path, proof("x"), proof("y"))
    publish = slow._publish_summary

    def publish_late(told: dict[str, Any]) -> None:
        if "damaged" not in slow.partitions("x"):
            written(tmp_path, proof("x", "damaged", problems=("gone",)))
        publish(told)

    slow._publish_summary = publish_late  # type: ignore[method-assign,assignment]
    slow.roll_up({"y": [proof("y", "new")]})
    told = summary(tmp_path)
    assert told["is_equal"] is False
    assert told["assets"]["x"]["problems"] == {"damaged": ["gone"]}


def test_two_that_merge_at_once_lose_no_proof(tmp_path: Path) -> None:
    one, other = ProofStore(str(tmp_path)), ProofStore(str(tmp_path))
    one.add("a", [proof(partition="p")])
    replace_files = one._replace

    def late(*arguments: Any) -> None:
        other.add("a", [proof(partition="r")])
        replace_files(*arguments)

    one._replace = late  # type: ignore[method-assign]
    one.add("a", [proof(partition="q")])
    assert ProofStore(str(tmp_path)).partitions("a") == ["p", "q", "r"]


def test_known_proofs_write_nothing(tmp_path: Path) -> None:
    proofs = written(tmp_path, proof(partition="p"))
    before = {path: path.stat().st_ino for path in (tmp_path / "proof").rglob("*")}
    proofs.roll_up({"a": [proof(partition="p")]})
    assert {path: path.stat().st_ino for path in (tmp_path / "proof").rglob("*")} == before
