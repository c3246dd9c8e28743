"""Names of tags: they become file names and tags of the Lance table, so both must take them."""

from __future__ import annotations

import re

NOW = "now"  # stands for the current state
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_tag_name(name: str) -> None:
    """Check that a name is one to 100 letters, digits, dots, hyphens and underscores.

    Raises:
        ValueError: for any other name, and for ``now``.
    """
    if name == NOW:
        raise ValueError(f"{NOW!r} stands for the current state: choose another name for the tag")
    if not _NAME.fullmatch(name) or ".." in name or name.endswith((".", ".lock")):
        raise ValueError(
            f"{name!a:.120} is no name of a tag: 1 to 100 of A-Z a-z 0-9 . _ -, with a letter or digit "
            "first, not two dots together, and no dot or '.lock' at the end"
        )
