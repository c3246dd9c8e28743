"""Needles: byte strings that samples are found by in any file, and a search for many of them at once.

* `Needles` are windows of images and texts, URLs and sample ids, in each spelling that files give them.
* `Needles.names` tells whole texts and names of members in JSON: short ids may be parts of anything.
* `NeedleSearch` looks one word of eight bytes up for each few bytes of a file, in a table of all words that
  needles have at this distance. Its time depends on the bytes read, and hardly on the number of needles.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_assets.accounting.erasures import SAMPLE_ID, URL
from mm_assets.formats.names import RAW_SUFFIXES, ids_in_name, sample_key
from mm_assets.model.json_codec import is_json, json_value
from mm_assets.model.nested_types import is_bytes, is_text
from mm_assets.model.samples import parse_source_ref

TEXT, IMAGE, MEMBER = "text", "image", "member"  # kinds of content, beside those of entries

LEAST_TEXT = 24  # bytes; shorter texts are in other samples, too
_SHORTEST = 16  # bytes of a needle; fewer would be found by chance
_WINDOW = 32
_LONGEST = 96  # characters of a URL that is looked for as a whole
_WORD = 8
_MOST_STRIDE = 16
_PROBES_AT_ONCE = 1 << 16  # their words stay in the cache of a core
_PAIRS_AT_ONCE = 1 << 18
_ODD = np.uint64(0x9E3779B97F4A7C15)

_WINDOWS = 8  # of a text, beside its ends
# Characters that JSON, HTML, Markdown and JSON within JSON leave as they are.
_PLAIN = re.compile(r"[A-Za-z0-9 ,.;:?()=-]" f"{{{LEAST_TEXT},{_WINDOW}}}")
_ANY = re.compile(r"[^\x00-\x1f]" f"{{{LEAST_TEXT // 3},{_WINDOW}}}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}:/\S+")
# Bytes of an id that is looked for as a name, if it has a digit: others are versions, or words of ours.
_SHORTEST_NAME = 6
_LONGEST_NAME = 1024
_QUOTES = re.compile("['\"]")
_FEW = 32
# Fields of Dagster's own objects that say what one is, or of what.
NAMING = frozenset(
    {
        *("__class__", "__enum__", "check_name", "event_type_value", "label", "partition", "partition_key"),
        *("pipeline_name", "run_id", "step_key"),
    }
)
OF_DAGSTER = "dagster/"  # how its tags and metadata are called: versions, partitions, URIs
_NO_CONTENT = ("position", "modality", "content_type", "materialize_error")


class Needle(NamedTuple):
    """Bytes to look for: a window of a content, in one spelling.

    All needles of a content have its number, all spellings of a window that of the window.
    """

    kind: str
    content: int
    window: int
    data: bytes


@dataclass(frozen=True)
class Needles:
    """What the contents of some samples are found by.

    Attributes:
        needles: byte strings.
        ids: sample ids, also found as whole values of a column of ids.
        omitted: numbers of contents that are not looked for, by kind and reason.
        short: those of the ids that are looked for as whole texts and names of members alone.
    """

    needles: tuple[Needle, ...] = ()
    ids: frozenset[str] = frozenset()
    omitted: Mapping[str, int] = field(default_factory=dict)
    short: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rows: pa.Table, *, is_whole: bool) -> Needles:
        """Return what rows are found by, which have the columns of our outputs.

        Args:
            rows: rows of samples.
            is_whole: whether they are whole samples: then ids and names of raw members are looked for, too.
        """
        made = _Contents()
        for column in rows.schema:
            values = rows.column(column.name)
            if column.name in ("sample_id", "source_ref"):
                add = made.add_id if column.name == "sample_id" else made.add_member
                for value in values.unique().to_pylist() if is_whole else ():
                    add(value)
            elif column.name not in _NO_CONTENT:
                is_coded = is_json(column)
                for value in values:  # one at a time: images are large
                    found = value.as_py()
                    made.add(json_value(found) if is_coded and found is not None else found)
        return made.needles()

    @classmethod
    def of_values(cls, values: Iterable[Any], ids: Iterable[str] = ()) -> Needles:
        """Return what contents are found by: texts, lists, mappings; bytes are images or JSON text."""
        made = _Contents()
        for sample_id in ids:
            made.add_id(sample_id)
        for value in values:
            made.add(_parsed(value) if isinstance(value, bytes) else value)
        return made.needles()

    @classmethod
    def joined(cls, parts: Iterable[Needles]) -> Needles:
        """Return the needles of several, each once."""
        needles: dict[bytes, Needle] = {}
        ids: set[str] = set()
        short: set[str] = set()
        omitted: Counter[str] = Counter()
        for part in parts:
            needles.update((needle.data, needle) for needle in part.needles)
            ids.update(part.ids)
            short.update(part.short)
            omitted.update(part.omitted)
        each_once = tuple(needles[data] for data in sorted(needles))
        return cls(each_once, frozenset(ids), dict(sorted(omitted.items())), frozenset(short))

    def without(
        self, shared: Collection[int], why: str, ids: Collection[str] = (), names: Iterable[str] = ()
    ) -> Needles:
        """Return them without some windows; contents without windows are omitted.

        Args:
            shared: numbers of the needles of these windows.
            why: the reason.
            ids: of samples that stay.
            names: of other things than samples: short ids that are one are no names.
        """
        windows = {self.needles[number].window for number in shared}
        contents = {_number_of(SAMPLE_ID, sample_id) for sample_id in ids}
        kept = [one for one in self.needles if one.window not in windows and one.content not in contents]
        left = {needle.content for needle in kept}
        lost = {needle.content: needle.kind for needle in self.needles if needle.content not in left}
        omitted = Counter(self.omitted) + Counter(f"{kind}, {why}" for kind in lost.values())
        kept_short = self.short.difference(ids, names)
        return Needles(tuple(kept), self.ids.difference(ids), dict(sorted(omitted.items())), kept_short)

    def not_searched_for(self) -> dict[str, int]:
        """Return the numbers of contents that are not looked for, or not everywhere, by kind and reason."""
        few = {sample_id for sample_id in self.ids if len(_utf8(sample_id)) < _SHORTEST}
        partly = {
            f"{SAMPLE_ID}, short: within other text": len(self.short),
            f"{SAMPLE_ID}, short: outside of id fields": len(few - self.short),
        }
        return {**self.omitted, **{told: count for told, count in partly.items() if count}}

    def counts(self) -> dict[str, int]:
        """Return the number of contents that are looked for, by kind."""
        kinds = Counter(kind for kind, _ in {needle[:2] for needle in self.needles})
        return dict(sorted(kinds.items()))

    def search(self) -> NeedleSearch:
        """Return the search for them; each process makes it once."""
        return _search_for(tuple(needle.data for needle in self.needles))

    def is_in(self, text: str) -> bool:
        """Return whether any of them is in a text, or a name in it."""
        return next(self.search().find(_utf8(text)), None) is not None or self.names(text)

    def names(self, text: str) -> bool:
        """Return whether a text, or a line, quotation or JSON string in it, is a short id or its member.

        What Dagster's own objects say of themselves, such as their partitions, does not count.
        """
        if not self.short or (len(self.short) <= _FEW and not any(part in text for part in self._parts)):
            return False
        value = json_value(text) if text[:1] in ("{", "[") else text
        if not isinstance(value, str):
            return any(map(self.names, _told_in(value)))
        if "\n" in value:
            return any(map(self.names, value.split("\n")))
        return any(map(self._is_name, _QUOTES.split(value)))

    def _is_name(self, text: str) -> bool:
        is_one = len(text) <= _LONGEST_NAME and not text.lower().endswith(RAW_SUFFIXES)
        return is_one and not self.short.isdisjoint(ids_in_name(text))

    @cached_property
    def _parts(self) -> list[str]:
        """A part of each short id that is the same in all spellings."""
        return [max(re.findall(r"[\w-]*", each, re.ASCII), key=len) for each in self.short]

    def to_bytes(self) -> bytes:
        """Return them as bytes, which hold the content."""
        packed = [(*needle[:-1], base64.b64encode(needle.data).decode()) for needle in self.needles]
        return json.dumps(
            {
                "needles": packed,
                "ids": sorted(self.ids),
                "omitted": dict(self.omitted),
                "short": sorted(self.short),
            }
        ).encode()

    @classmethod
    def of_bytes(cls, data: bytes) -> Needles:
        """Return what `to_bytes` was made of.

        Raises:
            ValueError: it is anything else.
        """
        try:
            fields = json.loads(data)
            needles = [
                Needle(kind, content, window, base64.b64decode(text))
                for kind, content, window, text in fields["needles"]
            ]
            ids, short = frozenset(fields["ids"]), frozenset(fields["short"])
            return cls(tuple(needles), ids, dict(fields["omitted"]), short)
        except (LookupError, TypeError) as error:
            raise ValueError(f"no needles of an erasure: {error}") from error


def _told_in(value: Any) -> Iterator[str]:
    """Yield the strings in a value of lists and objects, but for those that name things of Dagster.

    Names of an object's fields are some, but for objects of Dagster itself.
    """
    left = [value]
    while left:
        match left.pop():
            case str(text):
                yield text
            case list(parts):
                left += parts
            case {"__class__": "AssetKey"}:
                pass
            case dict(fields):
                is_ours = "__class__" not in fields
                told = [
                    key for key in fields if not key.startswith(OF_DAGSTER) and (is_ours or key not in NAMING)
                ]
                left += [*(fields[key] for key in told), *(told if is_ours else ())]


class _Contents:
    """Needles in the making, each content once."""

    def __init__(self) -> None:
        self._needles: dict[bytes, Needle] = {}
        self._ids: set[str] = set()
        self._contents: dict[int, str] = {}
        self._kept: set[int] = set()

    def needles(self) -> Needles:
        lost = [kind for number, kind in self._contents.items() if number not in self._kept]
        omitted = dict(sorted(Counter(f"{kind}, too short or plain" for kind in lost).items()))
        short = {
            each
            for each in self._ids
            if _SHORTEST_NAME <= len(_utf8(each)) < _SHORTEST and any(map(str.isdigit, each))
        }
        return Needles(tuple(self._needles.values()), frozenset(self._ids), omitted, frozenset(short))

    def add(self, value: Any) -> None:
        if isinstance(value, str):
            self._add_text(value)
        elif isinstance(value, bytes):
            self._add_image(value)
        elif isinstance(value, Mapping):
            for inner in value.values():
                self.add(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                self.add(inner)

    def add_id(self, sample_id: str) -> None:
        """Add an id, and what stands around it where it may be a part of another one."""
        self._ids.add(sample_id)
        spelt = {*_spellings(sample_id), quote(sample_id, safe="").encode(), sample_key(sample_id).encode()}
        self._keep(SAMPLE_ID, sample_id, sample_id, {data for data in spelt if data[:1] != b"="})
        as_json = json.dumps(sample_id)
        for text in (f'"sample_id": {as_json}', f'"sample_id":{as_json}', f"sample {sample_id!r}"):
            self._keep(SAMPLE_ID, sample_id, text, _spellings(text), _WORD)

    def add_member(self, source_ref: str | None) -> None:
        try:
            member = parse_source_ref(source_ref)["member"]
        except (TypeError, ValueError, LookupError):
            return
        if isinstance(member, str):
            self._keep(MEMBER, member, member, _spellings(member))

    def _add_text(self, text: str) -> None:
        if _URL.fullmatch(text):
            for part in (text[-_LONGEST:], text[-2 * _LONGEST : -_LONGEST]):
                self._keep(URL, text, part, _spellings(part))
            return
        windows = [window for window in _PLAIN.findall(text) if len(set(window)) >= _WORD]
        all_windows = [window for window in _ANY.findall(text) if len(_utf8(window)) >= LEAST_TEXT]
        if 2 * sum(map(len, windows)) < len(text):
            windows = all_windows
        # The ends and what lies between: a part of the text may be all that is left of it.
        chosen = {windows[(len(windows) - 1) * part // _WINDOWS] for part in range(_WINDOWS) if windows}
        for window in chosen.union(all_windows[:1], all_windows[-1:]) or [""]:
            self._keep(TEXT, text, window, _spellings(window))

    def _add_image(self, data: bytes) -> None:
        whole = _WINDOW // 3 * 3
        for window in _image_windows(data) or [b""]:
            # Base64 has three spellings, by where in an image the window begins.
            encoded = (base64.b64encode(window[at : at + whole]) for at in range(3))
            self._keep(IMAGE, data, window, {window, *encoded})

    def _keep(
        self,
        kind: str,
        content: str | bytes,
        window: str | bytes,
        spelt: Iterable[bytes],
        least: int = _SHORTEST,
    ) -> None:
        """Keep the spellings of a window; of a content without any it is counted."""
        number, of_window = _number_of(kind, content), _number_of(kind, window)
        for data in spelt:
            if len(data) >= least:
                self._needles.setdefault(data, Needle(kind, number, of_window, data))
                self._kept.add(number)
        self._contents[number] = kind


def _number_of(kind: str, content: str | bytes) -> int:
    data = content if isinstance(content, bytes) else _utf8(content)
    return int.from_bytes(hashlib.sha256(kind.encode() + data).digest()[:_WORD], "big")


def _parsed(data: bytes) -> Any:
    """Return the value of JSON text; of text that is damaged, the text; else the bytes."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return data
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _spellings(text: str) -> set[bytes]:
    """Return a text in UTF-8, in JSON with and without escapes of ASCII, in HTML, and all that in JSON."""
    once = {text, *_in_json(text)}
    once |= {html.escape(one) for one in once}
    return {_utf8(one) for one in once.union(*map(_in_json, once))}


def _in_json(text: str) -> tuple[str, str]:
    return json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


def _image_windows(data: bytes) -> set[bytes]:
    """Return parts of an image in pairs of neighbours, none of them from its header; none if it is plain.

    A database cuts a value where a page ends: of a pair, one window is whole.
    """
    found: set[bytes] = set()
    for at in (len(data) // 8, len(data) // 2, len(data) * 7 // 8):
        for start in range(at, len(data) - 2 * _WINDOW + 1, _WINDOW):
            pair = data[start : start + _WINDOW], data[start + _WINDOW : start + 2 * _WINDOW]
            if all(len(set(window)) >= _WINDOW // 2 for window in pair):
                found.update(pair)
                break
    if not found and len(set(data[-2 * _WINDOW :])) >= _WINDOW // 2:
        found.add(data[-2 * _WINDOW :])
    return found


class NeedleSearch:
    """Search of buffers for byte strings of at least eight bytes."""

    def __init__(self, needles: Sequence[bytes]) -> None:
        self.needles = needles
        self.longest = max(map(len, needles), default=0)
        self._stride = max(1, min(_MOST_STRIDE, min(map(len, needles), default=0) - _WORD + 1))
        words, owners, offsets = self._chosen_words()
        order = np.argsort(words, kind="stable")
        self._owners, self._offsets = owners[order], offsets[order]
        self._known, first = np.unique(words[order], return_index=True)
        self._first = np.append(first, len(words))
        bits = max(20, min(25, len(words).bit_length() + 6))  # a word in 64 looks known by chance, or fewer
        self._shift = np.uint64(64 - bits)
        self._may_be_known = np.zeros(1 << bits, np.bool_)
        self._may_be_known[(words * _ODD) >> self._shift] = True
        self._sizes = np.array([len(one) for one in needles], np.int64)
        self._heads = np.array([int.from_bytes(one[:_WORD], "little") for one in needles], np.uint64)
        self._tails = np.array([int.from_bytes(one[-_WORD:], "little") for one in needles], np.uint64)

    def _chosen_words(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return neighbouring words of each needle, one for each byte of the stride: its rarest ones.

        With them come the numbers of their needles, and where in those they begin.
        """
        if not self.needles:
            return np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        each = [_words_at(one, len(one) - _WORD + 1, 0, 1).astype(np.uint64) for one in self.needles]
        _, inverse, counts = np.unique(np.concatenate(each), return_inverse=True, return_counts=True)
        often = np.split(counts[inverse], np.cumsum([len(words) for words in each])[:-1])
        ones = np.ones(self._stride, np.int64)
        starts = [int(np.argmin(np.convolve(of_needle, ones, "valid"))) for of_needle in often]
        words = [words[at : at + self._stride] for words, at in zip(each, starts, strict=True)]
        offsets = np.add.outer(np.array(starts, np.int64), np.arange(self._stride)).ravel()
        return np.concatenate(words), np.repeat(np.arange(len(each)), self._stride), offsets

    def find(self, data: bytes | memoryview) -> Iterator[tuple[int, int]]:
        """Yield the number of a needle in a buffer, and where it begins, for each time it is there."""
        size = len(data)
        probes = (size - _WORD) // self._stride + 1 if self.needles and size >= _WORD else 0
        for first in range(0, probes, _PROBES_AT_ONCE):
            words = _words_at(data, min(_PROBES_AT_ONCE, probes - first), first * self._stride, self._stride)
            likely = np.flatnonzero(self._may_be_known[(words * _ODD) >> self._shift])
            if likely.size:
                known = np.minimum(np.searchsorted(self._known, words[likely]), len(self._known) - 1)
                is_known = self._known[known] == words[likely]
                if is_known.any():
                    yield from self._verified(
                        data, (likely[is_known] + first) * self._stride, known[is_known]
                    )

    def _verified(
        self, data: bytes | memoryview, places: npt.NDArray[np.int64], known: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int, int]]:
        """Yield the needles that are really there, of those with a known word at one of these places."""
        size = len(data)
        anywhere = _words_at(data, size - _WORD + 1, 0, 1)
        counts = self._first[known + 1] - self._first[known]
        step = max(1, _PAIRS_AT_ONCE // int(counts.max()))
        for at in range(0, len(places), step):
            some, firsts = counts[at : at + step], self._first[known[at : at + step]]
            pairs = np.arange(some.sum()) + np.repeat(firsts - (np.cumsum(some) - some), some)
            owners = self._owners[pairs]
            starts = np.repeat(places[at : at + step], some) - self._offsets[pairs]
            is_one = (starts >= 0) & (starts + self._sizes[owners] <= size)
            owners, starts = owners[is_one], starts[is_one]
            is_one = anywhere[starts] == self._heads[owners]
            owners, starts = owners[is_one], starts[is_one]
            is_one = anywhere[starts + self._sizes[owners] - _WORD] == self._tails[owners]
            for owner, start in zip(owners[is_one].tolist(), starts[is_one].tolist(), strict=True):
                if data[start : start + len(self.needles[owner])] == self.needles[owner]:
                    yield owner, start

    def in_values(self, values: pa.Array) -> Iterator[int]:
        """Yield the number of a needle for each time it is in one of the texts or bytes of an array."""
        for leaf in _leaves(values):
            offsets, data = _buffer_of(leaf)
            if data is None or not offsets[0] < offsets[-1]:
                continue
            first = int(offsets[0])
            for number, start in self.find(memoryview(data).cast("B")[first : int(offsets[-1])]):
                end = start + first + len(self.needles[number])
                # Values lie side by side: none begins in one and ends in the next.
                if end <= offsets[int(np.searchsorted(offsets, start + first, "right"))]:
                    yield number


@lru_cache(maxsize=2)
def _search_for(needles: tuple[bytes, ...]) -> NeedleSearch:
    return NeedleSearch(needles)


def _words_at(data: bytes | memoryview, count: int, first: int, stride: int) -> npt.NDArray[np.uint64]:
    return np.ndarray((count,), "<u8", data, first, (stride,))


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of texts and bytes in an array of any type."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        yield from _leaves(array.storage)
    elif pa.types.is_dictionary(type_):
        yield from _leaves(array.dictionary)
    elif pa.types.is_run_end_encoded(type_):
        yield from _leaves(array.values)
    elif pa.types.is_struct(type_) or pa.types.is_union(type_):
        for number in range(type_.num_fields):
            yield from _leaves(array.field(number))
    elif pa.types.is_map(type_):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif pa.types.is_nested(type_):  # lists of all kinds
        yield from _leaves(array.flatten())
    elif pa.types.is_string_view(type_) or pa.types.is_binary_view(type_):
        yield array.cast(pa.large_binary())
    elif is_text(type_) or is_bytes(type_) or pa.types.is_fixed_size_binary(type_):
        yield array


def _buffer_of(array: pa.Array) -> tuple[npt.NDArray[Any], pa.Buffer | None]:
    """Return where in a buffer the values of an array begin and end, and the buffer."""
    buffers = array.buffers()
    if pa.types.is_fixed_size_binary(array.type):
        rows = np.arange(array.offset, array.offset + len(array) + 1)
        return rows * array.type.byte_width, buffers[1]
    if buffers[1] is None:  # an array without rows
        return np.zeros(1, np.int64), None
    is_large = array.type in (pa.large_string(), pa.large_binary())
    kind = np.dtype("<i8" if is_large else "<i4")
    return np.frombuffer(buffers[1], kind, len(array) + 1, array.offset * kind.itemsize), buffers[2]
