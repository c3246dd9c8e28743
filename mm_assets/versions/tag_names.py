"""Names of tags: they become file names and tags of the Lance table, so both must take them."""

from __future__ import annotations

import re
from collections.abc import Iterable

NOW = "now"  # stands for the current state
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_tag_name(name: str) -> None:
    """Check that a name is one to 100 letters, digits, dots, hyphens and underscores.

    Raises:
        ValueError: in one line, for any other name, and for ``now``.
    """
    if name == NOW:
        raise ValueError(f"{NOW!r} stands for the current state: choose another name for the tag")
    if not _NAME.fullmatch(name) or ".." in name or name.endswith((".", ".lock")):
        raise ValueError(
            f"{name!r:.120} is no name of a tag: 1 to 100 of A-Z a-z 0-9 . _ -, with a letter or digit "
            "first, not two dots together, and no dot or '.lock' at the end"
        )


def check_new_tag_name(name: str, existing: Iterable[str]) -> None:
    """Check that no name differs by case only: on some systems these are one file.

    Raises:
        ValueError: in one line, for one that does, and for ``now`` in any case.
    """
    if same := next((other for other in (NOW, *existing) if other.lower() == name.lower()), None):
        what = "which stands for the current state" if same == NOW else "which there is"
        raise ValueError(f"{name!r} differs by case only from {same!r}, {what}: choose another name")
