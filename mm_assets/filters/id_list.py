"""Lists of ids, which other programs write, and the filters that drop or keep what they list.

* `IdList` is one file: Parquet, CSV, or text with a sample id a line. Its columns say what it lists: samples
  (``sample_id``), images (``sample_id`` and ``position``), or bytes of images (``sha256``).
* A list is applied from a copy that is named by the digest of the file (`publish`): all workers find it, and
  it says later what was applied.
* `SortedIds` finds keys among millions, by hashes in order and a comparison of the keys themselves.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import xxhash

from mm_assets.filters import DROP_ITEM, DROP_SAMPLE, FLAG, Filter, FilterSettingError, setting
from mm_assets.filters.measure import Score
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.formats.parquet import UNREADABLE, open_checked, publish_table, read_small_table
from mm_assets.model.errors import MmAssetsError
from mm_assets.storage.errors import error_line, is_store_failure, located
from mm_assets.storage.files import absolute, exists, is_remote, join, open_binary, regular_file
from mm_assets.storage.listing import expand_paths
from mm_assets.storage.small_files import hashes_of
from mm_assets.storage.stamps import local_stamp, remote_stamps

SAMPLE_ID, POSITION, SHA256, REASON = "sample_id", "position", "sha256", "reason"
OF_SAMPLES, OF_IMAGES, OF_BYTES = (SAMPLE_ID,), (SAMPLE_ID, POSITION), (SHA256,)
"""What a list may list, by its columns."""

MD5, PDQ, RADIUS = "md5", "pdq", "radius"
HASH_DIGITS: Final = {SHA256: 64, MD5: 32, PDQ: 64}
"""Hexadecimal digits of each kind of hash."""

_CURATOR_ID: Final = "id"  # of NeMo Curator's lists of duplicates
_PARQUET, _CSV, _TEXT = ".parquet", (".csv", ".tsv"), ".txt"
_SUFFIXES: Final = (_PARQUET, *_CSV, _TEXT)
_DIGITS, _HEX = r"^[0-9]{1,9}$", "^[0-9a-f]{64}$"
_UNPRINTABLE: Final = r"[\p{C}\s]+"
_WANTED: Final = (SAMPLE_ID, _CURATOR_ID, POSITION, *HASH_DIGITS, RADIUS, REASON)
_LONGEST_REASON: Final = 100  # characters
_MOST_REASONS: Final = 1000  # each is counted in the metadata of events
_AT_ONCE: Final = 1 << 20

Marks = npt.NDArray[np.bool_]


class BadList(MmAssetsError, ValueError):
    """A list that cannot be used; the message names file, place and column."""


@dataclass(frozen=True)
class IdList:
    """One file with a list.

    Args:
        digest: of its bytes, as 32 hex digits.
        columns: `OF_SAMPLES`, `OF_IMAGES` or `OF_BYTES`.
    """

    uri: str
    digest: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, uri: str) -> Self:
        """Return the list in a file.

        Raises:
            BadList: its columns list nothing.
            OSError: it cannot be read.
        """
        stamp = remote_stamps([uri])[uri] if is_remote(uri) else local_stamp(uri)
        kind: Any = cls  # it is hashable
        found: Self = _described(kind, uri, stamp)
        return found

    @classmethod
    def all_of(cls, locations: Iterable[str]) -> list[Self]:
        """Return the lists in the files of some locations; raises as `of` does."""
        files = (file for place in locations for file in expand_paths(os.path.expanduser(place), _SUFFIXES))
        return [cls.of(absolute(file)) for file in files]

    @staticmethod
    def columns_in(uri: str, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return what a file lists, by the names of its columns; None: it has lines without columns.

        Raises:
            BadList: it lists nothing.
        """
        if names is None:
            return OF_SAMPLES
        has_id = SAMPLE_ID in names or (_CURATOR_ID in names and SHA256 not in names)
        if has_id and POSITION in names:
            return OF_IMAGES
        if has_id and SHA256 in names:
            raise BadList(f"{uri}: it has {SAMPLE_ID} and {SHA256}: leave one of them out, or add {POSITION}")
        if has_id:
            return OF_SAMPLES
        if SHA256 in names:
            return OF_BYTES
        raise BadList(f"{uri}: no column {SAMPLE_ID} or {SHA256}; {there_are(names)}")

    @property
    def name(self) -> str:
        """The name of the file, for people."""
        return self.uri.partition("?")[0].rstrip("/").rpartition("/")[2]

    def published(self, folder: str) -> str:
        """Return the location of its copy in a folder."""
        return join(folder, f"{self.digest}.parquet")

    def publish(self, folder: str) -> None:
        """Write the copy, sorted by ``hash``, if it is not there.

        Raises:
            BadList: a row of it lists nothing, or the file was changed.
            OSError: it cannot be read.
        """
        uri = self.published(folder)
        if not exists(uri):
            publish_table(uri, self.read())

    def read(self) -> pa.Table:
        """Return the rows of the file as `publish` writes them; raises as that does."""
        data = _data_of(self.uri)
        if _digest(self.uri, data) != self.digest:
            raise BadList(f"{self.uri}: changed while it was read: try again")
        return sorted_by_hash(self.rows_of(_table_of(self.uri, data)))

    def rows_of(self, table: pa.Table) -> pa.Table:
        """Return the rows of the file in their own types.

        Raises:
            BadList: one lists nothing.
        """
        return _checked(self.uri, table, self.columns)


@lru_cache(maxsize=256)
def _described(kind: type[IdList], uri: str, stamp: str) -> Any:
    data = _data_of(uri)
    return kind(uri, _digest(uri, data), kind.columns_in(uri, _names_of(uri, data)))


def _data_of(uri: str) -> pa.Buffer:
    """Return the bytes of a file; of a local one as memory map."""
    with located(uri):
        if not is_remote(uri):
            path = regular_file(uri)
            if os.path.getsize(path):
                return pa.memory_map(path).read_buffer()
        with open_binary(uri) as file:
            return pa.py_buffer(file.read())


def _suffix(uri: str) -> str:
    """Return the kind of a file; one of an unknown suffix is text."""
    suffix = os.path.splitext(uri.partition("?")[0])[1].lower()
    return suffix if suffix in _SUFFIXES else _TEXT


def _digest(uri: str, data: pa.Buffer) -> str:
    digest = xxhash.xxh3_128(_suffix(uri).encode())
    digest.update(data)
    return digest.hexdigest()


def _names_of(uri: str, data: pa.Buffer) -> list[str] | None:
    """Return the names of the columns of a file, by its head; None if it has none."""
    suffix = _suffix(uri)
    if suffix == _TEXT:
        return None
    try:
        if suffix == _PARQUET:
            names = open_checked(pa.BufferReader(data)).schema_arrow.names
        else:
            line = bytes(data[: 1 << 16]).removeprefix(codecs.BOM_UTF8).partition(b"\n")[0]
            names = pa_csv.read_csv(pa.BufferReader(line + b"\n"), parse_options=_csv(suffix)).column_names
    except UNREADABLE as error:
        raise BadList(f"{uri}: not a readable {suffix[1:]} file: {error_line(error)}") from error
    for name in _WANTED:
        if names.count(name) > 1:
            raise BadList(f"{uri}: it has {names.count(name)} columns {name}: leave one")
    return list(names)


def there_are(names: Sequence[str]) -> str:
    """Return words for a message on which columns there are."""
    return f"its columns: {', '.join(map(repr, names[:10])) or 'none'}"


def _csv(suffix: str) -> pa_csv.ParseOptions:
    return pa_csv.ParseOptions(delimiter="\t" if suffix == ".tsv" else ",", newlines_in_values=True)


def _table_of(uri: str, data: pa.Buffer) -> pa.Table:
    """Return the columns of a file that count; those of CSV and text are text."""
    suffix = _suffix(uri)
    try:
        if suffix == _TEXT:
            return pa.table({SAMPLE_ID: _lines_of(uri, data)})
        if suffix == _PARQUET:
            file = open_checked(pa.BufferReader(data))
            names = [name for name in _WANTED if name in file.schema_arrow.names]
            return file.read(names, use_threads=False)
        options = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(_WANTED, pa.string()), strings_can_be_null=True, null_values=[""]
        )
        table = pa_csv.read_csv(pa.BufferReader(data), parse_options=_csv(suffix), convert_options=options)
        return table.select([name for name in _WANTED if name in table.column_names])
    except BadList:
        raise
    except UNREADABLE as error:
        raise BadList(f"{uri}: not a readable {suffix[1:]} file: {error_line(error)}") from error


def _lines_of(uri: str, data: pa.Buffer) -> pa.Array:
    text = bytes(data).removeprefix(codecs.BOM_UTF8)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise BadList(f"{uri}: line {line}: not UTF-8; lists with columns end in .parquet or .csv") from error
    lines = pc.split_pattern(pa.array([text], pa.large_binary()).cast(pa.large_string()), "\n")
    ids = pc.utf8_rtrim(lines.flatten(), "\r")
    return ids.filter(pc.not_equal(ids, ""))


def _checked(uri: str, table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the list in its own types, if each row lists something.

    Raises:
        BadList: a row does not.
    """
    found: dict[str, Any] = {}
    for name in columns:
        source = name if name in table.column_names else _CURATOR_ID
        column = table.column(source)
        text = as_text(uri, source, column)
        if name == SHA256:
            text = pc.utf8_lower(text)
        pattern, what = {POSITION: (_DIGITS, "no position"), SHA256: (_HEX, "not 64 hex digits")}.get(
            name, (".", "empty")
        )
        is_bad = pc.invert(pc.fill_null(pc.match_substring_regex(text, pattern), False))
        if name == SAMPLE_ID:
            is_bad = pc.fill_null(pc.equal(text, ""), True)
        if (row := pc.index(is_bad, True).as_py()) >= 0:
            value = column[row].as_py()
            told = f"{value!r:.100} is {what}" if value else "no value"
            raise BadList(f"{uri}: row {row + 1}: {source}: {told}")
        found[name] = text.cast(pa.int64()) if name == POSITION else text
    if REASON in table.column_names:
        found[REASON] = _reasons(uri, table.column(REASON))
    return pa.table(found)


def as_text(uri: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as text.

    Raises:
        BadList: it is neither text nor whole numbers.
    """
    is_number = pa.types.is_integer(column.type) or pa.types.is_null(column.type)
    if not (is_number or pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise BadList(f"{uri}: column {name!r} is of type {column.type}, not text or whole numbers")
    return column.cast(pa.large_string())


def _reasons(uri: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return reasons as they can be printed."""
    try:
        text = column.cast(pa.large_string())
    except pa.ArrowException as error:
        raise BadList(f"{uri}: column {REASON!r} is of type {column.type}, not text") from error
    text = pc.utf8_trim_whitespace(pc.replace_substring_regex(text, _UNPRINTABLE, " "))
    text = pc.utf8_slice_codeunits(text, 0, _LONGEST_REASON)
    if len(kinds := text.unique()) > _MOST_REASONS:
        raise BadList(
            f"{uri}: {REASON}: {len(kinds):,} different ones; at most {_MOST_REASONS:,} can be told"
        )
    return text.dictionary_encode()


def _keys(table: pa.Table) -> pa.ChunkedArray:
    """Return one text for each row of a list."""
    if POSITION in table.column_names:
        places = table.column(POSITION).cast(pa.large_string())
        ids = table.column(SAMPLE_ID).cast(pa.large_string())
        return pc.binary_join_element_wise(places, ids, pa.scalar(":", pa.large_string()))
    return table.column(table.column_names[0]).cast(pa.large_string())


def sorted_by_hash(table: pa.Table) -> pa.Table:
    """Return a list by the hashes of its keys; of equal keys the first."""
    keys = _keys(table)
    parts = [hashes_of(keys.slice(start, _AT_ONCE).to_pylist()) for start in range(0, len(keys), _AT_ONCE)]
    hashes = np.concatenate([np.zeros(0, np.uint64), *parts])
    del keys  # as large as the list
    order = np.argsort(hashes, kind="stable")
    table = table.take(pa.array(order)).append_column("hash", pa.array(hashes[order]))
    keys = _keys(table)
    # Other keys of this hash may lie between equal ones: then one stays twice, which changes nothing.
    is_again = pc.equal(keys.slice(1), keys.slice(0, max(len(keys) - 1, 0))).to_numpy()
    return (
        table.filter(pa.array(~np.concatenate([[False], is_again])[: len(keys)])) if is_again.any() else table
    )


class SortedIds:
    """The keys of a list, in the order of their hashes.

    Args:
        table: a published copy.
    """

    def __init__(self, table: pa.Table) -> None:
        self._hashes = table.column("hash").to_numpy()
        self._keys = _keys(table).chunks  # not one array: that would be another copy
        self._starts = np.cumsum([0, *map(len, self._keys)])
        self._reasons = table.column(REASON) if REASON in table.column_names else None

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the row of each key; -1 for one that is not listed."""
        hashes = hashes_of(keys)
        rows = np.searchsorted(self._hashes, hashes).astype(np.int64)
        found = np.full(len(keys), -1, np.int64)
        open_ = np.arange(len(keys))
        while len(open_):  # further rows of the same hash are other keys
            at = rows[open_]
            is_hit = at < len(self._hashes)
            is_hit[is_hit] = self._hashes[at[is_hit]] == hashes[open_[is_hit]]
            open_ = open_[is_hit]
            at = rows[open_]
            pairs = zip(open_.tolist(), at.tolist(), strict=True)
            is_equal = np.array([keys[number] == self._key(row) for number, row in pairs], np.bool_)
            found[open_[is_equal]] = at[is_equal]
            open_ = open_[~is_equal]
            rows[open_] += 1
        return found

    def _key(self, row: int) -> str:
        chunk = int(np.searchsorted(self._starts, row, "right")) - 1
        return str(self._keys[chunk][row - int(self._starts[chunk])])

    def reason(self, row: int) -> str | None:
        """Return the reason that the list has for a row."""
        return None if self._reasons is None else self._reasons[row].as_py() or None


@lru_cache(maxsize=8)  # lists are large, and workers live long
def opened_copy(uri: str) -> SortedIds:
    """Return the keys of a published copy."""
    return SortedIds(read_small_table(uri))


@lru_cache(maxsize=2)
def _read(given: IdList) -> SortedIds:
    return SortedIds(given.read())


@dataclass(frozen=True)
class IdFilter(Filter[Any]):
    """Judges what lists name: samples by those of samples, images by those of images.

    Args:
        digests: of its lists: what they hold is part of fingerprints, where they lie is not.
        lists: the lists, once they are `opened`.
        folder: where their copies are, once it is `fitted`; empty: the files themselves are read.
    """

    actions = (DROP_ITEM, DROP_SAMPLE, FLAG)

    keeps: ClassVar[bool]
    """Whether it keeps what is listed, and refuses all else."""

    files: tuple[str, ...] = ()
    digests: tuple[str, ...] = field(default=(), kw_only=True)
    lists: tuple[IdList, ...] = field(default=(), kw_only=True, compare=False, repr=False)
    folder: str = field(default="", kw_only=True, compare=False, repr=False)

    def opened(self, statistics: str = "") -> Self:
        try:
            lists = IdList.all_of(self.files)
        except (OSError, ValueError) as error:
            raise self._fault(error) from error
        # What drops a sample is not told to drop an item.
        is_of_samples = all(each.columns == OF_SAMPLES for each in lists)
        action = DROP_SAMPLE if is_of_samples and self.action == DROP_ITEM else self.action
        digests = tuple(each.digest for each in lists)
        return replace(self, lists=tuple(lists), digests=digests, action=action)

    def fitted(self, shards: Mapping[str, pa.Schema], others: Iterable[pa.Schema], folder: str) -> Self:
        """Return the filter with copies of its lists in ``folder``.

        Raises:
            FilterSettingError: a list cannot be used.
        """
        for each in self.lists:
            try:
                each.publish(folder)
            except (BadList, FileNotFoundError) as error:
                raise self._fault(error) from error
        return replace(self, folder=folder)

    @property
    def kinds(self) -> tuple[type[Score], ...]:
        listed = {each.columns for each in self.lists}
        return (
            *([ImageScore] if listed - {OF_SAMPLES} else []),
            *([SampleScore] if OF_SAMPLES in listed else []),
        )

    @property
    def threshold(self) -> str:
        return ", ".join(f"{each.name} xxh3:{each.digest}" for each in self.lists)

    def needs(self) -> tuple[str, ...]:
        return (SHA256,) if any(each.columns == OF_BYTES for each in self.lists) else ()

    def columns(self) -> tuple[str, ...]:
        return OF_IMAGES

    def verdict(self, score: Any) -> str | None:
        raise ValueError("a list of ids judges rows, not scores")

    def verdicts(self, scores: Sequence[Any]) -> Sequence[str | None]:
        return [self.verdict(score) for score in scores]

    def judged(self, scores: Sequence[Any], columns: pa.Table) -> Sequence[str | None]:
        if not scores:
            return []
        ids = columns.column(SAMPLE_ID).to_pylist()
        keys: dict[tuple[str, ...], list[str]] = {OF_SAMPLES: ids}
        if isinstance(scores[0], ImageScore):
            places = columns.column(POSITION).to_pylist()
            keys = {
                OF_IMAGES: [f"{place}:{sample_id}" for sample_id, place in zip(ids, places, strict=True)],
                OF_BYTES: [score.get(SHA256) or "" for score in scores] if self.needs() else [],
            }
        reasons: list[str | None] = [None] * len(scores)
        is_listed = np.zeros(len(scores), bool)
        for each in self.lists:
            if each.columns in keys:
                listed = self._ids_of(each)
                rows = listed.find(keys[each.columns])
                for number in np.flatnonzero((rows >= 0) & ~is_listed).tolist():
                    reasons[number] = listed.reason(int(rows[number])) or f"listed in {each.name}"
                is_listed |= rows >= 0
        if self.keeps:
            return [None if found else "in no list" for found in is_listed.tolist()]
        return reasons

    def mark(
        self,
        marks: dict[str, Marks],
        samples: Iterable[str],
        images: Iterable[tuple[str, int]],
        sha256: Iterable[str | None],
    ) -> None:
        """Note which rows of the lists name something.

        Args:
            marks: whether each row does, by the digest of the list.
            samples: ids.
            images: id and position of each.
            sha256: that of each image, where it is known.
        """
        keys: dict[tuple[str, ...], Iterable[str]] = {
            OF_SAMPLES: samples,
            OF_IMAGES: (f"{position}:{sample_id}" for sample_id, position in images),
            OF_BYTES: (digest for digest in sha256 if digest is not None),
        }
        for columns in {each.columns for each in self.lists}:
            some = list(keys[columns])
            for each in (each for each in self.lists if each.columns == columns):
                listed = self._ids_of(each)
                rows = listed.find(some)
                marks.setdefault(each.digest, np.zeros(len(listed), bool))[rows[rows >= 0]] = True

    def unmarked(self, marks: Mapping[str, Marks]) -> list[str]:
        """Return a line for each list of which some rows name nothing."""
        return [
            f"{self.name}: {np.count_nonzero(~found):,} of {len(found):,} rows of {each.name} "
            "name nothing in these shards"
            for each in self.lists
            if (found := marks.get(each.digest)) is not None and not found.all()
        ]

    def _ids_of(self, each: IdList) -> SortedIds:
        return opened_copy(each.published(self.folder)) if self.folder else _read(each)

    def _fault(self, error: Exception) -> Exception:
        if isinstance(error, OSError) and is_store_failure(error):
            return error
        return FilterSettingError(self.settings()["files"].name, error_line(error))


_MEANING: Final = "Parquet, CSV or text files with sample_id, sample_id and position, or sha256"


@dataclass(frozen=True)
class DropIds(IdFilter):
    """Refuses what a list names."""

    name = "drop_ids"
    keeps = False

    files: tuple[str, ...] = setting("drop_ids", tuple, (), f"what is dropped: {_MEANING}", compare=False)


@dataclass(frozen=True)
class KeepIds(IdFilter):
    """Refuses what no list names."""

    name = "keep_ids"
    keeps = True

    files: tuple[str, ...] = setting("keep_ids", tuple, (), f"what alone is kept: {_MEANING}", compare=False)
