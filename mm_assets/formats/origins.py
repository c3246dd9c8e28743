"""Notes beside an output on the source of each partition, to avoid replacing another dataset by mistake.

    .origins/<output>.json    of one partition: digests of the addresses of its input files

Two sources are the same if they share the address of one file, whatever the file contains now.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mm_assets.formats.local_tree import ORIGINS_BESIDE
from mm_assets.formats.storage import (
    StorageOptions,
    exists,
    filesystem,
    is_remote,
    join,
    local_path,
    remove,
    staged,
)

_THREADS = 16  # object stores answer in ~50 ms
_LONGEST = 200  # bytes of a file name, which leaves room for prefix and suffix of temporary names

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Origin:
    """The source of a partition: digests of the addresses of its files."""

    places: tuple[str, ...]

    @classmethod
    def of(cls, files: Sequence[str]) -> Origin:
        """Return the origin of a partition read from these files."""
        return cls(
            tuple(_digest(file if is_remote(file) else os.path.realpath(local_path(file))) for file in files)
        )

    def is_same(self, other: Origin) -> bool:
        """Return whether both have a file address in common."""
        return not set(self.places).isdisjoint(other.places)


def parallel_map(ask: Callable[[Item], Result], items: Iterable[Item], where: str) -> list[Result]:
    """Return ``ask`` of every item, in order; in several threads where answers come over a network."""
    if not is_remote(where):
        return [ask(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(ask, items))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


class OriginNotes:
    """The notes beside the outputs in ``folder`` (path or URL), by the names of the outputs."""

    def __init__(self, folder: str, options: StorageOptions | None = None) -> None:
        self._folder = join(folder, ORIGINS_BESIDE)
        self._options = options

    def read(self, names: Iterable[str]) -> dict[str, Origin]:
        """Return the origins of the outputs that have a note. An unreadable note counts as none."""
        names = list(names)
        if len(names) > 1 and not exists(self._folder, self._options):
            return {}
        found = zip(names, parallel_map(self._read, names, self._folder), strict=True)
        return {name: origin for name, origin in found if origin is not None}

    def write(self, name: str, origin: Origin | None) -> None:
        """Note an origin; None removes the note."""
        if origin is None:
            remove(self._uri(name), self._options)
            return
        with staged(self._uri(name), self._options) as file:
            Path(file.path).write_text(json.dumps({"places": origin.places}) + "\n")
            file.publish()

    def _read(self, name: str) -> Origin | None:
        fs, path = filesystem(self._uri(name), self._options)
        try:
            return Origin(tuple(map(str, json.loads(fs.cat_file(path))["places"])))
        except (
            FileNotFoundError,
            NotADirectoryError,
            IsADirectoryError,
            ValueError,
            LookupError,
            TypeError,
            RecursionError,
        ):
            return None

    def _uri(self, name: str) -> str:
        return join(self._folder, f"{name if len(os.fsencode(name)) <= _LONGEST else _digest(name)}.json")


@dataclass(frozen=True)
class Note:
    """The origin of one output ``before`` and ``now`` (None: not known)."""

    notes: OriginNotes
    name: str
    output: str
    before: Origin | None
    now: Origin | None

    def write(self) -> None:
        """Write the present origin.

        Raises:
            ValueError: another process has noted another source in the meantime.
        """
        found = self.notes.read([self.name]).get(self.name)
        if (
            found != self.before
            and found is not None
            and self.now is not None
            and not found.is_same(self.now)
        ):
            raise ValueError(
                f"{self.output}: another conversion, from another source, writes it at the same time"
            )
        if self.now != found:
            self.notes.write(self.name, self.now)
