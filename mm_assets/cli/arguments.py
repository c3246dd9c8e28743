"""Arguments that several commands take."""

from __future__ import annotations

import argparse


def location(text: str) -> str:
    """A path or URL as it is; an empty one would be the folder at hand, or the root of all files."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: is a variable of the shell not set?")
    return text
