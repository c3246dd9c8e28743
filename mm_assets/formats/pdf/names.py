"""Names: suffixes of PDF files and block files, and those of the blocks of a page in locators."""

from __future__ import annotations

import re

PDF_SUFFIXES = (".pdf",)
BLOCKS_SUFFIX = ".blocks.json"

_BLOCK = re.compile(r"(?:.*: )?page \d{1,18}, block \d{1,18}", re.ASCII | re.DOTALL)


def is_pdf(name: str) -> bool:
    """Return whether a file is a PDF by its name."""
    return name.lower().endswith(PDF_SUFFIXES)


def is_block_file(name: str) -> bool:
    """Return whether a file is one of blocks by its name, also where no PDF would find it."""
    return name.lower().endswith(BLOCKS_SUFFIX)


def blocks_beside(pdf: str) -> str:
    """Return the name of the file with a PDF's blocks."""
    return pdf[: -len(PDF_SUFFIXES[0])] + BLOCKS_SUFFIX


def block_name(member: str | None, page: int, number: int) -> str:
    """Return ``page 3, block 2``, both counted from 1, behind the PDF's name in a tar.

    It is not the name of a tar member.
    """
    place = f"page {page}, block {number}"
    return place if member is None else f"{member}: {place}"


def is_block(member: str | None) -> bool:
    """Return whether the member of a locator is a block of a page."""
    return member is not None and _BLOCK.fullmatch(member) is not None
