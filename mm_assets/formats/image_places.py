"""Images that documents only name: lookup in the folders and tars of ``MM_IMAGES_FROM``.

* `image_places`: the places that a text of locations names, looked through once in a process.
* `ImagePlaces.find`: the place of an image by its name or URL, or the fault for which there is none.
* `broken_data_url`, `unfetched_url`: the fault of a name that is none.

Tars are indexed by the names of their members, and by what img2dataset notes of each download: URL and key.
The index takes about 100 bytes an image. The workers of a run share it as a mapped Arrow file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_assets.formats.images import CONTENT_TYPES
from mm_assets.formats.materialize import IMAGES_FROM, image_roots, locations_of, place_path
from mm_assets.formats.names import TAR_SUFFIXES
from mm_assets.formats.partitions import ref_path
from mm_assets.formats.tar.scan import Member, TarIndex, read_member, scan_tolerant
from mm_assets.formats.tar.spool import open_tar, shared_folder
from mm_assets.formats.webdataset import extension, sample_stem
from mm_assets.model.errors import (
    DANGLING_REFERENCE,
    FETCH_FAILED,
    DataError,
    Fault,
    ShardError,
    oversized_member,
    warn_user,
)
from mm_assets.model.samples import build_source_ref
from mm_assets.storage.files import StorageOptions, exists, filesystem, is_remote, join, open_binary
from mm_assets.storage.listing import expand

MIME = {**CONTENT_TYPES, "jpeg": CONTENT_TYPES["jpg"], "tif": CONTENT_TYPES["tiff"]}

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FILE_URL = re.compile(r"file://(?:localhost)?(?=/)", re.IGNORECASE)
_SUCCESS = "success"  # what img2dataset calls a download that it has the bytes of
_MAX_NOTE = 1 << 20  # bytes of a json that img2dataset writes; larger ones are documents
_LONGEST_ERROR = 200  # characters
_BLOCK = 1 << 20  # bytes in memory while places are compared

# How a name is looked up, in this order: the first that finds anything decides.
_NAME, _KEY, _BASENAME, _URLS = "n", "k", "b", "u"
_NO_PLACE = -1  # in the place of a tar: a download that failed; its name is the error

Numbers = npt.NDArray[Any]
_DIGEST = np.dtype("S16")
_RECORD = np.dtype([("source", "<i4"), ("offset", "<i8"), ("size", "<i8")])


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """The bytes of an image: a whole file, or a range of a tar that ``member`` names. Offsets in bytes."""

    uri: str
    member: str | None
    offset: int
    size: int

    @property
    def content_type(self) -> str | None:
        """The MIME type that its name tells."""
        return MIME.get(extension(self.uri if self.member is None else self.member))


_known: dict[tuple[str, str], tuple[object, ImagePlaces]] = {}


def image_places(text: str, options: StorageOptions | None = None) -> ImagePlaces | None:
    """Return the places that a text of locations names; None for an empty one.

    They are listed now. What they hold is looked through again only if the listing has changed.

    Raises:
        FileNotFoundError: a location names nothing.
        ValueError: a tar is packed.
    """
    if not text:
        return None
    key = text, repr(sorted((options or {}).items()))
    listing = _Listing.of(text, options)
    known = _known.get(key)
    if known is None or known[0] != listing:
        _known[key] = known = (listing, ImagePlaces(listing, options))
    return known[1]


class Placed(Protocol):
    """A row of an image, before its bytes are read."""

    content_type: str | None
    source_ref: str | None
    error: Fault | None


@dataclass(frozen=True)
class ImagesElsewhere:
    """Images that the documents of one file only name.

    Args:
        places: where they lie.
        relative_to: locators below it are relative.
        max_bytes: a larger image is not read.
    """

    places: ImagePlaces
    relative_to: str | None
    max_bytes: int

    @classmethod
    def of(
        cls, text: str, uri: str, path: str, max_bytes: int, options: StorageOptions | None
    ) -> ImagesElsewhere | None:
        """Return the images of a file, as `image_places`; ``path`` is the file in locators."""
        places = image_places(text, options)
        root = uri.removesuffix(path).rstrip("/") if uri != path and uri.endswith(path) else None
        return None if places is None else cls(places, root, max_bytes)

    def fill(self, row: Placed, token: str) -> bool:
        """Give a row the locator of the image of this name or URL, or the fault for which there is none.

        Returns:
            Whether there is a locator; its bytes are not read.
        """
        found = self.places.find(token)
        if isinstance(found, Fault):
            row.error = found
            return False
        path = self.places.locator_path(found.uri, self.relative_to)
        row.source_ref = build_source_ref(path, found.member, found.offset, found.size)
        row.content_type = found.content_type
        is_too_large = found.size > self.max_bytes
        row.error = (
            oversized_member(found.member or path, found.size, self.max_bytes) if is_too_large else None
        )
        return True


@dataclass(frozen=True)
class _Listing:
    """What locations name: ``folders``, with all their files, and ``tars``, with what tells their version.

    ``roots`` are those of the locations (`image_roots`).
    """

    folders: tuple[str, ...] = ()
    tars: tuple[tuple[str, str], ...] = ()
    roots: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, options: StorageOptions | None) -> _Listing:
        folders: list[str] = []
        tars: dict[str, str] = {}
        for location in locations_of(text):
            fs, path = filesystem(location, options)
            is_folder = fs.isdir(path)
            if is_folder:
                folders.append(location.rstrip("/"))
            try:
                found = expand(location, TAR_SUFFIXES, options).files
            except FileNotFoundError as error:
                if is_folder:
                    continue
                raise FileNotFoundError(f"{IMAGES_FROM}: {error}") from error
            for tar in found:
                if not tar.lower().endswith(TAR_SUFFIXES):
                    raise DataError(f"{IMAGES_FROM}: {tar}: neither a folder nor a tar")
                if not tar.lower().endswith(".tar"):
                    raise DataError(
                        f"{IMAGES_FROM}: {tar}: packed, so that no image can be read alone: unpack it"
                    )
                tars[tar] = _version(tar)
        return cls(tuple(dict.fromkeys(folders)), tuple(sorted(tars.items())), tuple(image_roots(text)))


def _version(tar: str) -> str:
    if is_remote(tar):
        return ""
    try:
        found = os.stat(tar)
    except OSError:
        return ""
    return f"{found.st_size}:{found.st_mtime_ns}"


class ImagePlaces:
    """Lookup of images in folders and tars.

    A name is looked up as a path in the folders and the name of a member, then as a key of img2dataset, then
    as the last part of a member's path; a URL as one that img2dataset has downloaded; an absolute path, or a
    ``file://`` URL, as a path in the folder that it lies below. Only exact matches count; of several places
    that have the same bytes, the first is taken. Data name no file outside of the places: not by ``..``, not
    by a link.
    """

    def __init__(self, listing: _Listing, options: StorageOptions | None = None) -> None:
        self._listing = listing
        self._options = options
        self._digests: dict[ImagePlace, bytes] = {}  # of those that share a name
        local = [folder for folder in listing.folders if not is_remote(folder)]
        self._folders = {folder: os.path.realpath(folder).rstrip("/") + "/" for folder in local}
        self._sources = [*(f for f in listing.folders if is_remote(f)), *(tar for tar, _ in listing.tars)]

    def locator_path(self, uri: str, relative_to: str | None) -> str:
        """Return the path of a file in locators, which names no folder of this machine."""
        path = ref_path(uri, relative_to)
        return path if path != uri or is_remote(uri) else place_path(uri, self._listing.roots)

    def find(self, token: str) -> ImagePlace | Fault:
        """Return the place of an image by its name or URL, or the fault for which there is none."""
        if (broken := broken_data_url(token)) is not None:
            return broken
        path = _absolute_path(token)
        if _URL.match(token):
            found_url = self._chosen(token, self._indexed(_URLS, token))
            if found_url is not None or path is None:
                return found_url or _nowhere(token, "no such URL in")
        name = token.removeprefix("./") if path is None else path
        if not name or "\0" in name or name.endswith("/") or ".." in name.split("/"):
            return _nowhere(token, "such a path is not followed in")
        if path is not None:
            return self._at_path(token, path)
        found = [*self._in_folders(name), *self._indexed(_NAME, name)] or [*self._indexed(_KEY, name)]
        if not found and "/" not in name:
            found = [*self._indexed(_BASENAME, name)]
        return self._chosen(token, found) or _nowhere(token, "no such image in")

    def _at_path(self, token: str, path: str) -> ImagePlace | Fault:
        """Return the image at an absolute path, which has to lie below one of the folders."""
        names = [
            (folder, path[len(start) :])
            for folder, root in self._folders.items()
            for start in dict.fromkeys((folder.rstrip("/") + "/", root))
            if path.startswith(start)
        ]
        if not names:
            why = f"such a path is followed only below a folder that {IMAGES_FROM} names"
            return Fault(DANGLING_REFERENCE, f"dangling reference {token!r:.200}: {why}")
        found = [found for folder, name in names for found in self._in_folder(folder, name)]
        return self._chosen(token, found) or _nowhere(token, "no such image in")

    def _in_folders(self, name: str) -> Iterator[_Found]:
        for folder in self._folders:
            yield from self._in_folder(folder, name)

    def _in_folder(self, folder: str, name: str) -> Iterator[_Found]:
        path = os.path.join(folder, name)
        real = os.path.realpath(path)
        if real.startswith(self._folders[folder]) and os.path.isfile(real):
            yield _Found(ImagePlace(path, None, 0, os.path.getsize(real)))

    def _indexed(self, kind: str, name: str) -> Iterator[_Found]:
        index = self._index
        for number in index.find(kind, name):
            source, offset, size = index.records[number].item()
            text = index.names[number].as_py()
            if source == _NO_PLACE:
                yield _Found(None, error=text)
            elif is_remote(uri := self._sources[source]) and uri in self._listing.folders:
                yield _Found(ImagePlace(join(uri, text), None, offset, size))
            else:
                yield _Found(ImagePlace(uri, text, offset, size))

    def _chosen(self, token: str, candidates: Iterable[_Found]) -> ImagePlace | Fault | None:
        found = list(candidates)
        places = list(dict.fromkeys(each.place for each in found if each.place is not None))
        if len(places) > 1 and not self._are_same(places):
            first, second = [place.member or self.locator_path(place.uri, None) for place in places[:2]]
            where = {place.uri for place in places}
            in_tars = "" if len(where) == 1 else f" in {len(where)} files"
            return Fault(
                DANGLING_REFERENCE,
                f"ambiguous reference {token!r:.200}: {len(places)} images{in_tars} of {IMAGES_FROM}: "
                f"{first}, {second}",
            )
        if not places and found:
            reason = f"the download failed: {found[0].error or 'no reason was noted'}"
            return Fault(FETCH_FAILED, f"{reason} (as img2dataset notes of {token!r:.200})")
        return next(iter(places), None)

    def _are_same(self, places: Sequence[ImagePlace]) -> bool:
        """Return whether places have the same bytes. What a tar states of its bytes is not believed."""
        first = places[0]
        return all(place.size == first.size for place in places) and all(
            self._bytes_digest(place) == self._bytes_digest(first) for place in places[1:]
        )

    def _bytes_digest(self, place: ImagePlace) -> bytes:
        if place not in self._digests:
            digest, left = hashlib.blake2b(digest_size=16), place.size
            with open_binary(place.uri, self._options) as file:
                file.seek(place.offset)
                while left and (block := file.read(min(left, _BLOCK))):
                    digest.update(block)
                    left -= len(block)
            self._digests[place] = digest.digest()
        return self._digests[place]

    @cached_property
    def _index(self) -> _Index:
        if not self._sources:
            return _Index.made([])
        folder = shared_folder()
        return self._made() if folder is None else self._shared(folder)

    def _made(self) -> _Index:
        return _Index.made(map(self._part, range(len(self._sources))))

    def _part(self, number: int) -> _Part:
        part, source = _Part(number), self._sources[number]
        if source in self._listing.folders:
            _add_folder(part, source, self._options)
        else:
            _add_tar(part, source, self._options)
        return part

    def _shared(self, folder: str) -> _Index:
        """Return the index that the first process of a pool has made, mapped from its file."""
        name = hashlib.sha256(repr(self._listing).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        path = os.path.join(folder, f"images-{name}")
        with open(f"{path}.lock", "a") as lock:
            with suppress(OSError):  # not all file systems have locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(path):
                self._made().write(path)
        return _Index.read(path)


@dataclass(frozen=True, slots=True)
class _Found:
    """A place, or why there is none."""

    place: ImagePlace | None
    error: str | None = None


def broken_data_url(token: object) -> Fault | None:
    """Return the fault of a data URL that has been left as a name, since it is no base64; None of others."""
    if not isinstance(token, str) or not token.startswith("data:"):
        return None
    return Fault(DANGLING_REFERENCE, f"dangling reference {token!r:.200}: a broken data URL: no valid base64")


def unfetched_url(token: object) -> Fault | None:
    """Return the fault of a name that is a URL; None of others."""
    if not isinstance(token, str) or not _URL.match(token):
        return None
    hint = "a URL, and nothing is fetched: download the images first, see docs/raw_shards.md"
    return Fault(DANGLING_REFERENCE, f"dangling reference {token!r:.200}: {hint}")


def _absolute_path(token: str) -> str | None:
    """Return the path of a token that is absolute, or a URL of a local file."""
    if (url := _FILE_URL.match(token)) is not None:
        path = unquote(token[url.end() :], errors="surrogateescape")
    elif token.startswith("/"):
        path = token
    else:
        return None
    return re.sub("//+", "/", path)


def _nowhere(token: str, why: str) -> Fault:
    return Fault(DANGLING_REFERENCE, f"dangling reference {token!r:.200}: {why} {IMAGES_FROM}")


def _digest(kind: str, name: str) -> bytes:
    """Return what a name is looked up by: nobody can make two names that have the same."""
    return hashlib.blake2b(f"{kind}{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass
class _Part:
    """The images of one tar or folder, while they are listed."""

    source: int
    names: list[str] = field(default_factory=list)
    records: list[tuple[int, int, int]] = field(default_factory=list)
    lookups: list[tuple[bytes, int]] = field(default_factory=list)

    def add(self, names: Mapping[str, str], name: str, offset: int, size: int) -> None:
        """Add an image that is found by each of ``names``, by how they are looked up."""
        number = len(self.records)
        self.names.append(name)
        self.records.append((self.source, offset, size))
        self.lookups += [(_digest(kind, text), number) for kind, text in names.items()]

    def packed(self) -> tuple[Numbers, pa.Array, Numbers, Numbers]:
        """Return records, names, and the digest and record of each lookup, as arrays."""
        return (
            np.array(self.records, _RECORD),
            pa.array(self.names, pa.large_string()),
            np.array([digest for digest, _ in self.lookups], _DIGEST),
            np.array([number for _, number in self.lookups], np.int64),
        )

    def add_failure(self, url: str, error: str) -> None:
        """Add a download that failed."""
        self.lookups.append((_digest(_URLS, url), len(self.records)))
        self.names.append(error[:_LONGEST_ERROR])
        self.records.append((_NO_PLACE, 0, 0))


class _Index:
    """All images: ``records`` and ``names`` by number, and the sorted digests that lead to them."""

    def __init__(self, records: Numbers, names: pa.Array, digests: Numbers, found: Numbers) -> None:
        self.records, self.names, self._digests, self._found = records, names, digests, found

    @classmethod
    def made(cls, parts: Iterable[_Part]) -> _Index:
        """Return the index of some tars and folders."""
        records, names, digests, found = zip(*[part.packed() for part in [_Part(0), *parts]], strict=True)
        firsts = np.cumsum([0, *map(len, records)])
        numbers = [part + first for part, first in zip(found, firsts, strict=False)]
        united = np.concatenate(digests)
        order = np.argsort(united, kind="stable")
        return cls(
            np.concatenate(records),
            pa.concat_arrays(names),
            united[order],
            np.concatenate(numbers, dtype=np.int32)[order],
        )

    def find(self, kind: str, name: str) -> list[int]:
        """Return the numbers of the records that have a name."""
        digest = np.bytes_(_digest(kind, name))
        first, last = (np.searchsorted(self._digests, digest, side) for side in ("left", "right"))
        return [int(number) for number in self._found[first:last]]

    def write(self, path: str) -> None:
        """Write the index as an Arrow file, which appears whole."""
        numbers = {"records": self.records, "digests": self._digests, "found": self._found}
        columns = {name: pa.array([array.tobytes()], pa.large_binary()) for name, array in numbers.items()}
        columns["names"] = pa.LargeListArray.from_arrays([0, len(self.names)], self.names)
        batch = pa.record_batch(columns)
        with pa.OSFile(f"{path}.part", "wb") as file, pa.ipc.new_file(file, batch.schema) as table:
            table.write_batch(batch)
        os.replace(f"{path}.part", path)

    @classmethod
    def read(cls, path: str) -> _Index:
        """Return an index that was written; its file is mapped, not read."""
        with pa.memory_map(path) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        records, digests, found = (
            np.frombuffer(batch.column(name)[0].as_buffer(), kind)
            for name, kind in (("records", _RECORD), ("digests", _DIGEST), ("found", np.dtype(np.int32)))
        )
        return cls(records, batch.column("names")[0].values, digests, found)


def _add_folder(part: _Part, folder: str, options: StorageOptions | None) -> None:
    fs, root = filesystem(folder, options)
    fs.invalidate_cache()
    for path, info in fs.find(root, detail=True).items():
        name = path[len(root) :].lstrip("/")
        part.add({_NAME: name}, name, 0, int(info["size"] or 0))


def _add_tar(part: _Part, uri: str, options: StorageOptions | None) -> None:
    with open_tar(uri, uri, options) as descriptor:
        index = scan_tolerant(descriptor, uri)
        notes = _notes_in(index, descriptor)
    for damaged in index.damaged_ranges:
        warn_user(f"{IMAGES_FROM}: {damaged.damage}: images in the damaged range are not found")
    for member in index.members:
        if member.broken is not None or extension(member.name) == "json":
            continue
        note = notes.get(sample_stem(member.name), {})
        url, key = note.get("url"), note.get("key")
        names = {_NAME: member.name}
        base = posixpath.basename(member.name)
        if base != member.name:
            names[_BASENAME] = base
        is_image = extension(member.name) in MIME
        if is_image and isinstance(key, str):
            names[_KEY] = key
        if is_image and isinstance(url, str) and note.get("status", _SUCCESS) == _SUCCESS:
            names[_URLS] = url
        part.add(names, member.name, member.offset, member.size)
    failures = {note["url"]: note for note in notes.values() if note.get("status", _SUCCESS) != _SUCCESS}
    failures |= {url: {"error_message": error} for url, error in _failures_beside(uri, options)}
    for url, note in failures.items():
        part.add_failure(url, str(note.get("error_message") or note.get("status") or ""))


def _notes_in(index: TarIndex, descriptor: int) -> dict[str, Mapping[str, Any]]:
    """Return what img2dataset notes of each download, by the key in the tar."""
    notes: dict[str, Mapping[str, Any]] = {}
    for member in index.members:
        if extension(member.name) == "json" and member.broken is None and member.size <= _MAX_NOTE:
            note = _note(descriptor, member)
            if isinstance(note.get("url"), str):
                notes[sample_stem(member.name)] = note
    return notes


def _note(descriptor: int, member: Member) -> Mapping[str, Any]:
    try:
        found = json.loads(read_member(descriptor, member))
    except (ValueError, RecursionError):  # no note of img2dataset
        return {}
    return found if isinstance(found, dict) else {}


_FAILURE_COLUMNS = ["url", "status", "error_message"]
_ROWS = 10_000


def _failures_beside(uri: str, options: StorageOptions | None) -> Iterator[tuple[str, str]]:
    """Yield URL and error of the downloads that img2dataset has no bytes of.

    Its tars have nothing of them, the Parquet file beside a tar has.
    """
    from mm_assets.formats.parquet import open_parquet, read_batches

    beside = uri[: -len(".tar")] + ".parquet"
    if not exists(beside, options):
        return
    try:
        file = open_parquet(beside, beside, options, {})
        try:
            if not set(_FAILURE_COLUMNS) <= set(file.schema_arrow.names):
                return
            for group in range(file.num_row_groups):
                for batch in read_batches(file, group, _FAILURE_COLUMNS, _ROWS, beside):
                    for row in batch.to_pylist():
                        if row["status"] != _SUCCESS and isinstance(row["url"], str):
                            yield row["url"], str(row["error_message"] or row["status"])
        finally:
            file.close(force=True)
    except ShardError as error:
        warn_user(f"{IMAGES_FROM}: {error}: why downloads failed is not told")
