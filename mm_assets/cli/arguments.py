"""Argument types of the commands."""

from __future__ import annotations

import argparse
import os


def location(text: str) -> str:
    """Return a path or URL as it is; an empty one is refused, as it would mean the current or root folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: is a variable of the shell not set?")
    return text


def process_count(text: str) -> int:
    """Parse a number of processes."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a number of processes: {text!r}")
    return int(text)


def share(text: str) -> float:
    """Parse a share from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"not a share from 0 to 1: {text!r}")
    return value


def byte_size(text: str) -> int:
    """Parse bytes, as a number or such as ``64MiB``."""
    from mm_assets.formats.partitions import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    from mm_assets import setting_parsers

    return setting_parsers.names(text)


def suffixes(text: str) -> tuple[str, ...]:
    """Return suffixes of file names that are separated by commas."""
    from mm_assets import setting_parsers

    try:
        return setting_parsers.suffixes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def as_utf8(argument: str) -> str:
    """Return an id as UTF-8, as in the data, whatever encoding the terminal has."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{argument!a} is not UTF-8, so it is the id of no sample") from error
    return argument
