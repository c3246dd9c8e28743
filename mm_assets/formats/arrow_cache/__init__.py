"""The sharded Arrow cache: examples from a generator in memory-mapped Arrow IPC files (docs/arrow_cache.md).

Here are its files: the metadata (`_metadata.json`), the shards, and what has been verified of them.

* Metadata are checked against the shard files.
* Shards are Arrow IPC files with digests; their rows are read in mapped memory.
* This process keeps a record of the shards that it has verified: each is read once for its digest, not at
  every opening.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from mm_assets.formats.arrow_cache.features import Features, as_features, features_of
from mm_assets.model.errors import DataError, counted
from mm_assets.model.json_codec import is_json
from mm_assets.model.schema import schema_from_text, schema_to_text
from mm_assets.storage.files import is_remote, local_path, regular_file, sync, whole_url

__all__ = ["ShardedCacheMeta", "read_sharded_cache_meta", "validate_sharded_cache"]


_BLOCK = 1 << 20


@dataclass(frozen=True)
class CacheShard:
    """A shard in the metadata: file name, rows, bytes of the file, and its xxh3-128 as 32 hex digits."""

    filename: str
    rows: int
    size: int
    digest: str


class ShardWriter:
    """Writer of batches to the shards of one folder, named ``shard-00000.arrow`` ….

    A shard is closed once its batches have reached ``target`` bytes, counted in memory. A shard is opened by
    its first batch, so none is empty.
    """

    def __init__(self, folder: Path, schema: pa.Schema, target: int) -> None:
        self.shards: list[CacheShard] = []
        self._folder, self._schema, self._target = folder, schema, target
        self._sink: _DigestedFile | None = None
        self._bytes = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if self._sink is None:
            self._sink = _DigestedFile(self._folder / self._name)
            self._writer = ipc.new_file(pa.PythonFile(self._sink, "w"), self._schema)
            self._bytes = self._rows = 0
        self._writer.write_batch(batch)
        self._bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._bytes >= self._target:
            self.finish()

    def finish(self) -> None:
        """Close the open shard, if there is one, and flush it to disk."""
        if self._sink is None:
            return
        self._writer.close()
        self._sink.close()
        digest, self._sink = self._sink.digest.hexdigest(), None
        path = self._folder / self._name
        self.shards.append(CacheShard(self._name, self._rows, path.stat().st_size, digest))
        sync(path)

    def abandon(self) -> None:
        """Close the file of the open shard as it is."""
        if self._sink is not None:
            self._sink.close()

    @property
    def _name(self) -> str:
        return f"shard-{len(self.shards):05d}.arrow"


class _DigestedFile(io.FileIO):
    """A new file with the digest of what is written into it.

    The file is not read back for that: what a disk makes of the bytes is for those to find who read them.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self.digest = xxhash.xxh3_128()

    def write(self, data: Any) -> int:
        view = memoryview(data)
        for start in range(0, len(view), _BLOCK):
            block = view[start : start + _BLOCK]
            self.digest.update(block)  # brings it into the processor's cache
            while block:
                block = block[super().write(block) :]
        return len(view)


class OpenShard:
    """The batches of a memory-mapped shard.

    Nothing is read before a row is requested. Closing or removing the file does no harm.

    Raises:
        DataError: The file is not an Arrow file; the message names it.
    """

    def __init__(self, path: Path) -> None:
        try:
            options = ipc.IpcReadOptions(use_threads=False)  # fork-safe
            reader = ipc.open_file(pa.memory_map(str(path), "r"), options=options)
            self.schema = reader.schema
            self.batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        except (pa.ArrowInvalid, pa.ArrowSerializationError, pa.ArrowNotImplementedError) as error:
            raise DataError(f"{path}: not an Arrow file: {error}") from error
        self._starts = list(accumulate((batch.num_rows for batch in self.batches), initial=0))

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def locate(self, row: int) -> tuple[pa.RecordBatch, int]:
        """Return the batch of a row, and the row's number in it."""
        index = bisect_right(self._starts, row) - 1
        return self.batches[index], row - self._starts[index]


def file_digest(path: Path) -> str:
    """Return the xxh3-128 of a file's bytes as 32 hex digits."""
    with open(path, "rb", buffering=0) as file:
        return digest_of(file)


def digest_of(file: Any) -> str:
    """Return the xxh3-128 of an open file, from its current position, as 32 hex digits."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_BLOCK))
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
    return digest.hexdigest()


# Identity of a file without reading it: device, inode, size, time of change.
FileStamp = tuple[int, int, int, int]

# The digests of verified files. Forked workers inherit them; spawned ones receive them with the pickled
# cache.
_VERIFIED: dict[FileStamp, str] = {}


def require_size(path: Path, shard: CacheShard) -> FileStamp:
    """Return the stamp of a shard's file.

    Raises:
        DataError: The file does not exist or has another size.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: Missing shard file") from None
    if status.st_size != shard.size:
        raise DataError(f"{path}: {status.st_size} bytes, not {shard.size}: the shard is damaged")
    return _stamp_of(status)


def check_shard(path: Path, shard: CacheShard) -> None:
    """Read a shard and check its digest.

    Raises:
        DataError: The file is not as it was written; the message names it.
    """
    stamp = require_size(path, shard)
    _VERIFIED.pop(stamp, None)
    if (digest := file_digest(path)) != shard.digest:
        raise DataError(f"{path}: its digest is {digest}, not {shard.digest}: the shard is damaged")
    _VERIFIED[stamp] = digest


def check_once(path: Path, shard: CacheShard) -> None:
    """Call `check`, unless this process has done so and the file has not changed since."""
    if _VERIFIED.get(require_size(path, shard)) != shard.digest:
        check_shard(path, shard)


def export_stamps(paths: Iterable[Path]) -> dict[FileStamp, str]:
    """Return what this process has verified of these files, for `import_stamps` in another process."""
    stamps = (_stamp_of(os.stat(path)) for path in paths if path.exists())
    return {stamp: _VERIFIED[stamp] for stamp in stamps if stamp in _VERIFIED}


def import_stamps(stamps: dict[FileStamp, str]) -> None:
    """Take over what another process has verified."""
    _VERIFIED.update(stamps)


def _stamp_of(status: os.stat_result) -> FileStamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


METADATA_FILE = "_metadata.json"
CACHE_FORMAT_VERSION = 1
# The names that builders give to shards. No other file is opened, whatever the metadata say. The suffix is
# the generation of a rebuilt cache.
SHARD_NAME = re.compile(r"shard-\d{5,}(?:-(?P<generation>[0-9a-f]{12}))?\.arrow")

_DIGEST = re.compile(r"[0-9a-f]{32}")
_Result = TypeVar("_Result")


@dataclass(repr=False)
class ShardedCacheMeta:
    """A cache, with its shards in the order of its rows.

    The lists are parallel. Sizes are bytes of the files, digests are xxh3-128 of their bytes. The columns are
    those of ``features``, or of ``schema`` if the cache holds interleaved rows.
    """

    cache_dir: Path
    num_rows: int
    num_shards: int
    shard_filenames: list[str]
    shard_row_counts: list[int]
    schema_fingerprint: str
    shard_sizes: list[int] = field(default_factory=list)
    shard_digests: list[str] = field(default_factory=list)
    features: Features = field(default_factory=Features)
    schema: pa.Schema | None = None

    def __repr__(self) -> str:
        size = f"{counted(self.num_rows, 'row')} in {counted(self.num_shards, 'shard')}"
        return f"<ShardedCacheMeta of {self.cache_dir}: {size}>"

    @property
    def shard_paths(self) -> list[Path]:
        return [self.cache_dir / name for name in self.shard_filenames]

    @property
    def shards(self) -> list[CacheShard]:
        lists = zip(
            self.shard_filenames, self.shard_row_counts, self.shard_sizes, self.shard_digests, strict=True
        )
        return [CacheShard(*one) for one in lists]


def local_path_of(location: str | os.PathLike[str]) -> Path:
    """Return the path of a cache, or of a file in it, that will be memory-mapped.

    Raises:
        ValueError: It is a URL of anything but local files.
    """
    if is_remote(whole_url(os.fspath(location))):
        raise ValueError(f"{location}: only local files can be mapped; copy the caches to a disk first")
    return Path(local_path(os.fspath(location)))


def features_fingerprint(features: Features) -> str:
    """Return 16 hex digits over the definitions of all fields and their order.

    They are the same in every process.
    """
    return _fingerprint(as_features(features).definition())


def meta_of(cache_dir: Path, columns: Features | pa.Schema, shards: Iterable[CacheShard]) -> ShardedCacheMeta:
    """Return the metadata of a cache of these shards."""
    shards = list(shards)
    return ShardedCacheMeta(
        cache_dir=cache_dir,
        num_rows=sum(shard.rows for shard in shards),
        num_shards=len(shards),
        shard_filenames=[shard.filename for shard in shards],
        shard_row_counts=[shard.rows for shard in shards],
        schema_fingerprint=_fingerprint(
            columns.definition() if isinstance(columns, Features) else _columns(columns)
        ),
        shard_sizes=[shard.size for shard in shards],
        shard_digests=[shard.digest for shard in shards],
        features=columns if isinstance(columns, Features) else Features(),
        schema=columns if isinstance(columns, pa.Schema) else None,
    )


def metadata_text(meta: ShardedCacheMeta, shard_size_bytes: int) -> str:
    """Return the content of the metadata file."""
    content = {
        "cache_format_version": CACHE_FORMAT_VERSION,
        "schema_fingerprint": meta.schema_fingerprint,
        "num_rows": meta.num_rows,
        "num_shards": meta.num_shards,
        "shard_row_counts": meta.shard_row_counts,
        "shard_filenames": meta.shard_filenames,
        "shard_size_target_bytes": shard_size_bytes,
        "shard_sizes": meta.shard_sizes,
        "shard_digests": meta.shard_digests,
        **(
            {"features": meta.features.definition()}
            if meta.schema is None
            else {"arrow_schema": schema_to_text(meta.schema)}
        ),
    }
    return json.dumps(content, indent=2)


def read_sharded_cache_meta(cache_dir: str | os.PathLike[str]) -> ShardedCacheMeta:
    """Return the metadata of a cache, after checking that all its shards exist with the right sizes.

    Raises:
        FileNotFoundError: There is no cache.
        ValueError: A file is damaged or missing; the message names it.
    """
    return consistent(local_path_of(cache_dir), lambda meta: meta)


def validate_sharded_cache(cache_dir: str | os.PathLike[str], features: Features) -> ShardedCacheMeta:
    """Read every shard of a cache, check it by its digest, and return the metadata.

    Raises:
        FileNotFoundError: There is no cache.
        ValueError: The cache has other features, or a file is damaged or missing (the first one).
    """

    def check(meta: ShardedCacheMeta) -> ShardedCacheMeta:
        require_features(meta, features)
        for path, shard in zip(meta.shard_paths, meta.shards, strict=True):
            check_shard(path, shard)
            if (rows := OpenShard(path).rows) != shard.rows:
                raise DataError(f"{path}: {rows} rows, not {shard.rows} as {METADATA_FILE} says")
        return meta

    return consistent(local_path_of(cache_dir), check)


def require_features(meta: ShardedCacheMeta, features: Features) -> None:
    """Check that the cache was built with these features.

    Raises:
        ValueError: It was built with others.
    """
    if (expected := features_fingerprint(features)) != meta.schema_fingerprint:
        actual = repr(meta.features) if meta.schema is None else "interleaved rows"
        raise DataError(
            f"{meta.cache_dir}: Schema fingerprint mismatch: "
            f"the cache has {meta.schema_fingerprint} for {actual}, "
            f"expected {expected} for {features!r}. Build it again."
        )


def consistent(cache_dir: Path, use: Callable[[ShardedCacheMeta], _Result]) -> _Result:
    """Return the result of ``use`` on a cache.

    It is called again if the cache was replaced meanwhile: files may then be missing without being damaged.
    """
    while True:
        text = _read(cache_dir)
        try:
            meta = parse_metadata(cache_dir, text)
            for path, shard in zip(meta.shard_paths, meta.shards, strict=True):
                require_size(path, shard)
            return use(meta)
        except (ValueError, OSError):
            if _read(cache_dir) == text:
                raise


def _read(cache_dir: Path) -> bytes:
    path = cache_dir / METADATA_FILE
    try:
        return Path(regular_file(str(path))).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path}: no such file; there is no cache here") from None


def parse_metadata(cache_dir: Path, text: bytes) -> ShardedCacheMeta:
    """Return the content of a metadata file, consistent in itself.

    Raises:
        DataError: It is not; the message names the file.
    """
    path = cache_dir / METADATA_FILE
    try:
        return _meta(cache_dir, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not the metadata of a cache: {error}") from error


def _meta(cache_dir: Path, content: Any) -> ShardedCacheMeta:
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    if (version := content.get("cache_format_version")) != CACHE_FORMAT_VERSION:
        raise ValueError(f"cache format version {version!r}, expected {CACHE_FORMAT_VERSION}")
    names = _list(
        content,
        "shard_filenames",
        lambda value: isinstance(value, str) and SHARD_NAME.fullmatch(value) is not None,
    )
    rows = _list(content, "shard_row_counts", _is_count)
    sizes = _list(content, "shard_sizes", _is_count)
    digests = _list(
        content,
        "shard_digests",
        lambda value: isinstance(value, str) and _DIGEST.fullmatch(value) is not None,
    )
    if not len(names) == len(rows) == len(sizes) == len(digests) == len(set(names)):
        raise ValueError("the lists of the shards differ in length, or name a shard twice")
    columns = (
        _schema(content["arrow_schema"])
        if "arrow_schema" in content
        else features_of(content.get("features"))
    )
    meta = meta_of(cache_dir, columns, map(CacheShard, names, rows, sizes, digests))
    for key in ("num_shards", "num_rows", "schema_fingerprint"):
        if content.get(key) != getattr(meta, key):
            raise ValueError(f"{key} is {content.get(key)!r}, the rest gives {getattr(meta, key)!r}")
    return meta


def _schema(text: Any) -> pa.Schema:
    try:
        return schema_from_text(text)
    except (TypeError, OSError, pa.ArrowException) as error:
        raise ValueError(f"arrow_schema is no Arrow schema: {error}") from error


def _columns(schema: pa.Schema) -> list[list[Any]]:
    """Return the columns of a schema for its fingerprint, without the metadata that name the shard."""
    return [[field.name, str(field.type), field.nullable, is_json(field)] for field in schema]


def _fingerprint(columns: Any) -> str:
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]


def _list(content: dict[str, Any], key: str, is_valid: Callable[[Any], bool]) -> list[Any]:
    values = content.get(key)
    if not isinstance(values, list):
        raise ValueError(f"{key} is no list")
    for value in values:
        if not is_valid(value):
            raise ValueError(f"{key} has {value!r}")
    return values


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
