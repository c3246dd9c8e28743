"""``mm-assets convert`` and ``inspect`` as a user runs them: results, exit codes, one clear line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mm_assets.formats.registry import reader_for
from mm_assets_tests.cli.commands import fine, ok, refused, run, run_process, visible
from mm_assets_tests.cli.documents import PNG, document
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write
from mm_assets_tests.formats.images.test_opening import REFUSED
from mm_assets_tests.formats.images.tiff_tools import tiff_of
from mm_assets_tests.formats.raw_tars import equal, make_tar, payloads


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    make_tar(tmp_path / "raw" / "a.tar", [*document("d1", n=1), *document("d2", n=2.5)])
    make_tar(
        tmp_path / "raw" / "sub" / "b.tar.gz",
        [*document("d3"), ("p.json", {"images": ["p0", "p1"], "texts": []}), ("p.tiff", tiff_of(2))],
        "w:gz",
    )
    return tmp_path / "raw"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.parent.name != ".origins"
    }


def test_round_trip_through_every_format(raw: Path, tmp_path: Path) -> None:
    steps = [("parquet", "1"), ("webdataset", "2"), ("lance", "3"), ("parquet", "4")]
    source = raw
    for kind, name in steps:
        options = ("--per-text-fields", "lang") if source == raw else ()
        command = run_process if source == raw else run
        out = fine(command("convert", source, tmp_path / name, "--to", kind, *options))
        assert "2 partitions, 4 samples, 5 images, 3 texts" in out
        source = tmp_path / name
    # As one partition: a Lance table has one schema, so what comes from it has the columns of all shards.
    first, last = (read("parquet", tmp_path / name, files_per_partition=2) for name in "14")
    same(last, first)
    assert visible(tmp_path / "4") == ["a.parquet", "sub%2Fb.parquet"]
    told = payloads(last, per_text=["lang"])
    assert equal(told["d3.json"], document("d3")[0][1])
    for name in "124":
        for path, data in snapshot(tmp_path / name).items():
            assert str(tmp_path).encode() not in data, path
    for path, data in snapshot(tmp_path / "3").items():
        assert str(tmp_path).encode() not in data, path


@pytest.mark.parametrize("kind", ["parquet", "webdataset"])
def test_a_second_run_makes_the_same_bytes(raw: Path, tmp_path: Path, kind: str) -> None:
    ok("convert", raw, tmp_path / "out", "--to", kind)
    before = snapshot(tmp_path / "out")
    ok("convert", raw, tmp_path / "out", "--to", kind)
    assert snapshot(tmp_path / "out") == before
    os.rename(raw, tmp_path / "moved")
    fine(run_process("convert", "moved", "out2", "--to", kind, cwd=tmp_path))
    again = snapshot(tmp_path / "out2")
    assert {k: v for k, v in again.items() if k.endswith((".tar", ".parquet"))} == {
        k: v for k, v in before.items() if k.endswith((".tar", ".parquet"))
    }


def test_options(raw: Path, tmp_path: Path) -> None:
    options = ["--fields", "url,gone", "--max-batch-bytes", "1KiB", "--workers", 1]
    out = run("convert", raw, tmp_path / "out", "--to", "parquet", *options)
    assert out.returncode == 0
    assert "Traceback" not in out.stderr
    found = read("parquet", tmp_path / "out")
    assert found.column_names[8:] == ["url", "gone"]


def test_filter(tmp_path: Path, raw: Path) -> None:
    out = ok(
        "convert",
        raw,
        tmp_path / "out",
        "--to",
        "parquet",
        "--min-aspect-ratio",
        1.3,
        "--max-aspect-ratio",
        1.4,
    )
    assert "filtered: " in out
    kept = [
        r
        for r in read("parquet", tmp_path / "out", files_per_partition=2).to_pylist()
        if r["modality"] == "image"
    ]
    assert [r["sample_id"] for r in kept] == ["p", "p"]
    assert [r["position"] for r in kept] == [0, 1]


@pytest.mark.parametrize("to", FORMATS)
def test_good_shards_land_beside_a_bad_one(raw: Path, tmp_path: Path, to: str) -> None:
    whole = make_tar(raw / "bad.tar", document("lost")).read_bytes()
    (raw / "bad.tar").write_bytes(whole[:1536])
    done = run("convert", raw, tmp_path / "out", "--to", to)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if "bad.tar" in line] == done.stderr.splitlines()
    assert "2 partitions, 4 samples" in done.stdout
    ids = {
        name
        for batch in reader_for(to, str(tmp_path / "out"))
        for name in batch.data["sample_id"].to_pylist()
    }
    assert ids == {"d1", "d2", "d3", "p"}
    (raw / "bad.tar").write_bytes(whole)
    assert "3 partitions, 5 samples" in ok("convert", raw, tmp_path / "out", "--to", to)


@pytest.mark.parametrize("policy", ["error", "warn", "drop_row", "drop_sample"])
def test_policies(tmp_path: Path, policy: str) -> None:
    make_tar(
        tmp_path / "raw" / "x.tar",
        [*document("good"), ("lost.json", {"images": ["gone.png"], "texts": ["t"]})],
    )
    done = run(
        "convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet", "--on-materialize-error", policy
    )
    assert "Traceback" not in done.stderr
    if policy == "error":
        assert done.returncode == 1
        assert "x.tar: sample 'lost', position 0: missing member 'gone.png'" in done.stderr
        return
    assert done.returncode == 0
    outcome = {"warn": "kept", "drop_row": "row dropped", "drop_sample": "sample dropped"}[policy]
    assert f"items with errors, {outcome}: 1" in done.stdout
    lost = [r for r in read("parquet", tmp_path / "out").to_pylist() if r["sample_id"] == "lost"]
    assert len(lost) == {"warn": 3, "drop_row": 2, "drop_sample": 0}[policy]


@pytest.mark.parametrize("scores", [(), ("--min-sharpness", 0)])
def test_an_image_that_no_client_opens(tmp_path: Path, scores: tuple[object, ...]) -> None:
    """Its fate does not hang on the scores that are asked for."""
    picture = REFUSED["png zTXt bomb"]
    make_tar(
        tmp_path / "raw" / "x.tar",
        [*document("good"), ("bad.json", {"images": ["bad.png"], "texts": []}), ("bad.png", picture)],
    )
    arguments = ("--on-materialize-error", "drop_sample", *scores)
    said = ok("convert", tmp_path / "raw", tmp_path / "out", "--to", "webdataset", *arguments)
    assert "items with errors, sample dropped: 1" in said
    assert "undecodable_image 1" in said
    assert {row["sample_id"] for row in read("webdataset", tmp_path / "out").to_pylist()} == {"good"}


def test_sources_that_are_not_there(tmp_path: Path, raw: Path) -> None:
    gone, empty, out = tmp_path / "gone.tar", tmp_path / "empty", tmp_path / "out"
    empty.mkdir()
    (tmp_path / "odd.txt").write_text("x")
    assert str(gone) in refused("convert", gone, out, "--to", "parquet")
    assert str(tmp_path / "nowhere") in refused("convert", tmp_path / "nowhere", out, "--to", "parquet")
    assert str(empty) in refused("convert", empty, out, "--to", "parquet")
    assert "no such file" in refused("convert", tmp_path / "*.tar", out, "--to", "parquet")
    assert "odd.txt" in refused("convert", tmp_path / "odd.txt", out, "--to", "parquet")
    assert str(gone) in refused("inspect", gone)
    assert not out.exists()


def test_sources_of_two_formats(tmp_path: Path, raw: Path) -> None:
    write("lance", raw, batch_of([item("a")]))
    assert "holds lance and webdataset; name one of them" in refused(
        "convert", raw, tmp_path / "out", "--to", "lance"
    )
    assert "2 partitions" in ok("convert", f"{raw}/**/*.tar*", tmp_path / "out", "--to", "parquet")


def test_parquet_beside_tars_is_passed_over_with_a_word(tmp_path: Path, raw: Path) -> None:
    write("parquet", raw, batch_of([item("a")]))
    (raw / "a_stats.json").write_text("{}")
    for source in (raw, raw / "*"):
        done = run("convert", source, tmp_path / "out", "--to", "parquet")
        assert done.returncode == 0
        told = (
            f"{source}: 1 Parquet file beside tars passed over, such as part-00000.parquet; name "
            f"*.parquet to read them"
        )
        assert done.stderr == f"mm-assets: warning: {told}\n"
    assert visible(tmp_path / "out") == ["a.parquet", "sub%2Fb.parquet"]


def test_outputs_inside_the_input(tmp_path: Path, raw: Path) -> None:
    before = snapshot(raw)
    for target in (raw, raw / "out", raw / "sub" / ".." / "out"):
        assert "the output cannot be inside the input" in refused("convert", raw, target, "--to", "parquet")
    assert "would overwrite the input" in refused("convert", raw / "*.tar", raw, "--to", "webdataset")
    ok("convert", raw, tmp_path / "caches", "--to", "arrow_cache")
    source = tmp_path / "caches" / "*" / "_metadata.json"
    assert "would overwrite the input" in refused(
        "convert", source, tmp_path / "caches", "--to", "arrow_cache"
    )
    assert snapshot(raw) == before
    (tmp_path / "link").symlink_to(raw)
    assert "inside the input" in refused("convert", raw, tmp_path / "link" / "out", "--to", "parquet")


@pytest.mark.parametrize("to", FORMATS)
def test_a_refused_output_leaves_no_folder(tmp_path: Path, to: str) -> None:
    """Only what the command has made: a folder that was there stays."""
    bad = {"texts": [None], "images": ["i.png"]}
    make_tar(tmp_path / "image.tar", [("s.json", bad), ("i.png", b"none")])
    make_tar(tmp_path / "lossy.tar", [("a.foo", b""), ("b.foo", b"")])
    for name in ("image", "lossy"):
        refused("convert", tmp_path / f"{name}.tar", tmp_path / "new" / "out", "--to", to)
        assert visible(tmp_path) == ["image.tar", "lossy.tar"]
    (tmp_path / "there").mkdir()
    refused("convert", tmp_path / "image.tar", tmp_path / "there", "--to", to)
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("to", FORMATS)
def test_outputs_that_cannot_be_written(tmp_path: Path, raw: Path, to: str) -> None:
    (tmp_path / "file").write_text("x")
    done = run("convert", raw, tmp_path / "file" / "out", "--to", to)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "file" in done.stderr
    assert (tmp_path / "file").read_text() == "x"


def test_one_file_does_not_take_two_partitions(tmp_path: Path, raw: Path) -> None:
    assert "2 partitions do not go into one file" in refused(
        "convert", raw, tmp_path / "one.parquet", "--to", "parquet"
    )
    ok("convert", raw / "a.tar", tmp_path / "one.parquet", "--to", "parquet")
    assert read("parquet", tmp_path / "one.parquet")["sample_id"].unique().to_pylist() == ["d1", "d2"]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--to", "csv"], 2, "csv"),
        ([], 2, "--to"),
        (["--to", "parquet", "--on-materialize-error", "ignore"], 2, "ignore"),
        (["--to", "parquet", "--max-batch-bytes", "lots"], 2, "lots"),
        (["--to", "parquet", "--max-batch-bytes", "0"], 2, "not a size in bytes"),
        (["--to", "parquet", "--max-batch-bytes", "-5"], 2, ""),
        (["--to", "parquet", "--workers", "-1"], 2, ""),
        (["--to", "parquet", "--workers", "two"], 2, "two"),
        (["--to", "parquet", "--min-aspect-ratio", "x"], 2, "x"),
        (["--to", "parquet", "--min-aspect-ratio", "2", "--max-aspect-ratio", "1"], 1, "0 <= min <= max"),
        (["--to", "parquet", "--max-aspect-ratio", "-1"], 1, "0 <= min <= max"),
        (["--to", "parquet", "--min-aspect-ratio", "nan"], 1, "0 <= min <= max"),
        (["--to", "parquet", "--fields", "sample_id"], 1, "are always read"),
        (["--to", "parquet", "--per-text-fields", "position"], 1, "is a column of its own"),
    ],
    ids=lambda v: " ".join(v[2:]) if isinstance(v, list) else "",
)
def test_bad_options(tmp_path: Path, raw: Path, options: list[str], code: int, said: str) -> None:
    assert said in refused("convert", raw, tmp_path / "out", *options, code=code)
    assert not (tmp_path / "out").exists()


def test_options_for_tars_with_other_sources(tmp_path: Path) -> None:
    write("parquet", tmp_path / "in", batch_of([item("a")]))
    message = refused("convert", tmp_path / "in", tmp_path / "out", "--to", "lance", "--sample-id-field", "x")
    assert (
        f"--sample-id-field says nothing of {next((tmp_path / 'in').iterdir())}: its rows are items, "
        f"which this project wrote" in message
    )
    write("lance", tmp_path / "in2", batch_of([item("a")]))
    message = refused("convert", tmp_path / "in2", tmp_path / "out", "--to", "parquet", "--texts-field", "x")
    assert "--texts-field is for documents of others in Parquet" in message and "not for lance" in message


def test_a_missing_id_field_is_named(tmp_path: Path, raw: Path) -> None:
    done = run("convert", raw / "a.tar", tmp_path / "out", "--to", "parquet", "--sample-id-field", "doc")
    assert done.returncode == 1
    assert "a.tar: d1.json: field 'doc' (sample_id_field) is missing" in done.stderr


def test_locators_are_followed_within_the_input_only(tmp_path: Path) -> None:
    """Curated data may name a file of this machine: it is read below the input or MM_RAW_SHARDS, nowhere
    else.
    """
    shard = make_tar(tmp_path / "raw" / "x.tar", [("a.png", PNG)])
    for folder, path in (("in", "secret/../../raw/x.tar"), ("abs", str(shard)), ("etc", "/etc/passwd")):
        ref = json.dumps({"path": path, "member": None if path.startswith("/etc") else "a.png"})
        write(
            "parquet", tmp_path / folder, batch_of([item("s", 0, "image", source_ref=ref)]), materialize=False
        )
        done = run("convert", tmp_path / folder, tmp_path / "out", "--to", "webdataset")
        assert done.returncode == 1
        assert "outside the configured roots" in done.stderr
    command = ("convert", tmp_path / "abs", tmp_path / "out", "--to", "webdataset")
    ok(*command, MM_RAW_SHARDS=str(shard))
    assert read("webdataset", tmp_path / "out")["binary_content"].to_pylist() == [PNG]


def test_notes_are_printed(tmp_path: Path) -> None:
    make_tar(
        tmp_path / "raw" / "x.tar",
        [*document("a"), ("stray.png", PNG), ("t.json", {"images": ["p"]}), ("t.tiff", tiff_of(2))],
    )
    out = ok("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet")
    assert "1 members that are no part of any sample: stray.png" in out
    assert "1 TIFFs with more frames than references: t.tiff: 1 of 2 frames" in out


def test_an_input_without_samples(tmp_path: Path) -> None:
    make_tar(tmp_path / "raw" / "x.tar", [])
    for to in FORMATS:
        assert "1 partition, 0 samples" in ok("convert", tmp_path / "raw", tmp_path / to, "--to", to)
    assert not list((tmp_path / "webdataset").glob("*.tar"))


@pytest.mark.parametrize("kind", FORMATS)
def test_inspect(raw: Path, tmp_path: Path, kind: str) -> None:
    ok("convert", raw, tmp_path / "out", "--to", kind)
    out = ok("inspect", tmp_path / "out")
    assert f"{kind}, 2 partitions, 4 samples, 12 rows" in out
    assert "4 metadata, 3 text, 5 image rows; 0 with an error" in out
    assert "  lang: JSON" in out
    assert "  n: double" in out
    assert "first sample: d1" in out
    assert "text of d1" in out


def test_inspect_of_raw_and_damaged_shards(raw: Path, tmp_path: Path) -> None:
    assert "webdataset, 2 partitions, 4 samples" in ok("inspect", raw)
    (raw / "a.tar").write_bytes(b"no tar")
    assert "a.tar" in refused("inspect", raw)
    assert "Parquet" in refused("inspect", _junk(tmp_path / "x.parquet"))
    assert "Lance" in refused("inspect", _junk(tmp_path / "x.lance" / "junk").parent)


def _junk(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"junk")
    return path


def test_help_and_usage() -> None:
    assert "convert" in fine(run_process("--help"))
    assert "--on-materialize-error" in ok("convert", "--help")
    refused(code=2)
    refused("frobnicate", code=2)
