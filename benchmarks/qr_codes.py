"""QR codes put into pictures at a known size, and codes that are none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]

_TEXTS = ("HELLO 12", "https://example.org/some/path?x=12345", "https://example.org/" + "abc123" * 20)
_MODULE = 8  # pixels, before the code is scaled to its place
_FINER = 3  # pixels for each, which are averaged at last


def with_qr_code(
    picture: Picture,
    share: float,
    rng: np.random.Generator,
    angle: float = 0,
    tilt: float = 0,
    inverted: bool = False,
    quiet: int = 4,
) -> tuple[Picture, float]:
    """A picture with a code of about ``share`` of its area somewhere, and the share it has.

    ``angle`` in degrees; ``tilt`` says how much nearer its lower edge is, ``quiet`` how many modules of
    margin it has.
    """
    import cv2

    height, width = picture.shape[:2]
    code = _code(str(rng.choice(_TEXTS)), "QRCode", quiet)
    margin, side = quiet * _MODULE, code.shape[0]
    corners = _corners((share * height * width) ** 0.5, angle, tilt)
    reach = np.abs(corners).max(0) * side / (side - 2 * margin) + 2
    shrink = min(1.0, float((np.array([width, height]) / (2 * reach)).min()))
    corners, reach = corners * shrink, reach * shrink
    centre = rng.uniform(reach, np.maximum(reach, [width, height] - reach))
    placed = (corners + centre).astype(np.float32)
    edge = side - margin
    from_ = np.array([[margin, margin], [edge, margin], [edge, edge], [margin, edge]], np.float32)
    way = np.diag([_FINER, _FINER, 1.0]) @ cv2.getPerspectiveTransform(from_, placed)
    size = (width * _FINER, height * _FINER)
    layers = [
        cv2.resize(cv2.warpPerspective(layer, way, size), (width, height), interpolation=cv2.INTER_AREA)
        for layer in (255 - code if inverted else code, np.full_like(code, 255))
    ]
    cover = layers[1][..., None] / 255
    made = np.clip(picture * (1 - cover) + layers[0][..., None], 0, 255).astype(np.uint8)
    return made, float(cv2.contourArea(placed)) / (height * width)


def other_code(picture: Picture, kind: str) -> Picture:
    """A picture with a code of another kind in its upper left corner."""
    code = _code(_TEXTS[1], kind, 4)[: picture.shape[0], : picture.shape[1]]
    made = picture.copy()
    made[: code.shape[0], : code.shape[1]] = code[..., None]
    return made


def _code(text: str, kind: str, quiet: int) -> Picture:
    import zxingcpp

    made = zxingcpp.create_barcode(text, getattr(zxingcpp.BarcodeFormat, kind))
    dots = np.pad(np.array(made.to_image(scale=1, add_quiet_zones=False)), quiet, constant_values=255)
    return np.kron(dots, np.ones((_MODULE, _MODULE), np.uint8)).astype(np.uint8)


def _corners(side: float, angle: float, tilt: float) -> npt.NDArray[np.float64]:
    """Corners of a square around (0, 0), clockwise from the upper left, tilted and then turned."""
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * side / 2
    square = square / (square[:, 1:] / side * tilt + 1)
    turn = np.radians(angle)
    return np.asarray(square @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]))
