"""Materialization: fetching of item bytes by ``source_ref`` (byte range, tar member, whole file, TIFF frame).

A `Fetcher` reads byte ranges, tar members or whole files from one path; its failures are values, not
exceptions. This module is among the formats, not in the data model, because it must read tars and TIFFs.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shlex
import stat
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.batching import Sizes, cut_rows, row_bytes
from mm_assets.formats.images import sniff
from mm_assets.formats.images.tiff import split_frame
from mm_assets.formats.names import TAR_SUFFIXES, is_block, is_parquet
from mm_assets.formats.parquet import row_of
from mm_assets.formats.partitions import root_of_locations
from mm_assets.formats.tar import TarDamage
from mm_assets.formats.tar.scan import Member, TarIndex, scan
from mm_assets.formats.tar.spool import is_packed, open_tar
from mm_assets.model.errors import (
    FETCH_FAILED,
    DataError,
    Fault,
    ImageError,
    MmAssetsError,
    lost_frame,
    missing_member,
)
from mm_assets.model.losses import with_errors
from mm_assets.model.samples import InterleavedBatch, SourceRef, parse_source_ref, sample_offsets
from mm_assets.storage import canonical_url, clean_url, without_secrets
from mm_assets.storage.errors import is_store_failure
from mm_assets.storage.files import StorageOptions, absolute, filesystem, is_remote, join, local_path

__all__ = ["materialize"]


Request = tuple[str | None, int | None, int | None]  # member, byte offset, byte size

IMAGES_FROM = "MM_IMAGES_FROM"
_PLACE = "images-from://"  # begins a path in locators: number of the location, and the path below it
_GLOB = re.compile(r"[*?\[{]")
_HEAD = 4  # bytes that tell whether a file is packed
_ROW = "what is in a row of a Parquet file has no place in bytes: read the file again"
_BLOCK = "what is made from a page of a PDF has no place in bytes: read the file again"
_BAD_RANGE = "a range of bytes takes an offset and a size of at least 1, not {} and {}"


class FetchError(MmAssetsError, ValueError):
    """A locator that cannot be followed; ``kind`` is the kind of the fault."""

    def __init__(self, message: str, kind: str = FETCH_FAILED) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def fault(self) -> Fault:
        """Fault of an item with this locator."""
        return Fault(self.kind, str(self))


class Fetcher(ABC):
    """One open path; messages call it ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def fetch(self, requests: Sequence[Request]) -> list[bytes | Fault]:
        """Return for each request its bytes, or the fault for which they cannot be read."""
        nowhere = [self._reason_for_none(*request) for request in requests]
        found = iter(
            self._fetch([request for request, reason in zip(requests, nowhere, strict=True) if not reason])
            if not all(nowhere)
            else []
        )
        return [
            Fault(FETCH_FAILED, f"{self._name}: {requests[index][0]}: {reason}") if reason else next(found)
            for index, reason in enumerate(nowhere)
        ]

    @abstractmethod
    def _fetch(self, requests: Sequence[Request]) -> list[bytes | Fault]: ...

    def _reason_for_none(self, member: str | None, offset: int | None, size: int | None) -> str | None:
        """Return why a locator leads to no bytes; None for any that may."""
        if is_parquet(self._name) and row_of(member) is not None:
            return _ROW
        return _BLOCK if offset is None and size is None and is_block(member) else None


@contextmanager
def open_fetcher(uri: str, name: str, options: StorageOptions | None = None) -> Iterator[Fetcher]:
    """Open a fetcher for a local or remote path, which messages call ``name``.

    Raises:
        OSError: the path cannot be opened.
        FetchError: the path is a pipe, a socket or a device.
    """
    if is_remote(uri):
        yield _RemoteFetcher(uri, name, options)
        return
    path = local_path(uri)
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block forever
        raise FetchError("not a regular file")
    # Offsets are those of the unpacked tar.
    with open_tar(uri, name) as descriptor:
        yield _LocalFetcher(name, descriptor)


class _LocalFetcher(Fetcher):
    def __init__(self, name: str, descriptor: int) -> None:
        super().__init__(name)
        self._descriptor = descriptor
        self._index: TarIndex | None = None

    def _fetch(self, requests: Sequence[Request]) -> list[bytes | Fault]:
        return [self._one(*request) for request in requests]

    def _one(self, member: str | None, offset: int | None, size: int | None) -> bytes | Fault:
        try:
            if offset is not None and size:
                return self._range(offset, size)
            if member:
                found = self._member(member)
                return self._range(found.offset, found.size)
            if offset is not None or size is not None:
                return Fault(FETCH_FAILED, _BAD_RANGE.format(offset, size))
            return self._range(0, os.fstat(self._descriptor).st_size)
        except FetchError as error:
            return error.fault

    def _range(self, offset: int, size: int) -> bytes:
        end = os.fstat(self._descriptor).st_size
        if offset < 0 or offset + size > end:
            raise FetchError(f"{self._name}: range {offset}+{size} is outside the file of {end} bytes")
        parts = []
        while size > 0:
            part = os.pread(self._descriptor, size, offset)
            if not part:
                raise FetchError(f"{self._name}: the file ended at byte {offset}")
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _member(self, name: str) -> Member:
        if self._index is None:
            try:
                self._index = scan(self._descriptor, self._name)
            except TarDamage as error:
                raise FetchError(str(error)) from error
        found = self._index.find(name)
        if not isinstance(found, Member):
            fault = found or missing_member(name)
            raise FetchError(fault.message, fault.kind)
        return found


class _RemoteFetcher(Fetcher):
    def __init__(self, uri: str, name: str, options: StorageOptions | None) -> None:
        super().__init__(name)
        self._uri = uri
        self._options = options
        self._fs, self._path = filesystem(uri, options)

    def _fetch(self, requests: Sequence[Request]) -> list[bytes | Fault]:
        ranges = list(dict.fromkeys((o, s) for _, o, s in requests if o is not None and s))
        if not ranges:
            return self._unpacked(requests)
        # The first bytes are fetched too, to recognise a .tar.gz or .zip: its ranges are those of the tar.
        starts, ends = zip((0, _HEAD), *((o, o + s) for o, s in ranges), strict=True)
        magic, *fetched = self._fs.cat_ranges(
            [self._path] * len(starts), list(starts), list(ends), on_error="return"
        )
        if isinstance(magic, bytes) and is_packed(magic):
            return self._unpacked(requests)
        by_range = dict(zip(ranges, fetched, strict=True))
        others = [r for r in requests if (r[1], r[2]) not in by_range]
        found = iter(self._unpacked(others) if others else [])
        return [
            self._checked(by_range[o, s], o, s)  # type: ignore[index, arg-type]
            if (o, s) in by_range
            else next(found)
            for _, o, s in requests
        ]

    def _checked(self, data: object, offset: int, size: int) -> bytes | Fault:
        if isinstance(data, Exception) and is_store_failure(data):
            raise data
        if not isinstance(data, bytes):
            return Fault(FETCH_FAILED, f"failed to read {self._name}: {type(data).__name__}: {data}")
        if len(data) != size:
            return Fault(FETCH_FAILED, f"{self._name}: range {offset}+{size} is outside the file")
        return data

    def _unpacked(self, requests: Sequence[Request]) -> list[bytes | Fault]:
        """Answer requests from a local copy: members, whole files and ranges of packed tars."""
        if all(request == (None, None, None) for request in requests):
            data = self._fs.cat_file(self._path)
            return [data] * len(requests)
        with open_tar(self._uri, self._name, self._options) as descriptor:
            return _LocalFetcher(self._name, descriptor).fetch(requests)


_LARGEST = 2**62  # largest byte offset: beyond it sums would overflow


@dataclass(frozen=True)
class _Locator:
    """The bytes a row refers to, without its frame: rows with equal locators are fetched once."""

    member: str | None
    byte_offset: int | None
    byte_size: int | None


_Requests = dict[_Locator, list[tuple[int, int | None]]]  # locator -> (row, frame) of the rows that have it


def locations_of(text: str) -> list[str]:
    """Return the absolute paths and URLs that a text names, quoted as in a shell.

    Raises:
        ValueError: an unmatched quotation mark.
    """
    try:
        return [canonical_url(absolute(clean_url(item))) for item in shlex.split(text)]
    except ValueError as error:
        raise ValueError(f"{IMAGES_FROM} {text!r:.200}: {error}") from error


def image_roots(text: str) -> list[str]:
    """Return the folder, URL prefix or tar of each location, which locators of such images point into."""
    return [
        item if _names_tar(item) else root_of_locations([item], TAR_SUFFIXES) for item in locations_of(text)
    ]


def _names_tar(location: str) -> bool:
    return location.lower().endswith(TAR_SUFFIXES) and not _GLOB.search(location)


def _folder_of(root: str) -> str:
    return posixpath.dirname(root) if _names_tar(root) and not os.path.isdir(root) else root


def place_path(uri: str, roots: Sequence[str]) -> str:
    """Return the path in locators of a local file below one of the `image_roots`: the root by its number."""
    number, root = next(
        (number, root)
        for number, root in enumerate(roots)
        if uri == root or uri.startswith(f"{root.rstrip('/')}/")
    )
    return f"{_PLACE}{number}/{uri[len(_folder_of(root).rstrip('/')) + 1 :]}"


def located_again(path: str, text: str) -> tuple[str, str] | None:
    """Return the file that the path of a locator names in a place, and the root that it lies in.

    Returns:
        None for a path of another kind.

    Raises:
        ValueError: the text of locations has no such place.
    """
    if not path.startswith(_PLACE):
        return None
    number, _, name = path.removeprefix(_PLACE).partition("/")
    roots = image_roots(text)
    if not number.isdecimal() or not name or int(number) >= len(roots):
        raise DataError(f"{path}: {IMAGES_FROM} (images_from=) names no such place")
    root = roots[int(number)]
    return join(_folder_of(root), name), root


def reading_roots(roots: Sequence[str] | None, relative_to: str | None, text: str) -> Sequence[str] | None:
    """Return the roots of a reader that fetches such images, too."""
    if not text:
        return roots
    own = roots if roots is not None else [relative_to] if relative_to else []
    return [*own, *image_roots(text)]


def portable_places(text: str, relative_to: str | None) -> str:
    """Return what a text of locations is known by in records: URLs, and a digest of each local path.

    It is the same wherever raw shards and places lie together, below the folder ``relative_to`` or beside it.
    """

    def known(item: str) -> str:
        if is_remote(item):
            return item
        path = item if relative_to is None else os.path.relpath(item, local_path(relative_to))
        digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return f"{posixpath.basename(item)}#{digest}"

    return shlex.join(map(known, locations_of(text)))


@overload
def materialize(
    data: InterleavedBatch,
    *,
    roots: Sequence[str] | None = None,
    images_from: str = "",
    storage_options: StorageOptions | None = None,
) -> InterleavedBatch: ...
@overload
def materialize(
    data: pa.Table,
    *,
    roots: Sequence[str] | None = None,
    images_from: str = "",
    storage_options: StorageOptions | None = None,
) -> pa.Table: ...
def materialize(
    data: InterleavedBatch | pa.Table,
    *,
    roots: Sequence[str] | None = None,
    images_from: str = "",
    storage_options: StorageOptions | None = None,
) -> InterleavedBatch | pa.Table:
    """Fill ``binary_content`` of image rows that have none, from their ``source_ref``.

    Local and remote paths may be mixed; identical ranges are fetched once. A row that cannot be fetched gets
    a message in ``materialize_error`` and stays without bytes: nothing is raised, and no other value is put
    in its place. Rows that already have bytes or an error are left alone.

    Args:
        data: a batch or a table.
        roots: folders or URL prefixes that locators may point into; relative paths are resolved against the
            first. Only images are accepted then. None trusts the locators: pass roots for data that you did
            not write.
        images_from: the locations that locators ``images-from://<number>/<path>`` point into, as the reader
            had them.
        storage_options: for the file systems of the locators.
    """
    if isinstance(data, InterleavedBatch):
        return data.with_data(materialize_table(data.data, roots, storage_options, images_from))
    return materialize_table(data, roots, storage_options, images_from)


def materialize_table(
    table: pa.Table,
    roots: Sequence[str] | None = None,
    storage_options: StorageOptions | None = None,
    images_from: str = "",
) -> pa.Table:
    """Do what `materialize` does for a table; return the same table when no row needs fetching."""
    rows_to_fetch = _rows_to_fetch(table)
    if not rows_to_fetch:
        return table
    fetched: dict[int, bytes] = {}
    errors: dict[int, Fault] = {}
    refs = table.column("source_ref").take(pa.array(rows_to_fetch)).to_pylist()
    by_path: dict[tuple[str, str], _Requests] = defaultdict(lambda: defaultdict(list))
    for row, text in zip(rows_to_fetch, refs, strict=True):
        try:
            ref = locator_of(text)
            # Of data that are not trusted, no login is taken.
            name = clean_url(str(ref["path"])) if roots is None else without_secrets(str(ref["path"]))
            path = _resolve(name, roots, images_from)
        except (TypeError, ValueError) as error:
            errors[row] = error.fault if isinstance(error, FetchError) else Fault(FETCH_FAILED, str(error))
            continue
        locator = _Locator(ref["member"], ref["byte_offset"], ref["byte_size"])
        by_path[path, name][locator].append((row, ref["frame_index"]))
    for (path, name), requests in by_path.items():
        try:
            with open_fetcher(path, name, storage_options) as fetcher:
                _fetch(fetcher, name, requests, fetched, errors)
        # File systems raise errors of any class (botocore, aiohttp, missing packages).
        except Exception as error:
            if is_store_failure(error):  # no fault of the item
                raise
            fault = Fault(FETCH_FAILED, f"failed to read {name}: {_reason(error, path, name)}")
            errors.update({row: fault for rows in requests.values() for row, _ in rows if row not in fetched})
    if roots is not None:
        _keep_images_only(fetched, errors)
    return _with_results(table, fetched, errors)


def _keep_images_only(found: dict[int, bytes], errors: dict[int, Fault]) -> None:
    """Replace fetched bytes that are no image by an error: a file inside the roots may be a secret key."""
    for row in [row for row, data in found.items() if sniff(data) is None]:
        del found[row]
        errors[row] = Fault(FETCH_FAILED, "the source_ref names bytes that are no image")


def materialize_parts(
    table: pa.Table,
    max_bytes: int,
    roots: Sequence[str] | None = None,
    storage_options: StorageOptions | None = None,
) -> Iterator[pa.Table]:
    """Run `materialize_table` on parts of whole samples, to fetch at most ``max_bytes`` at a time."""
    if not _rows_to_fetch(table):
        yield table
        return
    expected = bytes_to_fetch(table)
    for part in cut_rows(table, sample_offsets(table), row_bytes(table) + expected, max_bytes):
        yield materialize_table(part, roots, storage_options)


def bytes_to_fetch(table: pa.Table) -> Sizes:
    """Return how many bytes `materialize` would add to each row, by its locator.

    The frames of one range share its size.
    """
    sizes = np.zeros(table.num_rows, np.int64)
    rows = _rows_to_fetch(table)
    refs = table.column("source_ref").take(pa.array(rows, pa.int64())).to_pylist() if rows else []
    frames_of: set[tuple[object, ...]] = set()
    for row, text in zip(rows, refs, strict=True):
        try:
            ref = locator_of(text)
        except (TypeError, ValueError):
            continue  # becomes a message
        if ref["frame_index"] is not None:
            byte_range = (ref["path"], ref["byte_offset"], ref["byte_size"])
            if byte_range in frames_of:
                continue
            frames_of.add(byte_range)
        sizes[row] = min(ref["byte_size"] or 0, _LARGEST)
    return sizes


def _fetch(
    fetcher: Fetcher, name: str, requests: _Requests, found: dict[int, bytes], errors: dict[int, Fault]
) -> None:
    results = fetcher.fetch([(loc.member, loc.byte_offset, loc.byte_size) for loc in requests])
    for result, (locator, rows) in zip(results, requests.items(), strict=True):
        for row, frame in rows:
            if isinstance(result, Fault):
                errors[row] = result
            elif frame is None:
                found[row] = result
            else:
                try:
                    found[row] = split_frame(result, frame)
                except ImageError as error:
                    errors[row] = lost_frame(locator.member or name, frame, error)


def locator_of(text: str | None) -> SourceRef:
    """Parse and check the locator in a ``source_ref``.

    The text may come from anywhere, so every value in it is checked.

    Raises:
        TypeError, ValueError: the text is no locator, or names nothing.
    """
    ref = parse_source_ref(text)
    for key in ("path", "member"):
        value: object = ref[key]  # type: ignore[literal-required]
        if value is not None and not isinstance(value, str):
            raise FetchError(f"source_ref: {key} is no string: {value!r:.100}")
    for key in ("byte_offset", "byte_size", "frame_index"):
        value = ref[key]  # type: ignore[literal-required]
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST
        ):
            raise FetchError(f"source_ref: {key} is no number of bytes or frames: {value!r:.100}")
    if not ref["path"]:
        raise FetchError("missing path")
    return ref


def _reason(error: Exception, path: str, name: str) -> str:
    """Return what went wrong, with the file named as in the data: paths of this machine are not published."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = str(error.strerror if isinstance(error, OSError) and error.strerror else error)
    return (
        text.replace(path, name)
        if isinstance(error, FetchError | OSError)
        else f"{type(error).__name__}: {text}".replace(path, name)
    )


def _rows_to_fetch(table: pa.Table) -> list[int]:
    if not {"binary_content", "source_ref", "materialize_error"} <= set(table.column_names):
        return []
    binary = table.column("binary_content")
    if binary.null_count == 0:
        return []
    mask = pc.and_(pc.equal(table.column("modality"), "image"), pc.is_null(binary))
    mask = pc.and_(mask, pc.is_null(table.column("materialize_error")))
    mask = pc.and_(mask, pc.is_valid(table.column("source_ref")))
    return pc.indices_nonzero(mask).to_pylist()


def _resolve(path: str, roots: Sequence[str] | None, images_from: str) -> str:
    given = path
    if (found := located_again(path, images_from)) is not None:
        path, root = found
        roots = [root]
    is_relative = not is_remote(path) and not os.path.isabs(local_path(path))
    if is_relative and roots:
        path = join(roots[0], path)
    if roots is not None and not any(_is_inside(path, root) for root in roots):
        raise FetchError(f"{given!r} is outside the configured roots")
    return path


def _is_inside(path: str, root: str) -> bool:
    if is_remote(path) != is_remote(root):
        return False
    if is_remote(path):
        path, root = canonical_url(path), canonical_url(root)
        # "a::b" chains file systems: the second one is opened wherever the first part points.
        return (
            "::" not in path
            and ".." not in path.split("/")
            and (path == root or path.startswith(root.rstrip("/") + "/"))
        )
    real, real_root = os.path.realpath(local_path(path)), os.path.realpath(local_path(root))
    return real == real_root or real.startswith(real_root.rstrip("/") + "/")


def _with_results(table: pa.Table, found: dict[int, bytes], errors: dict[int, Fault]) -> pa.Table:
    if found:
        index = table.schema.get_field_index("binary_content")
        table = table.set_column(index, table.schema.field(index), _replace(table.column(index), found))
    return with_errors(table, errors)


def _replace(column: pa.ChunkedArray, values: dict[int, bytes]) -> pa.ChunkedArray:
    mask = [row in values for row in range(len(column))]
    replacements = pa.array([values[row] for row in sorted(values)], column.type)
    if column.null_count == len(column):
        return pa.chunked_array([pa.array([values.get(row) for row in range(len(column))], column.type)])
    return pc.replace_with_mask(column, pa.array(mask), replacements)
