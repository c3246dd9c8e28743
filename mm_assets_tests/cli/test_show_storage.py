"""``mm-assets show`` with one sample of a storage: what was dropped, flagged or quarantined, and scores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.parquet import publish_table
from mm_assets_tests.cli.commands import ok, only_line, run
from mm_assets_tests.cli.documents import image, sample
from mm_assets_tests.cli.hostile_storage import SVG
from mm_assets_tests.cli.storage_root import fill
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.published import account, record_in, rewrite


def test_dropped_quarantined_and_where_the_bytes_are(hostile: Path) -> None:
    dropped = [
        "[2] image 70x20 png 77 B",
        "    ! dropped in filtered_parquet by aspect_ratio: wider than max_ratio (score 3.5, asked for 1..2)",
    ]
    lines = ok("show", "two", "--storage", hostile).splitlines()
    assert lines[0] == "sample two" and lines[1].startswith("shard a, from a.tar: two.json @")
    assert lines[2:] == [
        "  url: https://x/two",
        "[0] text",
        "    text of two",
        "[1] image 30x20 png 72 B",
        *dropped,
    ]
    assert ok("show", "broken", "--storage", hostile).splitlines()[2:] == [
        "[0] text",
        "    text of broken",
        f"[1] image {len(SVG)} B",
        "    ! quarantined in curated_parquet: undecodable_image: unreadable image: unknown image format,",
        "    begins with 3c 73 76 67 20 78 6d 6c",
        f"    raw: {len(SVG)} bytes",
        f"      {SVG.decode()}",
        *dropped,
    ]
    assert ok("show", "bad", "--storage", hostile).splitlines()[-2:] == ["  raw: 5 bytes", "    {nope"]


def test_an_item_that_is_flagged_is_kept_and_says_so(tmp_path: Path) -> None:
    make_tar(tmp_path / "raw" / "a.tar", sample("one"))
    root = str(tmp_path / "storage")
    fill(root, str(tmp_path / "raw"))
    row = {
        "asset": "filtered_parquet", "partition": "a", "sample_id": "one", "position": 1, "modality": "image",
        "outcome": "flagged", "kind": "sharpness", "reason": "blurred", "score": 12.5, "threshold": ">= 80",
        "is_cause": True,
    }  # fmt: skip
    path = account(root, "filtered_parquet", "a")
    rows = pq.read_table(path)
    rewrite(path, record_in(path), pa.concat_tables([rows, pa.Table.from_pylist([row], schema=rows.schema)]))
    assert ok("show", "one", "--storage", root).splitlines()[4:6] == [
        "[1] image 30x20 png 72 B",
        "    ! flagged in filtered_parquet by sharpness: blurred (score 12.5, asked for >= 80)",
    ]
    html = ok("show", "one", "--storage", root, "--html", "-")
    assert '<article class="item flagged">\n<h3>[1] image 30x20 png 72 B · flagged</h3>' in html
    assert "<td>kept; flagged by sharpness: blurred (score 12.5, asked for &gt;= 80)</td>" in html
    assert "kept; flagged by sharpness" in ok("explain", "one", "--storage", root)


def test_scores_of_all_columns_and_of_the_sample(tmp_path: Path) -> None:
    make_tar(tmp_path / "raw" / "a.tar", sample("one"))
    root = str(tmp_path / "storage")
    fill(root, str(tmp_path / "raw"))
    image_scores = pa.table(
        {
            "sample_id": ["one", "one"],
            "position": pa.array([1, 2], pa.int32()),
            "sharpness": [81.25, None],
            "phash": [b"\x01\xff", None],
            "embedding": [[0.5] * 12, None],
        }
    )
    publish_table(f"{root}/scores/a.parquet", image_scores)
    sample_scores = pa.table({"sample_id": ["one"], "words": [3], "language": ["en"]})
    publish_table(f"{root}/sample_scores/a.parquet", sample_scores)
    lines = ok("show", "one", "--storage", root).splitlines()
    assert lines[2] == "  words 3 · language en"
    numbers = ", ".join(["0.5"] * 8)
    assert " ".join(line.strip() for line in lines[6:8]) == (
        f"sharpness 81.25 · phash 0x01ff · embedding [{numbers}, …] (12 values)"
    )
    html = ok("show", "one", "--storage", root, "--html", "-")
    assert "words 3 · language en</p>" in html and "sharpness 81.25 · phash 0x01ff" in html


def test_without_curated_parquet_the_filtered_one_is_shown(data: Path, tmp_path: Path) -> None:
    fill(str(tmp_path), str(data / "raw"), policy="drop_row")
    shutil.rmtree(tmp_path / "curated")
    lines = ok("show", "two", "--storage", tmp_path).splitlines()
    assert lines[2] == "  curated_parquet is not there: the content is that of filtered_parquet"
    assert lines[-2:] == [
        "    ! dropped in filtered_parquet by aspect_ratio: wider than max_ratio (score 3.5, asked for 1..2)",
        "    ! its content is in no output, only in the raw shard",
    ]
    shutil.rmtree(tmp_path / "filtered")
    lines = ok("show", "two", "--storage", tmp_path).splitlines()
    assert lines[2] == "  neither curated_parquet nor filtered_parquet is there: no content can be shown"


def test_an_id_of_two_shards_is_shown_in_both(tmp_path: Path) -> None:
    """As when two runs over other raw shards have filled a storage."""
    storage = tmp_path / "storage"
    for name, width in (("a", 30), ("b", 40)):
        make_tar(tmp_path / name / f"{name}.tar", sample("twin", image(width)))
        fill(str(storage), str(tmp_path / name), ("curated_parquet", "filtered_parquet", "final_tars"))
    for arguments in (("--storage", storage), (storage / "curated",), (storage / "webdataset",)):
        lines = ok("show", "twin", *arguments).splitlines()
        assert [line.split(",")[0] for line in lines if line.startswith("shard")] == ["shard a", "shard b"]
        assert [line for line in lines if line.startswith("[1]")] == [
            f"[1] image 30x20 png {len(image(30))} B",
            f"[1] image 40x20 png {len(image(40))} B",
        ]


def test_an_unknown_id_of_a_storage(hostile: Path, tmp_path: Path) -> None:
    line = only_line(run("show", "tw", "--storage", hostile))
    assert (
        line
        == f"{hostile}: no sample 'tw', neither in an output nor in the ledger; ids that contain it: 'two'"
    )
    assert "no such folder" in only_line(run("show", "x", "--storage", tmp_path / "nowhere"))
    assert "no output of the graph is here" in only_line(run("show", "x", "--storage", tmp_path))
