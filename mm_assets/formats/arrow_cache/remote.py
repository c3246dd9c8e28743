"""Publication of a cache in an object store, where there are no renames."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import uuid
from pathlib import Path

from mm_assets.formats.arrow_cache.generation import of_generation
from mm_assets.formats.arrow_cache.metadata import (
    METADATA_FILE,
    SHARD_NAME,
    ShardedCacheMeta,
    metadata_text,
    parse_metadata,
)
from mm_assets.formats.storage import StorageOptions, filesystem, put
from mm_assets.formats.temporary_files import ABANDONED_SECONDS

log = logging.getLogger(__name__)


class RemoteGeneration:
    """A build in progress, like `Generation`, for an object store.

    Its shards are made in a local folder and put under new names, which nobody reads yet. The put of
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
