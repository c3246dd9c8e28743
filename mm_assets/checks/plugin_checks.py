"""Checks of an asset of rows: built-in ones, and those of plugins."""

from __future__ import annotations

from collections.abc import Mapping

from mm_assets.accounting.outputs import OUTPUTS
from mm_assets.io_managers.base import LANDED
from mm_assets.io_managers.proof_resource import ZERO_LOSS
from mm_assets.io_managers.shards import ShardCheck
from mm_assets.plugins import load_plugins, plugin_fault

ASSETS = tuple(output.asset for output in OUTPUTS)


def with_plugins(asset: str, builtin: tuple[ShardCheck, ...]) -> tuple[ShardCheck, ...]:
    """Return the asset's built-in checks, then those under its name in ``CHECKS`` of each plugin.

    Raises:
        PluginError: in one line that names the module, for an invalid check.
    """
    checks = list(builtin)
    for module in load_plugins():
        plugin_checks = getattr(module, "CHECKS", {})
        if not isinstance(plugin_checks, Mapping):
            raise plugin_fault(module, "CHECKS must be a dict of checks by asset")
        if unknown := [name for name in plugin_checks if name not in ASSETS]:
            raise plugin_fault(module, f"{unknown[0]!r} in CHECKS is none of {', '.join(ASSETS)}")
        used_names = {LANDED, ZERO_LOSS, *(check.name for check in checks)}
        for check in plugin_checks.get(asset, ()):
            if not isinstance(check, ShardCheck):
                raise plugin_fault(module, f"{check!r} in CHECKS is no ShardCheck")
            if check.name in used_names:
                raise plugin_fault(module, f"{asset} has a check {check.name!r} already")
            used_names.add(check.name)
            checks.append(check)
    return tuple(checks)
