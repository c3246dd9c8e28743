"""The commands on data of every format, through their one entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm_assets.cli import main
from mm_assets_tests.formats.conformance.outputs import PNG, N, cut_short, output, rows, visible
from mm_assets_tests.formats.datasets import FORMATS, batch_of, read, write
from mm_assets_tests.formats.raw_tars import make_tar

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.usefixtures("shared_workers"),
]


def convert(source: Path, target: Path, kind: str, *options: str) -> int:
    return main(["convert", str(source), str(target), "--to", kind, "--workers", "1", *options])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dataset of two partitions, in a format that does not matter here."""
    batches = [batch_of(rows(name, n=1), [N], partition=f"p{name}") for name in "ab"]
    write("parquet", tmp_path / "data", batches)
    return tmp_path / "data"


@pytest.mark.parametrize("kind", FORMATS)
def test_there_and_back(data: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    assert convert(data, there, kind) == 0
    assert convert(there, back, "parquet") == 0
    capsys.readouterr()
    assert main(["verify", str(data), str(there), str(back)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "equal"
    assert f"B: {there}: {kind}, 2 samples, 6 rows, 2 images, digest " in captured.out
    assert read("parquet", back).equals(read("parquet", data))


@pytest.mark.parametrize("kind", FORMATS)
def test_raw_tars_become_any_format(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"texts": ["t", None], "images": [None, "a.png"], "url": "u"}
    raw = make_tar(tmp_path / "raw" / "x.tar", [("a.json", document), ("a.png", PNG)]).parent
    assert convert(raw, tmp_path / "out", kind) == 0
    assert main(["verify", str(raw), str(tmp_path / "out")]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("kind", FORMATS)
def test_inspect(data: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    convert(data, tmp_path / "out", kind)
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path}/out: {kind}, 2 partitions, 2 samples, 6 rows"
    assert lines[1] == "  2 metadata, 2 text, 2 image rows; 0 with an error"
    assert "  n: int64" in lines
    assert lines[-4:] == [
        "first sample: a",
        "  [-1] metadata: application/json",
        "  [0] text: text of a",
        "  [2] image: image/png",
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_what_was_changed_is_named(
    data: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(data, tmp_path / "sound", kind)
    batches = [batch_of(rows(name, n=1 if name == "a" else 2), [N], partition=f"p{name}") for name in "ab"]
    write(kind, tmp_path / "changed", batches)
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "sound"), str(tmp_path / "changed")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mm-assets: difference: sample 'b'") and "column 'n'" in line


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("command", ["inspect", "verify", "convert"])
def test_a_file_that_was_cut_is_one_line(
    tmp_path: Path, kind: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(kind, tmp_path / "in", batch_of(rows("a", n=1), [N], partition="part"))
    path = output(kind, tmp_path / "in")
    cut_short(path)
    arguments = {
        "inspect": ["inspect", str(tmp_path / "in")],
        "verify": ["verify", str(tmp_path / "in"), str(tmp_path / "in")],
        "convert": ["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--to", kind, "--workers", "1"],
    }[command]
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mm-assets: ") and str(path) in line
    assert not (tmp_path / "out").exists() or visible(kind, tmp_path / "out") == set()
