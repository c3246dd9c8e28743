"""Canonical readers of our WebDataset tars and JSON lines, and checks of a tar's index files.

* `tar_parts` reads with `webdataset` alone: a dictionary of bytes per key, nothing decoded.
* `derive_tar` is the fast way to the digest of a tar whose values are all plain. It works on the JSON
  members, builds no column, and hashes images as they are read. Where that is not possible, `tar_parts` gives
  the same rows.
* `has_index` and `folder_problems` check Energon's index beside a tar, and the tar's entries in the index
  files of the folder (docs/tar_layout.md).
* `jsonl_parts` reads JSON lines with `gzip`, `json` and `tarfile` alone, as docs/jsonl.md describes them.
* `mds_parts` reads MDS shards with `struct` and `json` alone.
"""

from __future__ import annotations

import gzip
import json
import os
import posixpath
import shutil
import struct
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from itertools import chain
from typing import IO, Any

import pyarrow as pa
import xxhash

from mm_assets.accounting.canonical import Derived, RowPart, read_once
from mm_assets.accounting.canonical.documents import (
    Document,
    Item,
    check_sample_id,
    declared_columns,
    decode_payload,
    decode_sample,
    document_parts,
    has_bookkeeping,
)
from mm_assets.model import json_codec
from mm_assets.model.digest import BLOBS, TEXTS, ContentDigest, label
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import RAW, dumps, is_json
from mm_assets.model.schema import INTERLEAVED_SCHEMA, unify_schemas
from mm_assets.storage.files import StorageOptions, filesystem, is_remote, join, open_binary, regular_file

_READ_BUFFER = 1 << 18
_MAX_JSON = 256 << 20
_BLOCK = 512  # bytes of a tar block
_DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error)


def tar_parts(
    uri: str, raw: Callable[[], Iterator[RowPart]], options: StorageOptions | None = None
) -> Iterator[RowPart]:
    """Yield the rows of one tar, in the types its JSON declares; for another layout what ``raw`` yields.

    A value that does not fit its declared type keeps its own type in its row.
    """
    with _local(uri, options) as path:
        if not is_native_tar(path):
            yield from raw()
            return
        yield from document_parts(_documents(path, uri), uri)


def tar_documents(uri: str, options: StorageOptions | None = None) -> Iterator[Document]:
    """Yield the samples of one of our tars; none for another layout."""
    with _local(uri, options) as path:
        if is_native_tar(path):
            yield from _documents(path, uri)


def tar_offsets(uri: str) -> tuple[int, ...]:
    """Return the byte offsets at which samples of our tar begin, and the end of the last one.

    Raises as `tar_documents` does.
    """
    starts, end = [], 0
    for document in tar_documents(uri):
        starts.append(document.span[0])
        end = document.span[1]
    return (*starts, end)


def is_native_tar(uri: str, options: StorageOptions | None = None) -> bool:
    """Return whether a tar is one of ours, which declares the types of its columns.

    Raises:
        FileNotFoundError: the tar does not exist.
    """
    with open_binary(uri, options) as file:
        return _is_ours(file)


def _documents(path: str, uri: str) -> Iterator[Document]:
    from webdataset.tariterators import group_by_keys, tar_file_expander

    repeated: set[str] = set()
    spans: dict[str, tuple[int, int]] = {}

    def keep_repeated(error: Exception) -> bool:
        text = str(error.args[0]) if error.args else ""
        name, found, _ = text.partition(": duplicate file name in tar file")
        if not found:
            raise error
        repeated.add(name.partition(".")[0])
        return True

    try:
        # The same steps as `webdataset.WebDataset` on an open file, with a buffer larger than the reads of
        # `tarfile`.
        with open(path, "rb", buffering=_READ_BUFFER) as stream:
            files = tar_file_expander([{"url": path, "stream": stream}], handler=keep_repeated)
            for sample in group_by_keys(_placed(files, spans, uri), handler=keep_repeated):
                del sample["__url__"]
                document = decode_sample(sample, uri)
                if sample["__key__"] in repeated:
                    raise ShardError(f"{uri}: sample {document.sample_id!r} occurs twice")
                document.span = spans.pop(sample["__key__"])
                yield document
    except _DAMAGE as error:
        raise ShardError(
            f"{uri}: webdataset cannot read it: {error.args[0] if error.args else error!r}"
        ) from error


def _placed(
    files: Iterable[dict[str, Any]], spans: dict[str, tuple[int, int]], uri: str
) -> Iterator[dict[str, Any]]:
    """Yield the members; ``spans`` gets the byte range of each key, for a tar with only these members."""
    begin = end = 0
    last = ""
    for file in files:
        if file:  # else it is the end of the tar
            name = file["fname"]
            key, dot, suffix = name.partition(".")
            if (
                not dot or "/" in name or suffix != suffix.lower()
            ):  # webdataset would pass over it, or not show what it is called
                raise ShardError(f"{uri}: member {name!r} has no name of the layout")
            if key != last:
                begin, last = end, key
            end += _BLOCK + (len(file["data"]) + _BLOCK - 1) // _BLOCK * _BLOCK
            spans[key] = begin, end
        yield file


def _is_ours(file: IO[bytes]) -> bool:
    """Decide by the first JSON member of the tar; damage is left for the readers to report."""
    try:
        with tarfile.open(fileobj=file) as tar:
            for member in tar:
                if member.isreg() and member.name.lower().endswith(".json"):
                    content = tar.extractfile(member)
                    return (
                        content is not None
                        and member.size <= _MAX_JSON
                        and has_bookkeeping(json.load(content))
                    )
    except (*_DAMAGE, ValueError, RecursionError):
        return False
    return False


@contextmanager
def _local(uri: str, options: StorageOptions | None) -> Iterator[str]:
    if not is_remote(uri):
        # A file that is not there, or no file, is no damage.
        yield os.path.abspath(regular_file(uri))  # no name may be taken for a scheme, such as "pipe:"
        return
    with tempfile.NamedTemporaryFile(prefix="mm-assets-", suffix=".tar") as copy:
        with open_binary(uri, options) as file:
            shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        yield copy.name


_IDX, _WIDS, _INFO, _SPLIT = ".idx", "index.json", ".nv-meta/.info.json", ".nv-meta/split.yaml"
_STATS = ".mm_assets/{}.json"
FOLDER_FILES = (_WIDS, "README.md", _INFO, _SPLIT, ".nv-meta/dataset.yaml")  # what all tars of a folder share


def tar_files(uri: str) -> list[str]:
    """Return a tar and the files that belong to it alone, existing or not."""
    folder, _, name = uri.rpartition("/")
    return [uri, f"{uri}{_IDX}", join(folder, _STATS.format(name))]


def has_index(uri: str, offsets: Sequence[int]) -> bool:
    """Return whether the tar's own index has exactly these sample ``offsets``, the last being the end."""
    return _content(f"{uri}{_IDX}") == struct.pack(f"<{len(offsets)}Q", *offsets)


def folder_problems(uri: str, samples: int, nbytes: int) -> list[str]:
    """Return a line for each index file of the folder with another count of samples or bytes of the tar."""
    folder, _, file = uri.rpartition("/")
    problems = []
    for name, parse, expected in (
        (_WIDS, _listed, {"url": file, "nsamples": samples, "filesize": nbytes}),
        (_INFO, _counted, samples),
        (_SPLIT, _named, True),
    ):
        place = join(folder, name)
        found = parse(read_once(place, partial(_content, place))).get(file)
        if found != expected:
            problems.append(
                f"{join(folder, name)}: has {json.dumps(found)} of {file}, not {json.dumps(expected)}"
            )
    return problems


def _content(uri: str) -> bytes:
    fs, path = filesystem(uri)
    try:
        return bytes(fs.cat_file(path))
    except FileNotFoundError:
        return b""


@lru_cache(maxsize=1)  # the same file for all shards that a process examines
def _listed(text: bytes) -> Mapping[str, Any]:
    """Return the entries of a wids index by file; none if it is no such index."""
    try:
        return {entry["url"]: entry for entry in json.loads(text)["shardlist"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


@lru_cache(maxsize=1)
def _counted(text: bytes) -> Mapping[str, Any]:
    """Return the number of samples of each tar in Energon's info file."""
    try:
        return dict(json.loads(text)["shard_counts"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


@lru_cache(maxsize=1)
def _named(text: bytes) -> Mapping[str, Any]:
    """Return the tars in Energon's split file, which has one per line."""
    try:
        return dict.fromkeys(
            (json.loads(line[4:]) for line in text.splitlines() if line.startswith(b'  - "')), True
        )
    except ValueError:
        return {}


_MAX_LINE = 256 << 20


def jsonl_parts(
    uri: str, raw: Callable[[], Iterator[RowPart]], options: StorageOptions | None = None
) -> Iterator[RowPart]:
    """The rows of one file of lines, in the types these state; what ``raw`` gives for one of others."""
    if not is_native_json_lines(uri, options):
        yield from raw()
        return
    yield from document_parts(_json_lines(uri, options), uri)


def is_native_json_lines(uri: str, options: StorageOptions | None = None) -> bool:
    """Whether the first line is one of ours, which states the types of its columns."""
    try:
        first = next(_lines(uri, options), None)
        return first is not None and has_bookkeeping(json.loads(first[1]))
    except (ShardError, ValueError, RecursionError):
        return False


def _json_lines(uri: str, options: StorageOptions | None) -> Iterator[Document]:
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


def mds_parts(uri: str, options: StorageOptions | None = None) -> Iterator[RowPart]:
    """Yield the rows of one MDS shard of ours, in the types that its documents state."""
    yield from document_parts(_mds_documents(uri, options), uri)


def _mds_documents(uri: str, options: StorageOptions | None) -> Iterator[Document]:
    with _local(uri, options) as path, open(path, "rb") as file:
        try:
            (count,) = struct.unpack("<I", file.read(4))
            if 4 * (count + 2) > os.path.getsize(path):
                raise ValueError(f"{count} samples in {os.path.getsize(path)} bytes")
            offsets = struct.unpack(f"<{count + 1}I", file.read(4 * (count + 1)))
            names = json.loads(file.read(offsets[0] - file.tell()))["column_names"]
            for start, end in zip(offsets, offsets[1:], strict=False):
                file.seek(start)
                sizes = struct.unpack(f"<{len(names)}I", file.read(4 * len(names)))
                if file.tell() + sum(sizes) != end:
                    raise ValueError(f"the sample at byte {start} does not end at {end}")
                values = dict(zip(names, map(file.read, sizes), strict=True))
                payload, at = json.loads(values["json"]), 0
                check_sample_id(payload)
                members = [member for member in payload["image_members"] if member is not None]
                sample: dict[str, Any] = {"__key__": members[0].partition(".")[0] if members else ""}
                for member, size in zip(members, json.loads(values["image_sizes"]), strict=True):
                    sample[member.partition(".")[2]] = values["image_bytes"][at : at + size]
                    at += size
                yield decode_payload(payload, {**sample, "json": b""}, uri)
        except ShardError:
            raise
        except (struct.error, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            raise ShardError(f"{uri}: no MDS shard of ours: {error!r:.300}") from error


_INT64 = range(-(2**63), 2**63)
# Types whose JSON values are the same as in a row.
_PLAIN = {pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool, pa.null(): type(None)}
_PLAIN_RESERVED = {pa.string(): str, pa.int32(): int, pa.large_binary(): bytes}

_Column = tuple[str, type, pa.Field]  # label, type of its values (JSON text: object)
_Columns = dict[str, _Column]


class _NotPlain(Exception):
    """Rows that need Arrow, to convert values or to name what is wrong with them."""


def derive_tar(uri: str, options: StorageOptions | None = None) -> Derived | None:
    """Count and digest one of our tars; None if that needs `tar_parts`, which has the same rows.

    Raises as `tar_parts` does.
    """
    digest = ContentDigest()
    schemas: dict[str, pa.Schema] = {}
    counts: Counter[str] = Counter()
    samples, last = 0, None
    starts, end = [], 0
    try:
        for document in tar_documents(uri, options):
            schemas[document.schema], columns, extras = _columns(document.schema)
            sample_id = f"{columns['sample_id'][0]}{len(document.sample_id)}:{document.sample_id}"
            digest.add([_digest(item, sample_id, columns, extras) for item in document.items])
            counts.update(item.values["modality"] for item in document.items)
            starts.append(document.span[0])
            end = document.span[1]
            if document.items and document.sample_id != last:
                samples, last = samples + 1, document.sample_id
    except (_NotPlain, UnicodeEncodeError):
        return None
    if not schemas:
        return None
    schema = unify_schemas(list(schemas.values()))
    return Derived(
        counts.total(), samples, counts["image"], counts["text"], digest.hexdigest(), schema, (*starts, end)
    )


def _digest(item: Item, sample_id: str, columns: _Columns, extras: Set[str]) -> int:
    """Return the digest of a row, equal to that of `row_digests`.

    ``sample_id`` is the part of the digest's head that the id makes up.
    """
    if not item.extras.keys() <= extras:
        raise _NotPlain
    entries = {"sample_id": sample_id}
    for name, value in chain(item.values.items(), item.extras.items()):
        if value is None:
            continue
        start, kind, field = columns[name]
        if kind is object:
            is_wrapped = type(value) is dict and RAW in value
            value = json_codec.decode([value], field)[0].as_py() if is_wrapped else dumps(value)
        elif type(value) is not kind or (kind is int and value not in _INT64):
            raise _NotPlain
        if name == TEXTS:
            entries[name] = f"{start}{len(value.encode())};"
        elif kind is str or kind is object:
            entries[name] = f"{start}{len(value)}:{value}"
        else:
            entries[name] = f"{start}{len(value) if kind is bytes else value!r};"
    digest = xxhash.xxh3_128("".join([entries[name] for name in sorted(entries)]).encode())
    text, blob = item.values.get(TEXTS), item.values.get(BLOBS)
    if text is not None:
        digest.update(text.encode())
    if blob is not None:
        digest.update(blob)
    return int(digest.intdigest())


@lru_cache(maxsize=64)
def _columns(text: str) -> tuple[pa.Schema, _Columns, Set[str]]:
    """Return all columns of a tar whose JSON declares these types, and the names of the passthrough ones."""
    try:
        declared = declared_columns(text)
    except (ValueError, TypeError, OSError):
        raise _NotPlain from None
    columns: _Columns = {
        field.name: (label(field), _PLAIN_RESERVED[field.type], field) for field in INTERLEAVED_SCHEMA
    }
    for field in declared:
        # Extension types of users may have no hash.
        kind = None if isinstance(field.type, pa.BaseExtensionType) else _PLAIN.get(field.type)
        if kind is None or field.name in columns:
            raise _NotPlain
        columns[field.name] = label(field), object if kind is str and is_json(field) else kind, field
    return pa.schema([*INTERLEAVED_SCHEMA, *declared]), columns, frozenset(declared.names)
