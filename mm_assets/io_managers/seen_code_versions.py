"""Code versions that have been seen of each asset, and since when; kept in the instance's key-value store.

What was planned after a version was first seen, was made by it. So nobody has to read thousands of events to
know that they all name the present version. `instance.run_storage` is Dagster's own place for such values.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import dagster as dg

_KEY = "mm_assets/code_version/"


class SeenCodeVersion(NamedTuple):
    """A code version of an asset.

    ``since`` is the latest storage id of an event when it was first seen. ``is_confirmed``: what was made
    before names it, too.
    """

    version: str | None
    since: int
    is_confirmed: bool = False


class SeenCodeVersions:
    """The code version of each asset that was last seen."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def see(self, asset: dg.AssetKey, version: str | None) -> SeenCodeVersion:
        """Return since when an asset has this version; note it now if the last one was another."""
        known = self._read(asset)
        if known is None or known.version != version:
            known = SeenCodeVersion(version, self._instance.event_log_storage.get_maximum_record_id() or 0)
            self._write(asset, known)
        return known

    def confirm(self, asset: dg.AssetKey, seen: SeenCodeVersion) -> None:
        """Note that every partition of the asset names this version."""
        if self._read(asset) == seen:  # else a run has made some by another one in the meantime
            self._write(asset, seen._replace(is_confirmed=True))

    def made_by(self, asset: dg.AssetKey, version: str) -> None:
        """Note that a run makes partitions by this version.

        If that is not the one last seen, because the launchpad or another process has other settings, all
        partitions must be looked at again.
        """
        known = self._read(asset)
        if known is not None and known.version != version:
            self._write(asset, None)

    def _read(self, asset: dg.AssetKey) -> SeenCodeVersion | None:
        key = _KEY + asset.to_user_string()
        text = self._instance.run_storage.get_cursor_values({key}).get(key)
        return SeenCodeVersion(*json.loads(text)) if text else None

    def _write(self, asset: dg.AssetKey, seen: SeenCodeVersion | None) -> None:
        text = "" if seen is None else json.dumps(seen)
        self._instance.run_storage.set_cursor_values({_KEY + asset.to_user_string(): text})
