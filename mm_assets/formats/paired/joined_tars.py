"""Join of paired tars by key, for training.

It follows webdataset exactly: its rule for keys, its renaming and selection of members, its samples of bytes.
Anything that does not fit raises, or is left out and reported. The shards are paired before they are split
between workers or shuffled.

* `PairedShardList` pairs shards: groups of one tar per modality.
* `open_shards` opens local file descriptors of the tars of a group, local or remote.
* `ModalityTarIndex` indexes one modality's tar, from its headers: the payload of each key and extension.
* `JoinedTars` joins them, whatever the order of their members.
"""

from __future__ import annotations

import os
import random
import re
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, NamedTuple
from urllib.parse import urlparse

from webdataset.gopen import gopen, gopen_schemes, rewrite_url
from webdataset.pytorch import IterableDataset
from webdataset.shardlists import envsubst
from webdataset.tariterators import base_plus_ext

from mm_assets.formats.tar import damage
from mm_assets.formats.tar.scan import scan
from mm_assets.formats.tar.spool import local_tar, plain_descriptor, unpacked_limit
from mm_assets.model.errors import DataError, counted
from mm_assets.storage import expand_braces
from mm_assets.storage.files import open_binary

__all__ = ["PairedShardList"]


SelectFiles = Callable[[str], bool]
RenameFiles = Callable[[str], str]

_FOR_WEBDATASET = re.compile(r"__[^/]*__($|/)")  # members about the tar itself; webdataset ignores them


class Payload(NamedTuple):
    """Place of one file in the tar; both in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ModalityTarIndex:
    """The payload of each key and extension, keys in the order of their first members.

    ``unkeyed`` has the files that belong to no sample, ``left_out`` those that macOS or tar had added.
    """

    fd: int
    url: str
    payloads: dict[str, dict[str, Payload]]
    extensions: frozenset[str]
    unkeyed: list[str]
    left_out: list[str]


def index_samples(
    fd: int, url: str, select: SelectFiles | None = None, rename: RenameFiles | None = None
) -> ModalityTarIndex:
    """Index an open tar.

    Names become keys and lower-case extensions by webdataset's rule, after ``rename`` and ``select``. A
    leading ``./`` is not part of a name. The members of a key need not be adjacent. A link inside the tar
    stands for the file it leads to.

    Raises:
        TarDamage: The tar is cut or corrupt.
        DataError: A key has an extension twice, webdataset reserves the extension (such as ``__url__``), or a
            member cannot be read.
    """
    payloads: dict[str, dict[str, Payload]] = {}
    extensions: dict[str, str] = {}  # one string for all members that share an extension
    unkeyed: list[str] = []
    index = scan(fd, url)
    for member in index.members:
        name = member.name
        if _FOR_WEBDATASET.match(name):
            continue
        if rename is not None:
            name = rename(name)
        if select is not None and not select(name):
            continue
        key, extension = base_plus_ext(name)
        if key is None:
            unkeyed.append(name)
            continue
        if member.broken is not None:
            raise DataError(f"{url}: member {member.name!r} cannot be read: {member.broken}")
        extension = extension.lower()
        extension = extensions.setdefault(extension, extension)
        if extension.startswith("__") and extension.endswith("__"):
            raise DataError(
                f"{url}: member {member.name!r}: webdataset keeps names like {extension!r} for itself"
            )
        files = payloads.setdefault(key, {})
        if extension in files:
            raise DataError(f"{url}: duplicate file name in tar file: key {key!r} has {extension!r} twice")
        files[extension] = Payload(member.offset, member.size)
    unkeyed += (f"{skipped.name} ({skipped.reason})" for skipped in index.skipped)
    return ModalityTarIndex(fd, url, payloads, frozenset(extensions), unkeyed, list(index.left_out))


ShardUrls = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
ShardGroup = dict[str, dict[str, str]]  # {"urls": {modality: url}}

_MAX_SUBSTITUTIONS = 10
_TAR_NAME = re.compile(r"""([^\s/"'=?&]+)\.(?:tar(?:\.\w+)?|tgz)\b""")


class PairedShardList(IterableDataset):
    """An iterable of one ``{"urls": {modality: url}}`` per shard: the n-th URL of every modality.

    Args:
        modalities: URLs by modality. A string is expanded as webdataset does (braces, ``::`` between several,
            ``${X}`` for the environment's ``WDS_X``); a list of URLs is taken as it is.
        seed: Gives every pass the same shuffled order. None keeps the order.

    Raises:
        ValueError: There are no modalities or no shards, or the modalities differ in the number of shards.

    Warns once, here, if paired shards have different file names.
    """

    def __init__(self, modalities: Mapping[str, ShardUrls], seed: int | None = None) -> None:
        super().__init__()
        if not isinstance(modalities, Mapping):
            raise TypeError(
                "modalities must be a mapping from each one's name to its shards, "
                f"not {type(modalities).__name__}"
            )
        urls = {name: _expand(given) for name, given in modalities.items()}
        counts = {name: len(expanded) for name, expanded in urls.items()}
        if not counts:
            raise ValueError("no modalities")
        if len(set(counts.values())) > 1:
            listed_counts = ", ".join(f"{name}={count}" for name, count in counts.items())
            raise ValueError(f"all modalities must have the same number of shards: {listed_counts}")
        if not all(counts.values()):
            raise ValueError("no shards")
        self.seed = seed
        self.groups = [dict(zip(urls, group, strict=True)) for group in zip(*urls.values(), strict=True)]
        _warn_of_names(self.groups)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {counted(len(self.groups), 'shard')}: {', '.join(self.groups[0])}>"

    def __len__(self) -> int:
        """Number of shard groups."""
        return len(self.groups)

    def __iter__(self) -> Iterator[ShardGroup]:
        groups = self.groups.copy()
        if self.seed is not None:
            random.Random(self.seed).shuffle(groups)
        for urls in groups:
            yield {"urls": dict(urls)}


def shard_name(url: str) -> str:
    """Return a shard's file name without ``.tar`` and what follows; it may be within a ``pipe:`` command."""
    names = _TAR_NAME.findall(url)
    return names[-1] if names else url.rstrip("/").rpartition("/")[2]


def _expand(given: ShardUrls) -> list[str]:
    if isinstance(given, str):
        return [name for url in given.split("::") for name in expand_braces(_substituted(url))]
    if isinstance(given, os.PathLike):
        return [os.fspath(given)]
    return [os.fspath(url) for url in given]


def _substituted(url: str) -> str:
    """Substitute variables as webdataset does: values may name further variables."""
    for _ in range(_MAX_SUBSTITUTIONS):
        url = envsubst(url)
    return url


def _warn_of_names(groups: list[dict[str, str]]) -> None:
    differing = [group for group in groups if len({shard_name(url) for url in group.values()}) > 1]
    if differing:
        example = ", ".join(f"{name}={url!r}" for name, url in differing[0].items())
        warnings.warn(
            f"shards are paired by index, and the names differ in {len(differing)} of {len(groups)} pairs; "
            f"the first is {example}",
            stacklevel=3,
        )


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


Sample = dict[str, Any]


class JoinedTars:
    """The keys of a shard group, known before any payload is read.

    ``keys`` has the keys of the first modality in its order, then those that only later modalities have, in
    their order. ``common_keys`` has those that all modalities have. ``missing`` has for each modality the
    keys that it lacks and another modality has.
    """

    def __init__(self, tars: dict[str, ModalityTarIndex]) -> None:
        self._tars = tars
        self.keys = list(dict.fromkeys(chain.from_iterable(tar.payloads for tar in tars.values())))
        self.missing = {
            name: [key for key in self.keys if key not in tar.payloads]
            if len(tar.payloads) < len(self.keys)
            else []
            for name, tar in tars.items()
        }
        self._incomplete = set(chain.from_iterable(self.missing.values()))
        self.common_keys = (
            [key for key in self.keys if key not in self._incomplete] if self._incomplete else self.keys
        )

    def check_alignment(self) -> None:
        """Check that all modalities have the same keys.

        Raises:
            DataError: They differ. The message has the first key that a modality lacks, and the key at which
                each modality is there.
        """
        first = next((key for key in self.keys if key in self._incomplete), None)
        if first is None:
            return
        earlier_keys = set(self.keys[: self.keys.index(first)])
        next_keys = []
        for name, tar in self._tars.items():
            key = (
                first
                if first in tar.payloads
                else next((key for key in tar.payloads if key not in earlier_keys), None)
            )
            next_keys.append(f"{name}={key!r}")
        counts = ", ".join(
            f"{len(keys)} in {name} ({self._tars[name].url})" for name, keys in self.missing.items() if keys
        )
        raise DataError(
            f"key mismatch across modalities: {', '.join(next_keys)}; "
            f"of {len(self.keys)} keys are missing: {counts}"
        )

    def check_extensions(self, keys: Iterable[str]) -> None:
        """Check that no two modalities have the same extension for one of these keys.

        Raises:
            DataError: Two of them do.
        """
        extensions = [tar.extensions for tar in self._tars.values()]
        if len(frozenset().union(*extensions)) == sum(map(len, extensions)):
            return
        for key in keys:
            owners: dict[str, str] = {}
            for name, tar in self._tars.items():
                for extension in tar.payloads.get(key, ()):
                    owner = owners.setdefault(extension, name)
                    if owner != name:
                        raise DataError(
                            f"extension key {extension!r} from modality {name!r} collides with "
                            f"that of modality {owner!r} (key {key!r}): give the files other "
                            "extensions, or rename_files for one of the modalities"
                        )

    def read(self, keys: Iterable[str]) -> Iterator[Sample]:
        """Yield the samples of these keys.

        A sample has ``__key__``, the URLs of the tars that have the key, then the bytes by extension.
        """
        tars = [(f"__url_{name}__", tar) for name, tar in self._tars.items()]
        for key in keys:
            sources = [(field, tar) for field, tar in tars if key in tar.payloads]
            sample: Sample = {"__key__": key, "__url__": " ".join([tar.url for _, tar in sources])}
            for field, tar in sources:
                sample[field] = tar.url
            for _, tar in sources:
                for extension, payload in tar.payloads[key].items():
                    data = os.pread(tar.fd, payload.size, payload.offset)
                    sample[extension] = (
                        data if len(data) == payload.size else _read_on(tar, key, payload, data)
                    )
            yield sample


def _read_on(tar: ModalityTarIndex, key: str, payload: Payload, data: bytes) -> bytes:
    """Return a whole payload of which one ``pread`` gave only the start (the kernel stops short of 2 GiB)."""
    chunks = [data]
    at, end = payload.offset + len(data), payload.offset + payload.size
    while at < end:
        chunk = os.pread(tar.fd, end - at, at)
        if not chunk:
            raise damage(tar.url, at, f"the file ends within a member of {key!r}", is_cut=True)
        chunks.append(chunk)
        at += len(chunk)
    return b"".join(chunks)
