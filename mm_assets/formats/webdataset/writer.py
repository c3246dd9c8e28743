"""Writer of interleaved batches as WebDataset tars that open unmodified in every client.

`TarFolder` is a folder of tars that every client can open at any time: also while processes replace
partitions, and after a crash of one of them.

Statistics of a tar in the native layout are derived from the tar itself (`measure`, `stated_columns`).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from mm_assets.formats.tar import END_BLOCKS, TarDamage, TarWriter
from mm_assets.formats.tar.scan import scan
from mm_assets.formats.tar.spool import local_tar
from mm_assets.formats.webdataset import BOOKKEEPING, MAX_JSON_BYTES
from mm_assets.formats.webdataset.client_files import (
    SetNotes,
    TarPartitionStats,
    declares,
    energon_dataset,
    energon_info,
    energon_split,
    front_matter,
    hf_type,
    parse_pairs,
    parse_wids_index,
    readme,
    tar_idx,
    union_columns,
    wids_index,
)
from mm_assets.formats.webdataset.native import SampleEncoder
from mm_assets.formats.writer import InterleavedWriter, PartitionReport, Sink
from mm_assets.model.schema import schema_from_text
from mm_assets.storage.files import StagedFile, StorageOptions, open_binary, remove, staged, sync
from mm_assets.storage.small_files import (
    FileFacts,
    FileIndex,
    FolderFiles,
    StampedCache,
    content_etag,
    hashes_of,
)
from mm_assets.storage.stamps import StampedFile, files_in

__all__ = ["InterleavedWebdatasetWriter"]


def measure(fd: int, file: str) -> tuple[TarPartitionStats, bytes]:
    """Return the statistics of an open tar, without columns, and its ``.tar.idx``, both from its headers.

    Raises:
        TarDamage: The tar is damaged.
    """
    index = scan(fd, file)
    starts: list[int] = []
    pairs: set[str] = set()
    for _, members in groupby(index.members, key=lambda member: member.name.partition(".")[0]):
        group = list(members)
        starts.append(group[0].header_offset)
        pairs.update(member.name.partition(".")[2] for member in group)
    idx = tar_idx([*starts, index.end])
    stats = TarPartitionStats(file, len(starts), os.fstat(fd).st_size, parse_pairs(pairs - {"json"}))
    return stats.with_idx(idx), idx


def stated_columns(fd: int, file: str) -> dict[str, str] | None:
    """Return ``columns`` of `TarPartitionStats` from the first json of an open tar.

    All jsons of a tar declare the same columns.

    None if the tar is not one of ours.
    """
    try:
        first = next(
            member
            for member in scan(fd, file).members
            if member.name.endswith(".json") and member.size <= MAX_JSON_BYTES
        )
        stated = json.loads(os.pread(fd, first.size, first.offset))[BOOKKEEPING]["schema"]
        return {column.name: hf_type(column) for column in schema_from_text(stated)}
    except (
        TarDamage,
        StopIteration,
        ValueError,
        LookupError,
        TypeError,
        OSError,
        RecursionError,
        pa.ArrowException,
    ):
        return None


_AT_ONCE = 256  # index files of tars in memory at a time
# Folder of `TarPartitionStats`: <tar>.json of the published tar, <tar>.pending.json of one being published.
_STATS_FOLDER = ".mm_assets"
_STATS, _PENDING = ".json", ".pending.json"
_INDEX, CARD = "index.json", "README.md"
_INFO, _SPLIT, _DATASET = ".nv-meta/.info.json", ".nv-meta/split.yaml", ".nv-meta/dataset.yaml"


class TarFolder(FolderFiles):
    """Publisher of partitions and dataset-level files, into a local folder or an fsspec URL.

    Several processes may publish different partitions at the same time. In a local folder a lock file
    serialises them. Object stores have no locks: there, a card that another process overwrote is written
    again until it declares everybody's columns, and `finish` must not run while a partition is being
    published.

    Args:
        folder: local path or fsspec URL.
        storage_options: of that URL.
        index: folder or URL for a `FileIndex` of the statistics that agree with tar and ``.tar.idx``, by
            which `finish` opens only those of new or changed tars. It has times of files, so it is not in
            the folder of tars, which is the same, to the last byte, wherever it is made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        storage_options: StorageOptions | None = None,
        index: str | None = None,
    ) -> None:
        super().__init__(folder, storage_options)
        self._index = None if index is None else FileIndex(index, storage_options)

    def publish(self, staged_tar: str | os.PathLike[str], idx: bytes, stats: TarPartitionStats) -> None:
        """Replace a partition: its tar, ``.tar.idx`` and statistics.

        Every client can read the folder before, between and after the steps, and after a crash in any of
        them. Counts of new samples appear with `finish`. A partition without samples is removed;
        ``staged_tar`` need not exist then.

        Args:
            staged_tar: A finished local tar, which is moved away.
            idx: Content of its ``.tar.idx``.
            stats: Its statistics.

        Raises:
            ValueError: Tar, idx and statistics do not belong together.
        """
        if stats.samples == 0:
            self.withdraw([stats.file])
            Path(staged_tar).unlink(missing_ok=True)
            return
        _check(staged_tar, idx, stats)
        stats = stats.with_idx(idx)
        pending, final = (f"{_STATS_FOLDER}/{stats.file}{suffix}" for suffix in (_PENDING, _STATS))
        with staged(self._uri(stats.file), self._options) as tar:
            shutil.move(staged_tar, tar.path)
            sync(tar.path)  # before the lock: flushing a whole tar takes long
            with self._locked():
                previous = self._read_stats([final, pending])
                if previous == [stats] and tar.is_published() and self._read(f"{stats.file}.idx") == idx:
                    tar.discard()
                    return
                self._write(pending, stats.to_json())
                self._declare(stats)
                if any(old.samples > stats.samples for old in previous):
                    self._relist({stats.file: stats.samples})
                self._remove(f"{stats.file}.idx")
                tar.publish()
                self._write(f"{stats.file}.idx", idx)
                self._write(final, stats.to_json())
                self._remove(pending)

    def finish(self, notes: SetNotes = SetNotes()) -> list[str]:  # noqa: B008 (frozen)
        """Derive all dataset-level files from the tars, and return the names of the files that changed.

        Completes what crashed publishers left, and repairs index files or statistics that others changed:
        those of such a tar are derived from the tar itself.

        Raises:
            TarDamage: Such a tar cannot be read.
        """
        if not self._is_remote and not any(
            os.path.lexists(os.path.join(self._root, name)) for name in (_STATS_FOLDER, _INDEX)
        ):
            return []
        with self._locked():
            stats = self._apply_pending()
            if not stats and self._read(_INDEX) is None:
                return []
            files = {
                _INDEX: wids_index(stats),
                _INFO: energon_info(stats),
                _SPLIT: energon_split(stats),
                _DATASET: energon_dataset(),
                CARD: readme(stats, notes=notes),
            }
            return [name for name, text in files.items() if self._write_if_new(name, text)]

    def withdraw(self, files: Collection[str]) -> None:
        """Remove tars with their indexes and statistics, after the folder's index files name none of them.

        The card may still declare their columns, until `finish`. After a crash the call may be repeated.

        Args:
            files: names of the tars; some may not exist.
        """
        with self._locked():
            self._relist(dict.fromkeys(files, 0))
            for file in files:
                self._forget(file)

    def stats(self) -> list[TarPartitionStats]:
        """Return the statistics of all published partitions, by file name."""
        return self._published(self._notes())

    def _notes(self) -> dict[str, StampedFile]:
        return files_in(self._uri(_STATS_FOLDER), self._options)

    def _forget(self, file: str) -> None:
        for name in (
            file,
            f"{file}.idx",
            f"{_STATS_FOLDER}/{file}{_STATS}",
            f"{_STATS_FOLDER}/{file}{_PENDING}",
        ):
            self._remove(name)

    def _relist(self, most: Mapping[str, int]) -> None:
        """Limit the counts of some tars in the index files.

        wids and Energon fail if an index promises more samples than the tar has.
        """
        listed = parse_wids_index(self._read(_INDEX) or b"")
        fewer = [replace(p, samples=min(p.samples, most.get(p.file, p.samples))) for p in listed]
        kept = [p for p in fewer if p.samples]
        if kept != listed:
            self._write(_INDEX, wids_index(kept))
            # The split before the counts: every tar in the split needs a count.
            self._write(_SPLIT, energon_split(kept))
            self._write(_INFO, energon_info(kept))

    def _declare(self, stats: TarPartitionStats) -> None:
        """Make the card declare the columns and pairs of a tar before it is published.

        All statistics are read only if the card lacks any of these.
        """
        card = self._read(CARD)
        while card is None or not declares(_text(card), stats):
            self._write_card(stats)
            card = self._read(CARD)

    def _write_card(self, stats: TarPartitionStats) -> None:
        """Write the card until it covers all partitions known *after* writing it.

        Other processes may have written in between.
        """
        while True:
            notes = self._notes()
            published, pending = self._published(notes), [*self._pending(notes), stats]
            card = self._read(CARD)
            if card is not None and _text(card).startswith(front_matter([*published, *pending])):
                return
            self._write(CARD, readme(published, also=pending))

    def _published(
        self, notes: Mapping[str, StampedFile], but: Container[str] = ()
    ) -> list[TarPartitionStats]:
        """Return the statistics of published tars, without those of some."""
        names = [name for name in notes if name.endswith(_STATS) and not name.endswith(_PENDING)]
        return self._noted(notes, [name for name in names if _tar_of(name) not in but])

    def _pending(self, notes: Mapping[str, StampedFile]) -> list[TarPartitionStats]:
        return self._noted(notes, [name for name in notes if name.endswith(_PENDING)])

    def _noted(self, notes: Mapping[str, StampedFile], names: Collection[str]) -> list[TarPartitionStats]:
        """Return statistics in the order of their names; of a store, this process reads each once."""
        paths = {name: f"{_STATS_FOLDER}/{name}" for name in sorted(names)}
        found = {name: _known.of(self._uri(path), notes[name].stamp) for name, path in paths.items()}
        unread = {path: name for name, path in paths.items() if found[name] is None}
        for path, text in self._read_many(unread).items():
            with suppress(ValueError):
                stats = found[unread[path]] = TarPartitionStats.from_json(text)
                if self._is_remote and content_etag(self._uri(path), text) in notes[unread[path]].stamp:
                    _known.keep(self._uri(path), notes[unread[path]].stamp, stats)
        return [stats for stats in found.values() if stats is not None]

    def _apply_pending(self) -> list[TarPartitionStats]:
        """Return the statistics of the tars that exist, after repairs.

        Tars of crashed publishers are repaired, and those whose statistics or idx are not as they were
        written.
        """
        files = files_in(self._root, self._options)
        notes = self._notes()
        stamps = _stamps(files, notes)
        indexed = {} if self._index is None else self._index.texts(stamps)
        known: dict[str, TarPartitionStats] = {}
        for file, text in indexed.items():
            with suppress(ValueError):  # written by another release
                if (stats := TarPartitionStats.from_json(text)).file == file:
                    known[file] = stats
        published = {p.file: p for p in self._published(notes, known)}
        pending = {p.file: p for p in self._pending(notes)}
        for file in sorted((published | pending).keys() - files.keys()):
            self._forget(file)
        # Of one without readable statistics its first json tells whether it is ours.
        tars = sorted(name for name in files if name.endswith(".tar") and not name.startswith("."))
        found: list[TarPartitionStats] = []
        checked: dict[str, FileFacts] = {}
        for at in range(0, len(tars), _AT_ONCE):
            some = tars[at : at + _AT_ONCE]
            idx = self._read_many(
                f"{file}.idx" for file in some if f"{file}.idx" in files and file not in known
            )
            for file in some:
                if file in known:
                    found.append(known[file])
                elif (
                    file not in pending
                    and file in published
                    and published[file].fits(files[file].size, idx.get(f"{file}.idx", b""))
                ):
                    found.append(published[file])
                    # Without a stamp its statistics lie under another name.
                    if self._index is not None and file in stamps:
                        checked[file] = FileFacts(published[file].to_json(), hashes_of(()))
                else:
                    found += self._rebuild_stats(file, [p[file] for p in (pending, published) if file in p])
        if self._index is not None and checked:
            self._index.add(checked, stamps)
        return found

    def _rebuild_stats(self, file: str, candidates: list[TarPartitionStats]) -> list[TarPartitionStats]:
        """Derive statistics and idx of a tar from its headers.

        Its columns are those of the candidates that match it, or of all candidates if none does. Without
        candidates the tar itself declares them; the result is empty for a tar that is not ours.
        """
        uri = self._uri(file)
        source = open_binary(uri, self._options) if self._is_remote else nullcontext(uri)
        with source as tar, local_tar(tar, file) as fd:
            columns = union_columns(candidates) if candidates else stated_columns(fd, file)
            if columns is None:
                return []
            measured, idx = measure(fd, file)
        matching = [p for p in candidates if replace(p, columns={}, idx=measured.idx, split="") == measured]
        split = candidates[0].split if candidates else ""
        stats = replace(measured, columns=union_columns(matching) if matching else columns, split=split)
        self._write_if_new(f"{file}.idx", idx)
        self._write(f"{_STATS_FOLDER}/{file}{_STATS}", stats.to_json())
        self._remove(f"{_STATS_FOLDER}/{file}{_PENDING}")
        return [stats]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._is_remote:
            yield
            return
        os.makedirs(os.path.join(self._root, _STATS_FOLDER), exist_ok=True)
        with open(os.path.join(self._root, _STATS_FOLDER, "lock"), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, or the process killed
            yield

    def _read_stats(self, names: Iterable[str]) -> list[TarPartitionStats]:
        """Return the readable statistics; `finish` derives the others from the tars."""
        found = []
        for text in self._read_many(names).values():
            with suppress(ValueError):
                found.append(TarPartitionStats.from_json(text))
        return found


_known: StampedCache[TarPartitionStats] = StampedCache(4000)  # what this process has read in stores


def _tar_of(note: str) -> str:
    return note.removesuffix(_STATS)


def _stamps(files: Mapping[str, StampedFile], notes: Mapping[str, StampedFile]) -> dict[str, str]:
    """Return a stamp of each tar that has an idx and statistics, and is not being published."""
    found = {}
    for note, stamped in notes.items():
        tar = _tar_of(note)
        if tar in files and f"{tar}.idx" in files and f"{tar}{_PENDING}" not in notes:
            found[tar] = f"{files[tar].stamp} {files[f'{tar}.idx'].stamp} {stamped.stamp}"
    return found


def _check(staged_tar: str | os.PathLike[str], idx: bytes, stats: TarPartitionStats) -> None:
    size = os.path.getsize(staged_tar)
    end = int.from_bytes(idx[-8:], "little")
    if not (size == stats.bytes == end + END_BLOCKS and len(idx) == 8 * (stats.samples + 1)):
        raise ValueError(
            f"{stats.file}: statistics of {stats.samples} samples in {stats.bytes} bytes, "
            f"an index of {len(idx) // 8 - 1} samples up to {end} and a tar of {size} bytes "
            "do not belong together"
        )


def _text(card: bytes) -> str:
    return card.decode(errors="replace")  # a card overwritten with other content declares nothing


class InterleavedWebdatasetWriter(InterleavedWriter):
    """Writer of one tar per partition into a folder, with the index files of all clients.

    If ``path`` ends in ``.tar`` it writes one bare tar instead. See `InterleavedWriter` for the arguments.
    Images that are in none of the six formats are stored inside the json, so that every image member of a tar
    can be decoded by its suffix.
    """

    suffix = ".tar"

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return TarSink(self.uri_of(partition), schema, self.is_single_file, self.storage_options)

    def finish(self, reports: Sequence[PartitionReport]) -> None:
        if not self.is_single_file:
            TarFolder(self.path, self.storage_options).finish()


class TarSink(Sink):
    """One tar under a temporary name until published."""

    def __init__(self, uri: str, schema: pa.Schema, is_bare: bool, options: StorageOptions | None) -> None:
        self._uri = uri
        self._is_bare = is_bare
        self._options = options
        self._encoder = SampleEncoder(schema)
        self._staged = StagedFile(uri, options)
        self._writer = TarWriter(self._staged.path)
        self._pairs: set[str] = set()

    def write(self, tables: Iterator[pa.Table]) -> None:
        for table in tables:
            for sample in self._encoder.encode(table):
                self._writer.write_group(sample.members)
                self._pairs.update(sample.pairs)

    def publish(self) -> tuple[str | None, int]:
        self._writer.close()
        # Clients fail on an empty tar, so none is published, as in a folder.
        if self._is_bare and self._writer.groups == 0:
            self._staged.discard()
            remove(self._uri, self._options)
            return None, 0
        if self._is_bare:
            return self._uri, self._staged.publish()
        folder, name = os.path.split(self._uri)
        columns = {field.name: hf_type(field) for field in self._encoder.extras}
        stats = TarPartitionStats(
            name, self._writer.groups, self._writer.bytes, parse_pairs(self._pairs), columns
        )
        TarFolder(folder, self._options).publish(self._staged.path, tar_idx(self._writer.offsets), stats)
        self._staged.discard()
        return (self._uri, stats.bytes) if stats.samples else (None, 0)

    def discard(self) -> None:
        self._writer.abort()
        self._staged.discard()
