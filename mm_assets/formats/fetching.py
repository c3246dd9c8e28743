"""Reading of byte ranges, tar members or whole files from one path; failures are values, not exceptions."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mm_assets.formats.parquet_rows import row_of
from mm_assets.formats.pdf.names import is_block
from mm_assets.formats.raw_files import is_parquet
from mm_assets.formats.storage import StorageOptions, filesystem, is_remote, local_path, open_binary, size_of
from mm_assets.formats.store_errors import is_store_failure
from mm_assets.formats.tar.scan import Member, TarDamage, TarIndex, scan
from mm_assets.formats.tar.spool import local_tar, unpacked_limit
from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.interleaved.faults import FETCH_FAILED, Fault, missing_member

Request = tuple[str | None, int | None, int | None]  # member, byte offset, byte size

_GZIP_MAGIC = b"\x1f\x8b\x08"
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
    with local_tar(path, name, max_bytes=unpacked_limit(os.path.getsize(path))) as descriptor:
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
        # The first bytes are fetched too, to recognise a .tar.gz: its ranges are those of the unpacked tar.
        starts, ends = zip((0, len(_GZIP_MAGIC)), *((o, o + s) for o, s in ranges), strict=True)
        magic, *fetched = self._fs.cat_ranges(
            [self._path] * len(starts), list(starts), list(ends), on_error="return"
        )
        if magic == _GZIP_MAGIC:
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
        limit = unpacked_limit(size_of(self._uri, self._options))
        with (
            open_binary(self._uri, self._options) as stream,
            local_tar(stream, self._name, max_bytes=limit) as descriptor,
        ):
            return _LocalFetcher(self._name, descriptor).fetch(requests)
