"""Columns that hold texts or images, and are not taken, are named in each command and as a check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets_tests.cli.commands import fine, run, run_process
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar

PICTURE = {"bytes": picture(0)[1], "path": "a.png"}
TALK = [{"from": "human", "value": "<image> What?"}, {"from": "gpt", "value": "A cat."}]
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "questions": ({"image": PICTURE, "question": "What?", "answer": "A cat."}, "question, answer"),
    "conversations": ({"image": PICTURE, "conversations": TALK}, "conversations"),
    "messages": ({"images": [PICTURE], "messages": [{"role": "user", "content": "What?"}]}, "messages"),
    "captions": ({"image": PICTURE, "caption": ["a cat", "one cat"]}, "caption"),
}


def parquet(folder: Path, row: dict[str, Any]) -> Path:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist([row, row]), folder / "a.parquet")
    return folder


def tar(folder: Path, document: dict[str, Any]) -> Path:
    folder.mkdir()
    make_tar(folder / "a.tar", [("a.json", document), ("a.png", picture(0)[1])])
    return folder


def line(columns: str) -> str:
    return (
        f"no text was taken from 1 of 1 shard; columns that look like text: {columns}; see docs/raw_shards.md"
    )


def assert_said(raw: Path, out: Path, columns: str) -> None:
    assert line(columns) in fine(run("inspect", raw))
    assert line(columns) in fine(run("convert", raw, out, "--to", "parquet"))


@pytest.mark.parametrize("shape", ROWS)
def test_parquet_names_the_columns_of_its_texts(tmp_path: Path, shape: str) -> None:
    row, columns = ROWS[shape]
    assert_said(parquet(tmp_path / "raw", row), tmp_path / "out", columns)


@pytest.mark.parametrize("value", ["Two cats.", ["Two cats.", "One."], [{"t": "Two cats."}]])
def test_a_tar_names_the_fields_of_its_texts(tmp_path: Path, value: Any) -> None:
    document = {"body": value, "images": ["a.png"]}
    assert_said(tar(tmp_path / "raw", document), tmp_path / "out", "body")


def test_data_with_texts_is_told_nothing(tmp_path: Path) -> None:
    document = {"body": "x", "texts": ["Two cats.", None], "images": [None, "a.png"]}
    raw = tar(tmp_path / "raw", document)
    assert "was taken" not in fine(run("inspect", raw))
    row = {"image": PICTURE, "caption": "a cat", "other": "text"}
    assert "was taken" not in fine(run("inspect", parquet(tmp_path / "pairs", row)))


def test_the_run_says_it_once_and_exits_with_0(tmp_path: Path) -> None:
    raw = parquet(tmp_path / "raw", ROWS["questions"][0])
    pq.write_table(pq.read_table(raw / "a.parquet"), raw / "b.parquet")
    settings = {"MM_RAW_SHARDS": str(raw), "MM_STORAGE": str(tmp_path / "out"), "DAGSTER_HOME": None}
    done = run_process("run", env=settings)
    assert done.returncode == 0, done
    said = [text for text in (done.stdout + done.stderr).splitlines() if "was taken" in text]
    assert said == [line("question, answer").replace("1 of 1 shard", "2 of 2 shards")]
