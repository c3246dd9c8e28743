"""Bytes of an item in quarantine, as text for people."""

from __future__ import annotations

from typing import Final

from mm_assets.interleaved.counted import counted

_SHOWN: Final = 2000  # bytes of a text
_DUMPED: Final = 32  # bytes of anything else


def described(raw: bytes | None, note: str | None) -> tuple[str, str]:
    """Return the bytes as text, and what they are.

    Args:
        raw: the bytes; None where there are none.
        note: what they are if they are not the item itself, or why there are none.
    """
    if raw is None:
        return "", note or "no bytes were kept"
    what = f"{counted(len(raw), 'byte')}{f' of {note}' if note else ''}"
    try:
        shown = raw[:_SHOWN].decode()
    except UnicodeDecodeError as error:
        if error.start < _SHOWN - 3 or len(raw) <= _SHOWN:  # not just cut inside a character
            begin = raw[:_DUMPED].hex(" ")
            return begin, f"{what}, beginning with" if len(raw) > _DUMPED else what
        shown = raw[: error.start].decode()
    if "\0" in shown:
        return raw[:_DUMPED].hex(" "), f"{what}, beginning with" if len(raw) > _DUMPED else what
    return shown, f"{what}, beginning with" if len(raw) > len(shown.encode()) else what
