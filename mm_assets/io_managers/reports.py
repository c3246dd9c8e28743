"""Shard results as events of a run: a materialization or an error, and check evaluations."""

import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from mm_assets.formats.stores import without_secrets
from mm_assets.io_managers.check_log import CheckLog
from mm_assets.io_managers.events import REASON, URI, provenance
from mm_assets.io_managers.metadata import metadata_values
from mm_assets.io_managers.seen_code_versions import LIMIT_TAG, SeenCodeVersions
from mm_assets.io_managers.shards import Shard, ShardResult

_FAILURE = re.compile(
    r"""shard (?P<key>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*") of (?P<asset>\S+): (?P<error>.*)"""
)

SETTINGS_MARK = "+"
_NOT_LANDED = "The shard was not published: see *error* in the metadata."
_WHAT_TO_DO = (
    "Mend the raw shard, or change the setting that refuses it. Then launch the job `refresh`, or run "
    "`mm-assets run --failed`. The outputs of the version before stay until then."
)


def version_with_settings(code_version: str, made_by: str) -> str:
    """Return the code version of an asset that names its settings by a digest."""
    return f"{code_version}{SETTINGS_MARK}{made_by[:8]}"


@dataclass(frozen=True)
class Failure:
    """Failure of a shard of an asset.

    As text it is the first line of its log message. ``error`` is the reason.
    """

    key: str
    asset: str
    error: str

    def __str__(self) -> str:
        return f"shard {self.key!r} of {self.asset}: {self.error}"


def parse_failure(message: str) -> Failure | None:
    """Return the failure that a log message reports; None for any other message."""
    match = _FAILURE.match(message)
    return Failure(literal_eval(match["key"]), match["asset"], match["error"]) if match else None


def materialization(
    asset: dg.AssetKey, result: ShardResult, unchanged: bool, tags: Mapping[str, str] | None = None
) -> dg.AssetMaterialization:
    """Return the event that a published shard has."""
    metadata = dict(result.metadata) | ({"unchanged": True} if unchanged else {})
    if result.uri:
        metadata[URI] = result.uri
    return dg.AssetMaterialization(asset, partition=result.key, metadata=metadata_values(metadata), tags=tags)


class ShardReports:
    """Reports the shards of one asset from within its step, each as soon as its result is known."""

    def __init__(self, run: dg.AssetExecutionContext, asset: dg.AssetKey) -> None:
        self.asset = asset
        declared = run.assets_def.code_versions_by_key[asset] or ""
        self._declared = declared
        self._made_by = declared
        self.code_version = declared.partition(SETTINGS_MARK)[0]
        self._run = run
        self._specs = {
            spec.name: spec
            for spec in run.assets_def.check_specs
            if spec.asset_key == asset and spec.key in run.selected_asset_check_keys
        }
        self.failed: dict[str, str] = {}
        self._checks = CheckLog(run.instance, run.run.run_id, run.log_event, asset, self._specs)

    @property
    def checks(self) -> frozenset[str]:
        """Names of the declared checks that are part of this run."""
        return frozenset(self._specs)

    @property
    def blocking(self) -> frozenset[str]:
        return frozenset(name for name, spec in self._specs.items() if spec.blocking)

    def begin(self, made_by: str) -> None:
        """Note the code version of the run; call it once, before any shard.

        Args:
            made_by: digest of the code and the settings that the shards are made by.
        """
        if SETTINGS_MARK in self._declared:  # those of this run: the launchpad may have changed them
            self._made_by = version_with_settings(self.code_version, made_by)
        seen = SeenCodeVersions(self._run.instance)
        seen.see(self.asset, self._made_by)
        if limit := self._run.assets_def.tags_by_key[self.asset].get(LIMIT_TAG):
            seen.see_limit(self.asset, limit)

    def landed(self, result: ShardResult, parents: Mapping[str, Shard], unchanged: bool = False) -> None:
        """Log the shard's one materialization, and its checks."""
        tags = provenance(result.version, self._made_by, parents)
        self._run.log_event(materialization(self.asset, result, unchanged, tags))
        self._checks.add(result.key, result.checks)

    def failure(self, result: ShardResult) -> None:
        """Log why the shard was not published, and the checks that were evaluated.

        There is no materialization: Dagster shows the shard as failed. An observation tells the reason on the
        shard's own page, which else says no more than that the run failed.
        """
        error = result.error or "no reason given"
        self.failed[result.key] = error
        line = str(Failure(result.key, self.asset.to_user_string(), error))
        self._run.log.error(without_secrets(line + (f"\n{result.detail}" if result.detail else "")))
        self._run.log_event(
            dg.AssetObservation(
                self.asset,
                description=_NOT_LANDED,  # Markdown, so it has no text of data
                partition=result.key,
                metadata=metadata_values({REASON: error, "what_to_do": _WHAT_TO_DO}),
            )
        )
        self._checks.add(result.key, result.checks)

    def finish(self) -> None:
        """Log one evaluation over all shards for each check; call it once, after all shards."""
        self._checks.finish()
