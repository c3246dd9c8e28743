"""Which source each partition of an output came from, noted beside the data, so that none is replaced by
another data set's unasked.

    .origins/<output>.json    of one partition: digests of where its input files lay

A source is the same if one of its files lies in the same place, whatever is in it now.
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
_LONGEST = 200  # bytes of a file's name, so that there is room for what is put around it

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Origin:
    """Where a partition was read from: digests of the addresses of its files."""

    places: tuple[str, ...]

    @classmethod
    def of(cls, files: Sequence[str]) -> Origin:
        """The origin of what is read from these files."""
        return cls(
            tuple(_digest(file if is_remote(file) else os.path.realpath(local_path(file))) for file in files)
        )

    def is_same(self, other: Origin) -> bool:
        return not set(self.places).isdisjoint(other.places)


def at_once(ask: Callable[[Item], Result], items: Iterable[Item], where: str) -> list[Result]:
    """``ask`` of every item, in order; of many at a time where answers come from afar."""
    with ThreadPoolExecutor(_THREADS if is_remote(where) else 1) as threads:
        return list(threads.map(ask, items))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


class OriginNotes:
    """The notes beside the outputs in ``folder`` (path or URL), by the names of these outputs."""

    def __init__(self, folder: str, options: StorageOptions | None = None) -> None:
        self._folder = join(folder, ORIGINS_BESIDE)
        self._options = options

    def read(self, names: Iterable[str]) -> dict[str, Origin]:
        """The origins of those that have a note. One that cannot be read counts as none."""
        names = list(names) if exists(self._folder, self._options) else []
        found = zip(names, at_once(self._read, names, self._folder), strict=True)
        return {name: origin for name, origin in found if origin is not None}

    def write(self, name: str, origin: Origin | None) -> None:
        """Note an origin; None takes a note away."""
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
    """Of one output: its origin ``before``, and the one that it has ``now`` (None: not known)."""

    notes: OriginNotes
    name: str
    output: str
    before: Origin | None
    now: Origin | None

    def write(self) -> None:
        """Note the present origin.

        Raises ``ValueError`` where somebody else has noted another in the meantime.
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
