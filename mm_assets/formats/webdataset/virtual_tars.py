"""Virtual tars: made when they are opened, as files of their file systems; and their entries beside samples.

* `virtual_info`, `virtual_file`: what ``paired://`` and ``pdf://`` say of such a tar, and the tar itself.
* `VirtualTars`: base of file systems of one folder with such tars.
* `FolderedAddress`: an address of some locations whose folders are shards, as those of ``pdf://``.
* `refusal`, `write_unread`, `write_unpaired`: entries for what could not be made a sample of.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar, Generic, Self, TypeVar
from urllib.parse import urlencode

from fsspec import AbstractFileSystem

from mm_assets.formats.names import sample_key
from mm_assets.formats.tar import TarWriter
from mm_assets.formats.tar.scan import TarIndex
from mm_assets.formats.webdataset import (
    BOOKKEEPING,
    LEFT_OUT,
    REFUSED,
    ROW_EXTRA,
    SAMPLE_ID,
    UNPAIRED,
)
from mm_assets.model.errors import DataError
from mm_assets.model.json_codec import dumps
from mm_assets.model.samples import build_source_ref
from mm_assets.storage.files import absolute, filesystem, is_remote, local_path, open_binary, size_of
from mm_assets.storage.listing import pairs_of_url
from mm_assets.storage.stamps import MISSING, local_stamp, remote_stamps

T = TypeVar("T")

_LOCATION = "at"
_END = "as", "folder"  # so that no address ends as the name of a file does


@dataclass(frozen=True)
class FolderedAddress:
    """Locations of files, of which each folder is a shard: files, folders, patterns, brace lists or URLs."""

    protocol: ClassVar[str]
    places: tuple[str, ...]

    @property
    def url(self) -> str:
        """The address as a URL: a folder with a tar for each shard."""
        pairs = [*((_LOCATION, place) for place in self.places), _END]
        return f"{self.protocol}://{urlencode(pairs)}"

    @classmethod
    def parse(cls, token: str) -> Self:
        """Return the address whose `url` has ``token`` after its scheme."""
        pairs = pairs_of_url(cls.protocol, token, f"{cls.protocol}=FOLDER")
        return cls(tuple(place for _, place in pairs[:-1]))

    @classmethod
    def location(cls, item: str) -> str | None:
        """Return the location that an item such as ``pdf=docs`` names; None for any other item."""
        prefix = f"{cls.protocol}="
        return absolute(item.removeprefix(prefix)) if item.startswith(prefix) else None

    def names(self) -> Mapping[str, Any]:
        """Return what each shard is made of, by its name, sorted.

        Raises:
            FileNotFoundError: a location has nothing of the kind.
        """
        raise NotImplementedError

    def originals(self, shard: str) -> list[str]:
        """Return the names in locators of the files that a shard is made of."""
        raise NotImplementedError

    def passed_over(self) -> list[str]:
        """Return a line for everything in the locations that looks like data, but is not read."""
        raise NotImplementedError


def plain_path(location: str) -> str:
    """Return the path of a file in its file system, as URLs of one store may be written in several ways."""
    return filesystem(location)[1] if is_remote(location) else location


def name_of_folder(folder: str, root: str) -> str:
    """Return the name of the shard of a folder: its path below the root, or the root's own name."""
    below = folder[len(root) :] if folder.startswith(root) else folder
    return below.strip("/") or posixpath.basename(root)


def by_shard(files: Iterable[tuple[str, str, T]]) -> dict[str, list[T]]:
    """Return what belongs to each shard, sorted by its name.

    Args:
        files: name of the shard, what it is made of (a folder, or a tar), and a file.

    Raises:
        DataError: two of them would have the same name.
    """
    shards: dict[str, list[T]] = {}
    origins: dict[str, str] = {}
    for name, origin, file in files:
        if origins.setdefault(name, origin) != origin:
            raise DataError(f"{origins[name]} and {origin} would both become partition {name!r}: rename one")
        shards.setdefault(name, []).append(file)
    return dict(sorted(shards.items()))


def virtual_info(path: str, marks: Sequence[str], files: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return what a file system says of a tar that is made of some files.

    Args:
        path: the tar.
        marks: what its content depends on besides the files.
        files: name and location of each.
    """
    named = list(files)
    stamps = remote_stamps([file for _, file in named if is_remote(file)])
    stamps |= {file: local_stamp(local_path(file)) for _, file in named if not is_remote(file)}
    # Approximate: the tar has other headers, and json of its own. A missing file only fails when the tar is
    # opened.
    size = sum(size_of(file) for _, file in named if stamps[file] != MISSING)
    return version_info(path, [*marks, *(f"{name}:{stamps[file]}" for name, file in named)], size)


def version_info(path: str, identity: Sequence[str], size: int = 0) -> dict[str, Any]:
    """Return what a file system says of a tar.

    Args:
        path: the tar.
        identity: what its content depends on.
        size: its approximate bytes; 0: unknown.
    """
    etag = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:32]
    return {"name": path, "size": size, "type": "file", "ETag": etag}


def virtual_file(make: Callable[[str], None]) -> IO[bytes]:
    """Return the tar that ``make`` writes at a path, as an open, unlinked temporary file."""
    with tempfile.TemporaryDirectory(prefix="mm-assets-") as folder:
        target = os.path.join(folder, "made.tar")
        make(target)
        return open(target, "rb")


Shard = TypeVar("Shard")
_SUFFIX = ".tar"


class VirtualTars(AbstractFileSystem, Generic[Shard]):
    """``PROTOCOL://TOKEN``: a folder with a tar ``NAME.tar`` for each shard, made when it is opened.

    ``called`` is what a shard is called in messages.
    """

    called: str

    @abstractmethod
    def shards(self, token: str) -> Mapping[str, Shard]:
        """Return the shards of a folder by name."""

    @abstractmethod
    def shard_info(self, path: str, shard: Shard) -> dict[str, Any]:
        """Return what is known of a tar without making it, as `version_info`."""

    @abstractmethod
    def write(self, token: str, name: str, shard: Shard, target: str) -> None:
        """Write the tar of a shard to the file ``target``."""

    def original(self, shards: Mapping[str, Shard], name: str) -> str | None:
        """Return the original file that a locator's name stands for; None where there is none."""
        return None

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path, token, inner, shards = self._found(path)
        if (shard := shards.get(_stem(inner))) is not None:
            infos = [self.shard_info(path, shard)]
        else:
            infos = self._inside(token, f"{inner}/" if inner else "", shards)
        if not infos:
            raise self._absent(inner)
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path, _token, inner, shards = self._found(path)
        if (original := self.original(shards, inner)) is not None:
            return {"name": path, "size": size_of(original), "type": "file"}
        if (shard := shards.get(_stem(inner))) is not None:
            return self.shard_info(path, shard)
        if not inner or any(name.startswith(f"{inner}/") for name in shards):
            return {"name": path, "size": 0, "type": "directory"}
        raise self._absent(inner)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> IO[bytes]:
        if mode != "rb":
            raise ValueError(f"{self.protocol}:// can only be read, not opened in mode {mode!r}")
        _path, token, inner, shards = self._found(path)
        if (original := self.original(shards, inner)) is not None:
            return open_binary(original)
        name = _stem(inner)
        if (shard := shards.get(name)) is None:
            raise self._absent(inner)
        return virtual_file(lambda target: self.write(token, name, shard, target))

    def _found(self, path: str) -> tuple[str, str, str, Mapping[str, Shard]]:
        path = self._strip_protocol(path)
        token, _slash, inner = path.partition("/")
        return path, token, inner, self.shards(token)

    def _absent(self, inner: str) -> FileNotFoundError:
        return FileNotFoundError(f"{inner}: no {self.called} of this name")

    def _inside(self, token: str, prefix: str, shards: Mapping[str, Shard]) -> list[dict[str, Any]]:
        """Return what is right below a folder: shards, and folders with shards below them."""
        infos: dict[str, dict[str, Any]] = {}
        for name, shard in shards.items():
            if not name.startswith(prefix):
                continue
            head, slash, _ = name[len(prefix) :].partition("/")
            path = f"{token}/{prefix}{head}"
            if slash:
                infos.setdefault(path, {"name": path, "size": 0, "type": "directory"})
            else:
                infos[f"{path}{_SUFFIX}"] = self.shard_info(f"{path}{_SUFFIX}", shard)
        return list(infos.values())


def _stem(name: str) -> str:
    """Return the name of the shard that a tar is made of; empty for any other file."""
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else ""


def refusal(sample_id: str, kind: str, reason: str, ref: str | None) -> dict[str, Any]:
    """Return the json of a sample that readers refuse and account for.

    Args:
        sample_id: its id.
        kind: class of the fault.
        reason: what is wrong with it.
        ref: locator of the fault; None: it is in this json.
    """
    return {SAMPLE_ID: sample_id, ROW_EXTRA: {}, BOOKKEEPING: {REFUSED: [kind, reason, ref]}}


def write_unread(tar: TarWriter, name: str, index: TarIndex) -> None:
    """Write what was not read of an original tar, which locators call ``name``.

    That is a refused sample for each damaged range, and an entry for each member that was left out.
    """
    for number, member in enumerate(index.left_out):
        report = dumps({"where": f"{name}: {member}"})
        tar.write_group([(f"{sample_key(f'{number}/{name}')}.{LEFT_OUT}", report.encode())])
    for damaged_range in index.damaged_ranges:
        place = f"{name}: bytes {damaged_range.start} to {damaged_range.end}"
        ref = build_source_ref(name, None, damaged_range.start, damaged_range.end - damaged_range.start)
        payload = refusal(place, damaged_range.damage.kind, str(damaged_range.damage), ref)
        tar.write_group([(f"{sample_key(place)}.json", dumps(payload).encode())])


def write_unpaired(tar: TarWriter, key: str, where: str, ref: str, reason: str | None) -> None:
    """Write an entry that stands for an original member that belongs to no sample.

    Args:
        tar: the merged tar.
        key: a text that no other such member has.
        where: tar and name of the member, for messages.
        ref: its locator.
        reason: why it is no part of a sample, if there is more to say than that.
    """
    report = {"where": where, "ref": ref, "reason": reason}
    tar.write_group([(f"{sample_key(key)}.{UNPAIRED}", dumps(report).encode())])
