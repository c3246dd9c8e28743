"""Code versions that have been seen of each asset, and since when; kept in the instance's key-value store.

What was planned after a version was first seen, was made by it. So nobody has to read thousands of events to
know that they all name the present version. `instance.run_storage` is Dagster's own place for such values.
"""

from __future__ import annotations

import json
from typing import Any

import dagster as dg

_KEY = "mm_assets/code_versions"
EVERYTHING = -1  # no event is older


class SeenCodeVersions:
    """The code version of each asset that was last seen, and the latest storage id at that time."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def since(self, asset: dg.AssetKey, version: str | None) -> int:
        """Return the storage id after which every run has made the asset by this version."""
        known = self._read()
        name = asset.to_user_string()
        if known.get(name, [None])[0] != version:
            known[name] = [version, self._instance.event_log_storage.get_maximum_record_id() or 0]
            self._write(known)
        return int(known[name][1])

    def confirm(self, asset: dg.AssetKey, version: str | None) -> None:
        """Note that every partition of the asset names this version."""
        known = self._read()
        known[asset.to_user_string()] = [version, EVERYTHING]
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
