"""The ledger's tables: what they hold, that they balance, and that any engine reads them as one."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import (
    ACCOUNT_SCHEMA,
    ITEMS_SCHEMA,
    Balance,
    ShardRecord,
    account_table,
    items_table,
    locator_columns,
    publish_losses,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.formats.reports import PartitionReport
from mm_assets.model.digest import ContentDigest
from mm_assets.model.losses import Loss
from mm_assets.model.samples import build_source_ref
from mm_assets_tests.accounting.losses import BAD_JSON
from mm_assets_tests.formats.datasets import item, table_of

REF = build_source_ref("sub/x.tar", "a.1.tiff", 1536, 812, 2)
FILTERED = Loss("a", 1, "image", "filtered", "aspect_ratio", "wider than max_ratio", 3.5, "1..2", REF)
WITH_IT = Loss("c", 0, "text", "quarantined", "incomplete_sample", "its sample has an error", is_cause=False)
STRETCH = Loss(
    None,
    None,
    None,
    "quarantined",
    "truncated_tar",
    "cut here",
    source_ref=build_source_ref("x.tar", None, 4096),
)


def report(losses: tuple[Loss, ...] = (), **values: Any) -> PartitionReport:
    counts = {"rows": 7, "samples": 3, "images": 2, "texts": 2, "nbytes": 0, "image_bytes": 0}
    made = PartitionReport(
        "p", None, **counts, schema=pa.schema([]), digest="0a", items=7 + sum(loss.is_item for loss in losses)
    )
    return replace(made, losses=losses, **values)


@pytest.fixture(params=["local", "file url", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    places = {
        "local": str(tmp_path),
        "file url": f"file://{tmp_path}",
        "remote": f"memory://ledger-{uuid.uuid4().hex}",
    }
    return places[request.param]


def enter(
    root: str, asset: str, partition: str, report: PartitionReport, in_digest: str | None = None
) -> Balance:
    """Write the account of a shard by a writer's report."""
    balance = Balance.of(report, in_digest)
    rows = account_table(asset, partition, balance, report.losses)
    Ledger(root).write(ShardRecord(asset, partition, "", "", ""), rows)
    return balance


def files(root: str) -> list[str]:
    fs, path = fsspec.core.url_to_fs(root)
    return sorted(name[len(path) :].lstrip("/") for name in fs.find(path))


def test_every_loss_is_one_row(root: str) -> None:
    enter(root, "filtered_parquet", "train/a.b", report((FILTERED, BAD_JSON, WITH_IT, STRETCH)))
    found = Ledger(root).items("filtered_parquet", "train/a.b")
    assert found.schema.equals(ITEMS_SCHEMA)
    first, second, third, fourth = found.to_pylist()
    assert first == {
        "asset": "filtered_parquet",
        "partition": "train/a.b",
        "sample_id": "a",
        "position": 1,
        "modality": "image",
        "outcome": "filtered",
        "kind": "aspect_ratio",
        "reason": "wider than max_ratio",
        "score": 3.5,
        "threshold": "1..2",
        "is_cause": True,
        "source": "sub/x.tar",
        "member": "a.1.tiff",
        "byte_offset": 1536,
        "byte_size": 812,
        "frame_index": 2,
    }
    assert [second[n] for n in ("member", "byte_offset", "score", "threshold", "frame_index")] == [
        "b.json",
        512,
        None,
        None,
        None,
    ]
    assert [third[n] for n in ("is_cause", "source", "member")] == [False, None, None]
    assert [fourth[n] for n in ("sample_id", "position", "modality", "member", "byte_size")] == [None] * 5
    assert (fourth["source"], fourth["byte_offset"]) == ("x.tar", 4096)


def test_a_file_in_the_place_of_a_folder_has_no_partitions(tmp_path: Path) -> None:
    folder = Path(Ledger(str(tmp_path)).folder("curated_parquet"))
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"")
    assert Ledger(str(tmp_path)).named("curated_parquet") == []


def test_files_are_named_by_asset_and_partition(root: str) -> None:
    enter(root, "curated_parquet", "train/a.b", report((BAD_JSON,)))
    enter(root, "final_tars", "p", report())
    assert files(root) == [
        "ledger/accounts/curated_parquet/train%2Fa%2Eb.parquet",
        "ledger/accounts/final_tars/p.parquet",
    ]
    assert Ledger(root).named("curated_parquet") == ["train/a.b"]


def test_what_is_lost_no_more_is_gone(root: str) -> None:
    enter(root, "a", "p", report((BAD_JSON,)))
    enter(root, "a", "p", report())
    assert Ledger(root).items("a", "p").num_rows == 0
    assert outcomes(root) == ["in", "out"]


def outcomes(root: str) -> list[str]:
    rows = Ledger(root).rows("a", "p")
    assert rows is not None
    return [str(outcome) for outcome in rows.column("outcome").to_pylist()]


def test_a_shard_never_recorded_has_no_items(root: str) -> None:
    assert Ledger(root).items("a", "p").equals(ITEMS_SCHEMA.empty_table())
    assert Ledger(root).rows("a", "p") is None


@pytest.mark.parametrize("name", ["p", "x" * 300])
def test_an_asset_without_items_has_an_account_without_rows(root: str, name: str) -> None:
    ledger = Ledger(root)
    ledger.write(ShardRecord("a", name, "f", "v", ""))
    assert ledger.rows("a", name) == ACCOUNT_SCHEMA.empty_table()
    assert (ledger.named("a"), ledger.problems(ledger.records("a", [name]).values())) == ([name], {})


def test_entries_balance(root: str) -> None:
    losses = (
        FILTERED,
        replace(FILTERED, position=2),
        BAD_JSON,
        WITH_IT,
        replace(WITH_IT, sample_id="d"),
        STRETCH,
    )
    balance = enter(root, "a", "p", report(losses, lost_digest="ff", items=12), "0109")
    assert (balance.difference, balance.is_balanced, balance.digests_agree) == (0, True, True)
    rows = Ledger(root).rows("a", "p")
    assert rows is not None
    assert rows.schema.equals(ACCOUNT_SCHEMA)
    assert set(zip(*(rows.column(name).to_pylist() for name in ("asset", "partition")), strict=True)) == {
        ("a", "p")
    }
    columns = ["outcome", "kind", "items", "samples", "digest", "sample_id", "position"]
    assert [tuple(row.values()) for row in rows.select(columns).to_pylist()] == [
        ("in", None, 12, None, "0109", None, None),
        ("out", None, 7, 3, "0a", None, None),
        ("lost", None, None, None, "ff", None, None),
        ("filtered", "aspect_ratio", 1, None, None, "a", 1),
        ("filtered", "aspect_ratio", 1, None, None, "a", 2),
        ("quarantined", "bad_json", 1, None, None, "b", -1),
        ("quarantined", "incomplete_sample", 1, None, None, "c", 0),
        ("quarantined", "incomplete_sample", 1, None, None, "d", 0),
        ("quarantined", "truncated_tar", 0, None, None, None, None),
    ]
    sums = rows.group_by("outcome").aggregate([("items", "sum")]).to_pylist()
    items = {row["outcome"]: row["items_sum"] for row in sums}
    assert items["in"] == items["out"] + items["filtered"] + items["quarantined"]


@pytest.mark.parametrize(
    ("items", "losses", "difference"),
    [
        (7, (), 0),
        (8, (), 1),
        (6, (), -1),
        (8, (FILTERED,), 0),
        (7, (STRETCH,), 0),
        (8, (STRETCH,), 1),
        (None, (FILTERED,), None),
    ],
)
def test_what_is_missing_is_counted(
    items: int | None, losses: tuple[Loss, ...], difference: int | None
) -> None:
    balance = Balance.of(report(losses, items=items))
    assert balance.difference == difference
    assert balance.is_balanced is (None if difference is None else difference == 0)


@pytest.mark.parametrize(
    ("digests", "in_digest", "agree"),
    [
        ({}, None, None),
        ({}, "0a", True),
        ({}, "0b", False),
        ({"lost_digest": "01"}, "0b", True),
        ({"digest": "f" * 32, "lost_digest": "3"}, "2", True),
        ({"digest": "99", "source_digest": "a"}, "a", True),
        ({"digest": ""}, "0a", None),
    ],
)
def test_digests_add_up(digests: dict[str, str], in_digest: str | None, agree: bool | None) -> None:
    assert Balance.of(report(**digests), in_digest).digests_agree is agree


def test_real_digests_add_up_whatever_is_lost() -> None:
    table = table_of([item("a"), item("a", 0, text_content="x"), item("b"), item("b", 0, text_content="y")])
    whole, kept, gone = (ContentDigest() for _ in range(3))
    whole.observe(table)
    kept.observe(table.slice(0, 1))
    gone.observe(table.slice(1))
    values = {"digest": kept.hexdigest(), "lost_digest": gone.hexdigest()}
    assert Balance.of(report(**values), whole.hexdigest()).digests_agree is True
    assert Balance.of(report(**values), kept.hexdigest()).digests_agree is False


def test_all_files_of_a_table_have_one_schema(tmp_path: Path) -> None:
    root = str(tmp_path)
    bare = Loss("z", 0, "text", "quarantined", "fetch_failed", "gone")
    for number, losses in enumerate([(FILTERED,), (bare,), (STRETCH,), ()]):
        enter(root, "curated_parquet", f"p{number}", report(losses, items=None))
        enter(root, "filtered_parquet", f"p{number}", report(losses), "1")
    Ledger(root).write(ShardRecord("sample_scores", "p0", "", "", ""))
    paths = sorted((tmp_path / "ledger").rglob("*.parquet"))
    assert len({pq.read_schema(path).remove_metadata().serialize().to_pybytes() for path in paths}) == 1
    first, *others = [pq.ParquetFile(path).schema for path in paths]
    assert all(schema.equals(first) for schema in others), "as Parquet says it, for readers without Arrow"
    assert ds.dataset([str(path) for path in paths]).count_rows() == 22


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"{tmp_path}/_ledger/p.parquet"
    publish_losses(uri, items_table("a", "p", [FILTERED]))
    before = Path(uri).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        publish_losses(uri, items_table("a", "p", [BAD_JSON]))
    assert [(p.name, p.read_bytes()) for p in Path(uri).parent.iterdir()] == [("p.parquet", before)]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (None, {}),
        ("{", {}),
        ("[]", {}),
        ('{"path": 5, "member": ["x"], "byte_offset": "7", "byte_size": -1, "frame_index": true}', {}),
        (
            '{"path": "x", "byte_offset": 9223372036854775808, "byte_size": 1e3, "frame_index": 4294967296}',
            {"source": "x"},
        ),
        (
            '{"byte_offset": 9223372036854775807, "frame_index": 0}',
            {"byte_offset": 2**63 - 1, "frame_index": 0},
        ),
    ],
)
def test_odd_locators_never_stop_the_ledger(text: str | None, known: dict[str, Any]) -> None:
    nothing = dict.fromkeys(("source", "member", "byte_offset", "byte_size", "frame_index"))
    assert locator_columns(text) == nothing | known
    (row,) = items_table("a", "p", [replace(FILTERED, source_ref=text)]).to_pylist()
    assert {name: row[name] for name in nothing} == nothing | known


def test_lone_surrogates_are_spelled_out(tmp_path: Path) -> None:
    loss = replace(FILTERED, sample_id="a\ud800", reason="odd \udcff", source_ref='{"path": "\\ud83d"}')
    enter(str(tmp_path), "a", "p", report((loss, BAD_JSON)))
    first, second = Ledger(str(tmp_path)).items("a", "p").to_pylist()
    assert (first["sample_id"], first["reason"], first["source"]) == ("a\\ud800", "odd \\udcff", "\\ud83d")
    assert second["sample_id"] == "b"
