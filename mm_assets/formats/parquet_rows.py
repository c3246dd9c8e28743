"""Names of Parquet rows, and of items in them, in locators."""

from __future__ import annotations

import re

_ROW = re.compile(r"row (\d{1,18})(?:, .*)?", re.ASCII | re.DOTALL)


def row_name(row: int, item: str | None = None) -> str:
    """Return ``row 17``, or ``row 17, images[3]``; rows are counted from 0 over the whole file.

    It is not the name of a tar member.
    """
    return f"row {row}" if item is None else f"row {row}, {item}"


def row_of(member: str | None) -> int | None:
    """Return the row number that the member of a locator names; None for any other member."""
    match = _ROW.fullmatch(member or "")
    return None if match is None else int(match[1])
