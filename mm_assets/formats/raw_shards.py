"""The raw shards a user configured: one text names paths, globs, brace lists or URLs, or modalities,
separated by whitespace.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mm_assets.formats.brace_lists import expand_braces
from mm_assets.formats.error_lines import error_line, not_utf8
from mm_assets.formats.file_stamps import MISSING, local_stamp, remote_stamps
from mm_assets.formats.listing import expand
from mm_assets.formats.paired.raw.address import PROTOCOL, PairedAddress, modality_of
from mm_assets.formats.partitions import partition_name, plan_partitions, root_of_locations
from mm_assets.formats.raw_files import RAW_SUFFIXES, passed_over_line, tars_first
from mm_assets.formats.storage import (
    StorageOptions,
    absolute,
    exists,
    filesystem,
    is_remote,
    local_path,
    size_of,
)
from mm_assets.formats.store_errors import is_of_store
from mm_assets.interleaved.errors import MmAssetsError

_PATTERN = re.compile(r"[*?\[]")
_TOLD = 3  # of the locations where nothing is


class AmbiguousPartition(MmAssetsError, ValueError):
    """Several raw files have the name of one partition."""


@dataclass(frozen=True)
class RawShard:
    """One partition of raw input: its files, and a version that changes whenever a file does.

    ``is_ambiguous``: these files contend for the name (``x.tar`` and ``x.tar.gz``), and none of them is read.
    ``stamps`` has what is known of remote files.
    """

    key: str
    files: tuple[str, ...]
    is_ambiguous: bool = False
    stamps: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def version(self) -> str:
        """Made of the etag of each file, or of size, modification time and a digest of both ends; found out
        when it is first asked for.
        """
        stamps = [
            f"{os.path.basename(file)}:{self.stamps[file] if is_remote(file) else local_stamp(file)}"
            for file in self.files
        ]
        return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:32]

    @property
    def uri(self) -> str:
        """Its one file, a JSON list of several, or a JSON object with those that contend for its name: see
        `files_of`.
        """
        if self.is_ambiguous:
            return json.dumps({self.key: self.files})
        return self.files[0] if len(self.files) == 1 else json.dumps(self.files)


def files_of(uri: str) -> tuple[str, ...]:
    """The files of a raw shard's `RawShard.uri`; any other URI is one file.

    Raises `AmbiguousPartition`, naming the files, where several contend for the shard's name.
    """
    if uri.startswith("{"):
        ((key, files),) = json.loads(uri).items()
        raise AmbiguousPartition(
            f"{len(files)} files would become partition {key!r}, rename all but one: {', '.join(files)}"
        )
    return tuple(json.loads(uri)) if uri.startswith("[") else (uri,)


class Listing(dict[str, RawShard]):
    """Raw shards by partition key.

    ``unmatched`` says in a line each which folders and patterns hold none, and what in them is no shard.
    """

    def __init__(self, shards: Mapping[str, RawShard], unmatched: Sequence[str] = ()) -> None:
        super().__init__(shards)
        self.unmatched = tuple(unmatched)


class RawLocations:
    """What ``MM_RAW_SHARDS`` says, and the two roots that partitions and locators are relative to.

    Roots follow from what is written there, not from what is found: a shard added later renames no partition.
    They are the deepest common folder of the local locations, and the deepest common prefix of the URLs.
    """

    def __init__(
        self, text: str, options: StorageOptions | None = None, excluded: str = "", missing_keys: str = "skip"
    ) -> None:
        """``excluded`` is a folder or URL prefix whose files are no raw shards: the outputs.
        ``missing_keys``: see `PairedAddress`.

        Raises ``ValueError`` for a quotation mark without its partner, and for modalities beside other
        locations.
        """
        self._options = options
        self._excluded = (
            excluded if is_remote(excluded) else os.path.realpath(local_path(excluded)) if excluded else ""
        )
        try:
            items = shlex.split(text)
        except ValueError as error:
            hint = "write \\' for a quotation mark, and \\\\ for a backslash, that is part of a name"
            raise ValueError(f"raw shards {text!r:.200}: {error}; {hint}") from error
        self._paired = _paired_address(items, missing_keys)
        if self._paired is not None:
            items = [self._paired.url]
        self._items = [absolute(item) for item in items]
        self.local_root = root_of_locations(
            [item for item in self._items if not is_remote(item)], RAW_SUFFIXES
        )
        self.remote_root = root_of_locations([item for item in self._items if is_remote(item)], RAW_SUFFIXES)

    def roots(self) -> list[str]:
        """Everything a locator of these shards may point into; relative ones are below the first."""
        return [root for root in (self.local_root, self.remote_root) if root]

    def shards(self, files_per_partition: int | None = None) -> Listing:
        """All raw partitions by key.

        A file that is named, also by a brace list, is a partition whether it is there or not: one that is not
        fails when it is read, alone. So does one whose name several files have. Raises ``FileNotFoundError``
        in one line where nothing is found at all.
        """
        if self._paired is not None:
            self._paired.names()  # says which folder is not there
        is_named = self._elements()
        named = [element for element, is_file in is_named.items() if is_file]
        stamps = remote_stamps([file for file in named if is_remote(file)], self._options)
        absent = [
            file
            for file in named
            if (stamps[file] == MISSING if is_remote(file) else not os.path.exists(file))
        ]
        files, unmatched = self._files(is_named)
        unmatched += self._paired.passed_over() if self._paired is not None else []
        taken = [file for file in files if not self._is_excluded(file)]
        if not set(taken).difference(absent):
            told = [*(self._why_absent(file) for file in absent[:_TOLD]), *absent[_TOLD:], *unmatched]
            told += ["those found lie below MM_STORAGE"] if len(taken) < len(files) else []
            rest = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
            raise FileNotFoundError(
                f"no raw shards: {'; '.join(told[:_TOLD]) or 'none are named; set MM_RAW_SHARDS'}{rest}"
            )
        stamps |= remote_stamps(
            [file for file in taken if is_remote(file) and file not in stamps], self._options
        )
        return Listing(self._planned(taken, files_per_partition, stamps), unmatched)

    def _planned(
        self, files: Sequence[str], files_per_partition: int | None, stamps: Mapping[str, str]
    ) -> dict[str, RawShard]:
        by_name: dict[str, list[str]] = {}
        for file in files:
            by_name.setdefault(partition_name(file, self._root_of(file)), []).append(file)
        alone = [file for same in by_name.values() if len(same) == 1 for file in same]
        planned = plan_partitions(alone, files_per_partition, options=self._options, root_of=self._root_of)
        shards = {
            partition.name: RawShard(partition.name, partition.files, stamps=stamps) for partition in planned
        }
        ambiguous = {
            name: RawShard(name, tuple(same), True, stamps) for name, same in by_name.items() if len(same) > 1
        }
        return shards | ambiguous

    def _elements(self) -> dict[str, bool]:
        """All locations, brace lists taken apart, and whether each names a file; folders and patterns must be
        looked up.
        """
        for fs in {
            id(fs): fs
            for fs in (filesystem(item, self._options)[0] for item in self._items if is_remote(item))
        }.values():
            fs.invalidate_cache()
        elements = [element for item in self._items for element in self._braces(item)]
        return {element: self._is_named(element) for element in elements}

    def _is_named(self, element: str) -> bool:
        if not element.lower().endswith(RAW_SUFFIXES) or _PATTERN.search(element):
            return False
        return is_remote(element) or not os.path.isdir(element)

    def _braces(self, item: str) -> Iterable[str]:
        if "{" not in item:
            return [item]
        return [item] if exists(item, self._options) else expand_braces(item)

    def _files(self, is_named: Mapping[str, bool]) -> tuple[list[str], list[str]]:
        """All files, in the order of the locations, and a line for each folder and pattern that has none, or
        more than can be read.
        """
        files: list[str] = []
        unmatched: list[str] = []
        for location in is_named:
            if is_named[location]:
                files.append(location)
                continue
            try:
                found = expand(location, RAW_SUFFIXES, self._options)
            except Exception as error:
                if not (isinstance(error, FileNotFoundError | PermissionError) or is_of_store(error)):
                    raise
                unmatched.append(error_line(error))
                continue
            unmatched += found.passed_over
            shards = [file for file in found.files if file.lower().endswith(RAW_SUFFIXES)]
            if not shards:
                unmatched.append(
                    f"{location}: no raw shard: the name of one ends in {', '.join(RAW_SUFFIXES)}"
                )
            chosen, passed_over = tars_first([file for file in shards if not self._is_excluded(file)])
            files += chosen or shards
            if passed_over:
                unmatched.append(passed_over_line(location, passed_over))
        unmatched += [not_utf8(file) for file in files if not _is_text(file)]
        return list(dict.fromkeys(file for file in files if _is_text(file))), unmatched

    def _why_absent(self, file: str) -> str:
        try:
            size_of(file, self._options)
        except Exception as error:
            if not (isinstance(error, OSError) or is_of_store(error)):
                raise
            if is_of_store(error) or not isinstance(error, FileNotFoundError):
                return error_line(error)
        return f"{file}: no such file"

    def _is_excluded(self, file: str) -> bool:
        if not self._excluded or is_remote(file) != is_remote(self._excluded):
            return False
        real = file if is_remote(file) else os.path.realpath(file)  # a link may lead there
        return real.startswith(self._excluded.rstrip("/") + "/")

    def _root_of(self, file: str) -> str:
        return self.remote_root if is_remote(file) else self.local_root


def _is_text(name: str) -> bool:
    """Whether a name can be that of a partition: no bytes in it that are no UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _paired_address(items: Sequence[str], missing_keys: str) -> PairedAddress | None:
    """The paired shards that ``name=location`` items stand for; None where no item is of that form."""
    named = [found for item in items if (found := modality_of(item)) is not None]
    if not named:
        return None
    if len(named) < len(items):
        raise ValueError(
            f"raw shards: modalities ({named[0][0]}=...) and other locations cannot be mixed: {' '.join(items)}"
        )
    if repeated := [name for name, count in Counter(name for name, _ in named).items() if count > 1]:
        raise ValueError(f"raw shards: modality {repeated[0]!r} is named twice")
    return PairedAddress(dict(named), missing_keys)


def relative_root(roots: Sequence[str]) -> str | None:
    """The root among them that locators are stored relative to: the folder of this machine, or that of paired
    shards.
    """
    return next((root for root in roots if not is_remote(root) or root.startswith(f"{PROTOCOL}://")), None)
