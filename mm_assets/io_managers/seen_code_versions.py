"""Code versions that have been seen of each asset, and since when; kept in the instance's key-value store.

What was planned after a version was first seen, was made by it. So nobody has to read thousands of events to
know that they all name the present version. `instance.run_storage` is Dagster's own place for such values.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import dagster as dg

_KEY = "mm_assets/code_versions"
EVERYTHING = -1  # no event is older


class Since(NamedTuple):
    """Since when a code version is known.

    Args:
        storage_id: every run that was planned after this event has made the asset by this version.
        is_change: another version was known before.
    """

    storage_id: int
    is_change: bool


class SeenCodeVersions:
    """The code version of each asset that was last seen, and the latest storage id at that time."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def since(self, asset: dg.AssetKey, version: str | None) -> Since:
        """Return since when this version is known; from now on, if it has not been seen before."""
        known = self._read()
        name = asset.to_user_string()
        before = known.get(name)
        if before is None or before[0] != version:
            latest = self._instance.event_log_storage.get_maximum_record_id() or 0
            known[name] = [version, latest, before is not None]
            self._write(known)
        return Since(*known[name][1:])

    def confirm(self, asset: dg.AssetKey, version: str | None) -> None:
        """Note that every partition of the asset names this version."""
        known = self._read()
        known[asset.to_user_string()] = [version, EVERYTHING, False]
        self._write(known)

    def forget(self, asset: dg.AssetKey) -> None:
        """Have the asset's partitions looked at again: one was made by other settings than those in force."""
        known = self._read()
        if known.pop(asset.to_user_string(), None) is not None:
            self._write(known)

    def _read(self) -> dict[str, list[Any]]:
        return dict(json.loads(self._instance.run_storage.get_cursor_values({_KEY}).get(_KEY) or "{}"))

    def _write(self, known: dict[str, list[Any]]) -> None:
        self._instance.run_storage.set_cursor_values({_KEY: json.dumps(known)})
