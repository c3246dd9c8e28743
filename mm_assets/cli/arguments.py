"""Argument types of the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, NoReturn, TypeVar

from mm_assets.formats.error_places import located

T = TypeVar("T")

_DIGITS = 9  # of a number of processes
_MOST_SHOWN = 1000  # characters


class CommandParser(argparse.ArgumentParser):
    """Parser that takes no flag but whole ones, and names the nearest to one that it does not know.

    Its sub-commands are parsed alike.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]  # argparse's overloads, in one
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Refuse the first unknown flag, before anything else that is wrong."""
        given = list(sys.argv[1:] if args is None else args)
        is_ours = (lambda text: text.startswith("-")) if self._subparsers else (lambda text: text != "--")
        for text in takewhile(is_ours, given):
            flag = text.partition("=")[0]
            if flag.startswith("--") and " " not in flag and flag not in self._option_string_actions:
                near = get_close_matches(flag, self._option_string_actions, n=1)
                self.error(f"{flag}: no such flag{''.join(f'; the nearest is {name}' for name in near)}")
        return super().parse_known_args(given, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, usage or version; unlike argparse, without ignoring that stdout takes nothing."""
        if file is sys.stdout:
            with located("standard output"):
                file.write(message)
                file.flush()
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """End with what is wrong, without the whole of a text that is far too long."""
        from mm_assets.formats.stores import without_secrets

        message = without_secrets(message)
        super().error(message if len(message) <= _MOST_SHOWN else f"{message[:_MOST_SHOWN]}…")


def location(text: str) -> str:
    """Return a path, or a URL as `clean_url`; an empty one, which would mean some folder, is refused."""
    from mm_assets.formats.stores import clean_url

    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: is a variable of the shell not set?")
    with suppress(ValueError):  # told in one line, where it is opened
        return clean_url(text)
    return text


def process_count(text: str) -> int:
    """Parse a number of processes."""
    if not text.isdecimal() or len(text) > _DIGITS:
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

    return _parsed(parse_bytes, text)


def whole_number(text: str) -> int:
    """Parse a number that any column can hold."""
    from mm_assets import setting_parsers

    return _parsed(setting_parsers.whole_number, text)


def text(given: str) -> str:
    """Check that a text is UTF-8."""
    from mm_assets import setting_parsers

    return _parsed(setting_parsers.plain_text, given)


def names(given: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    from mm_assets import setting_parsers

    return setting_parsers.names(text(given))


def suffixes(given: str) -> tuple[str, ...]:
    """Return suffixes of file names that are separated by commas."""
    from mm_assets import setting_parsers

    return _parsed(setting_parsers.suffixes, text(given))


def _parsed(parse: Callable[[str], T], given: str) -> T:
    try:
        return parse(given)
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
