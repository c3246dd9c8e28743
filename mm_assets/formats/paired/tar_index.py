"""Index of one modality's tar, from its headers: the payload of each key and extension."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from webdataset.tariterators import base_plus_ext

from mm_assets.formats.tar.scan import scan
from mm_assets.interleaved.errors import DataError

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
