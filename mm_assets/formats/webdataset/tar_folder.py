"""A folder of tars that opens in every client while processes replace its partitions, and after one of them died."""

from __future__ import annotations

import fcntl
import os
import posixpath
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from mm_assets.formats import storage
from mm_assets.formats.webdataset.card import declares, front_matter, readme
from mm_assets.formats.webdataset.dataset_files import (
    PartitionFacts,
    energon_dataset,
    energon_info,
    energon_split,
    parse_pairs,
    parse_wids_index,
    union_columns,
    wids_index,
)
from mm_assets.formats.webdataset.spool import local_tar
from mm_assets.formats.webdataset.tar_scan import TarIndex, scan
from mm_assets.formats.webdataset.tar_write import END_BLOCKS, idx_bytes

_OWN = ".mm_assets"  # <tar>.json: facts of the published tar; <tar>.pending.json: of one that is being published
_FACTS, _PENDING = ".json", ".pending.json"
_INDEX, _CARD = "index.json", "README.md"
_INFO, _SPLIT, _DATASET = ".nv-meta/.info.json", ".nv-meta/split.yaml", ".nv-meta/dataset.yaml"


class TarFolder:
    """Publishes partitions and the dataset-level files into a local folder or an fsspec URL.

    Several processes may publish different partitions at once. In a local folder a lock file puts them one after the
    other. Object stores have no locks: there a card that another process overwrote is derived again until it declares
    everybody's columns, and `finish` must not run while a partition is being published.
    """

    def __init__(self, folder: str | os.PathLike[str], storage_options: storage.StorageOptions | None = None) -> None:
        self.folder = os.fspath(folder).rstrip("/") or "/"
        self._options = storage_options
        self._is_remote = storage.is_remote(self.folder)
        self._root = self.folder if self._is_remote else storage.local_path(self.folder)

    def publish(self, staged_tar: str | os.PathLike[str], idx: bytes, facts: PartitionFacts) -> None:
        """Put a finished local tar (consumed), its ``.tar.idx`` and its facts in place of the partition's previous
        ones.

        Every client can read the folder before, between and after the steps, and after a crash in any of them; counts
        of new samples show up with `finish`. A partition without samples is removed, and ``staged_tar`` need not exist.
        Raises ``ValueError`` when tar, idx and facts are not of the same data.
        """
        if facts.samples == 0:
            self._withdraw(facts.file)
            Path(staged_tar).unlink(missing_ok=True)
            return
        _check(staged_tar, idx, facts)
        pending, final = (f"{_OWN}/{facts.file}{suffix}" for suffix in (_PENDING, _FACTS))
        with storage.staged(self._uri(facts.file), self._options) as tar:
            shutil.move(staged_tar, tar.path)
            _sync(tar.path)  # not under the lock: it takes as long as the disk needs for the whole tar
            with self._locked():
                previous = self._read_facts([final, pending])
                if previous == [facts] and tar.is_published() and self._read(f"{facts.file}.idx") == idx:
                    tar.discard()
                    return
                self._write(pending, facts.to_json())
                self._declare(facts)
                if any(old.samples > facts.samples for old in previous):
                    self._relist(facts.file, facts.samples)
                self._remove(f"{facts.file}.idx")
                tar.publish()
                self._write(f"{facts.file}.idx", idx)
                self._write(final, facts.to_json())
                self._remove(pending)

    def finish(self) -> list[str]:
        """Derive all dataset-level files from the tars that are there; returns the names of files whose bytes had to
        change.

        Completes what crashed publishers left: facts and index of such a tar are taken from the tar itself. Raises
        `TarDamage` if that cannot be read.
        """
        with self._locked():
            facts = self._settle()
            if not facts and self._read(_INDEX) is None:
                return []
            files = {
                _INDEX: wids_index(self._name(), facts),
                _INFO: energon_info(facts),
                _SPLIT: energon_split(facts),
                _DATASET: energon_dataset(),
                _CARD: readme(facts),
            }
            return [name for name, text in files.items() if self._write_if_new(name, text)]

    def facts(self) -> list[PartitionFacts]:
        """Facts of all published partitions, by file name."""
        names = self._list(_OWN)
        return self._read_facts(f"{_OWN}/{n}" for n in sorted(names) if n.endswith(_FACTS) and not n.endswith(_PENDING))

    def _withdraw(self, file: str) -> None:
        with self._locked():
            self._relist(file, 0)
            self._forget(file)

    def _forget(self, file: str) -> None:
        for name in (file, f"{file}.idx", f"{_OWN}/{file}{_FACTS}", f"{_OWN}/{file}{_PENDING}"):
            self._remove(name)

    def _relist(self, file: str, samples: int) -> None:
        """Let the index files promise at most ``samples`` of a tar: too many end wids and Energon with an error."""
        text = self._read(_INDEX)
        listed = parse_wids_index(text) if text is not None else []
        fewer = [replace(p, samples=min(p.samples, samples)) if p.file == file else p for p in listed]
        kept = [p for p in fewer if p.samples]
        if kept != listed:
            self._write(_INDEX, wids_index(self._name(), kept))
            self._write(_SPLIT, energon_split(kept))  # before the counts: a tar in the split has one
            self._write(_INFO, energon_info(kept))

    def _declare(self, facts: PartitionFacts) -> None:
        """Make the card declare what a tar is about to bring. Reads all facts only when that is something new."""
        card = self._read(_CARD)
        while card is None or not declares(card.decode(), facts):
            self._write_card(facts)
            card = self._read(_CARD)

    def _write_card(self, facts: PartitionFacts) -> None:
        """Write the card until it holds what is known *after* writing it: others may have written in between."""
        while True:
            published, pending = self.facts(), [*self._pending(), facts]
            card = self._read(_CARD)
            if card is not None and card.decode().startswith(front_matter([*published, *pending])):
                return
            self._write(_CARD, readme(published, also=pending))

    def _pending(self) -> list[PartitionFacts]:
        return self._read_facts(f"{_OWN}/{name}" for name in sorted(self._list(_OWN)) if name.endswith(_PENDING))

    def _settle(self) -> list[PartitionFacts]:
        """Facts of the tars that exist, after mending those of which a publisher died."""
        sizes = self._list("")
        known = {p.file: p for p in self.facts()}
        pending = {p.file: p for p in self._pending()}
        settled = []
        for file in sorted(known | pending):
            if file not in sizes:
                self._forget(file)
            elif file in pending or known[file].bytes != sizes[file]:
                settled.append(self._mend(file, [p[file] for p in (pending, known) if file in p]))
            else:
                settled.append(known[file])
        return settled

    def _mend(self, file: str, candidates: list[PartitionFacts]) -> PartitionFacts:
        """Facts and idx of a tar that is the old or the new one, from its headers; a column of either is a column."""
        uri = self._uri(file)
        source = storage.open_binary(uri, self._options) if self._is_remote else nullcontext(uri)
        with source as tar, local_tar(tar, file) as fd:
            index, size = scan(fd, file), os.fstat(fd).st_size
        starts, pairs = _measure(index)
        measured = PartitionFacts(file, len(starts), size, parse_pairs(pairs))
        matching = [p for p in candidates if replace(p, columns={}) == measured] or candidates
        facts = replace(measured, columns=union_columns(matching))
        self._write_if_new(f"{file}.idx", idx_bytes(starts, index.end))
        self._write(f"{_OWN}/{file}{_FACTS}", facts.to_json())
        self._remove(f"{_OWN}/{file}{_PENDING}")
        return facts

    def _name(self) -> str:
        return posixpath.basename(self.folder if self._is_remote else os.path.abspath(self._root)) or "dataset"

    def _uri(self, name: str) -> str:
        return storage.join(self._root, name) if name else self._root

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._is_remote:
            yield
            return
        os.makedirs(os.path.join(self._root, _OWN), exist_ok=True)
        with open(os.path.join(self._root, _OWN, "lock"), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released with the file, also by a kill
            yield

    def _read(self, name: str) -> bytes | None:
        return self._read_many([name]).get(name)

    def _read_many(self, names: Iterable[str]) -> dict[str, bytes]:
        """Contents of those files that exist."""
        if not self._is_remote:
            paths = {name: Path(self._uri(name)) for name in names}
            return {name: path.read_bytes() for name, path in paths.items() if path.exists()}
        fs, _ = storage.filesystem(self._root, self._options)
        paths_of = {name: storage.filesystem(self._uri(name), self._options)[1] for name in names}
        if not paths_of:
            return {}
        found = fs.cat(list(paths_of.values()), on_error="return")
        contents: dict[str, bytes] = {}
        for name, path in paths_of.items():
            content = found[path]
            if isinstance(content, FileNotFoundError):
                continue
            if isinstance(content, Exception):
                raise content
            contents[name] = content
        return contents

    def _read_facts(self, names: Iterable[str]) -> list[PartitionFacts]:
        return [PartitionFacts.from_json(text) for text in self._read_many(names).values()]

    def _list(self, folder: str) -> dict[str, int]:
        """Names and sizes of the files right below a sub-folder; empty when it does not exist."""
        if not self._is_remote:
            path = self._uri(folder)
            entries = os.scandir(path) if os.path.isdir(path) else ()
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        fs, path = storage.filesystem(self._uri(folder), self._options)
        fs.invalidate_cache()
        try:
            return {posixpath.basename(i["name"]): i["size"] for i in fs.ls(path, detail=True) if i["type"] == "file"}
        except FileNotFoundError:  # object stores have no empty folders
            return {}

    def _write(self, name: str, content: str | bytes) -> None:
        with storage.staged(self._uri(name), self._options) as file:
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
        fs, path = storage.filesystem(self._uri(name), self._options)
        try:
            fs.rm_file(path)
        except FileNotFoundError:
            return


def _check(staged_tar: str | os.PathLike[str], idx: bytes, facts: PartitionFacts) -> None:
    size = os.path.getsize(staged_tar)
    end = int.from_bytes(idx[-8:], "little")
    if not (size == facts.bytes == end + END_BLOCKS and len(idx) == 8 * (facts.samples + 1)):
        raise ValueError(
            f"{facts.file}: facts of {facts.samples} samples in {facts.bytes} bytes, an index of {len(idx) // 8 - 1}"
            f" samples up to {end} and a tar of {size} bytes do not belong together"
        )


def _measure(index: TarIndex) -> tuple[list[int], set[str]]:
    """Header offset of every sample's first member, and the "<position>.<ext>" that occur, of a tar in our layout."""
    starts: list[int] = []
    pairs: set[str] = set()
    for _, members in groupby(index.members, key=lambda member: member.name.partition(".")[0]):
        group = list(members)
        starts.append(group[0].header_offset)
        pairs.update(member.name.partition(".")[2] for member in group)
    return starts, pairs - {"json"}


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
