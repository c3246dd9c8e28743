"""Local file descriptors of the tars of a shard group, local or remote."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import IO
from urllib.parse import urlparse

from webdataset.gopen import gopen, gopen_schemes, rewrite_url

from mm_assets.formats.storage import open_binary
from mm_assets.formats.tar.spool import local_tar, plain_descriptor, unpacked_limit


@contextmanager
def open_shards(urls: Sequence[str]) -> Iterator[list[int]]:
    """Open a descriptor of an uncompressed tar for each URL, for ``pread`` until the end of the block.

    A local file is opened as it is. A stream (``pipe:``, ``https:``, …) or a gzip file is spooled into an
    unlinked temporary file, all of the group in parallel. So a truncated stream is detected before the first
    sample.

    Raises:
        OSError: Opening or reading fails, or a command fails after its last byte. Other errors of opening and
            reading pass through as well.
    """
    with ExitStack() as stack:
        streams = []
        for url in urls:
            streams.append(_open(url))
            stack.callback(_abandon, streams[-1])
        descriptors = [plain_descriptor(stream) for stream in streams]
        to_spool = [at for at, fd in enumerate(descriptors) if fd is None]
        if to_spool:
            with ThreadPoolExecutor(len(to_spool)) as threads:
                spooled = threads.map(lambda at: _spool(streams[at], urls[at], stack), to_spool)
                for at, fd in zip(to_spool, spooled, strict=True):
                    descriptors[at] = fd
        yield [fd for fd in descriptors if fd is not None]


def _open(url: str) -> IO[bytes]:
    """Open a URL with webdataset if it knows the scheme, else with fsspec."""
    scheme = urlparse(rewrite_url(url)).scheme
    if scheme in ("", "file") or scheme in gopen_schemes:
        stream: IO[bytes] = gopen(url)
        return stream
    return open_binary(url)


def _spool(stream: IO[bytes], url: str, stack: ExitStack) -> int:
    try:
        fd = stream.fileno()
        limit = unpacked_limit(os.fstat(fd).st_size) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except (AttributeError, OSError):
        limit = None
    spooled = stack.enter_context(local_tar(stream, url, max_bytes=limit))
    stream.close()  # raises if a command has failed
    return spooled


def _abandon(stream: IO[bytes]) -> None:
    with suppress(OSError):  # a command fails when its reader stops; the cause was raised before
        stream.close()
