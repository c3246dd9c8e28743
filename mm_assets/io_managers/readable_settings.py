"""Readable form of what an output is made by: code version, steps with their settings, options."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from mm_assets.io_managers.shards import Plan


def readable_settings(code_version: str, plan: Plan, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values for the record of a shard, so that two versions can be compared by people.

    Whether a shard is made again is decided by the digest ``made_by`` alone, never by this.

    Args:
        code_version: code version of the asset.
        plan: its steps and checks.
        options: options of its IO manager.
    """
    settings: dict[str, Any] = {"code_version": code_version, "options": dict(options)}
    for step in (part for whole in plan.steps for part in getattr(whole, "parts", (whole,))):
        fields = {f.name: getattr(step, f.name) for f in dataclasses.fields(step) if f.compare}
        values = {name: _plain(value) for name, value in fields.items() if value is not None}
        if version := getattr(type(step), "version", ""):
            values["version"] = version
        settings.setdefault("steps", {})[getattr(step, "name", type(step).__qualname__)] = values
    if versions := {check.name: check.version for check in plan.checks if check.version}:
        settings["checks"] = versions
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _plain(value: Any) -> Any:
    """Return an unset bound as text: JSON has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
