"""Causes of a changed output: settings, code, raw data, or what other shards have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mm_assets.versions.output_state import Group, OutputState

RAW = "raw_shards"
RAW_CHANGED = "raw data changed"
OTHER_SHARDS = "types or sample ids of other shards"
UNKNOWN = "cause not recorded by the release that made it"
_STEPS = "steps."
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
    steps, before, after = _changed_steps(old, new), dict(_flat(old)), dict(_flat(new))
    names = [
        name
        for name in before | after
        # The version of a step that only one of them has says nothing of code.
        if before.get(name) != after.get(name) and not (name.endswith(".version") and _step(name) in steps)
    ]
    changes = [_change(name, _shown(before, name), _shown(after, name)) for name in names]
    named = {_step(name) for name in names}
    changes += [
        _change(f"{_STEPS}{step}", *(("set", "unset") if is_gone else ("unset", "set")))
        for step, is_gone in steps.items()
        if step not in named
    ]
    yield from changes or ["code changed"]


def _change(name: str, before: str, after: str) -> str:
    is_code = name == "code_version" or name.endswith(".version") or name.startswith("checks.")
    label = name.removeprefix(_STEPS).removeprefix("options.")
    return f"{'code' if is_code else 'setting'} changed: {label} {before} -> {after}"


def _changed_steps(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, bool]:
    """Return the steps that only one of two records has, and whether it is the old one."""
    before, after = old.get("steps", {}), new.get("steps", {})
    return {step: step in before for step in before | after if (step in before) != (step in after)}


def _step(name: str) -> str:
    """Return the step that a setting belongs to; empty for other settings."""
    return name.removeprefix(_STEPS).partition(".")[0] if name.startswith(_STEPS) else ""


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
