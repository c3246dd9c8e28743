"""Read JSON lines of ours with `gzip`, `json` and `tarfile` alone, as docs/jsonl.md describes them."""

from __future__ import annotations

import gzip
import json
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from mm_assets.accounting.canonical.document_tables import document_parts
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.tar_json import (
    Document,
    check_sample_id,
    decode_payload,
    has_bookkeeping,
)
from mm_assets.formats.storage import StorageOptions, is_remote, join, open_binary, regular_file
from mm_assets.interleaved.errors import ShardError

_MAX_LINE = 256 << 20
_DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error)


def jsonl_parts(
    uri: str, raw: Callable[[], Iterator[RowPart]], options: StorageOptions | None = None
) -> Iterator[RowPart]:
    """The rows of one file of lines, in the types these state; what ``raw`` gives for one of others."""
    if not is_ours(uri, options):
        yield from raw()
        return
    yield from document_parts(_documents(uri, options), uri)


def is_ours(uri: str, options: StorageOptions | None = None) -> bool:
    """Whether the first line is one of ours, which states the types of its columns."""
    try:
        first = next(_lines(uri, options), None)
        return first is not None and has_bookkeeping(json.loads(first[1]))
    except (ShardError, ValueError, RecursionError):
        return False


def _documents(uri: str, options: StorageOptions | None) -> Iterator[Document]:
    images: _Images | None = None
    with ExitStack() as stack:
        for number, line in _lines(uri, options):
            where = f"{uri}: line {number}"
            try:
                payload = json.loads(line)
                check_sample_id(payload)
                name = payload.pop("images_tar", None)
                members = [member for member in payload["image_members"] if member is not None]
            except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
                raise ShardError(f"{where}: no document of ours: {error!r:.300}") from error
            if images is None:
                images = stack.enter_context(_Images(uri, name, options))
            if name != images.name:
                raise ShardError(f"{where}: its images are in {name!r}, not in {images.name!r}")
            yield decode_payload(payload, images.sample(payload, members, where), uri)
        if images is not None and (unused := images.unused()):
            raise ShardError(f"{images.uri}: member {unused!r} is of no line")


def _lines(uri: str, options: StorageOptions | None) -> Iterator[tuple[int, bytes]]:
    with open_binary(uri, options) as file:
        try:
            stream: Any = gzip.GzipFile(fileobj=file) if uri.lower().endswith(".gz") else file
            number = 0
            while line := stream.readline(_MAX_LINE + 1):
                number += 1
                if len(line) > _MAX_LINE:
                    raise ShardError(f"{uri}: line {number}: more than {_MAX_LINE} bytes")
                if line.strip():
                    yield number, line
        except _DAMAGE as error:
            raise ShardError(f"{uri}: line {number + 1}: gzip cannot read it: {error}") from error


class _Images:
    """The tar beside the lines; without a name there is none, and no line has an image in it."""

    def __init__(self, lines: str, name: Any, options: StorageOptions | None) -> None:
        self.name = name
        self._stack = ExitStack()
        self._members: dict[str, tarfile.TarInfo] = {}
        self._used: set[str] = set()
        if name is None:
            return
        if not isinstance(name, str) or "/" in name or name.startswith("."):
            raise ShardError(f"{lines}: field 'images_tar' names no file beside it: {name!r:.200}")
        self.uri = join(posixpath.dirname(lines) or ".", name)
        try:
            self._tar = self._stack.enter_context(tarfile.open(self._local(self.uri, options), "r:"))  # noqa: SIM115
            for member in self._tar:
                if member.name in self._members or not member.isreg():
                    raise ShardError(f"{self.uri}: member {member.name!r} occurs twice, or is no file")
                self._members[member.name] = member
        except FileNotFoundError as error:
            raise ShardError(f"{lines}: its images are in {self.uri}, which is not there") from error
        except _DAMAGE as error:
            raise ShardError(f"{self.uri}: tarfile cannot read it: {error}") from error

    def __enter__(self) -> _Images:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _local(self, uri: str, options: StorageOptions | None) -> str:
        if not is_remote(uri):
            return regular_file(uri)
        copy = self._stack.enter_context(tempfile.NamedTemporaryFile(prefix="mm-assets-"))  # noqa: SIM115
        with open_binary(uri, options) as file:
            shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        return copy.name

    def sample(self, payload: dict[str, Any], members: list[str], where: str) -> dict[str, Any]:
        """The members of a sample as WebDataset would have them: by what follows the key in their names."""
        key = members[0].partition(".")[0] if members else ""
        sample: dict[str, Any] = {"__key__": key}
        for name in members:
            found = self._members.get(name)
            if found is None:
                continue  # a missing image, as the comparison will say
            if name in self._used:
                raise ShardError(f"{where}: member {name!r} is of another line, too")
            self._used.add(name)
            try:
                content = self._tar.extractfile(found)
                assert content is not None
                sample[name.removeprefix(f"{key}.")] = content.read()
            except _DAMAGE as error:
                raise ShardError(f"{self.uri}: member {name!r}: {error}") from error
        return {**sample, "json": b""}

    def unused(self) -> str | None:
        """A member that no line has had."""
        return next((name for name in self._members if name not in self._used), None)
