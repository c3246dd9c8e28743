"""Text of a page as pieces of lines, from the characters that pdfium finds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mm_assets.formats.pdf.geometry import Box, Frame, union
from mm_assets.formats.pdf.layout import Piece

if TYPE_CHECKING:
    from pypdfium2 import PdfPage

_LINE_ENDS = "\r\n"
_HYPHENS = "\x02\ufffe"  # pdfium's marks of a hyphen at the end of a line
_FAR = 1.0  # heights of a character: a wider gap ends a piece
_LEAST_HEIGHT = 0.01  # points: characters of a broken font have none


def pieces_of(page: PdfPage, frame: Frame) -> list[Piece]:
    """Return the pieces of lines, in the order of the file."""
    import pypdfium2.raw as pdfium

    text_page = page.get_textpage()
    try:
        rectangle = pdfium.FS_RECTF()
        pieces = _Pieces()
        for index in range(text_page.count_chars()):
            character = _character(pdfium.FPDFText_GetUnicode(text_page, index))
            if character in _LINE_ENDS:
                pieces.end()
            elif pdfium.FPDFText_GetLooseCharBox(text_page, index, rectangle):
                left, bottom, right, top = rectangle.left, rectangle.bottom, rectangle.right, rectangle.top
                if math.isfinite(left + bottom + right + top):
                    pieces.add(character, frame.rectangle(left, bottom, right, top))
        pieces.end()
        return pieces.found
    finally:
        text_page.close()


class _Pieces:
    """Characters put together to pieces: an end of line, a wide gap or another height ends one."""

    def __init__(self) -> None:
        self.found: list[Piece] = []
        self._text: list[str] = []
        self._boxes: list[Box] = []

    def add(self, character: str, box: Box) -> None:
        if character.isspace():
            if self._text:
                self._text.append(" ")
            return
        if not character or box.height < _LEAST_HEIGHT:
            return
        if self._boxes and self._is_far(box):
            self.end()
        self._text.append(character)
        self._boxes.append(box)

    def end(self) -> None:
        if self._boxes:
            self.found.append(Piece(union(self._boxes), _text(self._text)))
        self._text, self._boxes = [], []

    def _is_far(self, box: Box) -> bool:
        last = self._boxes[-1]
        gap = max(box.left - last.right, last.left - box.right)
        middle = (box.top + box.bottom) / 2
        return gap > _FAR * max(last.height, box.height) or not last.top <= middle <= last.bottom


def _character(code: int) -> str:
    character = chr(code)
    if character in _HYPHENS:
        return "-"
    return "" if code < ord(" ") and not character.isspace() else character


def _text(characters: list[str]) -> str:
    """Return the text with pairs of surrogates joined; half a pair becomes U+FFFD."""
    text: Any = "".join(characters).rstrip(" ")
    return str(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
