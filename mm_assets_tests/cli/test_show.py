"""``mm-assets show``: one sample of a storage or of any dataset, also unknown and hostile ones."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fsspec
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile

from mm_assets.accounting.ledger import ITEMS_SCHEMA, Ledger
from mm_assets.formats.parquet_file import publish_table
from mm_assets_tests.cli.commands import environment, ok, only_line, run
from mm_assets_tests.cli.documents import GOOD, WIDE, image, sample
from mm_assets_tests.cli.hostile_storage import HOSTILE_ID, SVG, bomb, fill_hostile, noise
from mm_assets_tests.cli.storage_root import fill
from mm_assets_tests.formats.parquet_of_others import curator, curator_rows
from mm_assets_tests.formats.raw_tars import make_tar


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw shards, and the same samples in each format."""
    folder = tmp_path_factory.mktemp("data")
    make_tar(folder / "raw" / "a.tar", [*sample("one"), *sample("two", url="https://x/y", tags=["a", "b"])])
    make_tar(folder / "raw" / "sub" / "b.tar", [*sample("three"), ("bad.json", b"{nope")])
    for kind in ("parquet", "webdataset", "lance", "arrow_cache", "jsonl"):
        arguments = ("--to", kind, "--on-materialize-error", "drop_row")
        run("convert", folder / "raw", folder / kind, *arguments)
    return folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_hostile(tmp_path_factory.mktemp("hostile"))


ITEMS = """\
  url: https://x/y
  tags: ["a","b"]
[0] text
    text of two
[1] image 30x20 png 72 B
[2] image 70x20 png 77 B
"""
REST = "1 further shard not looked in, as it was found before\n"


@pytest.mark.parametrize(
    ("name", "shard", "rest"),
    [
        ("raw", "a.tar", REST),
        ("raw/a.tar", "a.tar", ""),
        ("raw/*.tar", "a.tar", ""),
        ("parquet", "a.parquet, which has it from a.tar: two.json @3584+124", ""),
        ("webdataset", "a.tar", ""),
        ("lance", "items.lance, which has it from a.tar: two.json @3584+124", ""),
        ("arrow_cache", "a, which has it from a.tar: two.json @3584+124", REST),
        ("jsonl", "a.jsonl.gz, which has it from a.tar: two.json @3584+124", REST),
    ],
)
def test_a_sample_of_each_format(data: Path, name: str, shard: str, rest: str) -> None:
    folder = data / name.removesuffix("/a.tar").removesuffix("/*.tar")
    origin = f"shard a, from {folder}/{shard}"
    assert ok("show", "two", data / name) == f"sample two\n{origin}\n{ITEMS}{rest}"


def test_a_url_and_a_relative_path(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    assert ok("show", "two", "parquet") == ok("show", "two", f"file://{data}/parquet")


def test_documents_of_others(tmp_path: Path) -> None:
    texts = pa.array([["first", None], ["only"]], pa.list_(pa.string()))
    images = pa.array([[None, {"bytes": GOOD}], [None]], pa.list_(pa.struct([("bytes", pa.binary())])))
    table = pa.table({"key": ["x", "y"], "texts": texts, "images": images, "n": [1, 2]})
    pq.write_table(table, tmp_path / "d.parquet")
    flags = ("--sample-id-field", "key")
    assert ok("show", "x", tmp_path / "d.parquet", *flags).splitlines()[2:] == [
        "  n: 1",
        "[0] text",
        "    first",
        "[1] image 30x20 png 72 B",
    ]
    prefixed = ok("show", "d/x", tmp_path / "d.parquet", *flags, "--sample-id-prefix", "shard")
    assert prefixed.splitlines()[3:] == ["[0] text", "    first", "[1] image 30x20 png 72 B"]


def test_rows_of_others_that_lie_apart_in_several_row_groups(tmp_path: Path) -> None:
    """No order of rows, and no statistics are needed."""
    rows = [*curator_rows("a", "text of a", GOOD), *curator_rows("b", "text of b", WIDE)]
    curator(tmp_path / "c.parquet", rows)
    table = pq.read_table(tmp_path / "c.parquet").take([3, 1, 0, 2][: len(rows)] + list(range(4, len(rows))))
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=1, write_statistics=False)
    lines = ok("show", "a", tmp_path / "c.parquet").splitlines()
    assert [line for line in lines if line.startswith("[")] == ["[0] text", "[1] image 30x20 png 72 B"]


def test_what_a_raw_shard_has_no_use_for(data: Path) -> None:
    lines = ok("show", "bad", data / "raw").splitlines()
    assert lines[2] == "metadata"
    said = " ".join(line.strip() for line in lines[3:])
    assert said.startswith(f"! quarantined: bad_json: {data}/raw/sub/b.tar: bad.json: not JSON: ")
    assert said.endswith("! it was not read")


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
    uri = Ledger(root).items_uri("filtered_parquet", "a")
    publish_table(
        uri, pa.concat_tables([pq.read_table(uri), pa.Table.from_pylist([row], schema=ITEMS_SCHEMA)])
    )
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


def test_an_id_that_a_shard_has_twice(tmp_path: Path) -> None:
    second = [("second.json", {"sample_id": "twin", "texts": ["other"]})]
    make_tar(tmp_path / "raw" / "a.tar", [*sample("twin"), *second])
    fill(str(tmp_path / "storage"), str(tmp_path / "raw"))
    for arguments in (("--storage", tmp_path / "storage"), (tmp_path / "raw",)):
        out = ok("show", "twin", *arguments)
        assert out.count("text of twin") == 1 and out.count("duplicate_id") >= 1
        assert re.search(r"^metadata\n  ! quarantined.*: duplicate_id: ", out, re.M)


@pytest.mark.parametrize(
    "sample_id",
    ["it's", 'a"b', "日本 é", "a\nb\x1b[31m", "", " ", "%", "-x", "a/b/../c", "😀" * 30, "<b>&amp;"],
)
def test_odd_ids(tmp_path: Path, sample_id: str) -> None:
    members = [*sample("n", sample_id=f"{sample_id}x"), *sample("s", sample_id=sample_id)]
    make_tar(tmp_path / "raw" / "a.tar", members)
    fill(str(tmp_path / "storage"), str(tmp_path / "raw"))
    sources = ["raw", "storage/curated", "storage/webdataset", "storage/lance", "storage/arrow_cache"]
    outs = [ok("show", "--storage", tmp_path / "storage", "--", sample_id)]
    outs += [ok("show", "--", sample_id, tmp_path / source) for source in sources]
    for out in outs:
        assert "    text of s" in out.splitlines() and "text of n" not in out
        assert all(character.isprintable() for line in out.split("\n") for character in line)


@pytest.mark.parametrize("name", ["raw", "parquet", "webdataset", "lance", "arrow_cache", "jsonl"])
def test_an_unknown_id_is_one_line_with_those_like_it(data: Path, name: str) -> None:
    line = only_line(run("show", "TW", data / name))
    assert re.fullmatch(rf"{data}/{name}: no sample 'TW'; ids that contain it: 'two'", line)
    assert only_line(run("show", "none", data / name)) == f"{data}/{name}: no sample 'none'"


def test_an_unknown_id_of_a_storage(hostile: Path, tmp_path: Path) -> None:
    line = only_line(run("show", "tw", "--storage", hostile))
    assert (
        line
        == f"{hostile}: no sample 'tw', neither in an output nor in the ledger; ids that contain it: 'two'"
    )
    assert "no such folder" in only_line(run("show", "x", "--storage", tmp_path / "nowhere"))
    assert "no output of the graph is here" in only_line(run("show", "x", "--storage", tmp_path))


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


class _Page(HTMLParser):
    """The elements of a page, their attributes, and its text by element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


def page_of(sample_id: str, root: Path) -> tuple[str, _Page]:
    html = ok("show", "--storage", root, "--html", "-", "--", sample_id)
    return html, _Page(html)


ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "section", "article", "p", "div"),
    *("table", "tbody", "thead", "tr", "th", "td", "img", "pre"),
}


@pytest.mark.parametrize("sample_id", [HOSTILE_ID, "broken", "bomb", "bad", "two"])
def test_no_page_has_markup_of_the_data(hostile: Path, sample_id: str) -> None:
    html, found = page_of(sample_id, hostile)
    assert {tag for tag, _ in found.elements} <= ELEMENTS
    names = {name for _, attributes in found.elements for name in attributes}
    assert names <= {"lang", "charset", "http-equiv", "content", "name", "dir", "class", "src", "alt"}
    assert all(
        re.fullmatch(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+", str(img["src"]))
        for img in found.all("img")
    )
    policy = {"http-equiv": "Content-Security-Policy"}.items()
    (meta,) = [attributes for attributes in found.all("meta") if policy <= attributes.items()]
    assert str(meta["content"]).startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", html)


def test_the_page_of_a_hostile_sample(hostile: Path) -> None:
    html, found = page_of(HOSTILE_ID, hostile)
    assert '<h1 dir="auto">&lt;script&gt;alert(&#x27;id&#x27;)&lt;/script&gt;\\x1b[31m</h1>' in html
    assert (
        "&lt;script&gt;alert(1)&lt;/script&gt; &amp; \\x1b[2J\\x07 \\u202egnp.exe\nsecond &lt;b&gt;line"
        in html
    )
    assert '<th dir="auto">&lt;img src=x onerror=alert(4)&gt;</th>' in html
    assert '<p class="text" dir="auto">שלום עולם, זה טקסט מימין לשמאל</p>' in html
    large, tiff, wide = (str(img["src"]) for img in found.all("img"))
    assert large.startswith("data:image/webp") and tiff.startswith("data:image/webp")
    assert html.count("as WebP; the file is not in this page") == 2
    assert wide.startswith("data:image/png")
    assert '<article class="item filtered">\n<h3>[3] image 70x20 png 77 B · dropped</h3>' in html
    assert "<td>filtered by aspect_ratio: wider than max_ratio (score 3.5, asked for 1..2)</td>" in html
    assert len(html) < 1_500_000


def test_what_is_no_picture_is_not_embedded(hostile: Path) -> None:
    html, found = page_of("broken", hostile)
    assert len(found.all("img")) == 1  # the one that was dropped
    assert "&lt;svg xmlns=&quot;http://www.w3.org/2000/svg&quot; onload=" in html
    assert "image/svg" not in html
    html, found = page_of("bomb", hostile)
    assert len(found.all("img")) == 1
    assert "not shown: 60000x60000 pixels, at most 50000000" in html
    html, _ = page_of("bad", hostile)
    assert '<pre dir="auto">{nope</pre>' in html and "quarantined in curated_parquet: bad_json" in html


@pytest.mark.parametrize("kind", ["parquet", "webdataset", "lance", "arrow_cache", "jsonl"])
def test_hostile_bytes_in_each_format(tmp_path: Path, kind: str) -> None:
    """No filter and no check has seen them: the image column may hold anything."""
    for name, content in (("svg", SVG), ("html", b"<html><script>alert(1)</script>"), ("bomb", bomb())):
        make_tar(tmp_path / "raw" / f"{name}.tar", sample(name, content))
    done = run("convert", tmp_path / "raw", tmp_path / "out", "--to", kind, "--on-materialize-error", "warn")
    assert done.returncode == 0
    for name in ("svg", "html", "bomb"):
        assert "[1] image" in ok("show", name, tmp_path / "out")
        html = ok("show", name, tmp_path / "out", "--html", "-")
        assert len(_Page(html).all("img")) == 1 and "<script" not in html and "<svg" not in html


def test_the_file_appears_as_a_whole_and_replaces_only_files(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "page.html"
    assert ok("show", "two", data / "parquet", "--html", target) == f"{target}\n"
    first = target.read_text()
    assert first == ok("show", "two", data / "parquet", "--html", "-")
    assert os.listdir(target.parent) == ["page.html"]
    target.write_text("other")
    monkeypatch.chdir(target.parent)
    assert ok("show", "two", data / "parquet", "--html", "page.html") == "page.html\n"
    assert target.read_text() == first
    line = only_line(run("show", "two", data / "parquet", "--html", tmp_path))
    assert line == f"{tmp_path}: a folder, not a file to write"
    line = only_line(run("show", "two", data / "parquet", "--html", f"{tmp_path}/x/"))
    assert line == f"{tmp_path}/x/: a folder, not a file to write"
    assert only_line(run("show", "two", data / "parquet", "--html", "/dev/null")) == (
        "/dev/null: no regular file; - is standard output"
    )
    assert run("show", "none", data / "parquet", "--html", tmp_path / "none.html").returncode == 1
    assert sorted(os.listdir(tmp_path)) == ["new"]


def in_terminal(*arguments: object, **settings: str) -> str:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mm_assets.cli", *map(str, arguments)],
        stdout=theirs, env=environment(COLUMNS="60", **settings),
    )  # fmt: skip
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # it has ended
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    assert process.wait() == 0
    return written.decode().replace("\r\n", "\n")


def test_pictures_where_the_terminal_has_colours(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "p.png"
    picture = Image.new("RGB", (2, 3), (255, 0, 0))
    picture.putpixel((0, 1), (0, 0, 255))
    picture.save(path)
    make_tar(
        tmp_path / "raw" / "a.tar",
        [
            ("s.json", {"texts": [None, "x \x1b[2J " + "long " * 20], "images": ["p.png", None]}),
            ("p.png", path.read_bytes()),
        ],
    )
    plain = ok("show", "s", tmp_path / "raw", COLORTERM="truecolor")
    assert "\x1b" not in plain and "▀" not in plain
    assert "\x1b" not in in_terminal("show", "s", tmp_path / "raw", COLORTERM="")
    lines = in_terminal("show", "s", tmp_path / "raw", COLORTERM="truecolor").splitlines()
    assert lines[2:5] == [
        f"[0] image 2x3 png {path.stat().st_size} B",
        "    \x1b[38;2;255;0;0m\x1b[48;2;0;0;255m▀\x1b[38;2;255;0;0m\x1b[48;2;255;0;0m▀\x1b[0m",
        "    \x1b[38;2;255;0;0m▀\x1b[38;2;255;0;0m▀\x1b[0m",
    ]
    assert lines[5:7] == ["[1] text", "    x \\x1b[2J long long long long long long long long long"]
    assert max(len(line) for line in lines[5:]) <= 60


def test_a_large_dataset_costs_one_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Parquet, tars with an index and Lance only what the sample needs is read."""
    large = noise(200)
    assert len(large) > 100_000
    for shard in range(4):
        members = [m for n in range(5) for m in sample(f"{shard}-{n}", large + bytes(300_000))]
        make_tar(tmp_path / "raw" / f"{shard}.tar", members)
    files = fsspec.filesystem("memory")
    read = 0
    whole = MemoryFile.read

    def counted(self: MemoryFile, *arguments: Any) -> bytes:
        nonlocal read
        found = whole(self, *arguments)
        read += len(found)
        return found

    monkeypatch.setattr(MemoryFile, "read", counted)
    for kind, most in (("parquet", 3_000_000), ("webdataset", 600_000)):
        ok("convert", tmp_path / "raw", tmp_path / kind, "--to", kind)
        root = f"memory://show-{kind}"
        files.put(f"{tmp_path}/{kind}/", f"{root}/", recursive=True)
        read = 0
        assert "[1] image 200x200 png" in ok("show", "2-3", root)
        files.rm(root, recursive=True)
        assert read < most


def test_a_lance_table_of_others(tmp_path: Path, data: Path) -> None:
    rows = lance.dataset(str(data / "lance" / "items.lance")).to_table()
    lance.write_dataset(rows, str(tmp_path / "bare.lance"))
    out = ok("show", "two", tmp_path / "bare.lance")
    assert out.splitlines()[1].startswith(f"shard (not recorded), from {tmp_path}/bare.lance")
    assert out.endswith(ITEMS)
