"""Proofs of shards, and the one file that sums them up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mm_assets.accounting.proof_store import ProofStore, ShardProof, damaged_shards
from mm_assets.accounting.sealed_json import unseal


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


def test_sums_are_over_all_shards_whichever_were_examined_last(tmp_path: Path) -> None:
    proofs = ProofStore(str(tmp_path))
    for number, name in enumerate(("p", "q", "r"), 1):
        proofs.write(proof(partition=name, digest=(1 << 127) + number))
        proofs.roll_up([proof(partition=name, digest=(1 << 127) + number)])
    changed = proof(partition="q", rows=4, digest=9)
    proofs.write(changed)
    proofs.roll_up([changed])
    total = summary(tmp_path)["assets"]["a"]
    assert (total["shards"], total["rows"], total["lost_rows"]) == (3, 10, 6)
    assert int(total["digest"], 16) == 1 + 3 + 9
    assert (total["reader"], total["config"], total["is_equal"]) == (["reader"], ["config"], True)


def test_one_difference_makes_all_unequal_and_is_told(tmp_path: Path) -> None:
    proofs = ProofStore(str(tmp_path))
    good, bad = proof("a"), proof("b", problems=("sample 'x', position 1",))
    for one in (good, bad):
        proofs.write(one)
    proofs.roll_up([good, bad])
    told = summary(tmp_path)
    assert (told["is_equal"], told["assets"]["a"]["is_equal"], told["assets"]["b"]["is_equal"]) == (
        False,
        True,
        False,
    )
    assert told["shards"]["p"]["b"]["problems"] == ["sample 'x', position 1"]
    assert "problems" not in told["shards"]["p"]["a"]


def test_a_lost_or_torn_summary_is_made_again_from_the_proofs(tmp_path: Path) -> None:
    proofs = ProofStore(str(tmp_path))
    for name in ("p", "q"):
        proofs.write(proof(partition=name))
    whole = proofs.roll_up([proof(partition="q")])
    assert sorted(whole["shards"]) == ["p", "q"]
    for content in ("", "[]", json.dumps({**whole, "shards": {}})):
        (tmp_path / "proof" / "proof.json").write_text(content)
        assert proofs.roll_up([]) == whole
        assert summary(tmp_path) == whole
