"""Folders of PDFs through the real graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from mm_assets.cli import main
from mm_assets_tests.formats.pdf.pdf_files import (
    Page,
    encrypted,
    jpeg,
    jpeg_picture,
    lines,
    pdf,
    self_drawing,
)
from mm_assets_tests.formats.pdf.reading import files_in, items
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.deployment import Deployment, failed_shard_checks, materialized
from mm_assets_tests.graph.published import lost_items

Deploy = Callable[..., Deployment]
RED, BLUE = jpeg(200, 10, 10), jpeg(10, 10, 200)
CUT_IMAGE = RED[:-40]  # behind its header
PLACE = (50.0, 400.0, 120.0, 80.0)


def _document(words: str, image: bytes = RED) -> bytes:
    return pdf([Page(lines([words], 50, 700), [jpeg_picture(RED, PLACE, data=image)])], "/Title (T)")


def _rows(storage: Path, shard: str, asset: str = "curated") -> list[dict[str, object]]:
    return pq.read_table(storage / asset / f"{shard}.parquet").to_pylist()


def test_good_pdfs_land_and_the_ledger_names_the_bad_ones(
    tmp_path: Path, deploy: Deploy, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "a.pdf": _document("first"),
        "b.pdf": _document("second", BLUE),
        "cut.pdf": _document("cut")[:-30],
        "image.pdf": _document("words", CUT_IMAGE),
        "locked.pdf": encrypted(),
        "more/c.pdf": _document("third"),
    }
    raw = files_in(tmp_path, files)
    storage = tmp_path / "storage"
    deployment = deploy(raw=raw, MM_MAX_LOSS="0.8")
    result = deployment.run()
    assert result.success
    assert set(materialized(result)["lance_table"]) == {"docs", "more"}
    assert ("raw_shards", "integrity", "docs") in failed_shard_checks(result)
    assert ("raw_shards", "integrity", "more") not in failed_shard_checks(result)

    rows = _rows(storage, "docs", "filtered")
    assert [row["sample_id"] for row in rows] == ["a"] * 3 + ["b"] * 3
    assert items(rows) == ["first", RED, "second", BLUE]
    assert [row["page"] for row in rows] == [None, 1, 1] * 2
    assert items(_rows(storage, "more", "filtered")) == ["third", RED]

    records = pq.read_table(storage / "quarantine" / "docs.parquet").to_pylist()
    found = {record["sample_id"]: record for record in records}
    assert {name: (record["kind"], record["source_uri"]) for name, record in found.items()} == {
        "cut": ("unreadable_pdf", "docs/cut.pdf"),
        "image": ("undecodable_image", "docs/image.pdf"),
        "locked": ("unreadable_pdf", "docs/locked.pdf"),
    }
    assert found["cut"]["message"] == "docs/cut.pdf: the file is cut: it does not end with %%EOF"
    assert (found["cut"]["raw"], found["locked"]["raw"]) == (files["cut.pdf"], files["locked.pdf"])
    assert (found["image"]["member"], found["image"]["raw"]) == ("page 1, block 2", CUT_IMAGE)
    lost = lost_items(storage, "curated_parquet", "docs")
    assert {row["sample_id"] for row in lost} == {"cut", "image", "locked"}

    assert main(["explain", "b", "--storage", str(storage)]) == 0
    said = capsys.readouterr().out
    assert "shard docs, from docs/b.pdf: @0+" in said
    assert said.count("page 1, block") == 2
    assert main(["explain", "locked", "--storage", str(storage)]) == 0
    assert "quarantined" in capsys.readouterr().out


def test_second_run_writes_nothing_and_a_mended_pdf_lands(tmp_path: Path, deploy: Deploy) -> None:
    files = {
        "a.pdf": _document("first"),
        "b.pdf": _document("second")[:-30],
        "more/c.pdf": _document("third"),
    }
    raw = files_in(tmp_path, files)
    storage = tmp_path / "storage"
    deployment = deploy(raw=raw, MM_MAX_LOSS="0.8")
    assert deployment.run().success

    def times() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in storage.glob("*/*.parquet")}

    before = times()
    assert deployment.run().success
    assert times() == before
    files_in(tmp_path, {"b.pdf": _document("second")})
    mended = deployment.run()
    assert failed_shard_checks(mended) == set()
    table = pq.read_table(storage / "curated" / "docs.parquet")
    assert pc.unique(table.column("sample_id")).to_pylist() == ["a", "b"]
    assert not (storage / "quarantine" / "docs.parquet").exists()
    changed = [file.name for file, time in times().items() if before.get(file) != time]
    assert changed
    assert "more.parquet" not in changed


def test_a_bad_pdf_in_a_tar_is_quarantined_with_its_bytes(tmp_path: Path, deploy: Deploy) -> None:
    blocks = [{"page": 1, "box": [0, 0, 1, 1], "type": "text", "text": "from a model"}]
    members = [
        ("a.pdf", _document("first")),
        ("a.blocks.json", blocks),
        ("b.pdf", b"%PDF- nothing"),
        ("c.pdf", _document("third", CUT_IMAGE)),
        ("d.pdf", _document("fourth")),
        ("d.blocks.json", [{"page": 9}]),
        ("notes.txt", b"notes"),
    ]
    tar = make_tar(tmp_path / "pdfs" / "x.tar", members)
    deployment = deploy(raw=f"pdf={tar.parent}/*.tar", MM_MAX_LOSS="0.9")
    assert deployment.run().success
    storage = tmp_path / "storage"
    assert items(_rows(storage, "x", "filtered")) == ["from a model"]
    records = pq.read_table(storage / "quarantine" / "x.parquet").to_pylist()
    found = {record["sample_id"]: record for record in records}
    assert {name: (one["source_uri"], one["member"], one["raw"]) for name, one in found.items()} == {
        "b": ("x/x.tar", "b.pdf", b"%PDF- nothing"),
        "c": ("x/x.tar", "c.pdf: page 1, block 2", CUT_IMAGE),
        "d": ("x/x.tar", "d.blocks.json", json.dumps([{"page": 9}]).encode()),
    }
    lost = lost_items(storage, "curated_parquet", "x")
    assert [row["outcome"] for row in lost].count("unreferenced") == 1


def test_a_pdf_that_takes_too_much_memory_is_quarantined_and_the_rest_lands(
    tmp_path: Path, deploy: Deploy
) -> None:
    files = {"a.pdf": _document("first"), "bad.pdf": self_drawing(), "z.pdf": _document("last", BLUE)}
    deployment = deploy(raw=files_in(tmp_path, files), MM_MAX_LOSS="0.8")
    result = deployment.run()
    assert result.success
    assert set(materialized(result)["lance_table"]) == {"docs"}
    storage = tmp_path / "storage"
    assert items(_rows(storage, "docs", "filtered")) == ["first", RED, "last", BLUE]
    (record,) = pq.read_table(storage / "quarantine" / "docs.parquet").to_pylist()
    assert (record["sample_id"], record["kind"], record["raw"]) == ("bad", "unreadable_pdf", files["bad.pdf"])
    assert record["message"] == "docs/bad.pdf: needs more than 1024 MiB of memory"
    lost = lost_items(storage, "curated_parquet", "docs")
    assert {row["sample_id"] for row in lost} == {"bad"}
