"""Images that a page draws by name, read from the file itself: pdfium says nothing of a damaged one."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

_DEPTH: Final = (
    8  # forms within forms, as `images` looks for them; references to references; inherited entries
)
_MOST: Final = 1 << 25  # bytes of the operators of a page, unpacked
_LEAST: Final = 512  # bytes that a stream counts for: an empty one takes time, too
_MOST_DRAWN: Final = 100_000
_LONGEST: Final = 1 << 20  # bytes of an object without its stream
_KINDS: Final = (b"/Image", b"/Form", b"/PS")

_OBJECT: Final = re.compile(rb"(?<![0-9])([0-9]{1,10})\s+[0-9]{1,5}\s+obj(?![A-Za-z])")
_PACKED: Final = re.compile(rb"/Type\s*/ObjStm")
_STREAM: Final = re.compile(rb"\s*stream\r?\n")
_DRAWN: Final = re.compile(rb"(/[^\s<>\[\](){}/%]+)\s+Do(?![A-Za-z0-9])")
_TOKEN: Final = re.compile(
    rb"(?:\s|%[^\r\n]*+)*+"
    rb"(<<|>>|[\[\]]|\((?:\\.|[^()\\]|\((?:\\.|[^()\\])*+\))*+\)|<[0-9A-Fa-f\s]*+>|/?[^\s<>\[\](){}/%]++|/)",
    re.DOTALL,
)


class _Reference(int):
    """The number of an object that is named in its place."""


class _Unknown(ValueError):
    """Something is not as it is in most files."""


@dataclass
class _Drawn:
    """Names of images that a page draws, and of what is neither image nor form, with its object's number."""

    images: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images) + len(self.damaged)


class DrawnImages:
    """Names of the images that each page draws.

    It reads what most files have: objects by their headers, wherever the table of objects says they are, and
    streams that are packed by deflate or not at all. Of a page that has anything else nothing is known.

    Args:
        data: the file.
    """

    def __init__(self, data: bytes) -> None:
        self._left = _MOST
        self._places = {int(found[1]): (data, found.end(), found.end()) for found in _OBJECT.finditer(data)}
        starts = sorted((at, number) for number, (_, at, _) in self._places.items())
        for packed in _PACKED.finditer(data):
            nearest = bisect_right(starts, (packed.start(), 0)) - 1
            if nearest >= 0:
                try:
                    self._unpack(starts[nearest][1])
                except (KeyError, TypeError, ValueError, zlib.error):
                    continue  # what is in it is not found
        self._pages = [] if b"/Encrypt" in data else self._all_pages(data)

    def lost(self, number: int, pages: int, found: int) -> list[str]:
        """Return what is wrong with each image that a page draws, and that is not among those found on it.

        Args:
            number: of the page, counted from 1.
            pages: of the document, by pdfium.
            found: images that pdfium finds on the page, those within its operators among them.
        """
        drawn = _Drawn()
        self._left = _MOST
        try:
            if len(self._pages) == pages:
                page = self._pages[number - 1]
                contents = self._value(page.get(b"/Contents"))
                parts = contents if isinstance(contents, list) else [page.get(b"/Contents")]
                operators = b"\n".join(self._stream(part) for part in parts if part is not None)
                self._follow(operators, self._value(page.get(b"/Resources")), drawn, ())
        except (_Unknown, zlib.error):
            return []
        missing = max(0, len(drawn) - found)
        faults = [f"the page draws {name}, which is missing or damaged" for name in drawn.damaged[:missing]]
        names = ", ".join(dict.fromkeys(drawn.images))
        others = f"the page draws {len(drawn)} images ({names:.200}), and pdfium finds {found}"
        return faults + [others] * (missing - len(faults))

    def _follow(self, operators: bytes, resources: Any, drawn: _Drawn, forms: tuple[int, ...]) -> None:
        named = self._value(resources.get(b"/XObject")) if isinstance(resources, dict) else None
        for found in _DRAWN.finditer(operators):
            target = named.get(found[1]) if isinstance(named, dict) else None
            if target is None:
                continue
            if len(drawn) == _MOST_DRAWN:
                raise _Unknown("too many")
            name = found[1].decode("latin-1")
            value = self._value(target)
            kind = self._value(value.get(b"/Subtype")) if isinstance(value, dict) else None
            if kind == b"/Image":
                drawn.images.append(name)
            elif kind not in _KINDS:
                drawn.damaged.append(f"{name}, object {target:d}" if isinstance(target, int) else name)
            elif kind == b"/Form" and target not in forms and len(forms) < _DEPTH:
                inner = self._value(value.get(b"/Resources")) or resources
                self._follow(self._stream(target), inner, drawn, (*forms, target))

    def _all_pages(self, data: bytes) -> list[dict[bytes, Any]]:
        roots = re.findall(rb"/Root\s+([0-9]{1,10})\s+[0-9]{1,5}\s+R", data)
        try:
            root = self._value(_Reference(roots[-1])) if roots else None
            return list(self._kids(root.get(b"/Pages"), {}, set())) if isinstance(root, dict) else []
        except (_Unknown, RecursionError):
            return []

    def _kids(self, node: Any, inherited: dict[bytes, Any], seen: set[int]) -> Iterator[dict[bytes, Any]]:
        value = self._value(node)
        if not isinstance(value, dict) or not isinstance(node, _Reference) or node in seen:
            raise _Unknown("a page that is none")
        seen.add(node)
        entries = inherited | value
        kids = self._value(value.get(b"/Kids"))
        if kids is None:
            yield entries
            return
        if not isinstance(kids, list):
            raise _Unknown("a list of pages that is none")
        for kid in kids:
            yield from self._kids(kid, {b"/Resources": entries.get(b"/Resources")}, seen)

    def _unpack(self, number: int) -> None:
        """Add the objects that are packed in a stream, unless they come again behind it."""
        value, at = self._value(_Reference(number)), self._places[number][2]
        data = self._stream(_Reference(number))
        heads = [int(word) for word in data[: int(value[b"/First"])].split()]
        for packed, offset in zip(heads[::2], heads[1::2], strict=False):
            if packed not in self._places or self._places[packed][2] < at:
                self._places[packed] = (data, int(value[b"/First"]) + offset, at)

    def _value(self, value: Any) -> Any:
        """Return an object in the place of its number; None for one that is not there or cannot be read."""
        for _ in range(_DEPTH):
            if not isinstance(value, _Reference):
                return value
            if value not in self._places:
                return None
            data, at, _ = self._places[value]
            try:
                value = _parsed(data, at)[0]
            except _Unknown:
                return None
        return None

    def _stream(self, reference: Any) -> bytes:
        """Return the unpacked bytes of a stream.

        Raises:
            _Unknown: it is none, or packed in another way, or too long.
        """
        if not isinstance(reference, _Reference) or reference not in self._places:
            raise _Unknown("no stream")
        data, at, _ = self._places[reference]
        value, end = _parsed(data, at)
        start = _STREAM.match(data, end)
        if start is None or not isinstance(value, dict):
            raise _Unknown("no stream")
        length = _number(self._value(value.get(b"/Length")))
        stop = -1 if length is None else start.end() + length
        if stop < 0 or not data[stop : stop + 12].lstrip().startswith(b"endstream"):
            stop = data.find(b"endstream", start.end())
        raw = data[start.end() : stop]
        packing = self._value(value.get(b"/Filter"))
        self._left -= max(_LEAST, len(raw))
        if packing in (None, []) and self._left >= 0:
            return raw
        if packing not in (b"/FlateDecode", [b"/FlateDecode"]) or value.get(b"/DecodeParms") is not None:
            raise _Unknown(f"packed by {packing!r}")
        unpacking = zlib.decompressobj()
        found = unpacking.decompress(raw, max(1, self._left))
        self._left -= len(found)
        if self._left <= 0:
            raise _Unknown("too long")
        return found


def _parsed(data: bytes, at: int) -> tuple[Any, int]:
    """Return the object at a place, and where it ends. Names, numbers and texts are bytes.

    Raises:
        _Unknown: there is none.
    """
    open_: list[list[Any]] = [[]]
    last = at + _LONGEST
    while at < last:
        token = _TOKEN.match(data, at)
        if token is None:
            break
        word, at = token[1], token.end()
        if word in (b"<<", b"["):
            open_.append([word])
            continue
        value: Any = word
        if word in (b">>", b"]"):
            kind, *values = open_.pop()
            if not open_ or (kind == b"[") != (word == b"]"):
                break
            if kind == b"<<" and not all(isinstance(key, bytes) for key in values[::2]):
                break
            value = values if kind == b"[" else dict(zip(values[::2], values[1::2], strict=False))
        elif word == b"R" and len(open_[-1]) > 2:
            open_[-1].pop()
            if (number := _number(open_[-1].pop())) is None:
                break
            value = _Reference(number)
        open_[-1].append(value)
        if len(open_) == 1:
            return value, at
    raise _Unknown("no object")


def _number(value: Any) -> int | None:
    """Return a number of an object, or of bytes, that was read; None if it is none."""
    return int(value) if isinstance(value, bytes) and value.isdigit() and len(value) <= 10 else None
