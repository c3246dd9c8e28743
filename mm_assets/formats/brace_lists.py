"""Expansion of brace lists such as ``shard-{00000..00099}.tar``, as in a shell but with a limit."""

from __future__ import annotations

import math
import re

from braceexpand import alphabet, braceexpand

MAX_NAMES = 500_000  # per brace list; the largest public datasets have a few hundred thousand shards
_MAX_DEPTH = 50

_INNERMOST = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(?:(-?\d+)\.\.(-?\d+)|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?(\d+))?")
_COUNTED = re.compile(r"\0([^\0]*)\0")  # placeholder of a list that is already counted
_MAX_DIGITS = 18


def expand_braces(pattern: str) -> list[str]:
    """Return the names that a brace list stands for, in its order; a backslash escapes a brace.

    Raises:
        ValueError: the list has more than ``MAX_NAMES`` names (counted before any is made), or an unmatched
            brace.
    """
    count = _count(pattern)
    if count > MAX_NAMES:
        count_text = f"{count:,.0f}" if count < 10**15 else "endlessly many"
        hint = "is there a digit too many? A * stands for all files that are there"
        raise ValueError(
            f"{pattern:.200}: the braces stand for {count_text} names, "
            f"at most {MAX_NAMES:,} are taken; {hint}"
        )
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise ValueError(
            f"{pattern:.200}: a brace without its partner; write \\{{ for one that is part of a name"
        ) from error


def _count(pattern: str) -> float:
    """Count the names of a brace list without making them; infinite for more than a float can count."""
    text = re.sub(r"\\.|\0", "", pattern, flags=re.DOTALL)
    for _ in range(_MAX_DEPTH):
        text, found = _INNERMOST.subn(lambda match: f"\0{_count_of_list(match[1])}\0", text)
        if not found:
            return _product(text)
    return math.inf


def _count_of_list(inside: str) -> float:
    match = _RANGE.fullmatch(inside)
    if match is None:
        # Without a comma the braces are part of the name, as in a shell.
        return sum(map(_product, inside.split(",")))
    if max(map(len, filter(None, match.groups()))) > _MAX_DIGITS:
        return math.inf
    first, last = (
        (int(match[1]), int(match[2])) if match[1] else (alphabet.index(match[3]), alphabet.index(match[4]))
    )
    return float(abs(last - first) // (int(match[5] or 1) or 1) + 1)


def _product(text: str) -> float:
    return math.prod(map(float, _COUNTED.findall(text)))
