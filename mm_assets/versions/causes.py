"""Causes of a changed output: settings, code, raw data, or what other shards have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mm_assets.versions.output_state import Group, OutputState

RAW = "raw_shards"
RAW_CHANGED = "raw data changed"
OTHER_SHARDS = "types or sample ids of other shards"
UNKNOWN = "cause not recorded by the release that made it"
_TEXT = 60  # characters of a value


def causes_of(before: Group, after: Group) -> dict[str, tuple[str, ...]]:
    """Return for each asset in both groups why its partition is another; nothing for an equal origin.

    The cause of an input is that of what was made from it, so the first causes come through to the last
    output.
    """
    found: dict[str, tuple[str, ...]] = {}
    for asset, new in after.items():  # in the order of the graph: inputs come first
        if asset in before:
            found[asset] = tuple(dict.fromkeys(_causes(before[asset], new, found)))
    return found


def _causes(old: OutputState, new: OutputState, upstream: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    if old.fingerprint == new.fingerprint:
        return
    if old.made_by != new.made_by:
        yield from _setting_changes(old.settings, new.settings)
    if not old.inputs or not new.inputs:
        if old.made_by == new.made_by:
            yield UNKNOWN
        return
    changed = [asset for asset in new.inputs if old.inputs.get(asset) != new.inputs[asset]]
    for asset in changed:
        if asset == RAW:
            yield RAW_CHANGED
        else:
            yield from upstream.get(asset) or (UNKNOWN,)
    if not changed and old.made_by == new.made_by:
        yield OTHER_SHARDS


def _setting_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each setting that is another; one alone if a record does not have the settings."""
    if not old or not new:
        yield "settings or code changed"
        return
    before, after = dict(_flat(old)), dict(_flat(new))
    changes = [name for name in before | after if before.get(name) != after.get(name)]
    for name in changes:
        values = f"{_shown(before, name)} -> {_shown(after, name)}"
        is_code = name == "code_version" or name.endswith(".version") or name.startswith("checks.")
        label = name.removeprefix("steps.").removeprefix("options.")
        yield f"code changed: {label} {values}" if is_code else f"setting changed: {label} {values}"
    if not changes:
        yield "code changed"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name not in values or values[name] is None:
        return "unset"
    text = str(values[name])
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
