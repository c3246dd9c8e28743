"""Absence of raw shards: whether one is gone, or only out of reach."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import cache

from mm_assets.formats.partitions import own_name
from mm_assets.formats.raw_files import RAW_SUFFIXES
from mm_assets.formats.raw_shards import Listing, RawLocations
from mm_assets.formats.storage import StorageOptions, filesystem, join
from mm_assets.formats.webdataset.layout import MADE_WHEN_OPENED

_NAMED = 3  # files in a line


class RawAbsence:
    """Judge of partitions that a listing of raw shards does not have.

    An unmounted disk, a missing folder, or a pattern that matches less than before must not look as if shards
    were removed. So a shard counts as gone only if, under each root that could hold it, another raw shard is
    listed in its folder or below. Who names a shard vouches for the rest: then it is enough that no file of
    its name can be found.
    """

    def __init__(
        self, locations: RawLocations, listing: Listing, options: StorageOptions | None = None
    ) -> None:
        self._listing = listing
        self._options = options
        self._roots = [root for root in locations.roots() if not root.startswith(MADE_WHEN_OPENED)]
        self._listed = {
            (root, folder)
            for key, shard in listing.items()
            for root in self._roots or [""]
            if any(_is_below(file, root, options) for file in shard.files)
            for folder in _folders_above(key)
        }
        self._names = cache(self._list)

    def _files_beside(self, key: str) -> Iterator[str]:
        """Yield the listed files whose partitions are in the same folder."""
        folder = posixpath.dirname(key)
        for other, shard in self._listing.items():
            if posixpath.dirname(other) == folder:
                yield from shard.files

    def reason_to_keep(self, key: str, is_named: bool = False) -> str | None:
        """Return why the outputs of a partition must stay, or None: its raw shard is gone.

        Args:
            key: the partition.
            is_named: whether the user has named it.

        Raises:
            OSError: its folder cannot be listed.
        """
        if key in self._listing:
            return f"{key}: its raw shard exists: {', '.join(self._listing[key].files)}"
        if members := [file for file in self._files_beside(key) if own_name(key, file) is not None]:
            return (
                f"{key}: raw shards of this group exist: {', '.join(members[:_NAMED])}; "
                "is MM_SHARDS_PER_PARTITION set as it was?"
            )
        folder, name = posixpath.split(key)
        for root in self._roots:
            place = join(root, folder) if folder else root
            for found in self._names(place):
                if found.startswith(name) and found[len(name) :].lower() in RAW_SUFFIXES:
                    return f"{key}: its raw shard exists, though it is not read: {join(place, found)}"
        unlisted = [root for root in self._roots or [""] if (root, folder) not in self._listed]
        if is_named or not unlisted:
            return None
        places = " or ".join(join(root, folder) if folder else root for root in unlisted)
        return (
            f"{key}: no raw shard can be listed in {places}, "
            "as if a disk were not mounted; name the shard to retire it all the same"
        )

    def _list(self, folder: str) -> tuple[str, ...]:
        fs, path = filesystem(folder, self._options)
        fs.invalidate_cache()
        try:
            found = fs.ls(path, detail=False)
        except FileNotFoundError:
            return ()
        return tuple(str(name).rstrip("/").rpartition("/")[2] for name in found)


def _is_below(file: str, root: str, options: StorageOptions | None) -> bool:
    """Return whether a file lies below a root; every file does below the empty one."""
    if not root:
        return True
    (fs, path), (fs_of_root, path_of_root) = filesystem(file, options), filesystem(root, options)
    return type(fs) is type(fs_of_root) and path.startswith(path_of_root)


def _folders_above(key: str) -> Iterator[str]:
    while key:
        key = posixpath.dirname(key)
        yield key
