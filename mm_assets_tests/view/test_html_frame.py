"""The frame of HTML pages, and pictures in them."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from mm_assets.formats.images import probe
from mm_assets.model.errors import html_text as text
from mm_assets.view import MOST_EMBEDDED, Picture, page, picture
from mm_assets_tests.cli.hostile_storage import bomb, noise
from mm_assets_tests.formats.images.pictures import KINDS


def shown(data: bytes, **options: int) -> Picture:
    return picture(memoryview(data), probe(data), **options)


def content(found: Picture) -> tuple[str, bytes]:
    kind, encoded = re.fullmatch(r"data:([a-z/]+);base64,([A-Za-z0-9+/=]+)", found.uri).groups()  # type: ignore[union-attr]
    return kind, base64.b64decode(encoded)


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    html = page("a </title><script>", "<p>body</p>", "p { color: red; }")
    assert (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'; base-uri 'none'\">"
    ) in html
    assert "<title>a &lt;/title&gt;&lt;script&gt;</title>" in html
    assert "p { color: red; }</style>" in html
    assert html.startswith("<!doctype html>") and "<body>\n<p>body</p>\n</body>" in html
    assert "http://" not in html and "https://" not in html and "<script" not in html


@pytest.mark.parametrize(
    ("value", "html"),
    [
        ("a < b & \"c\" 'd'", "a &lt; b &amp; &quot;c&quot; &#x27;d&#x27;"),
        ("\x1b[31m \x00", "\\x1b[31m \\x00"),
        ("line\n\ttab", "line\n\ttab"),
        ("\u202eexe.png", "\\u202eexe.png"),
        ("lone \ud800", "lone \\ud800"),
        ("שלום 日本 😀", "שלום 日本 😀"),
    ],
)
def test_text_of_data(value: str, html: str) -> None:
    assert text(value) == html


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_small_images_are_as_they_are_if_browsers_show_them(number: int) -> None:
    data = KINDS[number][1](number)
    info = probe(data)
    found = shown(data)
    kind, embedded = content(found)
    if info.format in ("jpg", "png", "webp", "gif"):
        assert (kind, embedded, found.note) == (info.content_type, data, "")
    else:
        size = f"{info.display_width}x{info.display_height}"
        assert kind == "image/webp"
        assert Image.open(io.BytesIO(embedded)).size == (info.display_width, info.display_height)
        assert found.note == f"a preview of {size}, as WebP; the file is not in this page"


def test_large_files_are_previews() -> None:
    data = noise(1500)
    assert len(data) > 2 * MOST_EMBEDDED
    kind, embedded = content(shown(data))
    assert kind == "image/webp" and Image.open(io.BytesIO(embedded)).size == (1024, 1024)
    assert Image.open(io.BytesIO(content(shown(data, side=100))[1])).size == (100, 100)
    small = noise(50)
    assert content(shown(small)) == ("image/png", small)
    assert content(shown(small, most_embedded=0))[0] == "image/webp"


def test_a_preview_stands_upright_and_keeps_its_shades() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.new("RGB", (40, 20)).save(out, "JPEG", exif=exif)
    assert Image.open(io.BytesIO(content(shown(out.getvalue(), most_embedded=0))[1])).size == (20, 40)
    out = io.BytesIO()
    Image.fromarray(np.linspace(1000, 5000, 64 * 64).astype(np.uint16).reshape(64, 64)).save(out, "TIFF")
    grey = np.asarray(Image.open(io.BytesIO(content(shown(out.getvalue()))[1])).convert("L"))
    assert grey[0].mean() < 10 and 110 < grey[32].mean() < 145 and grey[-1].mean() > 245


def test_what_cannot_be_shown_says_why() -> None:
    found = shown(bomb())
    assert found == Picture(note="not shown: 60000x60000 pixels, at most 50000000")
    assert found.html("x") == '<p class="note">not shown: 60000x60000 pixels, at most 50000000</p>'
    cut = noise(40, "TIFF")[:200]
    assert shown(cut).uri == "" and shown(cut).note.startswith("it cannot be shown: ")


def test_the_type_is_that_of_the_bytes_and_the_description_is_text() -> None:
    data = noise(5)
    encoded = base64.b64encode(data).decode()
    html = shown(data).html('"><script>')
    assert html == f'<img src="data:image/png;base64,{encoded}" alt="&quot;&gt;&lt;script&gt;">'
