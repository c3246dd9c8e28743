"""Writer of examples from a generator to a sharded cache."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mm_assets.formats.arrow_cache.batches import LARGEST_BATCH, WaitingBatch
from mm_assets.formats.arrow_cache.features import Features, as_features, encode_example
from mm_assets.formats.arrow_cache.generation import Generation
from mm_assets.formats.arrow_cache.metadata import ShardedCacheMeta, local_path_of, meta_of
from mm_assets.formats.arrow_cache.shards import ShardWriter

__all__ = ["write_sharded_arrow_cache"]

DEFAULT_SHARD_SIZE_BYTES = 256 << 20
DEFAULT_BATCH_BYTES = 16 << 20

log = logging.getLogger(__name__)


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
        TypeError: An item is no pair. A dict of two fields does not count as one.
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
