"""Build of an Arrow cache: examples of a generator, written in a hidden folder and published by one rename.

* `write_sharded_arrow_cache` writes the examples of a generator. A `WaitingBatch` collects encoded examples
  for a record batch of bounded rows and bytes.
* `Generation` is one build. If a builder is killed, the next one removes its leftovers. A marker (a file
  named by `temporary_name`) tells which builder owns a hidden folder and its shards. The marker is created
  before them and removed after them. So a folder or shard that has no marker and is not in the metadata has
  no owner.
* `RemoteGeneration` publishes a cache in an object store, where there are no renames.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.formats import arrow_cache
from mm_assets.formats.arrow_cache import (
    METADATA_FILE,
    SHARD_NAME,
    ShardedCacheMeta,
    ShardWriter,
    local_path_of,
    meta_of,
    metadata_text,
    parse_metadata,
)
from mm_assets.formats.arrow_cache.features import Features, as_features, encode_example
from mm_assets.model.nested_types import blob_array
from mm_assets.model.schema import schema_to_text
from mm_assets.storage.files import StorageOptions, filesystem, put, sweep, sync
from mm_assets.storage.temporary import ABANDONED_SECONDS, building_folder, create_locked, temporary_name

__all__ = ["write_sharded_arrow_cache"]


log = logging.getLogger(__name__)

_MARKER = re.compile(r"^\..*-(?P<generation>[0-9a-f]{12})\.tmp$")
_FOLDER = re.compile(r"^\.(?P<generation>[0-9a-f]{12})\.building$")


class Generation:
    """A build in progress.

    ``folder`` takes its shards. After `publish`, or without it, `clear` removes what is left.

    The first generation becomes the cache by a rename of its whole folder; its shards are called
    ``shard-00000.arrow``. The shards of a later one, ``shard-00000-<generation>.arrow``, are moved next to
    the published ones. They become the cache when `_metadata.json` is replaced; then the old files are
    removed. Before and after that one rename there is a complete cache, and readers keep what they have
    mapped.

    Args:
        cache_dir: Folder of the cache.
        sweeps_beside: Remove leftovers beside the cache as well. A writer of many caches in one folder does
            that once, with `sweep_folders`.
    """

    def __init__(self, cache_dir: Path, *, sweeps_beside: bool = True) -> None:
        self._sweeps_beside = sweeps_beside
        self._cache_dir = Path(os.path.realpath(cache_dir))
        self._cache_dir.parent.mkdir(parents=True, exist_ok=True)
        home = _parent_of_hidden(self._cache_dir)
        self._marker = home / temporary_name(self._cache_dir.name)
        match = _MARKER.match(self._marker.name)
        assert match is not None
        self.name = match["generation"]
        self._lock = create_locked(self._marker)
        self.folder = building_folder(self._marker)
        self.folder.mkdir()
        self._sweep()  # before the build, which may need the disk space

    def publish(self, meta: ShardedCacheMeta, shard_size_bytes: int) -> ShardedCacheMeta:
        """Make the shards in ``folder`` the cache, and return the metadata with their final names.

        If the same shards are already published and complete, they are kept, so that their readers are not
        disturbed.

        Args:
            meta: Metadata with the names of the shards in ``folder``.
            shard_size_bytes: Target size of shards, for the metadata file.
        """
        if self.folder.parent != self._cache_dir:
            self._write_metadata(meta, shard_size_bytes)
            if self._become_cache():
                return meta
            self._move_inside()
        if (published := self._published_twin(meta)) is not None:
            return published
        renamed = of_generation(meta, self.name)
        self._write_metadata(renamed, shard_size_bytes)
        for old, new in zip(meta.shard_filenames, renamed.shard_filenames, strict=True):
            os.rename(self.folder / old, self._cache_dir / new)
        sync(self._cache_dir)
        for shard in renamed.shards:
            arrow_cache.require_size(self._cache_dir / shard.filename, shard)
        os.replace(self.folder / METADATA_FILE, self._cache_dir / METADATA_FILE)
        sync(self._cache_dir)
        return renamed

    def clear(self) -> None:
        """Remove all leftovers: of this build, of killed builders, and of replaced generations."""
        shutil.rmtree(self.folder, ignore_errors=True)  # does not exist if it has become the cache
        self._marker.unlink(missing_ok=True)
        os.close(self._lock)
        self._sweep()

    def _sweep(self) -> None:
        try:
            if self._sweeps_beside:
                sweep_folders(self._cache_dir.parent)
            sweep_cache(self._cache_dir)
        except OSError as error:  # no reason to fail the build
            log.warning("%s: could not remove leftovers: %s", self._cache_dir, error)

    def _write_metadata(self, meta: ShardedCacheMeta, shard_size_bytes: int) -> None:
        path = self.folder / METADATA_FILE
        path.write_text(metadata_text(meta, shard_size_bytes))
        sync(path)
        sync(self.folder)

    def _become_cache(self) -> bool:
        try:
            os.rename(self.folder, self._cache_dir)  # succeeds only over nothing or an empty folder
        except OSError:
            if not self._cache_dir.is_dir() or not os.listdir(self._cache_dir):
                raise
            return False  # another builder was first
        sync(self._cache_dir.parent)
        return True

    def _move_inside(self) -> None:
        marker, folder = self._cache_dir / self._marker.name, self._cache_dir / self.folder.name
        lock = create_locked(marker)
        os.rename(self.folder, folder)
        self._marker.unlink()
        os.close(self._lock)
        self._marker, self.folder, self._lock = marker, folder, lock

    def _published_twin(self, meta: ShardedCacheMeta) -> ShardedCacheMeta | None:
        """Return the published metadata if that cache is complete and has the same content, else None."""
        try:
            published = parse_metadata(meta.cache_dir, (self._cache_dir / METADATA_FILE).read_bytes())
            if _content(published) != _content(meta):
                return None
            for path, shard in zip(published.shard_paths, published.shards, strict=True):
                arrow_cache.check_shard(path, shard)
        except (ValueError, OSError):
            return None  # damaged, or just replaced
        return published


def withdraw_cache(cache_dir: Path) -> None:
    """Remove a cache, if there is one. Readers keep what they have mapped.

    It is hidden by one rename first, so that no reader sees a part of it; after a crash `sweep_folders`
    removes the rest. A link goes after the folder that it leads to.
    """
    folder = Path(os.path.realpath(cache_dir))
    if folder.is_dir():
        hidden = building_folder(folder.parent / temporary_name(folder.name))
        os.rename(folder, hidden)
        sync(folder.parent)
        shutil.rmtree(hidden)
    if cache_dir.is_symlink():
        cache_dir.unlink()
        sync(cache_dir.parent)


def of_generation(meta: ShardedCacheMeta, generation: str) -> ShardedCacheMeta:
    """Return the same shards under the names that they have in a cache that existed before."""
    return replace(
        meta, shard_filenames=[f"{Path(name).stem}-{generation}.arrow" for name in meta.shard_filenames]
    )


def sweep_cache(cache_dir: Path) -> None:
    """Remove the leftovers of killed builders and replaced generations from the folder of a cache."""
    if cache_dir.is_dir():
        sweep_folders(cache_dir)
        _sweep_shards(cache_dir)


def _parent_of_hidden(cache_dir: Path) -> Path:
    """Return the folder for the hidden folder.

    It is the cache's own folder if that is in use or cannot be renamed over, else its parent.
    """
    inside = cache_dir.exists() and (
        os.listdir(cache_dir) or os.path.ismount(cache_dir) or not os.access(cache_dir.parent, os.W_OK)
    )
    return cache_dir if inside else cache_dir.parent


def _content(meta: ShardedCacheMeta) -> tuple[str, str | None, list[int], list[str]]:
    schema = None if meta.schema is None else schema_to_text(meta.schema)
    return meta.schema_fingerprint, schema, meta.shard_row_counts, meta.shard_digests


def sweep_folders(home: Path) -> None:
    """Remove the hidden folders of killed builders."""
    folders = list(_matching(home, _FOLDER))  # listed before the markers: see `_live_generations`
    live = _live_generations(home)
    for folder, match in folders:
        if match["generation"] not in live:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep_shards(cache_dir: Path) -> None:
    # Listed before the markers, and these before the metadata: see `_live_generations`.
    shards = list(_matching(cache_dir, SHARD_NAME))
    live = _live_generations(cache_dir)
    try:
        published = set(parse_metadata(cache_dir, (cache_dir / METADATA_FILE).read_bytes()).shard_filenames)
    except (FileNotFoundError, ValueError):
        return  # the cache is unreadable: the builder that repairs it will sweep
    for path, match in shards:
        if path.name not in published and match["generation"] not in live:
            path.unlink(missing_ok=True)


def _live_generations(home: Path) -> set[str]:
    """Return the generations in progress in a folder, after removing the markers of dead builders.

    A builder creates its marker first, and removes it after publishing and clearing up. So a file has no
    builder, and will never be published, if it was listed before this call, its generation is not returned
    here, and the metadata read after this call do not name it.
    """
    sweep(str(home))
    return {match["generation"] for _, match in _matching(home, _MARKER)}


def _matching(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[Path, re.Match[str]]]:
    for name in os.listdir(folder):
        if match := pattern.fullmatch(name):
            yield folder / name, match


# Text may take twice as many bytes in UTF-8 as in Python, and offsets of a string column end at 2 GiB.
LARGEST_BATCH = 512 << 20


class WaitingBatch:
    """Examples collected for one record batch.

    It has at most ``batch_size`` rows, and at most ``max_batch_bytes`` unless a single example is larger.
    """

    def __init__(self, features: Features, batch_size: int, max_batch_bytes: int) -> None:
        self._features = features
        self._schema = features.to_arrow_schema()
        self._limits = batch_size, max_batch_bytes
        self._clear()

    def _clear(self) -> None:
        self._keys: list[Any] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in self._features}
        self._bytes = 0

    def bytes_of(self, stored: Mapping[str, Any]) -> int:
        """Return the bytes of memory that an encoded example takes until its batch is written."""
        return sum(
            feature.held_bytes(stored[name])
            for name, feature in self._features.items()
            if stored[name] is not None
        )

    def is_full(self, more: int = 0) -> bool:
        """Return True if the batch must be taken before an example of ``more`` bytes is added."""
        max_rows, max_bytes = self._limits
        return bool(self._keys) and (len(self._keys) >= max_rows or self._bytes + more > max_bytes)

    def add(self, key: Any, stored: Mapping[str, Any], size: int) -> None:
        """Add an encoded example whose `bytes_of` is ``size``."""
        self._keys.append(key)
        self._bytes += size
        for name, values in self._columns.items():
            values.append(stored[name])

    def take(self) -> pa.RecordBatch | None:
        """Return the collected examples as a batch, and start anew; None if there are none.

        Raises:
            ValueError: Arrow refuses a value; the message names example and field.
        """
        keys, columns = self._keys, self._columns
        self._clear()
        if not keys:
            return None
        arrays = []
        for field in self._schema:  # each list is freed as soon as its array is made
            arrays.append(_array(columns.pop(field.name), field, keys))
        return pa.record_batch(arrays, schema=self._schema)


def _array(values: list[Any], field: pa.Field, keys: list[Any]) -> pa.Array:
    if field.type == pa.large_binary() and all(value is None or type(value) is bytes for value in values):
        return _joined(values)
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        for key, value in zip(keys, values, strict=True):
            _check_value(key, value, field)
        raise ValueError(f"field {field.name!r}: {error}") from error


def _check_value(key: Any, value: Any, field: pa.Field) -> None:
    try:
        pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"example {key!r}, field {field.name!r}: {error}") from error


def _joined(values: list[bytes | None]) -> pa.Array:
    """Return a large binary array with a single copy of the bytes.

    Arrow's builder makes several copies as it grows.
    """
    offsets = list(accumulate((len(value or b"") for value in values), initial=0))
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return blob_array(offsets, data, [value is not None for value in values])


class RemoteGeneration:
    """A build in progress, like `Generation`, for an object store.

    Its shards are made in a local folder and put under new names, which no reader uses yet. The put of
    `_metadata.json` makes them the cache. After that the shards named by the previous metadata are removed.
    """

    def __init__(self, uri: str, options: StorageOptions | None) -> None:
        self._uri, self._options = uri, options
        self._fs, self._path = filesystem(uri, options)
        self.folder = Path(tempfile.mkdtemp(prefix="mm-assets-"))

    def publish(self, meta: ShardedCacheMeta, shard_size_bytes: int) -> ShardedCacheMeta:
        """Make the shards in ``folder`` the cache, and return the metadata with their final names."""
        renamed = of_generation(meta, uuid.uuid4().hex[:12])
        for old, new in zip(meta.shard_filenames, renamed.shard_filenames, strict=True):
            put(str(self.folder / old), f"{self._uri}/{new}", self._options)
        previous = self._published()
        self._fs.pipe_file(f"{self._path}/{METADATA_FILE}", metadata_text(renamed, shard_size_bytes).encode())
        self._remove(previous - set(renamed.shard_filenames), set(renamed.shard_filenames))
        return renamed

    def clear(self) -> None:
        """Remove the local folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _published(self) -> set[str]:
        self._fs.invalidate_cache()
        try:
            return set(
                parse_metadata(
                    Path(self._path), self._fs.cat_file(f"{self._path}/{METADATA_FILE}")
                ).shard_filenames
            )
        except (FileNotFoundError, ValueError):
            return set()

    def _remove(self, replaced: set[str], kept: set[str]) -> None:
        """Remove replaced shards, and leftovers of builders that died long ago."""
        try:
            for path in self._fs.ls(self._path, detail=False):
                name = path.rpartition("/")[2]
                if (
                    name not in kept
                    and SHARD_NAME.fullmatch(name)
                    and (name in replaced or self._is_abandoned(path))
                ):
                    self._fs.rm_file(path)
        except OSError as error:  # no reason to fail the build
            log.warning("%s: could not remove leftovers: %s", self._path, error)

    def _is_abandoned(self, path: str) -> bool:
        return bool(self._fs.modified(path).timestamp() < time.time() - ABANDONED_SECONDS)


DEFAULT_SHARD_SIZE_BYTES = 256 << 20
DEFAULT_BATCH_BYTES = 16 << 20


def write_sharded_arrow_cache(
    generator: Iterable[tuple[Any, Mapping[str, Any]]],
    features: Features,
    cache_dir: str | os.PathLike[str],
    *,
    shard_size_bytes: int = DEFAULT_SHARD_SIZE_BYTES,
    batch_size: int = 1000,
    max_batch_bytes: int = DEFAULT_BATCH_BYTES,
) -> ShardedCacheMeta:
    """Write examples to the folder ``cache_dir``, as Arrow IPC shards and `_metadata.json`.

    The cache appears complete or not at all, and replaces an existing one atomically, for other builders and
    readers, and in a crash. Of several builders the last to finish wins; one whose shards are already
    published changes nothing. No examples give no shards.

    Args:
        generator: Pairs ``(key, example)``; keys are used in errors.
        features: The fields of the examples.
        cache_dir: A local folder.
        shard_size_bytes: A shard is closed once its batches have this many bytes in memory.
        batch_size: Most examples of a record batch.
        max_batch_bytes: Most bytes of a record batch in memory, up to 512 MiB; a larger example is a batch of
            its own.

    Raises:
        ValueError: An example lacks a field, has another, or has a value that does not fit (the message names
            key and field); a number is out of range; or ``cache_dir`` is a URL.
        TypeError: The features or the generator are of another kind.
    """
    if batch_size < 1 or shard_size_bytes < 1 or not 1 <= max_batch_bytes <= LARGEST_BATCH:
        raise ValueError(
            f"batch_size={batch_size} and shard_size_bytes={shard_size_bytes} must be positive, "
            f"max_batch_bytes={max_batch_bytes} between 1 and {LARGEST_BATCH}"
        )
    if not as_features(features):
        raise ValueError("a cache needs at least one feature")
    folder = local_path_of(cache_dir)
    batch = WaitingBatch(features, batch_size, max_batch_bytes)
    generation = Generation(folder)
    try:
        writer = ShardWriter(generation.folder, features.to_arrow_schema(), shard_size_bytes)
        try:
            _write(generator, features, batch, writer)
        finally:
            writer.abandon()
        meta = generation.publish(meta_of(folder, features, writer.shards), shard_size_bytes)
    finally:
        generation.clear()
    log.info("%s: %d examples in %d shards", cache_dir, meta.num_rows, meta.num_shards)
    return meta


def _write(
    generator: Iterable[tuple[Any, Mapping[str, Any]]],
    features: Features,
    batch: WaitingBatch,
    writer: ShardWriter,
) -> None:
    def flush() -> None:
        if (record_batch := batch.take()) is not None:
            writer.write(record_batch)

    for key, example in _pairs(generator):
        stored = _encode(key, example, features)
        size = batch.bytes_of(stored)
        if batch.is_full(size):
            flush()
        batch.add(key, stored, size)
        if batch.is_full():
            flush()
    flush()
    writer.finish()


def _pairs(generator: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the generator's items.

    Raises:
        TypeError: An item is not a pair. A dict of two fields does not count as one.
    """
    if not isinstance(generator, Iterable):
        hint = ": call it" if callable(generator) else ""
        raise TypeError(
            f"the generator must be an iterable of (key, example) pairs, not {type(generator).__name__}{hint}"
        )
    for item in generator:
        if not isinstance(item, tuple | list) or len(item) != 2:
            kind = (
                f"{type(item).__name__} of {len(item)}"
                if isinstance(item, tuple | list)
                else type(item).__name__
            )
            hint = "where examples have no keys, give enumerate(examples)"
            raise TypeError(f"the generator must give (key, example) pairs, not {kind}: {hint}")
        yield item[0], item[1]


def _encode(key: Any, example: Mapping[str, Any], features: Features) -> dict[str, Any]:
    try:
        return encode_example(example, features)
    except ValueError as error:
        raise ValueError(f"example {key!r}: {error}") from error
    except OSError as error:
        error.add_note(f"in example {key!r}")
        raise
