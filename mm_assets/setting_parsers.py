"""Parsers of settings: each takes the text of a variable and returns its value.

They raise ``ValueError`` in one line, which begins with "must" where the setting's name fits in front.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mm_assets.formats.error_lines import is_utf8
from mm_assets.formats.partitions import parse_bytes
from mm_assets.formats.stores import clean_url, without_secrets
from mm_assets.formats.webdataset.layout import normal_extensions

_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
_RAY_ADDRESS = re.compile(r"(?:ray://)?(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
_MOST_DIGITS = 18
_LONGEST = 100_000 * 86400.0  # seconds of a duration; much more is no time span of Python's
_URL = re.compile(r"[A-Za-z][A-Za-z0-9]+://.")


@dataclass(frozen=True)
class OneOf:
    """A parser that takes one of some names."""

    names: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text not in self.names:
            raise ValueError(f"must be one of {', '.join(self.names)}, not {text!r}")
        return text


def one_of(*names: str) -> OneOf:
    """Return a parser that takes one of these names."""
    return OneOf(names)


def number(
    kind: Callable[[str], Any], most: float = float("inf"), above: float | None = None
) -> Callable[[str], Any]:
    """Return a parser of numbers from 0, or from ``above`` without that itself, to ``most``."""

    def parse(text: str) -> Any:
        try:
            value = whole_number(text) if kind is int else kind(text)
        except ValueError as error:
            raise error if kind is int else ValueError(f"must be a number, not {text!r}") from error
        if math.isnan(value):
            raise ValueError(f"must be a number, not {text!r}")
        if value < 0:
            raise ValueError(f"must not be negative: {text}")
        if above is not None and value <= above:
            raise ValueError(f"must be more than {above:g}, not {text}")
        if value > most:
            raise ValueError(f"must be at most {most:g}, not {text}")
        return value

    return parse


def whole_number(text: str) -> int:
    """Return a whole number of no more than 18 digits: longer ones fit no column, and no float beyond 308."""
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"must be a whole number of at most {_MOST_DIGITS} digits")
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"must be a whole number, not {text!r}") from error


def plain_text(text: str) -> str:
    """Check that a text can be written to any file: it is UTF-8, and has no null character."""
    if "\0" in text or not is_utf8(text):
        raise ValueError("must be UTF-8 text without null characters")
    return text


def byte_size(text: str) -> str:
    """Check a size in bytes, and return it as written."""
    parse_bytes(text)
    return text


def cron(text: str) -> str:
    """Check a cron expression: five fields, or a name such as ``@daily``."""
    refused = (
        f"must be a cron expression of five fields, of a time that comes, such as '0 2 * * *', not {text!r}"
    )
    if len(text.split()) != 5 and not text.startswith("@"):
        raise ValueError(refused)
    try:
        import dagster as dg
    except ImportError:  # without Dagster there is no schedule
        return text
    try:
        dg.ScheduleDefinition(name="checked", job_name="checked", cron_schedule=text)
    except dg.DagsterInvalidDefinitionError as error:
        raise ValueError(refused) from error
    return text


def names(text: str) -> tuple[str, ...]:
    """Return names that commas separate."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def suffixes(text: str) -> tuple[str, ...]:
    """Return suffixes of file names, as written, that commas separate."""
    found = names(text)
    normal_extensions(found)
    return found


def output_root(text: str) -> str:
    """Return a folder or `clean_url`."""
    return clean_url(os.path.expanduser(text))


def raw_locations(text: str) -> str:
    """Return locations as written in a shell, each URL of them as `clean_url`."""
    try:
        items = shlex.split(text)
    except ValueError:  # told where they are listed
        items = []
    cleaned = list(map(clean_url, items))
    return text if cleaned == items else shlex.join(cleaned)


def owners(text: str) -> tuple[str, ...]:
    """Return owners as Dagster takes them, separated by commas: e-mail addresses and ``team:name``."""
    found = names(text)
    for owner in found:
        if not (_EMAIL.fullmatch(owner) or owner.removeprefix("team:") not in ("", owner)):
            raise ValueError(f"must be e-mail addresses, or teams as in team:data, not {owner!r}")
    return found


def duration(text: str) -> float:
    """Return the seconds of a duration such as 90m, 24h or 7d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not match or not float(match[1]):
        raise ValueError(f"must be a duration such as 90m, 24h or 7d, not {text!r}")
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    if seconds > _LONGEST:
        raise ValueError(f"must be at most {_LONGEST / 86400:.0f}d")
    return seconds


def time_limit(text: str) -> float | None:
    """Return the seconds of a number or a duration; None for 0: no limit."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
        with suppress(ValueError):
            seconds = duration(text)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"must be seconds, or a duration such as 90s, 30m or 2h; 0: no limit; not {text!r}")
    return seconds or None


def ray_host_and_port(address: str) -> tuple[str, int] | None:
    """Return host and port of ``host:port`` or ``ray://host:port``; None for any other address."""
    match = _RAY_ADDRESS.fullmatch(address)
    return None if match is None else (match[1].strip("[]"), int(match[2]))


def ray_address(text: str) -> str:
    """Check that a text is ``auto`` or has a host and a port."""
    if text != "auto" and ray_host_and_port(text) is None:
        raise ValueError(f"must be auto, host:port or ray://host:port, not {text!r}")
    return text


def alert_targets(text: str) -> tuple[str, ...]:
    """Return words as a shell would; each begins like a URL, which may be a secret and is not repeated."""
    found = tuple(shlex.split(text))
    for place, url in enumerate(found, start=1):
        if not _URL.match(url):
            number = f"number {place} of them" if len(found) > 1 else "this"
            raise ValueError(f"must be Apprise URLs, such as json://host:8080/path; {number} is none")
    return found


def web_address(text: str) -> str:
    """Check that a text begins like a web address."""
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"must begin with http:// or https://, not {text!r}")
    if without_secrets(text) != text:
        raise ValueError("must hold no user, password or token: it is sent to all whom alerts go to")
    return text
