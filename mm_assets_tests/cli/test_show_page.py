"""``mm-assets show --html``: pages, of hostile data too, and the file they are written to."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import ok, only_line, run
from mm_assets_tests.cli.documents import sample
from mm_assets_tests.cli.hostile_storage import HOSTILE_ID, SVG, bomb
from mm_assets_tests.formats.raw_tars import make_tar


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
