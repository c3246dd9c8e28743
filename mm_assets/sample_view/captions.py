"""Words for the parts of a sample, the same on a page and in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mm_assets.interleaved.counted import counted
from mm_assets.sample_view.document import Document, Item

_BYTES: Final = 32  # of a binary value
_SCORE: Final = 80  # characters
_VALUES: Final = 8  # of a list


def heading(item: Item) -> str:
    """Return what an item is, such as ``image 640x480 jpg 34 KB``."""
    words = [item.modality]
    if item.info is not None:
        words += [f"{item.info.display_width}x{item.info.display_height}", item.info.format]
    if item.nbytes is not None:
        words.append(byte_size(item.nbytes))
    return " ".join(words)


def remarks(item: Item) -> list[str]:
    """Return a line for each mark of an item, its error, and why there is nothing to see of it."""
    lines = [str(mark) for mark in item.marks]
    if item.error is not None and not any(item.error in line for line in lines):
        lines.append(f"error: {item.error}")
    if not item.has_content and item.raw is None:
        has_fates = bool(item.fates)
        lines.append("its content is in no output, only in the raw shard" if has_fates else "it was not read")
    elif item.modality == "image" and item.nbytes is None and item.raw is None and item.error is None:
        lines.append("its bytes are not here, only where they are")
    return lines


def place(document: Document) -> str:
    """Return where a document comes from, in one line."""
    return f"shard {document.partition or '(not recorded)'}, from {document.origin}"


def scores(values: Mapping[str, Any]) -> str:
    """Return measurements in one line."""
    return " · ".join(f"{name} {value(score, _SCORE)}" for name, score in values.items())


def value(given: Any, most: int) -> str:
    """Return a value of a field or a score in at most about ``most`` characters."""
    if isinstance(given, bytes):
        more = "…" if len(given) > _BYTES else ""
        return f"0x{given[:_BYTES].hex()}{more}"
    if isinstance(given, float):
        return f"{given:g}"
    if isinstance(given, list):
        first = ", ".join(value(entry, most // _VALUES) for entry in given[:_VALUES])
        return f"[{first}]" if len(given) <= _VALUES else f"[{first}, …] ({len(given)} values)"
    return cut(str(given), most)


def cut(text: str, most: int) -> str:
    """Return the beginning of a text, and how much of it is left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]} … ({counted(len(text) - most, 'more character')})"


def byte_size(nbytes: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    size, unit = float(nbytes), "B"
    for larger in ("KB", "MB", "GB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}" if unit != "B" and size < 9.95 else f"{size:.0f} {unit}"
