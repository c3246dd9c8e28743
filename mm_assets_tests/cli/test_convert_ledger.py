"""``mm-assets convert`` says what it lost, lists every item of it beside the output, and reads no such list
back as data.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mm_assets.formats.registry import detect_format, reader_for
from mm_assets.storage.files import temporary_name
from mm_assets_tests.cli.commands import visible
from mm_assets_tests.cli.documents import sample
from mm_assets_tests.cli.lost_items import convert, lists
from mm_assets_tests.formats.datasets import FORMATS
from mm_assets_tests.formats.raw_tars import make_tar

RATIOS = ("--min-aspect-ratio", "1", "--max-aspect-ratio", "2")
BAD = [("bad.json", b"{nope"), ("lost.json", {"texts": ["t"], "images": [None, "gone.png"]})]


@pytest.fixture(autouse=True)
def _no_configured_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MM_RAW_SHARDS", raising=False)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    make_tar(tmp_path / "raw" / "a.tar", [*sample("one"), *BAD, *sample("two")])
    make_tar(tmp_path / "raw" / "sub" / "b.tar", sample("three"))
    return tmp_path / "raw"


def ids(folder: Path) -> set[str]:
    reader = reader_for(detect_format(str(folder)), str(folder))
    return {name for batch in reader for name in batch.data["sample_id"].to_pylist()}


@pytest.mark.parametrize("to", FORMATS)
def test_what_is_lost_is_counted_and_listed(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    out = tmp_path / "out"
    lines, err = convert(capsys, raw, out, to, "--on-materialize-error", "drop_sample", *RATIOS)
    assert err == ""
    assert lines == [
        "filtered: 3 images",
        "quarantined: 4 items (bad_json 1, incomplete_sample 2, missing_member 1)",
        "items with errors, sample dropped: 1",
        f"lost items are listed in {out}/_ledger",
    ]
    found = lists(out)
    assert list(found) == ["a", "sub%2Fb"]
    assert {(row["asset"], row["partition"]) for row in found["a"]} == {("convert", "a")}
    assert sorted(
        (row["sample_id"], row["position"], row["kind"], row["is_cause"]) for row in found["a"]
    ) == [
        ("bad", -1, "bad_json", True),
        ("lost", -1, "incomplete_sample", False),
        ("lost", 0, "incomplete_sample", False),
        ("lost", 1, "missing_member", True),
        ("one", 2, "aspect_ratio", True),
        ("two", 2, "aspect_ratio", True),
    ]
    (row,) = found["sub%2Fb"]
    assert [row[n] for n in ("partition", "sample_id", "outcome", "score", "threshold")] == [
        "sub/b",
        "three",
        "filtered",
        3.5,
        "1..2",
    ]
    assert (row["source"], row["member"]) == ("sub/b.tar", "three.2.png")
    assert ids(out) == {"one", "two", "three"}
    for path in out.rglob("*"):
        assert not path.is_file() or str(tmp_path).encode() not in path.read_bytes(), path


def test_nothing_lost_is_no_word_and_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tar(tmp_path / "raw" / "a.tar", sample("one"))
    assert convert(
        capsys, tmp_path / "raw", tmp_path / "out", "parquet", "--on-materialize-error", "drop_sample"
    ) == ([], "")
    assert visible(tmp_path / "out") == ["a.parquet"]


def test_a_mended_shard_has_no_list_any_more(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--on-materialize-error", "drop_sample", *RATIOS)
    convert(capsys, raw, tmp_path / "out", "parquet", *options)
    make_tar(raw / "a.tar", [*sample("one"), *sample("two")])
    lines, _ = convert(capsys, raw, tmp_path / "out", "parquet", *options)
    assert lines[0] == "filtered: 3 images"
    assert [row["kind"] for row in lists(tmp_path / "out")["a"]] == ["aspect_ratio"] * 2
    lines, _ = convert(capsys, raw, tmp_path / "out", "parquet")
    assert lines == []
    assert lists(tmp_path / "out") == {}


@pytest.mark.parametrize("policy", ["warn", "drop_row", "drop_sample"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_tar_gives_what_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, cut: bool
) -> None:
    members = [*sample("one"), ("two.json", {"texts": ["x"]}), ("three.json", {"texts": ["y"]})]
    data = make_tar(tmp_path / "raw" / "a.tar", members).read_bytes()
    at = data.index(b"three.json\0")
    (tmp_path / "raw" / "a.tar").write_bytes(data[:at] if cut else data[: at + 148] + b"7" + data[at + 149 :])
    lines, err = convert(
        capsys, tmp_path / "raw", tmp_path / "out", "parquet", "--on-materialize-error", policy
    )
    kind = "truncated_tar" if cut else "damaged_tar"
    assert lines == [
        f"quarantined: 0 items, 1 damaged stretch ({kind} 1)",
        f"lost items are listed in {tmp_path}/out/_ledger",
    ]
    assert ids(tmp_path / "out") == {"one", "two"}
    ((row,),) = lists(tmp_path / "out").values()
    assert (row["kind"], row["sample_id"], row["source"], row["byte_offset"]) == (kind, None, "a.tar", at)
    assert "Traceback" not in err


def test_the_policy_error_refuses_the_shard_as_ever(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, err = convert(capsys, raw, tmp_path / "out", "parquet", *RATIOS, code=1)
    assert re.fullmatch(r"mm-assets: .*a\.tar: bad\.json: not JSON: .*\n", err)
    assert [path.name for path in (tmp_path / "out").glob("*.parquet")] == ["sub%2Fb.parquet"]
    assert lines[0] == "filtered: 1 image"
    assert list(lists(tmp_path / "out")) == ["sub%2Fb"]


def test_a_shard_that_fails_keeps_the_list_of_its_output(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(capsys, raw, tmp_path / "out", "parquet", "--on-materialize-error", "drop_sample")
    before = lists(tmp_path / "out")
    assert list(before) == ["a"]
    convert(capsys, raw, tmp_path / "out", "parquet", code=1)
    assert ids(tmp_path / "out") == {"one", "two", "three"}
    assert lists(tmp_path / "out") == before


@pytest.mark.parametrize("to", FORMATS)
def test_lists_are_not_read_back_as_data(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    convert(capsys, raw, tmp_path / "1", to, "--on-materialize-error", "drop_sample", *RATIOS)
    assert detect_format(str(tmp_path / "1")) == to
    lines, err = convert(capsys, tmp_path / "1", tmp_path / "2", "parquet")
    assert (lines, err) == ([], "")
    assert visible(tmp_path / "2") == ["a.parquet", "sub%2Fb.parquet"]
    assert ids(tmp_path / "2") == {"one", "two", "three"}


@pytest.mark.parametrize(
    ("to", "name"), [("parquet", "x.y.parquet"), ("webdataset", "x.y.tar"), ("lance", "x.y.lance")]
)
@pytest.mark.parametrize("where", ["relative", "absolute"])
def test_lists_lie_beside_a_single_file(
    raw: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    name: str,
    where: str,
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    target = Path(name) if where == "relative" else tmp_path / "out" / name
    convert(capsys, raw / "a.tar", target, to, "--on-materialize-error", "drop_sample")
    assert list(lists(tmp_path / "out")) == ["a" if to == "lance" else "x.y"]
    assert visible(tmp_path / "out") == ["_ledger", name]


def test_a_second_run_touches_no_list(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--on-materialize-error", "drop_row")
    convert(capsys, raw, tmp_path / "out", "parquet", *options)
    path = tmp_path / "out" / "_ledger" / "a.parquet"
    before = (path.stat().st_mtime_ns, path.stat().st_ino)
    lines, _ = convert(capsys, raw, tmp_path / "out", "parquet", *options)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert lines[0] == "quarantined: 2 items (bad_json 1, missing_member 1)"


def test_leftovers_of_dead_processes_are_swept(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out" / "_ledger"
    folder.mkdir(parents=True)
    monkeypatch.setattr("os.getpid", lambda: 4_000_000)  # beyond the largest pid: surely dead
    stale = folder / temporary_name("a.parquet")
    monkeypatch.undo()
    stale.write_bytes(b"half")
    convert(capsys, raw, tmp_path / "out", "parquet", "--on-materialize-error", "drop_sample")
    assert visible(folder) == ["a.parquet"]
