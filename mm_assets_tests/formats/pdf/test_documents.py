"""What a PDF becomes: its texts and images in reading order, with page, box and locator."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from mm_assets.formats.materialize import materialize_table
from mm_assets.formats.pdf import page_content
from mm_assets.formats.pdf.shard import PdfAddress
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets_tests.formats.pdf.pdf_files import (
    Page,
    Picture,
    jpeg,
    jpeg_picture,
    lines,
    pdf,
    raw_picture,
    stream,
    text,
)
from mm_assets_tests.formats.pdf.reading import files_in, items, read, read_one

RED, BLUE = jpeg(200, 10, 10), jpeg(10, 10, 200, width=33, height=21)
PLACE = (50.0, 400.0, 120.0, 80.0)  # left, bottom, width, height on a page of 600 x 800


def _picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_texts_and_images_in_reading_order_with_page_and_box(tmp_path: Path) -> None:
    first = Page(
        lines(["right one", "right two"], 320, 700)
        + lines(["left one", "left two"], 50, 700)
        + text("A title that goes over both of the columns", 100, 760, 20),
        [jpeg_picture(RED, (50, 500, 120, 80)), jpeg_picture(BLUE, (320, 480, 120, 80))],
    )
    rows = read_one(
        tmp_path, pdf([first, Page(), Page(lines(["last page"], 50, 700))], "/Title (On pages) /Author (Me)")
    )
    assert [(row["position"], row["modality"], row["page"]) for row in rows] == [
        (-1, "metadata", None),
        (0, "text", 1),
        (1, "text", 1),
        (2, "image", 1),
        (3, "text", 1),
        (4, "image", 1),
        (5, "text", 3),
    ]
    assert items(rows) == [
        "A title that goes over both of the columns",
        "left one\nleft two",
        RED,
        "right one\nright two",
        BLUE,
        "last page",
    ]
    assert [row["content_type"] for row in rows if row["modality"] == "image"] == ["image/jpeg"] * 2
    assert rows[3]["box"] == [0.0833, 0.275, 0.2833, 0.375]  # 50, 220, 170 and 300 points
    left, top, right, bottom = rows[2]["box"]
    assert (left, round(right, 2)) == (0.0833, 0.14)
    assert 0.11 < top < 0.125
    assert 0.14 < bottom < 0.15
    metadata = rows[0]
    assert (metadata["sample_id"], metadata["pages"], metadata["title"], metadata["author"]) == (
        "doc",
        3,
        "On pages",
        "Me",
    )
    assert json.loads(metadata["page_sizes"]) == [[600, 800]] * 3


def test_locators_name_page_and_block_and_those_of_jpegs_are_bytes_of_the_file(tmp_path: Path) -> None:
    data = pdf([Page(lines(["words"], 50, 700), [jpeg_picture(RED, PLACE)])])
    locations = files_in(tmp_path, {"doc.pdf": data})
    rows, _ = read(locations)
    refs = [json.loads(row["source_ref"]) for row in rows["docs"]]
    assert refs == [
        {"path": "docs/doc.pdf", "member": None, "byte_offset": 0, "byte_size": len(data)},
        {"path": "docs/doc.pdf", "member": "page 1, block 1", "byte_offset": None, "byte_size": None},
        {
            "path": "docs/doc.pdf",
            "member": "page 1, block 2",
            "byte_offset": data.index(RED),
            "byte_size": len(RED),
        },
    ]


def test_what_is_fetched_by_a_locator_is_the_jpeg_or_one_line_that_says_why_not(tmp_path: Path) -> None:
    page = Page(pictures=[jpeg_picture(RED, PLACE), raw_picture(bytes(12), 2, 2, (50, 200, 50, 50))])
    locations = files_in(tmp_path, {"doc.pdf": pdf([page])})
    rows, _ = read(locations)
    emptied = [{**row, "binary_content": None} for row in rows["docs"] if row["modality"] == "image"]
    table = pa.Table.from_pylist(
        [{name: row[name] for name in INTERLEAVED_SCHEMA.names} for row in emptied],
        schema=INTERLEAVED_SCHEMA,
    )
    root = PdfAddress((locations.removeprefix("pdf="),)).url
    found = materialize_table(table, [root]).to_pylist()
    assert found[0]["binary_content"] == RED
    assert found[1]["materialize_error"] == (
        "docs/doc.pdf: page 1, block 2: what is made from a page of a PDF has no place in bytes: "
        "read the file again"
    )


def test_pixels_of_other_images_are_kept_exactly(tmp_path: Path) -> None:
    pixels = bytes(range(0, 240, 10)) + bytes(12)
    rows = read_one(tmp_path, pdf([Page(pictures=[raw_picture(pixels, 4, 3, PLACE)])]))
    picture = _picture(items(rows)[0])
    assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (4, 3))
    assert picture.tobytes() == pixels


MASK = stream(
    bytes([0, 255]),
    "/Type /XObject /Subtype /Image /Width 2 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8",
)


@pytest.mark.parametrize(
    "picture",
    [
        jpeg_picture(RED, PLACE, "/Decode [1 0 1 0 1 0]"),
        jpeg_picture(jpeg(0, 255, 255, 0, mode="CMYK"), PLACE),
        jpeg_picture(RED, PLACE, SMask=MASK),
        jpeg_picture(RED, PLACE, "/Mask [190 210 0 20 0 20]"),
        jpeg_picture(
            jpeg(90, mode="L"), PLACE, "", ColorSpace=b"[/Indexed /DeviceRGB 255 <" + b"00ff00" * 256 + b">]"
        ),
        jpeg_picture(RED, PLACE, "/DecodeParms << /ColorTransform 0 >>"),
        jpeg_picture(RED, PLACE, "/Dec#6fde [1 0 1 0 1 0]"),
    ],
    ids=["decode array", "cmyk", "soft mask", "colour key", "indexed", "transform", "escaped name"],
)
def test_a_jpeg_that_is_shown_otherwise_becomes_png(tmp_path: Path, picture: Picture) -> None:
    rows = read_one(tmp_path, pdf([Page(pictures=[picture])]))
    assert [row["content_type"] for row in rows[1:]] == ["image/png"]
    assert json.loads(rows[1]["source_ref"])["byte_offset"] is None


def test_a_decode_array_and_a_mask_are_applied(tmp_path: Path) -> None:
    inverted = jpeg_picture(RED, PLACE, "/Decode [1 0 1 0 1 0]")
    masked = jpeg_picture(BLUE, (50, 200, 100, 100), SMask=MASK)
    rows = read_one(tmp_path, pdf([Page(pictures=[inverted, masked])]))
    first, second = (_picture(data) for data in items(rows))
    red, green, blue = first.convert("RGB").getpixel((30, 20))  # type: ignore[misc]
    assert (abs(red - 55) < 4, abs(green - 245) < 4, abs(blue - 245) < 4) == (True, True, True)
    assert (second.mode, second.size) == ("RGBA", (33, 21))
    assert (second.getpixel((2, 10))[3], second.getpixel((30, 10))[3]) == (0, 255)  # type: ignore[index]


def test_pdfs_of_pillow(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 48), (1, 200, 30)).save(file, "PDF", title="By Pillow")
    rows = read_one(tmp_path, file.getvalue())
    assert rows[0]["title"] == "By Pillow"
    picture = _picture(items(rows)[0])
    assert (picture.format, picture.size) == ("JPEG", (64, 48))
    assert items(rows)[0] in file.getvalue()


def test_an_image_with_too_many_pixels_is_an_error_row_and_is_not_decoded(tmp_path: Path) -> None:
    bomb = raw_picture(bytes(100), 60_000, 60_000, PLACE)
    rows = read_one(tmp_path, pdf([Page(lines(["fine"], 50, 700), [bomb])]))
    assert (rows[1]["text_content"], rows[2]["binary_content"]) == ("fine", None)
    assert rows[2]["materialize_error"] == (
        f"decompression bomb: 60000x60000 pixels, at most {page_content.MAX_PIXELS}"
    )
    assert (rows[2]["page"], rows[2]["box"]) == (1, [0.0833, 0.4, 0.2833, 0.5])


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (jpeg_picture(RED, PLACE, data=b"no jpeg at all"), "unreadable image: "),
        (jpeg_picture(RED, PLACE, "/Decode [1 0 1 0 1 0]", data=RED[:-200]), "unreadable image: "),
        (raw_picture(bytes(30), 4, 3, PLACE), "30 of 36 bytes of pixels are there"),
    ],
    ids=["no jpeg", "cut jpeg", "few pixels"],
)
def test_an_image_whose_data_are_not_whole_is_an_error_row(
    tmp_path: Path, picture: Picture, says: str
) -> None:
    rows = read_one(tmp_path, pdf([Page(lines(["fine"], 50, 700), [picture])]))
    assert (rows[1]["text_content"], rows[2]["binary_content"]) == ("fine", None)
    error = str(rows[2]["materialize_error"])
    assert error.startswith("unreadable image: ")
    assert says in error


IMAGE = b"/Type /XObject /Subtype /Image"


def _of_object(data: bytes, old: bytes, new: bytes) -> bytes:
    """The file with a change of the first image's object; nothing else has another place."""
    at = data.index(IMAGE)
    begin, end = data.rindex(b" obj", 0, at) - 4, data.index(b"stream", at) + 6
    assert len(old) == len(new)
    assert old in data[begin:end]
    return data[:begin] + data[begin:end].replace(old, new, 1) + data[end:]


def _elsewhere(data: bytes) -> bytes:
    """The file with another place of the first image's object in the table."""
    start = data.rindex(b"\n", 0, data.index(b" obj", data.index(IMAGE) - 20))
    entry = f"{data.rindex(b' 0 obj', 0, data.index(IMAGE)) - 1:010} 00000 n".encode()
    assert entry in data
    return data.replace(entry, f"{start - 40:010} 00000 n".encode())


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "header": lambda data: _of_object(data, b" obj", b" xbj"),
    "dictionary": lambda data: _of_object(data, b"<< /Type", b"<? /Type"),
    "kind": lambda data: _of_object(data, b"/Subtype /Image", b"/Subtype /Imxge"),
    "stream": lambda data: _of_object(data, b"stream", b"strxam"),
    "width": lambda data: _of_object(data, b"/Width", b"/Wxdth"),
    "table": _elsewhere,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_image_whose_object_is_damaged_is_an_error_row(tmp_path: Path, damage: str) -> None:
    whole = pdf(
        [
            Page(text("above", 50, 750), [jpeg_picture(jpeg(9, 9, 9), (50, 500, 60, 40))]),
            Page(text("next", 50, 750), [jpeg_picture(jpeg(8, 8, 8), (50, 500, 60, 40))]),
        ]
    )
    found = read_one(tmp_path, DAMAGES[damage](whole))
    assert [row["text_content"] for row in found if row["modality"] == "text"] == ["above", "next"]
    lost, other = (row for row in found if row["modality"] == "image")
    assert lost["materialize_error"].startswith("unreadable image: ")
    if damage == "width":  # pdfium finds it, as it always did
        assert lost["materialize_error"] == "unreadable image: Failed to get bitmap of image."
    else:
        assert "/Im0" in lost["materialize_error"]
    assert (lost["binary_content"], lost["page"]) == (None, 1)
    assert (other["materialize_error"], other["page"]) == (None, 2)


def test_what_is_not_drawn_or_drawn_twice_is_no_loss(tmp_path: Path) -> None:
    picture = jpeg_picture(jpeg(9, 9, 9), (50, 500, 60, 40))
    entries = f"/Type /XObject /Subtype /Image {picture.dictionary}"
    image = stream(picture.data, entries)
    mask = stream(b"\xaa" * 8, "/Type /XObject /Subtype /Image /ImageMask true /Width 8 /Height 8")
    form = "/Type /XObject /Subtype /Form /BBox [0 0 99 99]"
    of_inner = "/Resources << /XObject << /X 5 0 R >> >>"
    inner = stream(b"q 50 0 0 50 0 0 cm /I Do Q", f"{form} /Resources << /XObject << /I 4 0 R >> >>")
    outer = stream(zlib.compress(b"/X Do /X Do"), f"{form} /Filter /FlateDecode {of_inner}")
    inline = b"q 9 0 0 9 9 9 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \x80 EI Q\n"
    draws = b"q 60 0 0 40 50 300 cm /I Do Q q 60 0 0 40 50 200 cm /I Do Q q 8 0 0 8 5 5 cm /M Do Q /O Do\n"
    more = "/Resources << /XObject << /I 4 0 R /O 6 0 R /M 7 0 R /Gone 99 0 R /Unused 4 0 R >> >>"
    first = Page(draws + inline, first=[image, inner, outer, mask], more=more)
    found = read_one(tmp_path, pdf([first, Page(b"/Gone Gs q 9 0 0 9 9 9 cm /I Do Q", more=more)]))
    assert [(row["page"], row["materialize_error"]) for row in found[1:]] == [(1, None)] * 6 + [(2, None)]


def test_special_characters_and_hyphens(tmp_path: Path) -> None:
    words = ["Gr\u00fc\u00dfe (\u20ac) \\ and a hyphen-", "ated word"]
    rows = read_one(tmp_path, pdf([Page(lines(words, 50, 700))]))
    assert items(rows) == ["Gr\u00fc\u00dfe (\u20ac) \\ and a hyphen-\nated word"]


def test_turned_pages_are_read_as_they_are_shown(tmp_path: Path) -> None:
    content = b"0 1 -1 0 600 0 cm\n" + lines(["first", "second"], 50, 500)
    rows = read_one(tmp_path, pdf([Page(content, more="/Rotate 90")]))
    assert items(rows) == ["first\nsecond"]
    assert json.loads(rows[0]["page_sizes"]) == [[800, 600]]
    left, top, _, _ = rows[1]["box"]
    assert (round(left, 3), round(top, 2)) == (0.062, 0.15)


def test_images_in_forms_have_their_place_on_the_page(tmp_path: Path) -> None:
    image = jpeg_picture(RED, (0, 0, 1, 1))
    entries = f"/Type /XObject /Subtype /Image {image.dictionary}"
    form = stream(
        b"q 10 0 0 10 5 5 cm /Im Do Q",
        "/Type /XObject /Subtype /Form /BBox [0 0 20 20] /Resources << /XObject << /Im {image} 0 R >> >>",
    )
    number = 4  # the first object behind catalog, pages and font
    form = form.replace(b"{image}", str(number).encode())
    form = form.replace(f"/Length {len(b'q 10 0 0 10 5 5 cm /Im Do Q')}".encode(), b"/Length 27")
    page = Page(b"q 6 0 0 8 0 0 cm /Form Do Q\n", more="", forms={"Form": form}, first=[stream(RED, entries)])
    rows = read_one(tmp_path, pdf([page]))
    assert items(rows) == [RED]
    assert rows[1]["box"] == [0.05, 0.85, 0.15, 0.95]


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    page = Page(
        lines(["words"], 50, 700), [jpeg_picture(RED, PLACE), raw_picture(bytes(12), 2, 2, (9, 9, 9, 9))]
    )
    made = []
    for name in ("one", "two"):
        locations = files_in(tmp_path / name, {"doc.pdf": pdf([page])})
        rows, _ = read(locations)
        made.append(rows)
    assert made[0] == made[1]


def test_threads_take_turns(tmp_path: Path) -> None:
    """pdfium may be called by one thread at a time."""
    locations = [
        files_in(
            tmp_path / str(number),
            {"doc.pdf": pdf([Page(lines([f"page {page}"], 50, 700)) for page in range(9)])},
        )
        for number in range(8)
    ]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda location: items(read(location)[0]["docs"]), locations))
    assert found == [[f"page {page}" for page in range(9)]] * 8
