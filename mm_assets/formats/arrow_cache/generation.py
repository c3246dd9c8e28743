"""One build of a cache: made in a hidden folder, published by one rename, swept by the next builder if this
one is killed.

Which builder a hidden folder and its shards belong to is told by a marker, a file named by `temporary_name`.
It is there before them and goes after them. So what has no marker and is not in the metadata is nobody's.
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
    """A build in progress. ``folder`` takes its shards; after `publish` or not, `clear` removes what is left.

    The first generation becomes the cache by the rename of its whole folder, and its shards are called
    ``shard-00000.arrow``. A later one, ``shard-00000-<generation>.arrow``, is moved in beside the published
    one and becomes the cache when `_metadata.json` is replaced; then the old files go. Before and after that
    one rename there is a whole cache, and readers keep what they have mapped.

    ``sweeps_beside``: look for leftovers beside the cache, too. Who builds many caches in one folder does it
    once, with `sweep_folders`.
    """

    def __init__(self, cache_dir: Path, *, sweeps_beside: bool = True) -> None:
        self._sweeps_beside = sweeps_beside
        self._cache_dir = Path(os.path.realpath(cache_dir))
        self._cache_dir.parent.mkdir(parents=True, exist_ok=True)
        home = _home(self._cache_dir)
        self._marker = home / temporary_name(self._cache_dir.name)
        match = _MARKER.match(self._marker.name)
        assert match is not None
        self.name = match["generation"]
        self._claim = create_locked(self._marker)
        self.folder = building_folder(self._marker)
        self.folder.mkdir()
        self._sweep()  # before the build, which may need the room

    def publish(self, meta: ShardedCacheMeta, shard_size_bytes: int) -> ShardedCacheMeta:
        """Make the shards in ``folder`` the cache. ``meta`` has them under their names there; the result has
        their final ones.

        When the very same shards are published already and whole, these are left as they are: readers of
        theirs are not disturbed.
        """
        if self.folder.parent != self._cache_dir:
            self._write_metadata(meta, shard_size_bytes)
            if self._become_cache():
                return meta
            self._move_inside()
        if (published := self._same(meta)) is not None:
            return published
        named = of_generation(meta, self.name)
        self._write_metadata(named, shard_size_bytes)
        for old, new in zip(meta.shard_filenames, named.shard_filenames, strict=True):
            os.rename(self.folder / old, self._cache_dir / new)
        sync(self._cache_dir)
        for shard in named.shards:
            verified.require_size(self._cache_dir / shard.filename, shard)
        os.replace(self.folder / METADATA_FILE, self._cache_dir / METADATA_FILE)
        sync(self._cache_dir)
        return named

    def clear(self) -> None:
        """Remove what is left of this build, published or not, and what killed builders and replaced
        generations left.
        """
        shutil.rmtree(self.folder, ignore_errors=True)  # gone if it has become the cache
        self._marker.unlink(missing_ok=True)
        os.close(self._claim)
        self._sweep()

    def _sweep(self) -> None:
        try:
            if self._sweeps_beside:
                sweep_folders(self._cache_dir.parent)
            sweep_cache(self._cache_dir)
        except OSError as error:  # the build is not at fault
            log.warning("%s: could not remove leftovers: %s", self._cache_dir, error)

    def _write_metadata(self, meta: ShardedCacheMeta, shard_size_bytes: int) -> None:
        path = self.folder / METADATA_FILE
        path.write_text(metadata_text(meta, shard_size_bytes))
        sync(path)
        sync(self.folder)

    def _become_cache(self) -> bool:
        try:
            os.rename(self.folder, self._cache_dir)  # only where there is nothing, or an empty folder
        except OSError:
            if not self._cache_dir.is_dir() or not os.listdir(self._cache_dir):
                raise
            return False  # another builder was first
        sync(self._cache_dir.parent)
        return True

    def _move_inside(self) -> None:
        marker, folder = self._cache_dir / self._marker.name, self._cache_dir / self.folder.name
        inside = create_locked(marker)
        os.rename(self.folder, folder)
        self._marker.unlink()
        os.close(self._claim)
        self._marker, self.folder, self._claim = marker, folder, inside

    def _same(self, meta: ShardedCacheMeta) -> ShardedCacheMeta | None:
        try:
            published = parse_metadata(meta.cache_dir, (self._cache_dir / METADATA_FILE).read_bytes())
            if _content(published) != _content(meta):
                return None
            for path, shard in zip(published.shard_paths, published.shards, strict=True):
                verified.check(path, shard)
        except (ValueError, OSError):
            return None  # damaged, or just replaced
        return published


def of_generation(meta: ShardedCacheMeta, generation: str) -> ShardedCacheMeta:
    """The same shards under the names that they have in a cache that was there before."""
    return replace(
        meta, shard_filenames=[f"{Path(name).stem}-{generation}.arrow" for name in meta.shard_filenames]
    )


def sweep_cache(cache_dir: Path) -> None:
    """Remove what killed builders and replaced generations left in the folder of a cache."""
    if cache_dir.is_dir():
        sweep_folders(cache_dir)
        _sweep_shards(cache_dir)


def _home(cache_dir: Path) -> Path:
    """Where the hidden folder is: inside a folder that is in use or cannot be renamed over, else beside it."""
    inside = cache_dir.exists() and (
        os.listdir(cache_dir) or os.path.ismount(cache_dir) or not os.access(cache_dir.parent, os.W_OK)
    )
    return cache_dir if inside else cache_dir.parent


def _content(meta: ShardedCacheMeta) -> tuple[str, str | None, list[int], list[str]]:
    schema = None if meta.schema is None else schema_to_text(meta.schema)
    return meta.schema_fingerprint, schema, meta.shard_row_counts, meta.shard_digests


def sweep_folders(home: Path) -> None:
    """Remove the hidden folders of killed builders."""
    folders = list(_matching(home, _FOLDER))  # before the markers: see `_living`
    living = _living(home)
    for folder, match in folders:
        if match["generation"] not in living:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep_shards(cache_dir: Path) -> None:
    shards = list(
        _matching(cache_dir, SHARD_NAME)
    )  # before the markers, and these before the metadata: see `_living`
    living = _living(cache_dir)
    try:
        published = set(parse_metadata(cache_dir, (cache_dir / METADATA_FILE).read_bytes()).shard_filenames)
    except (FileNotFoundError, ValueError):
        return  # what the cache is cannot be told: the builder that mends it will sweep
    for path, match in shards:
        if path.name not in published and match["generation"] not in living:
            path.unlink(missing_ok=True)


def _living(home: Path) -> set[str]:
    """The generations in progress in a folder, after removing the markers of dead builders.

    A builder makes its marker first, and removes it after it has published and removed the rest. So whatever
    was listed before this, is not of a generation told here and not in the metadata read after this, has no
    builder and never will be published.
    """
    sweep(str(home))
    return {match["generation"] for _, match in _matching(home, _MARKER)}


def _matching(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[Path, re.Match[str]]]:
    for name in os.listdir(folder):
        if match := pattern.fullmatch(name):
            yield folder / name, match
