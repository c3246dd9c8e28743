"""The commands on layouts of the field: image-text pairs, Parquet of others, fields of other names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.registry import FORMATS
from mm_assets.model.errors import counted
from mm_assets_tests.cli.commands import ok, refused, run
from mm_assets_tests.formats.datasets import read
from mm_assets_tests.formats.parquet_of_others import (
    IMAGE,
    PICTURES,
    curator,
    curator_rows,
    documents,
    image,
    interleaved,
)
from mm_assets_tests.formats.raw_tars import make_tar

P0, P1, P2 = PICTURES[:3]


def pairs(folder: Path) -> list[str]:
    """Tars as img2dataset writes them, with its other files beside them."""
    for shard in ("00000", "00001"):
        fields = {"caption": f"c {shard}", "width": 3, "url": "u"}
        members = [
            ("0.jpg", P0),
            ("0.txt", b"c"),
            ("0.json", fields),
            ("1.png", P1),
            ("1.json", {"caption": "d"}),
        ]
        make_tar(folder / f"{shard}.tar", [*members, ("2.PNG", P2), ("2.TXT", b"e")])
        documents(folder / f"{shard}.parquet", {"caption": (pa.string(), ["c"]), "url": (pa.string(), ["u"])})
        (folder / f"{shard}_stats.json").write_text("{}")
    return ["--sample-id-prefix", "shard"]


def hugging_face(folder: Path) -> list[str]:
    for shard in ("a", "b"):
        columns = interleaved(
            [["x", None], ["y", "z"]],
            [[None, image(0, "0.png")], [image(1), None]],
            n=(pa.int16(), [1, None]),
        )
        documents(folder / "sub" / f"{shard}.parquet", columns)
    return []


def of_curator(folder: Path) -> list[str]:
    for shard in ("a", "b"):
        rows = [*curator_rows("0", "x", P0, url="u"), *curator_rows("1", None, "y", P1)]
        curator(folder / f"{shard}.parquet", rows, [pa.field("url", pa.large_string())])
    return ["--sample-id-prefix", "shard"]


def other_names(folder: Path) -> list[str]:
    make_tar(
        folder / "a.tar",
        [("d.json", {"text_list": ["t", None], "image_list": [None, "d.pic"], "uid": "D"}), ("d.pic", P0)],
    )
    return [
        "--texts-field",
        "text_list",
        "--images-field",
        "image_list",
        "--image-extensions",
        "pic,png",
        "--sample-id-field",
        "uid",
    ]


SOURCES: dict[str, tuple[Callable[[Path], list[str]], int, int]] = {
    "pairs": (pairs, 6, 6),
    "hugging face": (hugging_face, 4, 4),
    "curator": (of_curator, 4, 4),
    "other names": (other_names, 1, 1),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("make", "samples", "images"), SOURCES.values(), ids=SOURCES)
def test_every_format_holds_what_the_source_holds(
    tmp_path: Path, make: Callable[[Path], list[str]], samples: int, images: int
) -> None:
    raw = tmp_path / "raw"
    flags = make(raw)
    for kind in FORMATS:
        done = run("convert", raw, tmp_path / kind, "--to", kind, *flags)
        written = f"{counted(samples, 'sample')}, {counted(images, 'image')}"
        assert done.returncode == 0 and written in done.stdout, done
    verified = run("verify", raw, *(tmp_path / kind for kind in FORMATS), *flags)
    assert (verified.returncode, verified.stdout.splitlines()[-1]) == (0, "equal"), verified
    inspected = run("inspect", raw, *flags)
    assert (
        counted(samples, "sample") in inspected.stdout
        and f"{images} image rows; 0 with an error" in inspected.stdout
    )
    ids = read("parquet", tmp_path / "parquet", fields=[])["sample_id"].unique().to_pylist()
    assert len(set(ids)) == samples
    if "shard" in flags:
        assert all(
            sample_id.partition("/")[0] in {file.name.split(".")[0] for file in raw.iterdir()}
            for sample_id in ids
        )


def test_what_a_pair_becomes(tmp_path: Path) -> None:
    flags = pairs(tmp_path / "raw")
    run("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet", *flags)
    rows = pq.read_table(tmp_path / "out" / "00001.parquet").to_pylist()
    assert [
        (r["sample_id"], r["position"], r["text_content"] or r["binary_content"])
        for r in rows
        if r["position"] >= 0
    ] == [
        ("00001/0", 0, "c"),
        ("00001/0", 1, P0),
        ("00001/1", 0, "d"),
        ("00001/1", 1, P1),
        ("00001/2", 0, "e"),
        ("00001/2", 1, P2),
    ]


def test_settings_hold_where_no_flag_is_given(tmp_path: Path) -> None:
    other_names(tmp_path / "raw")
    names = {
        "MM_TEXTS_FIELD": "text_list",
        "MM_IMAGES_FIELD": "image_list",
        "MM_IMAGE_EXTENSIONS": "pic",
        "MM_SAMPLE_ID_FIELD": "uid",
    }
    ok("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet", **names)
    assert ok("verify", tmp_path / "raw", tmp_path / "out", **names).endswith("equal\n")
    assert "1 text, 1 image rows" in ok("inspect", tmp_path / "raw", **names)
    assert "0 text, 0 image rows" in run("inspect", tmp_path / "raw").stdout


def test_the_setting_of_prefixes_is_for_data_of_others(tmp_path: Path) -> None:
    """Ids in ours have had theirs: once more only by the flag."""
    other_names(tmp_path / "raw")
    source, prefix = tmp_path / "raw", {"MM_SAMPLE_ID_PREFIX": "shard", "MM_MAX_LOSS": "1"}
    for kind in ("parquet", "webdataset", "parquet"):
        target = tmp_path / f"{source.name}-{kind}"
        ok("convert", source, target, "--to", kind, **prefix)
        assert read(kind, target)["sample_id"].unique().to_pylist() == ["a/d"]
        if source != tmp_path / "raw":
            assert ok("verify", source, target, **prefix).endswith("equal\n")
            flag = ("--sample-id-prefix", "shard")
            ok("convert", source, tmp_path / f"{target.name}-twice", "--to", kind, *flag)
            assert read(kind, tmp_path / f"{target.name}-twice")["sample_id"].unique().to_pylist() == [
                "a/a/d"
            ]
        source = target


def test_flags_that_say_nothing_of_the_source(tmp_path: Path) -> None:
    hugging_face(tmp_path / "docs")
    of_curator(tmp_path / "items")
    out = tmp_path / "out"
    message = refused("convert", tmp_path / "docs", out, "--to", "lance", "--per-image-fields", "n")
    assert message.endswith(
        f"--per-image-fields says nothing of {tmp_path}/docs/sub/a.parquet: its rows are documents"
    )
    message = refused("inspect", tmp_path / "items", "--texts-field", "n")
    assert message.endswith(f"--texts-field says nothing of {tmp_path}/items/a.parquet: its rows are items")


def test_other_parquet_is_refused_in_one_line(tmp_path: Path) -> None:
    documents(
        tmp_path / "raw" / "x.parquet", {"id": (pa.int64(), [1]), "images": (pa.list_(pa.int32()), [[1]])}
    )
    for command in (
        ["convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet"],
        ["inspect", tmp_path / "raw"],
    ):
        message = refused(*command)
        assert (
            "x.parquet: column 'images' is of a kind that is not read, list<element: int32>: images "
            "are lists of struct<bytes, path>, of bytes, or of names, or one of these a row; see docs/"
            in message
        )
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.parquet"))


def test_what_is_lost_is_told_and_listed(tmp_path: Path) -> None:
    bad = {"bytes": None, "path": "https://x/y.jpg"}
    documents(tmp_path / "raw" / "x.parquet", interleaved([["a"], ["b"]], [[image(0)], [bad]]))
    error = "dangling reference 'https://x/y.jpg': a URL, and nothing is fetched"
    assert f"sample 'x/1', position 0: {error}" in refused(
        "convert", tmp_path / "raw", tmp_path / "strict", "--to", "parquet"
    )
    out = ok(
        "convert",
        tmp_path / "raw",
        tmp_path / "out",
        "--to",
        "parquet",
        "--on-materialize-error",
        "drop_sample",
    )
    assert (
        "1 sample, 1 image" in out
        and "quarantined: 3 items (dangling_reference 1, incomplete_sample 2)" in out
    )
    listed = pq.read_table(tmp_path / "out" / "_ledger" / "x.parquet").to_pylist()
    assert [(row["source"], row["member"]) for row in listed] == [
        ("x.parquet", "row 1"), ("x.parquet", "row 1, texts[0]"), ("x.parquet", "row 1, images[0]"),
    ]  # fmt: skip


STRING = pa.string()
TURNS = pa.list_(pa.struct([("from", STRING), ("value", STRING)]))
PAIR = [image(0), image(1)]
UNTAKEN: dict[str, tuple[dict[str, tuple[pa.DataType, list[object]]], str]] = {
    "vqa": (
        {"image": (IMAGE, PAIR), "id": (STRING, ["1", "2"]), "question": (STRING, ["q", "r"]),
         "completion": (STRING, ["a", "b"])},
        "columns that look like text: question, completion",
    ),
    "llava": (
        {"image": (IMAGE, PAIR), "conversation": (TURNS, [[{"from": "human", "value": "x"}]] * 2)},
        "columns that look like text: conversation",
    ),
    "chat": (
        {"images": (pa.list_(IMAGE), [PAIR, PAIR]),
         "dialogue": (pa.list_(pa.struct([("role", STRING), ("content", STRING)])),
                      [[{"role": "user", "content": "x"}]] * 2)},
        "columns that look like text: dialogue",
    ),
    "captions": (
        {"image": (IMAGE, PAIR), "alt": (pa.list_(STRING), [["a", "b"]] * 2),
         "filename": (STRING, ["a", "b"])},
        "columns that look like text: alt",
    ),
    "images": (
        {"texts": (pa.list_(STRING), [["a"], ["b"]]), "jpg": (pa.binary(), [P0, P1])},
        "columns that look like images: jpg",
    ),
    "nothing": ({"image": (IMAGE, PAIR), "url": (STRING, ["a", "b"]), "license": (STRING, ["a", "b"])}, ""),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "told"), UNTAKEN.values(), ids=UNTAKEN)
def test_content_that_is_there_and_is_not_taken(
    tmp_path: Path, columns: dict[str, tuple[pa.DataType, list[object]]], told: str
) -> None:
    for shard in ("a", "b"):
        documents(tmp_path / "raw" / f"{shard}.parquet", columns)
    documents(tmp_path / "raw" / "c.parquet", interleaved([["x"]], [[image(0)]]))
    modality = "image" if "images: jpg" in told else "text"
    line = f"no {modality} was taken from 2 of 3 shards; {told}; see docs/raw_shards.md"
    for printed in (
        ok("inspect", tmp_path / "raw"),
        ok("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet"),
    ):
        assert [text.strip() for text in printed.splitlines() if "was taken" in text] == [line] * bool(told)


def test_fields_of_json_that_are_not_taken(tmp_path: Path) -> None:
    for number, fields in enumerate(({"description": "x", "boxes": [[1]]}, {"texts": "no list"})):
        make_tar(
            tmp_path / "tar" / f"{number}.tar",
            [(f"{number}.json", {"images": ["d.png"], **fields}), ("d.png", P0)],
        )
    line = (
        "no text was taken from 2 of 2 shards; field 'texts' is a string in 1.json: a list of strings is "
        "read from it; columns that look like text: description; see docs/raw_shards.md"
    )
    assert line in ok("inspect", tmp_path / "tar")
    assert line in ok("convert", tmp_path / "tar", tmp_path / "out", "--to", "parquet")
    make_tar(tmp_path / "lines" / "x.images.tar", [("d.png", P0)])
    (tmp_path / "lines" / "x.jsonl").write_text('{"images": ["d.png"], "story": ["x"]}\n')
    line = "no text was taken from 1 of 1 shard; columns that look like text: story; "
    assert line in ok("inspect", tmp_path / "lines")
    assert line in ok("convert", tmp_path / "lines", tmp_path / "lance", "--to", "lance")
    assert "was taken" not in ok("inspect", tmp_path / "lance" / "items.lance"), "ours: that was told once"


def test_inspect_says_what_convert_would(tmp_path: Path) -> None:
    make_tar(
        tmp_path / "raw" / "a.tar", [("d.json", {"text_list": ["t"], "image_list": ["d.png"]}), ("d.png", P0)]
    )
    reason = refused("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet").removeprefix(
        "mm-assets: "
    )
    assert "fields seen: text_list, image_list" in reason
    seen = run("inspect", tmp_path / "raw")
    assert f"convert would refuse {reason.removeprefix('error: ')}" in seen.stdout
    assert (seen.returncode, seen.stderr) == (1, "")
