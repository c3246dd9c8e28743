"""``mm-assets show`` where there is no such sample, or data are damaged: one line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets_tests.cli.commands import only_line, run
from mm_assets_tests.cli.documents import sample
from mm_assets_tests.cli.formats_to_show import ITEMS
from mm_assets_tests.formats.raw_tars import make_tar


@pytest.mark.parametrize("name", ["raw", "parquet", "webdataset", "lance", "arrow_cache", "jsonl"])
def test_an_unknown_id_is_one_line_with_those_like_it(data: Path, name: str) -> None:
    line = only_line(run("show", "TW", data / name))
    assert re.fullmatch(rf"{data}/{name}: no sample 'TW'; ids that contain it: 'two'", line)
    assert only_line(run("show", "none", data / name)) == f"{data}/{name}: no sample 'none'"


def test_flags_that_do_not_go_together(data: Path, hostile: Path) -> None:
    assert only_line(run("show", "two", data / "raw", "--storage", hostile)) == (
        "--storage names outputs of the graph: give it, or other data, not both"
    )
    assert only_line(run("show", "two", "--texts-field", "t", "--storage", hostile)) == (
        "--texts-field is about documents of others: name their data"
    )


def test_a_shard_that_cannot_be_read_does_not_hide_another(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "parquet", tmp_path / "p")
    (tmp_path / "p" / "0.parquet").write_bytes(b"no Parquet")
    done = run("show", "two", tmp_path / "p")
    assert done.returncode == 1 and done.stdout.endswith(ITEMS)
    assert done.stderr.startswith(f"mm-assets: {tmp_path}/p/0.parquet: not a readable Parquet file")
    line = only_line(run("show", "nobody", tmp_path / "p"))
    assert line.startswith(f"{tmp_path}/p: no sample 'nobody'; {tmp_path}/p/0.parquet: not a readable")


@pytest.mark.parametrize(
    "columns",
    [
        {"sample_id": [{"x": "s"}], "position": [0], "modality": ["image"]},
        {"sample_id": ["s"], "position": [0], "modality": ["image"], "binary_content": [[1]]},
        {"sample_id": [7], "position": [0], "modality": ["image"], "binary_content": [{"a": 1}]},
    ],
)
def test_columns_of_other_types_are_one_line(tmp_path: Path, columns: dict[str, list[Any]]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    done = run("show", "s", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"mm-assets: {tmp_path}: no sample 's'")


def test_a_tar_that_is_cut_says_so(tmp_path: Path) -> None:
    whole = make_tar(tmp_path / "a.tar", [*sample("one"), *sample("two")]).read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[: whole.index(b"two.1.png") - 100])
    done = run("show", "one", tmp_path / "a.tar")
    assert done.returncode == 1 and "    text of one" in done.stdout.splitlines()
    assert re.fullmatch(rf"mm-assets: {tmp_path}/a\.tar: byte \d+: cut within a header.*\n", done.stderr)
    unknown, damage = only_line(run("show", "nobody", tmp_path / "a.tar")).split("; ")
    assert unknown == f"{tmp_path}/a.tar: no sample 'nobody'"
    assert re.fullmatch(rf"{tmp_path}/a\.tar: byte \d+: cut within a header.*", damage)
