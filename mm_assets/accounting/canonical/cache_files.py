"""Check that the files of an Arrow cache are those in its metadata; readers refuse the cache otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mm_assets.formats.arrow_cache.metadata import METADATA_FILE, parse_metadata
from mm_assets.formats.arrow_cache.shards import CacheShard, OpenShard, digest_of
from mm_assets.formats.storage import StorageOptions, is_remote, join, local_path, open_binary


def cache_problems(uri: str, options: StorageOptions | None = None) -> Iterator[str]:
    """Yield a line for each shard of a cache that differs from its metadata. Every byte is read.

    Raises:
        FileNotFoundError: the cache has no metadata.
    """
    with open_binary(join(uri, METADATA_FILE), options) as file:
        text = file.read()
    try:
        meta = parse_metadata(Path(uri), text)
    except ValueError as error:
        yield str(error)
        return
    for shard in meta.shards:
        path = join(uri, shard.filename)
        if (digest := _digest(path, options)) != shard.digest:
            yield f"{path}: its digest is {digest}, not {shard.digest} as {METADATA_FILE} says"
        elif not is_remote(path) and (
            differing := _differing(OpenShard(Path(local_path(path))), shard, meta.schema)
        ):
            yield f"{path}: {differing} are not those that {METADATA_FILE} says"


def _differing(found: OpenShard, declared: CacheShard, schema: object) -> str:
    if found.rows != declared.rows:
        return "its rows"
    return "" if found.schema.equals(schema, check_metadata=True) else "its columns"


def _digest(uri: str, options: StorageOptions | None) -> str:
    with open_binary(uri, options) as file:
        return digest_of(file)
