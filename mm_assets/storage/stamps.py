"""Stamps of files, and notes on the source of each partition: change detection without reading all bytes.

A stamp is a short text that changes whenever a file's content does. It is made of what the file system tells,
and of both ends of a local file. `stat_outputs` gives what the file system tells alone.

Notes (`OriginNotes`) lie beside an output, to avoid replacing another dataset by mistake:

    .origins/<output>.json    of one partition: digests of the addresses of its input files

Two sources are the same if they share the address of one file, whatever the file contains now.

`sole_writer` keeps other processes from a folder or URL: in a store, by objects whose stamps change as long
as their process lives.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import fsspec
import xxhash

from mm_assets.storage.errors import located
from mm_assets.storage.files import (
    ORIGINS_BESIDE,
    StorageOptions,
    exists,
    filesystem,
    is_remote,
    is_s3,
    join,
    local_path,
    publish_bytes,
    remove,
    staged,
)
from mm_assets.storage.temporary import is_owner_alive, is_temporary, locked_folder, temporary_name

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


MISSING = "missing"


# What listings tell of a content's version, the most exact first.
_MARKS = ("ETag", "etag", "generation", "LastModified", "mtime", "created")


class StampedFile(NamedTuple):
    """A file of a listing: its bytes, and a text that changes whenever the file is replaced.

    It ``is_settled`` if it was changed so long ago that any change from now on shows in its times.
    """

    size: int
    stamp: str
    is_settled: bool = False


# A change that keeps size and time (a tool that copies times, a restored backup) mostly shows in the first
# JSON or the last members. Reading both ends of 4,000 shards takes 0.13 s; a digest of all bytes would cost
# as much as reading the dataset.
_END_BYTES = 64 << 10
_SETTLED_NS = 3_000_000_000  # file systems keep times in steps of up to 2 s


def files_in(folder: str, options: StorageOptions | None = None, suffix: str = "") -> dict[str, StampedFile]:
    """Return the files of a folder with this suffix by name, from one listing; none if there is no folder.

    They are told apart by inode and times, or etag, without being opened. That is enough for files that are
    only ever replaced by a rename or a put, as our own; `local_stamp` is for those that others write. Of a
    store that tells neither, each listing has other stamps.
    """
    if not is_remote(folder):
        return _local_files_in(local_path(folder), suffix)
    fs, path = filesystem(folder, options)
    fs.invalidate_cache(path)
    with located(folder):
        try:
            listed = fs.ls(path, detail=True)
        except FileNotFoundError:
            return {}
    return {
        str(info["name"]).rpartition("/")[2]: StampedFile(
            int(info["size"]), f"{info['size']}:{mark_of(info) or uuid.uuid4().hex}"
        )
        for info in listed
        if str(info["name"]).endswith(suffix) and info.get("type") == "file"
    }


def existing_files(uris: Iterable[str], options: StorageOptions | None = None) -> set[str]:
    """Return those of some files that exist; several in one remote folder are looked up in one listing.

    An object store answers each question after a file that is not there with two requests.
    """
    folders: dict[str, list[str]] = {}
    for uri in uris:
        folders.setdefault(uri.rpartition("/")[0], []).append(uri)
    found: set[str] = set()
    others: list[str] = []
    for folder, files in folders.items():
        if len(files) > 1 and is_remote(folder):
            with suppress(PermissionError):  # a store may refuse to list
                names = files_in(folder, options)
                found.update(file for file in files if file.rpartition("/")[2] in names)
                continue
        others += files
    if others:
        are_there = parallel_map(lambda file: exists(file, options), others, others[0])
        found.update(file for file, is_there in zip(others, are_there, strict=True) if is_there)
    return found


def remove_all(uris: Collection[str]) -> None:
    """Remove those of some files that exist; several in one remote folder are looked up in one listing."""

    def remove_one(uri: str) -> None:
        fs, path = filesystem(uri)
        with suppress(FileNotFoundError):  # another process was faster
            fs.rm_file(path)

    if found := sorted(existing_files(uris)):
        parallel_map(remove_one, found, found[0])


def _local_files_in(folder: str, suffix: str) -> dict[str, StampedFile]:
    try:
        with os.scandir(folder) as entries:
            listed = [entry for entry in entries if entry.name.endswith(suffix) and entry.is_file()]
    except FileNotFoundError:
        return {}
    found, settled_at = {}, time.time_ns() - _SETTLED_NS
    for entry in listed:
        with suppress(FileNotFoundError):  # removed since the listing; the others are there
            found[entry.name] = _stamped(entry.stat(), settled_at)
    return found


def local_stamp(file: str) -> str:
    """Return size, modification time and a digest of the first and last 64 KiB; ``MISSING`` if unreadable."""
    try:
        found = os.stat(file)
        ends = _digest_of_ends(file, found.st_size) if stat.S_ISREG(found.st_mode) else ""
    except OSError:  # a broken link, a removed or unreadable file: only its shard fails, when it is read
        return MISSING
    return f"{found.st_size}:{found.st_mtime_ns}:{ends}"


def remote_stamps(files: Iterable[str]) -> dict[str, str]:
    """Return the etag, or size and time, of each URL; ``MISSING`` for missing or inaccessible files.

    Files of one folder are listed together: one request per thousand files of the folder, none if the folder
    was listed just before.
    """
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(file.rpartition("/")[0], []).append(file)
    stamps: dict[str, str] = {}
    for folder, names in folders.items():
        fs, path = filesystem(folder)
        with located(folder):
            listed = _listed(fs, path) if len(names) > 1 else None
        for name in names:
            _, path = filesystem(name)
            with located(name):
                info = listed.get(path) if listed is not None else _info(fs, path)
            stamps[name] = (
                _stamp_of(info) if info is not None and info.get("type") != "directory" else MISSING
            )
    return stamps


def own_stamp(path: str) -> str:
    """Return the stamp that `files_in` has for a local file; empty if there is none."""
    try:
        return _stamped(os.stat(path), 0).stamp
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _stamped(found: os.stat_result, settled_at: int) -> StampedFile:
    times = f"{found.st_mtime_ns}:{found.st_ctime_ns}"
    is_settled = max(found.st_mtime_ns, found.st_ctime_ns) < settled_at
    return StampedFile(found.st_size, f"{found.st_size}:{times}:{found.st_ino}", is_settled)


def _digest_of_ends(file: str, size: int) -> str:
    with open(file, "rb", buffering=0) as stream:
        digest = xxhash.xxh3_64(stream.read(_END_BYTES))
        if size > _END_BYTES:
            stream.seek(max(_END_BYTES, size - _END_BYTES))
            digest.update(stream.read(_END_BYTES))
    return digest.hexdigest()


def _listed(fs: fsspec.AbstractFileSystem, folder: str) -> dict[str, Mapping[str, Any]] | None:
    """List a folder by path; None where listing is impossible (web servers, file-only permissions)."""
    if "http" in fs.protocol or "https" in fs.protocol:
        return None
    try:
        return {str(info["name"]): info for info in fs.ls(folder, detail=True)}
    except FileNotFoundError:
        return {}
    except PermissionError:
        return None


def _info(fs: fsspec.AbstractFileSystem, path: str) -> Mapping[str, Any] | None:
    try:
        return dict(fs.info(path))
    except (FileNotFoundError, PermissionError):
        return None


def mark_of(info: Mapping[str, Any]) -> str | None:
    """Return what a file system tells of a file's content without reading it; None if it is nothing."""
    found = next((info[name] for name in _MARKS if info.get(name)), None)
    return None if found is None else str(found)


def _stamp_of(info: Mapping[str, Any]) -> str:
    return str(
        info.get("ETag")
        or info.get("etag")
        or f"{info['size']}:{info.get('LastModified') or info.get('mtime')}"
    )


_BEAT_SECONDS = 20.0
_WATCH_SECONDS = 90.0  # a lock that has not changed for so long is that of a dead process
_LOCK = "lock"


_FEWEST_LISTED = 8  # outputs in a folder
_OBJECTS_EACH = 30  # that a listing may be long: a request tells of 1,000


def stat_outputs(uris: Iterable[str]) -> dict[str, dict[str, Any] | None]:
    """Return the state of each output: size and modification time or etag; None if it does not exist.

    For a folder it is the state of each file in it.
    """
    found: dict[str, dict[str, Any] | None] = {}
    remote: list[str] = []
    for uri in uris:
        if not is_remote(uri):
            found[uri] = _local_stat(local_path(uri))
        else:
            filesystem(uri)[0].invalidate_cache()
            remote.append(uri)
    folders: dict[str, list[str]] = {}
    for uri in remote:
        folders.setdefault(uri.rpartition("/")[0], []).append(uri)
    for folder, uris in folders.items():
        if len(uris) >= _FEWEST_LISTED:
            found |= _listed_stats(folder, uris)
    asked = [uri for uri in remote if uri not in found]
    where = asked[0] if asked else ""
    return found | dict(zip(asked, parallel_map(_remote_stat, asked, where), strict=True))


def stat_of_written(uri: str) -> dict[str, Any] | None:
    """Return what `stat_outputs` does of an output that this process has just written.

    S3 told the etag of an object when it was put: the store is asked only until it has told the same. What
    was listed after the last change of our own holds, too.
    """
    fs, path = filesystem(uri) if is_remote(uri) else (None, "")
    if fs is None or not is_s3(fs):
        return stat_outputs([uri])[uri]
    info = fs.take_info_of_put(path)
    if info is None:
        return _remote_stat(uri)
    if not fs.tells_put_etags:
        found = _remote_stat(uri)
        fs.tells_put_etags = found == _mark(info)
        return found
    return _mark(info)


def _listed_stats(folder: str, uris: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """Return the state of outputs in a folder on S3, of a listing; nothing if it would be a long one."""
    fs, path = filesystem(folder)
    if not is_s3(fs) or fs.version_aware:
        return {}
    most = _OBJECTS_EACH * len(uris)
    try:
        objects = fs.find(path, detail=True, max_items=most)
    except (FileNotFoundError, PermissionError):  # who may read them need not be allowed to list
        return {}
    finally:
        fs.invalidate_cache()  # it keeps a listing that has a part, too
    if len(objects) >= most:
        return {}
    files: dict[str, dict[str, Any]] = {}
    for name, info in objects.items():
        below, _, rest = name.removeprefix(f"{path}/").partition("/")
        if rest:
            within = files.setdefault(f"{path}/{below}", {})
            within |= {} if "/" in rest else {rest: _mark(info)}
    found: dict[str, dict[str, Any] | None] = {}
    for uri in uris:
        name = filesystem(uri)[1]
        info = objects.get(name)
        found[uri] = _mark(info) if info else {"files": files[name]} if name in files else None
    return found


def _local_stat(path: str) -> dict[str, Any] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        files = sorted(
            (entry.name, entry.stat())
            for entry in os.scandir(path)
            if entry.is_file() and not entry.name.startswith(".")
        )
        return {"files": {name: {"size": file.st_size, "mtime_ns": file.st_mtime_ns} for name, file in files}}
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _remote_stat(uri: str) -> dict[str, Any] | None:
    fs: fsspec.AbstractFileSystem
    fs, path = filesystem(uri)
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return None
    if info.get("type") == "directory":
        return {
            "files": {
                str(file["name"]).rpartition("/")[2]: _mark(file)
                for file in fs.ls(path, detail=True)
                if file["type"] == "file"
            }
        }
    return _mark(info)


def _mark(info: Mapping[str, Any]) -> dict[str, Any]:
    return {"size": info.get("size"), "mark": str(mark_of(info))}


@contextmanager
def sole_writer(folder: str) -> Iterator[bool]:
    """Keep other processes from a folder or URL for the block, if they ask here; yield whether it is ours.

    In a store it is told by objects: each process puts its own, then lists them, and goes back if another one
    is there. Of two that come at the same time none or one goes on, whatever the store can do besides. A
    process writes its object again and again: so it is known to be alive on other machines, which otherwise
    wait for `_WATCH_SECONDS` before they take it for dead.
    """
    if not is_remote(folder):
        os.makedirs(local_path(folder), exist_ok=True)
        with locked_folder(local_path(folder)) as is_ours:
            yield is_ours
        return
    mine, ended = temporary_name(_LOCK), threading.Event()
    lock = join(folder, mine)
    publish_bytes(lock, b"0")

    def beat() -> None:
        number = 0
        while not ended.wait(_BEAT_SECONDS):
            number += 1
            with suppress(Exception):  # stores have errors of their own; the next one may come through
                publish_bytes(lock, str(number).encode())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield not _has_other_writer(folder, mine)
    finally:
        ended.set()
        thread.join()
        remove(lock)


def _has_other_writer(folder: str, mine: str) -> bool:
    """Return whether a living process has a lock here; remove those of dead ones if not."""
    others = _locks(folder, mine)
    alive = {name: is_owner_alive(name) for name in others}
    if True in alive.values():
        return True
    unknown = [name for name in others if alive[name] is None]
    until = time.monotonic() + _WATCH_SECONDS
    while unknown and time.monotonic() < until:
        time.sleep(min(_BEAT_SECONDS, _WATCH_SECONDS) / 4)
        found = _locks(folder, mine)
        unknown = [name for name in unknown if name in found]
        if any(found[name].stamp != others[name].stamp for name in unknown):
            return True
    for name in others:
        remove(join(folder, name))
    return False


def _locks(folder: str, mine: str) -> dict[str, StampedFile]:
    found = files_in(folder)
    return {
        name: file
        for name, file in found.items()
        if name != mine and is_temporary(name) and name.startswith(f".{_LOCK}.")
    }
