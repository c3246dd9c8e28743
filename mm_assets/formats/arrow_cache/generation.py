"""Generation: one build of a cache, made in a hidden folder and published by one rename.

If a builder is killed, the next one removes its leftovers. A marker (a file named by `temporary_name`) tells
which builder owns a hidden folder and its shards. The marker is created before them and removed after them.
So a folder or shard that has no marker and is not in the metadata has no owner.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mm_assets.formats.arrow_cache import verified
from mm_assets.formats.arrow_cache.metadata import (
    METADATA_FILE,
    SHARD_NAME,
    ShardedCacheMeta,
    metadata_text,
    parse_metadata,
)
from mm_assets.formats.storage import sweep, sync
from mm_assets.formats.temporary_files import building_folder, create_locked, temporary_name
from mm_assets.interleaved.schema_text import schema_to_text

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
            verified.require_size(self._cache_dir / shard.filename, shard)
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
                verified.check(path, shard)
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
