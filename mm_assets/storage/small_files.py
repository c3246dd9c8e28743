"""Many small files in a folder or below a URL: read in parallel, indexed, sealed against damage.

* `FolderFiles`: many are read at once, each is written as a whole.
* `FileIndex`: what is asked of all of them, without opening each. It is made of segments:

      <folder>/<digest>.parquet   a row per file, under the xxh3-128 of the segment's bytes

  An index is derived data. A file that has been replaced since, and one whose segment is lost or damaged,
  counts as not indexed. Segments are merged as they grow, so that there are few. Two processes may add at the
  same time.
* `hashes_of`: hashes of sample ids, which an index keeps; `hashes_of_several`: those that several files have.
* `KnownFiles`: what was found in files by reading them whole, as long as all of them have the same stamps.
* `StampedCache`: what one process knows of files that have the same stamp as then.
* `small_object`: one of a store, by its listed size.
* `seal`, `unseal`: JSON objects with a digest of themselves, to detect changed or torn files.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from mm_assets.formats.parquet import UNREADABLE, read_buffer
from mm_assets.storage import S3_SCHEMES, files
from mm_assets.storage.files import StorageOptions, join, publish_bytes, read_bytes, remove
from mm_assets.storage.stamps import StampedFile, files_in, parallel_map

_T = TypeVar("_T")


class FolderFiles:
    """Files by their names relative to ``folder``, a local path or an fsspec URL."""

    def __init__(
        self, folder: str | os.PathLike[str], storage_options: files.StorageOptions | None = None
    ) -> None:
        self.folder = os.fspath(folder).rstrip("/") or "/"
        self._options = storage_options
        self._is_remote = files.is_remote(self.folder)
        self._root = self.folder if self._is_remote else files.local_path(self.folder)

    def _uri(self, name: str) -> str:
        return files.join(self._root, name) if name else self._root

    def _read(self, name: str) -> bytes | None:
        return read_bytes(self._uri(name), self._options)

    def _read_many(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of those files that exist."""
        wanted = list(names)
        found = zip(wanted, parallel_map(self._read, wanted, self._root), strict=True)
        return {name: content for name, content in found if content is not None}

    def _list(self, folder: str) -> dict[str, int]:
        """Return names and sizes of the files directly in a sub-folder; empty if it does not exist."""
        return {name: file.size for name, file in files_in(self._uri(folder), self._options).items()}

    def _write(self, name: str, content: str | bytes) -> None:
        with files.staged(self._uri(name), self._options) as file:
            Path(file.path).write_bytes(content.encode() if isinstance(content, str) else content)
            file.publish()

    def _write_if_new(self, name: str, content: str | bytes) -> bool:
        raw = content.encode() if isinstance(content, str) else content
        if self._read(name) == raw:
            return False
        self._write(name, raw)
        return True

    def _remove(self, name: str) -> None:
        if not self._is_remote:
            Path(self._uri(name)).unlink(missing_ok=True)
            return
        fs, path = files.filesystem(self._uri(name), self._options)
        try:
            fs.rm_file(path)
        except FileNotFoundError:
            return


_SUFFIX = ".parquet"
_MAX_SEGMENT_BYTES = 64 << 20  # one is in memory at a time
_OVERHEAD_BYTES = 4096  # of any segment
_MERGED_UP_TO = 2  # times the size of what is added: each row is rewritten a logarithmic number of times
_FILTER_BITS = 22

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("stamp", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("id_hashes", pa.list_(pa.field("element", pa.uint64(), nullable=False)), nullable=False),
    ]
)


@dataclass(frozen=True)
class FileFacts:
    """What is kept of one file: a text, and the hashes of the sample ids in it."""

    text: str
    id_hashes: Hashes


def hashes_of(sample_ids: Iterable[str]) -> Hashes:
    """Return the xxh3-64 of each id. Different ids may have the same: who finds one compares the ids."""
    return np.array([xxhash.xxh3_64_intdigest(sample_id.encode()) for sample_id in sample_ids], np.uint64)


def hashes_of_several(first: Mapping[str, Hashes], *others: Mapping[str, Hashes | None]) -> Hashes:
    """Return the hashes of ``first``, sorted, that several files have; all, if a file may have any.

    Args:
        first: hashes by name of the file.
        others: those among them that other files, or the same ones in another state, have; None: it may have
            any.
    """
    values = np.unique(np.concatenate([np.empty(0, np.uint64), *first.values()]))
    kinds: list[Mapping[str, Hashes | None]] = [first, *others]
    numbers = {
        name: number for number, name in enumerate(dict.fromkeys(name for kind in kinds for name in kind))
    }
    owner = np.full(len(values), -1)
    is_of_several = np.zeros(len(values), np.bool_)
    for name, hashes in (entry for kind in kinds for entry in kind.items()):
        if hashes is None:
            return values
        places = np.searchsorted(values, hashes)
        is_of_several[places] |= (owner[places] != -1) & (owner[places] != numbers[name])
        owner[places] = numbers[name]
    return values[is_of_several]


def files_having(wanted: Hashes, hashes: Mapping[str, Hashes | None]) -> list[str]:
    """Return the names of files that have, or may have, one of the wanted hashes, which are sorted."""
    if not len(wanted):
        return []
    return [name for name, found in hashes.items() if found is None or _are_among(found, wanted).any()]


def _are_among(hashes: Hashes, wanted: Hashes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return for each hash whether it is wanted; these are sorted, and at least one."""
    places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
    return wanted[places] == hashes


class FileIndex:
    """Index in a folder (or below a URL).

    Stamps tell whether a file is still the one that was indexed (`mm_assets.storage.stamps`).
    """

    def __init__(self, folder: str, options: StorageOptions | None = None) -> None:
        self._folder = folder
        self._options = options
        self._outdated: set[str] = set()  # segments more than half of whose rows nobody needs

    def texts(self, stamps: Mapping[str, str]) -> dict[str, str]:
        """Return the texts of the files, by name, that are indexed with these stamps."""
        found: dict[str, str] = {}
        for segment, table in self._segments(["name", "stamp", "text"]):
            current = _current(table, stamps, found)
            if 2 * len(current) < table.num_rows:
                self._outdated.add(segment)
            # Few texts are different: each is one object, however many files have it.
            texts = table["text"].combine_chunks().dictionary_encode()
            values = texts.dictionary.to_pylist()
            codes = texts.indices.to_numpy()
            found.update((name, values[codes[row]]) for name, row in current.items())
        return found

    def sharing(self, stamps: Mapping[str, str], id_hashes: Hashes) -> dict[str, Hashes | None]:
        """Return those of the hashes that each file has, by name; files that have none are left out.

        None: it is not indexed, so it may have any. Another process may be merging the segment of a file that
        was found before.
        """
        if not len(id_hashes):
            return {}
        found: dict[str, Hashes | None] = {}
        indexed: set[str] = set()
        wanted = np.unique(id_hashes)
        shift = np.uint64(64 - _FILTER_BITS)
        may_be_wanted = np.zeros(1 << _FILTER_BITS, np.bool_)  # by the first bits of a hash: most are not
        may_be_wanted[wanted >> shift] = True
        for _, table in self._segments(["name", "stamp", "id_hashes"]):
            lists = table["id_hashes"].combine_chunks()
            hashes = lists.flatten().to_numpy()
            at = np.flatnonzero(may_be_wanted[hashes >> shift])
            at = at[_are_among(hashes[at], wanted)]
            ends = np.cumsum(pc.list_value_length(lists).to_numpy())
            bounds = np.searchsorted(at, ends)
            current = _current(table, stamps)
            indexed.update(current)
            for name, row in current.items():
                first, last = bounds[row - 1] if row else 0, bounds[row]
                if first < last:
                    found[name] = hashes[at[first:last]]
        return found | dict.fromkeys(stamps.keys() - indexed)

    def add(self, facts: Mapping[str, FileFacts], stamps: Mapping[str, str]) -> None:
        """Add files to the index.

        Args:
            facts: what is kept of each, by name.
            stamps: of all files there are: rows of others are left out of segments that are rewritten.
        """
        table = _table(facts, stamps)
        size = table.nbytes + _OVERHEAD_BYTES
        merged: list[str] = []
        for name, stored in self._sizes():
            has_room = size + stored <= _MAX_SEGMENT_BYTES
            is_outdated = name in self._outdated and (has_room or not merged)
            if is_outdated or (has_room and stored <= _MERGED_UP_TO * size):
                size += stored
                segment = self._read(name, SCHEMA.names)
                merged.append(name)
                if segment is not None:
                    table = _without_outdated(pa.concat_tables([table, segment]), stamps)
        data = _to_bytes(table)
        added = _name(data)
        if table.num_rows:
            publish_bytes(join(self._folder, added), data, self._options)
        for name in merged:
            if name != added:
                remove(join(self._folder, name), self._options)
        self._outdated.difference_update(merged)

    def _segments(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
        for name, _ in self._sizes():
            table = self._read(name, columns)
            if table is None:
                self._outdated.add(name)
            else:
                yield name, table

    def _read(self, name: str, columns: Sequence[str]) -> pa.Table | None:
        """Return columns of a segment; None if it is damaged, or merged by another process meanwhile."""
        data = read_bytes(join(self._folder, name), self._options)
        if data is None or _name(data) != name:
            return None
        try:
            table = read_buffer(data, columns)
        except UNREADABLE:
            return None
        expected = pa.schema([SCHEMA.field(column) for column in columns])
        return table if table.schema.equals(expected) else None

    def _sizes(self) -> list[tuple[str, int]]:
        """Return names and stored bytes of the segments, the smallest first."""
        found = [
            (name, file.size)
            for name, file in files_in(self._folder, self._options, _SUFFIX).items()
            if not name.startswith(".")
        ]
        return sorted(found, key=lambda entry: (entry[1], entry[0]))


def _table(facts: Mapping[str, FileFacts], stamps: Mapping[str, str]) -> pa.Table:
    hashes = [found.id_hashes for found in facts.values()]
    offsets = np.cumsum([0, *map(len, hashes)]).astype(np.int32)
    values = np.concatenate([np.empty(0, np.uint64), *hashes])
    lists = pa.ListArray.from_arrays(offsets, values, type=SCHEMA.field("id_hashes").type)
    columns = [
        pa.array(list(facts), pa.string()),
        pa.array([stamps[name] for name in facts], pa.string()),
        pa.array([found.text for found in facts.values()], pa.string()),
        lists,
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _current(
    table: pa.Table, stamps: Mapping[str, str], known: Mapping[str, object] | None = None
) -> dict[str, int]:
    """Return the rows, by name, of files that have these stamps and are not known yet."""
    rows = zip(table["name"].to_pylist(), table["stamp"].to_pylist(), strict=True)
    return {
        name: row
        for row, (name, stamp) in enumerate(rows)
        if stamps.get(name) == stamp and name not in (known or {})
    }


def _without_outdated(table: pa.Table, stamps: Mapping[str, str]) -> pa.Table:
    return table.take(pa.array(sorted(_current(table, stamps).values()), pa.int64())).combine_chunks()


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    # Hashes are noise: nothing makes them smaller.
    plain = ["id_hashes.list.element"]
    pq.write_table(
        table,
        sink,
        use_dictionary=["text"],
        compression={name: "none" if name in plain else "zstd" for name in [*SCHEMA.names[:3], *plain]},
    )
    return sink.getvalue().to_pybytes()


def _name(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data) + _SUFFIX


_FEWEST_RECALLED = 8  # fewer files are read
_LEAST_SHARE = 0.1  # of the files in a folder: for less its index is not read
_KEPT_AT_ONCE = 2000


class KnownFiles:
    """Texts about the files of a folder and others beside them, while each of these has the same stamp.

    A stamp saves reading what was read before, and proves nothing. It is kept where any later change shows in
    it: of a local file that was not changed just now, by its times and inode; in a store by an etag that is
    the MD5 of what was read.

    Args:
        root: what ``folder``, and the paths of files beside, are relative to.
        suffix: of the files in ``folder``; their names are without it.
        index: location of the `FileIndex` that keeps the texts.
    """

    def __init__(self, root: str, folder: str, suffix: str, index: str) -> None:
        self._root, self._folder, self._suffix = root, folder, suffix
        self._index = FileIndex(index)
        self._listed: dict[str, Mapping[str, StampedFile]] = {}
        self._lock = threading.Lock()
        self._is_used = False

    def recall(self, names: Collection[str]) -> dict[str, str]:
        """Return the texts of these files, by name, that still hold."""
        found: dict[str, str] = {}
        self._is_used = len(names) >= _FEWEST_RECALLED and len(names) >= _LEAST_SHARE * len(self._stamps)
        for name, kept in self._index.texts(self._stamps).items() if self._is_used else ():
            if name in names:
                beside, _, text = kept.partition("\n")
                if all(self._stamp(path) == stamp for path, stamp in json.loads(beside).items()):
                    found[name] = text
        return found

    def file(self, path: str) -> StampedFile | None:
        """Return a file as it was when this first looked into its folder; None if there is none."""
        folder, _, name = path.rpartition("/")
        with self._lock:
            if folder not in self._listed:
                self._listed[folder] = files_in(join(self._root, folder))
        return self._listed[folder].get(name)

    def keep(self, texts: Mapping[str, str], read: Mapping[str, Mapping[str, str]]) -> None:
        """Keep texts about files that were read since `recall`, if they were many.

        Args:
            texts: by the name of the file.
            read: by this name, the path of each file that was read, the first one is the file itself, and of
                those that are not there; with `content_etag` of what was in it.
        """
        facts: dict[str, FileFacts] = {}
        for name, text in texts.items() if self._is_used else ():
            is_listed = name in self._stamps  # and was not made since
            if is_listed and all(self._is_told(path, etag) for path, etag in read[name].items()):
                _, *beside = read[name]
                stamps = json.dumps({path: self._stamp(path) for path in beside})
                facts[name] = FileFacts(f"{stamps}\n{text}", hashes_of(()))
        kept = list(facts)
        for start in range(0, len(kept), _KEPT_AT_ONCE):
            some = {name: facts[name] for name in kept[start : start + _KEPT_AT_ONCE]}
            self._index.add(some, self._stamps)

    @cached_property
    def _stamps(self) -> dict[str, str]:
        self.file(f"{self._folder}/")
        listed = self._listed[self._folder].items()
        return {
            name.removesuffix(self._suffix): file.stamp
            for name, file in listed
            if name.endswith(self._suffix) and not name.startswith(".")
        }

    def _stamp(self, path: str) -> str | None:
        file = self.file(path)
        return None if file is None else file.stamp

    def _is_told(self, path: str, etag: str) -> bool:
        """Return whether the stamp of a file will be another when it has other content than was read."""
        file = self.file(path)
        return file is None or file.is_settled or bool(etag and etag in file.stamp)


class StampedCache(Generic[_T]):
    """What a process knows of files, by location, while each has the same stamp; of the last ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, tuple[str, _T]] = OrderedDict()

    def __contains__(self, uri: str) -> bool:
        return uri in self._kept

    def of(self, uri: str, stamp: str | None) -> _T | None:
        """Return what is known of a file that has this stamp, or None; without a stamp there is no file."""
        known_stamp, value = self._kept.get(uri, (None, None))
        return value if stamp and stamp == known_stamp else None

    def keep(self, uri: str, stamp: str | None, value: _T) -> None:
        """Keep something about a file; without a stamp it could not be known again."""
        if stamp:
            self._kept[uri] = stamp, value
            self._kept.move_to_end(uri)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)


def content_etag(uri: str, data: bytes) -> str:
    """Return the etag that S3 has for a file of this content; empty for a local one."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"' if files.is_remote(uri) else ""


def small_object(uri: str, size: int) -> bytes | None:
    """Return what `mm_assets.storage.s3.small_object` does of a URL of S3; None for any other place."""
    if not uri.startswith(S3_SCHEMES):
        return None
    from mm_assets.storage import s3

    return s3.small_object(uri, size)


SEAL = "seal"


def seal(fields: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return the object as UTF-8, with one more field: the xxh3-128 of all other fields."""
    plain = {name: value for name, value in fields.items() if name != SEAL}
    text = json.dumps({**plain, SEAL: _digest(plain)}, ensure_ascii=False, sort_keys=True, indent=indent)
    return f"{text}\n".encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the object without its digest.

    Raises:
        ValueError: the data is not as `seal` wrote it.
    """
    try:
        fields = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(fields, dict) or SEAL not in fields:
        raise ValueError("no digest of itself: an older version wrote it, or somebody changed it")
    stored_digest = fields.pop(SEAL)
    if stored_digest != _digest(fields):
        raise ValueError("changed since it was written: its digest is another")
    return fields


def _digest(fields: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(
        json.dumps(fields, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()
    )
