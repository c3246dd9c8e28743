"""Places to publish to: `FolderTarget`, of any file system, and `HubTarget`, of the Hugging Face Hub.

Each tells which files it has, with the digests that it knows, and takes files as a whole. `listed_below`
gives the files of a folder that its readers see.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

from mm_assets import __version__
from mm_assets.accounting import OUTPUTS, TARS, TRAINING_FOLDER
from mm_assets.accounting.formats import accounted_format
from mm_assets.model.errors import MmAssetsError, counted, explained
from mm_assets.storage.errors import located
from mm_assets.storage.files import (
    absolute,
    filesystem,
    is_remote,
    join,
    lasting,
    local_path,
    open_binary,
    publish_bytes,
    put,
    remove,
    staged,
)
from mm_assets.storage.stamps import mark_of

CARD: Final = "README.md"
BLOCK: Final = 1 << 20
"""Bytes that are copied at a time."""
BY_FOLDER: Final = {output.folder.partition("/")[0]: output for output in OUTPUTS}
"""Outputs by their folder below the storage root."""
_THREADS: Final = 4


def index_files(folder: str) -> Sequence[str]:
    """Return the paths of the files by which clients find the data of an output, below its folder."""
    output = TARS if folder == TRAINING_FOLDER else BY_FOLDER.get(folder)
    return () if output is None else accounted_format(output.kind).folder_files


class PublishError(MmAssetsError, ValueError):
    """Outputs cannot be published as they are, or are not at the target as they are here."""


@dataclass(frozen=True)
class LocalFile:
    """A file to publish.

    Args:
        path: below the storage root, and below the target.
        size: bytes.
        stamp: changes whenever the file does.
        content: of a file that is made for the target; None: it is in the storage.
    """

    path: str
    size: int
    stamp: str
    content: bytes | None = None


@dataclass(frozen=True)
class RemoteFile:
    """A file at the target.

    Args:
        digest: name of an algorithm and the digest in hex, if the target tells it.
        mark: changes whenever the file does; empty if the target does not tell.
    """

    size: int
    digest: tuple[str, str] | None = None
    mark: str = ""


class Target(ABC):
    """A place to publish to.

    Attributes:
        url: the place.
        has_card: whether the card of all outputs has its place there.
        digests: algorithms in which it may tell the digests of files.
        batch: files that are put there in one go.
    """

    url: str
    has_card = False
    digests: tuple[str, ...] = ()
    batch = _THREADS

    @abstractmethod
    def files(self, folders: Sequence[str]) -> dict[str, RemoteFile]:
        """Return the files below some folders, and the card beside them, by path."""

    @abstractmethod
    def put(self, root: str, files: Sequence[LocalFile]) -> None:
        """Put files there, each as a whole."""

    @abstractmethod
    def open(self, path: str) -> IO[bytes]:
        """Open a file that is there."""

    @abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Remove files."""


class FolderTarget(Target):
    """A folder or bucket of any file system that fsspec knows."""

    digests = ("md5",)

    def __init__(self, url: str) -> None:
        self.url = absolute(lasting(url)).rstrip("/")

    def files(self, folders: Sequence[str]) -> dict[str, RemoteFile]:
        found = {}
        for folder in folders:
            for path, info in listed_below(self.url, folder):
                found[path] = RemoteFile(int(info["size"]), _md5_of(info), mark_of(info) or "")
        return found

    def put(self, root: str, files: Sequence[LocalFile]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(lambda file: self._put(root, file), files):
                pass

    def _put(self, root: str, file: LocalFile) -> None:
        source, target = join(root, file.path), join(self.url, file.path)
        if file.content is not None:
            publish_bytes(target, file.content)
        elif is_remote(target) and not is_remote(source):
            put(local_path(source), target)
        else:
            with staged(target) as copy:
                with open_binary(source) as stream, open(copy.path, "wb") as out:
                    while block := stream.read(BLOCK):
                        out.write(block)
                copy.publish()

    def open(self, path: str) -> IO[bytes]:
        return open_binary(join(self.url, path))

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            remove(join(self.url, path))


def listed_below(root: str, folder: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the files that readers see below a folder of a root, each with its path below the root."""
    shared = index_files(folder)
    fs, path = filesystem(join(root, folder))
    fs.invalidate_cache()
    with located(join(root, folder)):
        found: Mapping[str, Mapping[str, Any]] = fs.find(path, detail=True)
    for name, info in sorted(found.items()):
        below = str(name).removeprefix(path.rstrip("/")).lstrip("/")
        is_hidden = any(part.startswith(".") for part in below.split("/")) and below not in shared
        if info["type"] == "file" and not is_hidden:
            yield join(folder, below), info


_MD5: Final = re.compile("[0-9a-f]{32}")


def _md5_of(info: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the MD5 that a store tells; of an upload in parts it tells none."""
    etag = str(info.get("ETag") or "").strip('"')
    if _MD5.fullmatch(etag):
        return "md5", etag
    return None


_HUB_URL: Final = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/?")
_COMMIT_FILES: Final = 200
_COMMIT_BYTES: Final = 5 << 30


class HubTarget(Target):
    """A data set of the Hugging Face Hub, made as a private one where there is none.

    Raises:
        PublishError: the URL names none.
        MissingExtra: its client is not installed.
    """

    has_card = True
    digests = ("sha256", "git")
    batch = _COMMIT_FILES

    def __init__(self, url: str) -> None:
        found = _HUB_URL.fullmatch(url)
        if found is None:
            raise PublishError(
                f"{url}: write it as hf://datasets/USER/NAME or hf://datasets/USER/NAME@REVISION"
            )
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise explained(error) from error
        self.url = url.rstrip("/")
        self._repository: dict[str, Any] = {"repo_id": found[1], "repo_type": "dataset"}
        self._revision = found[2]
        self._api = HfApi(library_name="mm-assets", library_version=__version__)

    def files(self, folders: Sequence[str]) -> dict[str, RemoteFile]:
        from huggingface_hub.errors import RepositoryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        found = {}
        with self._client():
            try:
                listed = self._api.list_repo_tree(recursive=True, revision=self._revision, **self._repository)
                entries = [entry for entry in listed if isinstance(entry, RepoFile)]
            except RepositoryNotFoundError:
                return {}
        for entry in entries:
            if entry.path == CARD or entry.path.partition("/")[0] in folders:
                digest = ("sha256", entry.lfs.sha256) if entry.lfs is not None else ("git", entry.blob_id)
                found[entry.path] = RemoteFile(entry.size, digest, digest[1])
        return found

    def put(self, root: str, files: Sequence[LocalFile]) -> None:
        from huggingface_hub import CommitOperationAdd

        with self._client():
            self._api.create_repo(private=True, exist_ok=True, **self._repository)
        with TemporaryDirectory(prefix="mm-assets-") as folder:
            for number, part in enumerate(_parts(files)):
                operations = [
                    CommitOperationAdd(file.path, self._source(root, file, folder, f"{number}-{index}"))
                    for index, file in enumerate(part)
                ]
                self._commit(operations, f"Publish {counted(len(part), 'file')}")

    @contextmanager
    def _client(self) -> Iterator[None]:
        """Have the client show no progress of its own, and make one line of its errors."""
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        try:
            yield
        except Exception as error:  # of the client, and those of HTTP that its releases use
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            words = (" ".join(str(each).split()) or type(each).__name__ for each in (error, cause))
            raise PublishError(f"{self.url}: {': '.join(dict.fromkeys(words))}") from error

    def _source(self, root: str, file: LocalFile, folder: str, name: str) -> str | bytes:
        uri = join(root, file.path)
        if file.content is not None:
            return file.content
        if not is_remote(uri):
            return local_path(uri)
        copy = os.path.join(folder, name)
        with open_binary(uri) as stream, open(copy, "wb") as out:
            while block := stream.read(BLOCK):
                out.write(block)
        return copy

    def open(self, path: str) -> IO[bytes]:
        from huggingface_hub import HfFileSystem

        revision = f"@{self._revision}" if self._revision else ""
        name = f"datasets/{self._repository['repo_id']}{revision}/{path}"
        with self._client():
            file: IO[bytes] = HfFileSystem().open(name, "rb")
        return file

    def remove(self, paths: Sequence[str]) -> None:
        from huggingface_hub import CommitOperationDelete

        operations = [CommitOperationDelete(path) for path in paths]
        self._commit(operations, f"Remove {counted(len(paths), 'file')} that are no more")

    def _commit(self, operations: Sequence[Any], message: str) -> None:
        with self._client():
            self._api.create_commit(
                operations=operations, commit_message=message, revision=self._revision, **self._repository
            )


def _parts(files: Sequence[LocalFile]) -> Iterator[list[LocalFile]]:
    """Yield files, so many at a time as one commit takes."""
    part: list[LocalFile] = []
    nbytes = 0
    for file in files:
        if part and (len(part) == _COMMIT_FILES or nbytes + file.size > _COMMIT_BYTES):
            yield part
            part, nbytes = [], 0
        part.append(file)
        nbytes += file.size
    if part:
        yield part


def target_of(url: str) -> Target:
    """Return the target that a path or URL names. Raises as the targets do."""
    return HubTarget(url) if url.startswith("hf://") else FolderTarget(url)
