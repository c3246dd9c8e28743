"""Numbers of things in words."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with what is counted, such as ``1 shard`` and ``2 shards``.

    Args:
        one: the words after 1.
        many: those after any other number; None: ``one`` with an s.
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def first_and_more(names: Sequence[object]) -> str:
    """Return the first name, and how many more there are."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else "nothing"
