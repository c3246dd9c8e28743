"""What becomes of a shard, as events in the log of a run: its materialization or an error, and check
evaluations.
"""

import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from mm_assets.io_managers.check_log import CheckLog
from mm_assets.io_managers.events import URI, provenance
from mm_assets.io_managers.metadata import metadata_values
from mm_assets.io_managers.shards import Shard, ShardResult

_FAILURE = re.compile(
    r"""shard (?P<key>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*") of (?P<asset>\S+): (?P<error>.*)"""
)


@dataclass(frozen=True)
class Failure:
    """Why a shard of an asset did not land; as text, the first line of what is logged of it."""

    key: str
    asset: str
    error: str

    def __str__(self) -> str:
        return f"shard {self.key!r} of {self.asset}: {self.error}"


def parse_failure(message: str) -> Failure | None:
    """The failure that a log message tells of, if it does."""
    match = _FAILURE.match(message)
    return Failure(literal_eval(match["key"]), match["asset"], match["error"]) if match else None


class ShardReports:
    """Reports the shards of one asset from within its step, each as soon as it is known."""

    def __init__(self, run: dg.AssetExecutionContext, asset: dg.AssetKey) -> None:
        self.asset = asset
        self.code_version = run.assets_def.code_versions_by_key[asset] or ""
        self._run = run
        self._specs = {
            spec.name: spec
            for spec in run.assets_def.check_specs
            if spec.asset_key == asset and spec.key in run.selected_asset_check_keys
        }
        self.failed: dict[str, str] = {}
        self._checks = CheckLog(run.instance, run.run_id, run.log_event, asset, self._specs)

    @property
    def checks(self) -> frozenset[str]:
        """Names of the declared checks that this run asks for."""
        return frozenset(self._specs)

    @property
    def blocking(self) -> frozenset[str]:
        return frozenset(name for name, spec in self._specs.items() if spec.blocking)

    def landed(self, done: ShardResult, parents: Mapping[str, Shard], unchanged: bool = False) -> None:
        """Log the shard's one materialization, and its checks."""
        metadata = dict(done.metadata) | ({"unchanged": True} if unchanged else {})
        if done.uri:
            metadata[URI] = done.uri
        self._run.log_event(
            dg.AssetMaterialization(
                self.asset,
                partition=done.key,
                metadata=metadata_values(metadata),
                tags=provenance(done.version, self.code_version, parents),
            )
        )
        self._checks.add(done.key, done.checks)

    def failure(self, done: ShardResult) -> None:
        """Log why the shard did not land, and the checks it got to.

        No materialization: Dagster shows the shard as failed.
        """
        error = done.error or "no reason given"
        self.failed[done.key] = error
        line = str(Failure(done.key, self.asset.to_user_string(), error))
        self._run.log.error(line + (f"\n{done.detail}" if done.detail else ""))
        self._checks.add(done.key, done.checks)

    def finish(self) -> None:
        """Log one evaluation over all shards for each check; once, when every shard was reported."""
        self._checks.finish()
