"""Items of a PDF: texts and pictures, each with its place."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.formats.tar.writer import FileRange
from mm_assets.interleaved.faults import Fault


@dataclass(frozen=True)
class Picture:
    """The bytes of an image, their suffix, and where they lie in the PDF (None: nowhere as they are)."""

    data: bytes | FileRange
    suffix: str
    offset: int | None = None

    @property
    def size(self) -> int:
        """Number of its bytes."""
        return self.data.size if isinstance(self.data, FileRange) else len(self.data)


@dataclass(frozen=True)
class Item:
    """A text, or a picture (a fault for one that cannot be had).

    Attributes:
        page: counted from 1.
        number: of the block in its page, counted from 1.
        box: left, top, right and bottom as shares of the page.
        content: the text or the picture.
        kind: type of the block in the block file; None without one.
    """

    page: int
    number: int
    box: list[float]
    content: str | Picture | Fault
    kind: str | None = None
