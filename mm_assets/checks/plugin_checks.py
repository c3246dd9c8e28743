"""The checks of an asset of rows: ours, and those of plugins."""

from __future__ import annotations

from collections.abc import Mapping

from mm_assets.accounting.outputs import OUTPUTS
from mm_assets.io_managers.base import LANDED
from mm_assets.io_managers.proof_resource import ZERO_LOSS
from mm_assets.io_managers.shards import ShardCheck
from mm_assets.plugins import load_plugins, plugin_fault

ASSETS = tuple(output.asset for output in OUTPUTS)


def with_plugins(asset: str, own: tuple[ShardCheck, ...]) -> tuple[ShardCheck, ...]:
    """The asset's ``own`` checks, then those under its name in ``CHECKS`` of each plugin.

    Raises:
        PluginError: in one line that names the module, for a check that does not fit.
    """
    checks = list(own)
    for module in load_plugins():
        declared = getattr(module, "CHECKS", {})
        if not isinstance(declared, Mapping):
            raise plugin_fault(module, "CHECKS must be a dict of checks by asset")
        if strange := [name for name in declared if name not in ASSETS]:
            raise plugin_fault(module, f"{strange[0]!r} in CHECKS is none of {', '.join(ASSETS)}")
        taken = {LANDED, ZERO_LOSS, *(check.name for check in checks)}
        for check in declared.get(asset, ()):
            if not isinstance(check, ShardCheck):
                raise plugin_fault(module, f"{check!r} in CHECKS is no ShardCheck")
            if check.name in taken:
                raise plugin_fault(module, f"{asset} has a check {check.name!r} already")
            taken.add(check.name)
            checks.append(check)
    return tuple(checks)
