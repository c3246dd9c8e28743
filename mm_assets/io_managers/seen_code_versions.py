"""Code versions that have been seen of each asset, and since when; kept in the instance's key-value store.

What was planned after a version was first seen, was made by it. So nobody has to read thousands of events to
know that they all name the present version. `instance.run_storage` is Dagster's own place for such values.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import dagster as dg

_KEY = "mm_assets/code_version/"

# Tag of an asset: a setting that refuses shards, but changes no byte of those that land.
LIMIT_TAG = "mm_assets/max_loss"
# Metadata of an asset: the inputs that it reads nothing of with the present settings (`Plan.unread`).
UNREAD = "mm_assets/unread"


class SeenCodeVersion(NamedTuple):
    """A code version of an asset.

    ``since`` is the latest storage id of an event when it was first seen. ``is_confirmed``: what was made
    before names it, too. ``is_change``: the asset had another version before.
    """

    version: str | None
    since: int
    is_confirmed: bool = False
    is_change: bool = False


class SeenCodeVersions:
    """The code version of each asset that was last seen, by a run or by one who looks for stale shards."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def see(self, asset: dg.AssetKey, version: str | None) -> SeenCodeVersion:
        """Return since when an asset has this version; note it now if the last one was another.

        A run with other settings, by the launchpad or in another process, notes its own: then all partitions
        are looked at again.
        """
        known = self._read(asset)
        if known is None or known.version != version:
            now = self._instance.event_log_storage.get_maximum_record_id() or 0
            known = SeenCodeVersion(version, now, is_change=known is not None)
            self._write(asset, known)
        return known

    def see_limit(self, asset: dg.AssetKey, limit: str) -> SeenCodeVersion:
        """Return since when shards of an asset are refused by this limit; as `see`."""
        return self.see(dg.AssetKey([*asset.path, LIMIT_TAG]), limit)

    def confirm(self, asset: dg.AssetKey, seen: SeenCodeVersion) -> None:
        """Note that every partition of the asset names this version."""
        if self._read(asset) == seen:  # else a run has made some by another one in the meantime
            self._write(asset, seen._replace(is_confirmed=True))

    def _read(self, asset: dg.AssetKey) -> SeenCodeVersion | None:
        key = _KEY + asset.to_user_string()
        text = self._instance.run_storage.get_cursor_values({key}).get(key)
        return SeenCodeVersion(*json.loads(text)) if text else None

    def _write(self, asset: dg.AssetKey, seen: SeenCodeVersion) -> None:
        self._instance.run_storage.set_cursor_values({_KEY + asset.to_user_string(): json.dumps(seen)})
