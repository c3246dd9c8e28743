"""Which source each partition of an output came from, noted beside the data, so that none is replaced by another data set's unasked.

    .origins/<output>.json    of one partition: digests of where its input files lay, and of what they looked like

A source is the same if it lies in the same place, whatever is in it now, or if its files look the same, wherever they are now. A note is
written just before its output: one that a killed process has left makes no other source of what the next one reads.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from mm_assets.formats.file_stamps import MISSING, content_stamp
from mm_assets.formats.storage import (
    StorageOptions,
    exists,
    filesystem,
    is_remote,
    join,
    local_path,
    remove,
    staged,
    sweep,
)

FOLDER = ".origins"  # hidden: no client takes what is in it for data

_THREADS = 16  # object stores answer in ~50 ms

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Origin:
    """Where a partition was read from: digests of the addresses of its files, and of their sizes and ends (empty: not known)."""

    place: str
    content: str

    def is_same(self, other: Origin) -> bool:
        return self.place == other.place or self.content == other.content != ""


def origin_of(files: Sequence[str], options: StorageOptions | None = None) -> Origin:
    """The origin of what is read from these files."""
    places = [file if is_remote(file) else os.path.realpath(local_path(file)) for file in files]
    stamps = [content_stamp(file, options) for file in files]
    return Origin(_digest(places), "" if MISSING in stamps else _digest(stamps))


def at_once(ask: Callable[[Item], Result], items: Iterable[Item], where: str) -> list[Result]:
    """``ask`` of every item, in order; of many at a time where answers come from afar."""
    with ThreadPoolExecutor(_THREADS if is_remote(where) else 1) as threads:
        return list(threads.map(ask, items))


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


class OriginNotes:
    """The notes beside the outputs in ``folder`` (path or URL), by the names of these outputs."""

    def __init__(self, folder: str, options: StorageOptions | None = None) -> None:
        self._folder = join(folder, FOLDER)
        self._options = options

    def read(self, names: Iterable[str]) -> dict[str, Origin]:
        """The origins of those that have a note. One that cannot be read counts as none."""
        names = list(names) if exists(self._folder, self._options) else []
        found = zip(names, at_once(self._read, names, self._folder), strict=True)
        return {name: origin for name, origin in found if origin is not None}

    def write(self, origins: Mapping[str, Origin | None]) -> None:
        """Note these origins; None takes a note away."""
        at_once(lambda name: self._write(name, origins[name]), origins, self._folder)
        if None in origins.values() and not is_remote(self._folder):
            with suppress(OSError):  # there are others in it, or there never was one
                os.rmdir(local_path(self._folder))

    def sweep(self) -> None:
        """Remove temporary files of processes that died."""
        sweep(self._folder)

    def _read(self, name: str) -> Origin | None:
        fs, path = filesystem(self._uri(name), self._options)
        try:
            values = json.loads(fs.cat_file(path))
            return Origin(str(values["place"]), str(values["content"]))
        except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError):
            return None

    def _write(self, name: str, origin: Origin | None) -> None:
        if origin is None:
            remove(self._uri(name), self._options)
            return
        with staged(self._uri(name), self._options) as file:
            Path(file.path).write_text(json.dumps(asdict(origin)) + "\n")
            file.publish()

    def _uri(self, name: str) -> str:
        return join(self._folder, f"{name}.json")


@dataclass(frozen=True)
class Note:
    """Of one output: its origin ``before``, and the one that it has ``now`` (None: not known)."""

    notes: OriginNotes
    name: str
    before: Origin | None
    now: Origin | None

    def write(self) -> None:
        """Note the present origin."""
        if self.now != self.before:
            self.notes.write({self.name: self.now})
