"""Examples from a generator into a cache."""

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
    """Write the examples of ``(key, example)`` pairs into the folder ``cache_dir``, as Arrow IPC shards and
    `_metadata.json`.

    A batch is written when it has ``batch_size`` examples, and before it would hold more than
    ``max_batch_bytes`` (at most 512 MiB); a larger example is a batch of its own. A shard is closed once its
    batches have ``shard_size_bytes`` in memory. No examples give no shards.

    The cache appears whole or not at all, and replaces the one that is there at one moment, for other
    builders and readers, and in a crash. Of several builders the last to finish has its way; one that made
    what is there already changes nothing.

    Raises ``ValueError`` naming key and field of an example that lacks a field, has another, or a value that
    does not fit, and for a URL; ``TypeError`` for features or a generator of another kind.
    """
    if batch_size < 1 or shard_size_bytes < 1 or not 1 <= max_batch_bytes <= LARGEST_BATCH:
        raise ValueError(
            f"batch_size={batch_size} and shard_size_bytes={shard_size_bytes} must be positive, max_batch_bytes={max_batch_bytes} "
            f"between 1 and {LARGEST_BATCH}"
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
        if (taken := batch.take()) is not None:
            writer.write(taken)

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
    """The generator's items.

    Raises ``TypeError`` for one that is no pair; a dict of two fields would pass for one.
    """
    if not isinstance(generator, Iterable):
        hint = ": call it" if callable(generator) else ""
        raise TypeError(
            f"the generator must be an iterable of (key, example) pairs, not {type(generator).__name__}{hint}"
        )
    for item in generator:
        if not isinstance(item, tuple | list) or len(item) != 2:
            what = (
                f"{type(item).__name__} of {len(item)}"
                if isinstance(item, tuple | list)
                else type(item).__name__
            )
            hint = "where examples have no keys, give enumerate(examples)"
            raise TypeError(f"the generator must give (key, example) pairs, not {what}: {hint}")
        yield item[0], item[1]


def _encode(key: Any, example: Mapping[str, Any], features: Features) -> dict[str, Any]:
    try:
        return encode_example(example, features)
    except ValueError as error:
        raise ValueError(f"example {key!r}: {error}") from error
    except OSError as error:
        error.add_note(f"in example {key!r}")
        raise
