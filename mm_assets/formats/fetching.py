"""Read byte ranges, tar members or whole files from one path; each failure is a message, not an exception."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mm_assets.formats.storage import StorageOptions, filesystem, is_remote, local_path, open_binary
from mm_assets.formats.webdataset.resolve import lookup
from mm_assets.formats.webdataset.spool import local_tar
from mm_assets.formats.webdataset.tar_scan import Member, TarDamage, TarIndex, scan

Request = tuple[str | None, int | None, int | None]  # member, byte offset, byte size

_GZIP_MAGIC = b"\x1f\x8b"


class FetchError(ValueError):
    """A locator cannot be followed."""


class Fetcher(ABC):
    """One open path."""

    @abstractmethod
    def fetch(self, requests: Sequence[Request]) -> list[bytes | str]:
        """The bytes of each request, or the message why they cannot be had."""


@contextmanager
def open_fetcher(uri: str, options: StorageOptions | None = None) -> Iterator[Fetcher]:
    """A fetcher for a local or remote path. Raises ``OSError`` when it cannot be opened."""
    if is_remote(uri):
        yield _RemoteFetcher(uri, options)
        return
    with open(local_path(uri), "rb") as file:
        is_gzip = os.pread(file.fileno(), 2, 0) == _GZIP_MAGIC
        if not is_gzip:
            yield _LocalFetcher(uri, file.fileno())
            return
    with local_tar(local_path(uri), uri) as descriptor:  # offsets are those of the unpacked tar
        yield _LocalFetcher(uri, descriptor)


class _LocalFetcher(Fetcher):
    def __init__(self, uri: str, descriptor: int) -> None:
        self._uri = uri
        self._descriptor = descriptor
        self._index: TarIndex | None = None

    def fetch(self, requests: Sequence[Request]) -> list[bytes | str]:
        return [self._one(*request) for request in requests]

    def _one(self, member: str | None, offset: int | None, size: int | None) -> bytes | str:
        try:
            if offset is not None and size is not None and size > 0:
                return self._range(offset, size)
            if member:
                found = self._member(member)
                return self._range(found.offset, found.size)
            return self._range(0, os.fstat(self._descriptor).st_size)
        except FetchError as error:
            return str(error)

    def _range(self, offset: int, size: int) -> bytes:
        end = os.fstat(self._descriptor).st_size
        if not (isinstance(offset, int) and isinstance(size, int)) or offset < 0 or offset + size > end:
            raise FetchError(f"{self._uri}: range {offset}+{size} is outside the file of {end} bytes")
        parts = []
        while size > 0:
            part = os.pread(self._descriptor, size, offset)
            if not part:
                raise FetchError(f"{self._uri}: the file ended at byte {offset}")
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _member(self, name: str) -> Member:
        if self._index is None:
            try:
                self._index = scan(self._descriptor, self._uri)
            except TarDamage as error:
                raise FetchError(str(error)) from error
        found = lookup(name, self._index)
        if not isinstance(found, Member):
            raise FetchError(found or f"missing member {name!r}")
        return found


class _RemoteFetcher(Fetcher):
    def __init__(self, uri: str, options: StorageOptions | None) -> None:
        self._uri = uri
        self._options = options
        self._fs, self._path = filesystem(uri, options)

    def fetch(self, requests: Sequence[Request]) -> list[bytes | str]:
        ranges = [(o, s) for _, o, s in requests if o is not None and s is not None and s > 0]
        distinct = list(dict.fromkeys(ranges))
        fetched = self._fs.cat_ranges(
            [self._path] * len(distinct), [o for o, _ in distinct], [o + s for o, s in distinct], on_error="return"
        )
        by_range = dict(zip(distinct, fetched, strict=True))
        whole: list[bytes | str] | None = None
        results: list[bytes | str] = []
        others = [r for r in requests if (r[1], r[2]) not in by_range]
        if others:
            whole = self._others(others)
        for request in requests:
            offset, size = request[1], request[2]
            if (offset, size) in by_range:
                results.append(self._checked(by_range[(offset, size)], offset, size))  # type: ignore[index, arg-type]
            elif whole is not None:
                results.append(whole[others.index(request)])
        return results

    def _checked(self, data: object, offset: int, size: int) -> bytes | str:
        if isinstance(data, Exception):
            return f"failed to read {self._uri}: {type(data).__name__}: {data}"
        assert isinstance(data, bytes)
        if len(data) != size:
            return f"{self._uri}: range {offset}+{size} is outside the file"
        return data

    def _others(self, requests: Sequence[Request]) -> list[bytes | str]:
        if all(member is None for member, _, _ in requests):
            data = self._fs.cat_file(self._path)
            return [data] * len(requests)
        with open_binary(self._uri, self._options) as stream, local_tar(stream, self._uri) as descriptor:
            return _LocalFetcher(self._uri, descriptor).fetch(requests)
