"""The share of a picture that QR codes cover."""

from __future__ import annotations

import numpy as np
import pytest
import zxingcpp

from mm_assets.filters.measures import QrArea
from mm_assets_tests.filters.measures.contents import Picture, content_of, noise, pasted, qr_code, scene


def area(picture: Picture) -> float:
    return QrArea().measure(content_of(picture))


@pytest.mark.parametrize("module", [3, 8])
def test_the_area_of_a_code(module: int) -> None:
    code = qr_code("a text", module)
    page = pasted(code, 400, 600, 90, 200)
    share = code.size / page.size
    assert area(page) == pytest.approx(share, rel=0.02)
    assert area(255 - page) == pytest.approx(share, rel=0.02)
    assert area(np.rot90(page)) == pytest.approx(share, rel=0.02)


def test_several_codes_add_up() -> None:
    first, second = qr_code("one", 5), qr_code("another one", 4)
    page = pasted(first, 400, 600, 30, 30)
    page[200 : 200 + second.shape[0], 300 : 300 + second.shape[1]] = second
    assert area(page) == pytest.approx((first.size + second.size) / page.size, rel=0.02)


def test_a_code_in_a_photograph() -> None:
    picture = scene(600, 800)
    code = np.pad(qr_code("https://example.org/", 6), 24, constant_values=255)
    picture[100 : 100 + code.shape[0], 300 : 300 + code.shape[1]] = code[..., None]
    image = content_of(picture, "JPEG", quality=40)
    assert QrArea().measure(image) == pytest.approx((code.shape[0] - 48) ** 2 / 480_000, rel=0.03)


def test_a_code_in_a_large_picture() -> None:
    """Scaled down before it is looked for; the share is that of the picture."""
    code = qr_code("large", 30)
    page = pasted(code, 1800, 2400, 500, 700)
    assert area(page) == pytest.approx(code.size / page.size, rel=0.02)


def test_no_more_than_all() -> None:
    assert area(np.pad(qr_code("alone", 8), 32, constant_values=255)) <= 1


@pytest.mark.parametrize("kind", ["DataMatrix", "Aztec", "PDF417", "Code128"])
def test_other_codes_do_not_count(kind: str) -> None:
    code = zxingcpp.create_barcode("a text", getattr(zxingcpp.BarcodeFormat, kind))
    dots = np.array(code.to_image(scale=1, add_quiet_zones=True), np.uint8)
    assert area(np.kron(dots, np.ones((6, 6), np.uint8))) == 0.0


@pytest.mark.parametrize(
    "picture",
    [noise(200, 300), scene(200, 300), np.zeros((1, 1), np.uint8), noise(1, 5000), noise(2, 2)],
    ids=["noise", "scene", "one pixel", "one row", "four pixels"],
)
def test_none_where_there_is_none(picture: Picture) -> None:
    assert area(picture) == 0.0
