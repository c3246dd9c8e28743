"""Plots: what their bars say, what becomes of odd labels, and how long they are."""

import re
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from mm_assets.view import INLINE, image
from mm_assets.view.overview import DROPPED, KEPT, columns, rows, share

_SVG = "{http://www.w3.org/2000/svg}"
_MARKDOWN = re.compile(r"!\[\]\(<data:image/svg\+xml,([^<>]*)>\)")


def drawn(markdown: str) -> ElementTree.Element:
    """The SVG in a Markdown image; fails where it is anything else than one image."""
    match = _MARKDOWN.fullmatch(markdown)
    assert match is not None, markdown
    return ElementTree.fromstring(unquote(match[1]))


def bars(svg: ElementTree.Element, colour: str) -> str:
    return "".join(path.attrib["d"] for path in svg.iter(f"{_SVG}path") if path.attrib["stroke"] == colour)


def texts(svg: ElementTree.Element) -> list[str]:
    return [span.text or "" for span in svg.iter(f"{_SVG}tspan")]


def test_columns_are_as_high_as_their_counts() -> None:
    svg = drawn(columns(["a", "b", "c"], [10, 5, 0], [0, 5, 0]))
    # 360 pixels for three columns; 60 pixels for the highest, from 72 upwards
    assert bars(svg, KEPT) == "M59 72V12M179 72V42"
    assert bars(svg, DROPPED) == "M179 42V12"
    assert texts(svg) == ["10", "a", "b", "c"]


def test_small_counts_are_seen_and_none_are_not() -> None:
    svg = drawn(columns(["a", "b"], [1_000_000, 1]))
    assert bars(svg, KEPT) == "M89 72V12M269 72V71"
    assert bars(drawn(columns(["a"], [0])), KEPT) == ""


def test_rows_are_ranked_and_the_rest_is_summed_up() -> None:
    counts = {f"kind {number}": number for number in range(1, 10)}
    svg = drawn(rows(counts))
    assert texts(svg) == [*(f"{number} kind {number}" for number in range(9, 3, -1)), "6 in 3 others"]
    assert bars(svg, KEPT).startswith("M0 8h120M0 24h107")


def test_share_divides_one_bar() -> None:
    svg = drawn(share([("kept", 3, KEPT), ("dropped", 1, DROPPED)]))
    assert (bars(svg, KEPT), bars(svg, DROPPED)) == ("M0 11H270", "M270 11H360")
    assert texts(svg) == ["kept 3", "dropped 1"]
    assert texts(drawn(share([("kept", 0, KEPT), ("dropped", 0, DROPPED)]))) == ["kept 0", "dropped 0"]


HOSTILE = [
    "</text><script>alert(1)</script>",
    "'/><image href='http://127.0.0.1/x'/>",
    "a) ![](http://127.0.0.1/x) (b",
    "> ](javascript:alert(1))",
    "&lt;script&gt; &#60;b&#62; %3Cscript%3E \\> \n\n# heading",
    "\x00\x1b\ud800 control",
]


@pytest.mark.parametrize("label", HOSTILE)
def test_text_from_data_stays_text(label: str) -> None:
    markdown = rows({label: 2, "plain": 1})
    svg = drawn(markdown)
    assert {element.tag for element in svg.iter()} == {
        f"{_SVG}{tag}" for tag in ("svg", "path", "text", "tspan")
    }
    (shown, plain) = texts(svg)
    assert plain == "1 plain"
    printable = "".join(c if c.isprintable() and c != "\ud800" else " " for c in label)
    assert shown.removeprefix("2 ").rstrip("…") == printable[: len(shown.removeprefix("2 ").rstrip("…"))]
    assert len(shown) > 20 or shown == f"2 {printable}"


@pytest.mark.parametrize(
    "markdown",
    [
        columns(
            [label if n % 4 == 1 else "" for n, label in enumerate(["1/4"] * 18)], [10**9] * 18, [10**9] * 18
        ),
        columns(["256k"] * 9, [10**12 + n for n in range(9)], [10**12] * 9),
        rows({"𝄞ü<&>" * 100 + str(n): 10**12 + n for n in range(1000)}),
        share([("kept", 10**15, KEPT), ("dropped", 10**15, DROPPED)]),
    ],
)
def test_every_plot_is_shown_without_a_click(markdown: str) -> None:
    drawn(markdown)
    assert len(markdown) <= INLINE


def test_picture_is_one_image_of_markdown() -> None:
    assert image(b"\xff\x00", "image/webp") == "![](data:image/webp;base64,/wA=)"
