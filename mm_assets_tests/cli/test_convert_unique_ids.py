"""``mm-assets convert``: an id in two files is one sample in the output, whatever the formats; the other is
in the list of its file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.cli import main
from mm_assets_tests.cli.documents import sample
from mm_assets_tests.cli.lost_items import convert, lists
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write
from mm_assets_tests.formats.raw_tars import make_tar

DROP = ("--on-materialize-error", "drop_sample")


def texts(kind: str, folder: Path) -> list[tuple[str, str]]:
    table = read(kind, folder)
    rows = table.filter(pa.compute.equal(table["modality"], "text")).to_pylist()
    return sorted((row["sample_id"], row["text_content"]) for row in rows)


def raw_files(folder: Path) -> Path:
    for name in "abc":
        members = [*sample("x", texts=[f"x of {name}", None, None]), *sample(f"own-{name}")]
        make_tar(folder / f"{name}.tar", members)
    return folder


def parquet_files(folder: Path) -> Path:
    for name in "abc":
        rows = [item("x", -1, "metadata"), item("x", 0, "text", text_content=f"x of {name}")]
        own = [
            item(f"own-{name}", -1, "metadata"),
            item(f"own-{name}", 0, "text", text_content=f"text of own-{name}"),
        ]
        write("parquet", folder / f"{name}.parquet", batch_of([*rows, *own]))
    return folder


SOURCES = {"webdataset": raw_files, "parquet": parquet_files}
Source = Callable[[Path], Path]


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("policy", ["warn", "drop_row", "drop_sample"])
def test_the_first_file_keeps_the_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: Source, to: str, policy: str
) -> None:
    out = tmp_path / "out"
    lines, err = convert(capsys, source(tmp_path / "in"), out, to, "--on-materialize-error", policy)
    assert err == ""
    assert texts(to, out) == [
        ("own-a", "text of own-a"),
        ("own-b", "text of own-b"),
        ("own-c", "text of own-c"),
        ("x", "x of a"),
    ]
    found = lists(out)
    assert list(found) == ["b", "c"]
    for name, rows in found.items():
        positions = [-1, 0, 1, 2] if source is raw_files else [-1, 0]
        assert [(row["sample_id"], row["position"], row["partition"], row["outcome"]) for row in rows] == [
            ("x", position, name, "quarantined") for position in positions
        ]
        assert {row["kind"] for row in rows} == {"duplicate_id"}
        assert [row["is_cause"] for row in rows] == [True] + [False] * (len(positions) - 1)
        assert {row["reason"] for row in rows} == {"sample id 'x' is already in partition 'a'"}
        if source is raw_files:
            assert rows[1]["source"] == f"{name}.tar"
    assert lines[0].startswith("quarantined: ")
    assert f"duplicate_id {8 if source is raw_files else 4}" in lines[0]


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_policy_error_refuses_the_later_file_and_names_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: Source, to: str
) -> None:
    folder = source(tmp_path / "in")
    assert main(["convert", str(folder), str(tmp_path / "out"), "--to", to, "--workers", "1"]) == 1
    out, err = capsys.readouterr()
    assert re.match(
        rf".*: 1 partition, 2 samples, {2 * 2 if source is raw_files else 0} images, 2 texts, ", out
    )
    a, b, c = sorted(folder.iterdir())
    assert err.splitlines() == [f"mm-assets: {file}: sample id 'x' is already in {a}" for file in (b, c)]
    assert texts(to, tmp_path / "out") == [("own-a", "text of own-a"), ("x", "x of a")]


def test_an_id_of_a_refused_file_is_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ids in {"a": "x", "b": "xyz", "c": "yw"}.items():
        make_tar(
            tmp_path / "raw" / f"{name}.tar", [member for sample_id in ids for member in sample(sample_id)]
        )
    _, err = convert(capsys, tmp_path / "raw", tmp_path / "out", "lance", code=1)
    assert err == f"mm-assets: {tmp_path}/raw/b.tar: sample id 'x' is already in {tmp_path}/raw/a.tar\n"
    assert texts("lance", tmp_path / "out") == [("w", "text of w"), ("x", "text of x"), ("y", "text of y")]
    (tmp_path / "raw" / "a.tar").write_bytes(b"no tar")
    make_tar(tmp_path / "raw" / "c.tar", [member for sample_id in "zyw" for member in sample(sample_id)])
    _, err = convert(capsys, tmp_path / "raw", tmp_path / "2", "lance", code=1)
    complaint, unreadable = err.splitlines()
    assert complaint == (
        f"mm-assets: {tmp_path}/raw/c.tar: sample id 'z' is already in {tmp_path}/raw/b.tar (and 1 "
        f"more ids that others have); "
        "ids that start anew in each tar are told apart by --sample-id-prefix shard"
    )
    assert "a.tar" in unreadable
    assert texts("lance", tmp_path / "2") == [(name, f"text of {name}") for name in "xyz"]


def test_a_sample_that_is_dropped_anyway_gives_its_id_to_a_sound_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tar(
        tmp_path / "raw" / "a.tar",
        [("x.json", {"texts": ["faulty", None], "images": [None, "gone.png"]}), *sample("own")],
    )
    make_tar(tmp_path / "raw" / "b.tar", sample("x"))
    convert(capsys, tmp_path / "raw", tmp_path / "drop", "parquet", *DROP)
    assert texts("parquet", tmp_path / "drop") == [("own", "text of own"), ("x", "text of x")]
    assert [row["kind"] for row in lists(tmp_path / "drop")["a"] if row["is_cause"]] == ["missing_member"]
    convert(
        capsys,
        tmp_path / "raw",
        tmp_path / "row",
        "parquet",
        "--on-materialize-error",
        "drop_row",
        "--max-loss",
        "1",
    )
    assert texts("parquet", tmp_path / "row") == [("own", "text of own"), ("x", "faulty")]


def test_partitions_of_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What comes of a Lance table is named by its partition; the ids of one table are unique already."""
    convert(capsys, raw_files(tmp_path / "raw"), tmp_path / "one", "lance", *DROP)
    assert convert(capsys, tmp_path / "one", tmp_path / "out", "parquet") == ([], "")
    assert texts("parquet", tmp_path / "out") == texts("lance", tmp_path / "one")


def test_a_table_in_use_refuses_ids_that_its_other_partitions_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(capsys, raw_files(tmp_path / "raw"), tmp_path / "out", "lance", *DROP)
    before = lists(tmp_path / "out")
    for name, members in {"y": sample("y"), "z": [*sample("x"), ("bad.json", b"{")]}.items():
        make_tar(tmp_path / "more" / f"{name}.tar", members)
    assert (
        main(
            [
                "convert",
                str(tmp_path / "more"),
                str(tmp_path / "out"),
                "--to",
                "lance",
                "--workers",
                "1",
                *DROP,
            ]
        )
        == 1
    )
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith(f"{tmp_path}/out: 1 partition, 1 sample, 2 images, 1 text, ")
    assert out.splitlines()[1:] == []
    assert (
        err == "mm-assets: sample id 'x' of partition 'z' is already in partition 'a': sample ids are "
        "unique in a table\n"
    )
    assert ("y", "text of y") in texts("lance", tmp_path / "out")
    assert lists(tmp_path / "out") == before


def test_nothing_is_counted_of_a_commit_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mm_assets.formats.lance.table import LanceTable

    def fails(*_: Any, **__: Any) -> int:
        raise ValueError("overtaken")

    monkeypatch.setattr(LanceTable, "commit", fails)
    assert (
        main(
            [
                "convert",
                str(raw_files(tmp_path / "raw")),
                str(tmp_path / "out"),
                "--to",
                "lance",
                "--workers",
                "1",
                *DROP,
            ]
        )
        == 1
    )
    out, err = capsys.readouterr()
    assert ": 0 partitions, 0 samples, 0 images, 0 texts, " in out
    assert err == "mm-assets: overtaken\n"
