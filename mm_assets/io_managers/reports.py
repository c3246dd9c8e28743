"""What becomes of a shard, as events in the log of a run: check evaluations, then its materialization, or an error."""

import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from mm_assets.io_managers.events import URI, provenance
from mm_assets.io_managers.shards import Check, Done, Shard

_FAILURE = re.compile(r"""shard (?P<key>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*") of (?P<asset>\S+): (?P<error>.*)""")


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
            spec.name: spec for spec in run.assets_def.check_specs if spec.asset_key == asset and spec.key in run.selected_asset_check_keys
        }
        self.failed: dict[str, str] = {}

    @property
    def checks(self) -> frozenset[str]:
        """Names of the declared checks that this run asks for."""
        return frozenset(self._specs)

    @property
    def blocking(self) -> frozenset[str]:
        return frozenset(name for name, spec in self._specs.items() if spec.blocking)

    def landed(self, done: Done, parents: Mapping[str, Shard], unchanged: bool = False) -> None:
        """Log the shard's checks and its one materialization."""
        self._log_checks(done)
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

    def failure(self, done: Done) -> None:
        """Log the shard's checks and why it did not land. No materialization: Dagster shows the shard as failed."""
        self._log_checks(done)
        error = done.error or "no reason given"
        self.failed[done.key] = error
        line = str(Failure(done.key, self.asset.to_user_string(), error))
        self._run.log.error(line + (f"\n{done.detail}" if done.detail else ""))

    def _log_checks(self, done: Done) -> None:
        for check in done.checks:
            spec = self._specs.get(check.name)
            if spec is not None:
                self._run.log_event(evaluation(spec.key, done.key, check, spec.blocking))


def metadata_values(plain: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Plain values (see `Done`) as what Dagster shows: Markdown, JSON, table schema, path, url; numbers and text as they are.

    Raises `ValueError` for a value of another kind.
    """
    return {name: _metadata_value(name, value) for name, value in plain.items()}


def _metadata_value(name: str, value: Any) -> dg.MetadataValue:
    match value:
        case bool():
            return dg.MetadataValue.bool(value)
        case int():
            return dg.MetadataValue.int(value)
        case float():
            return dg.MetadataValue.float(value)
        case str():
            return dg.MetadataValue.text(value)
        case {"md": str(text), **rest} if not rest:
            return dg.MetadataValue.md(text)
        case {"json": content, **rest} if not rest:
            return dg.MetadataValue.json(content)
        case {"path": str(path), **rest} if not rest:
            return dg.MetadataValue.path(path)
        case {"url": str(url), **rest} if not rest:
            return dg.MetadataValue.url(url)
        case {"table_schema": columns, **rest} if not rest:
            return dg.MetadataValue.table_schema(dg.TableSchema([dg.TableColumn(n, t) for n, t in columns]))
    raise ValueError(f"metadata {name!r} has a value no rule covers: {value!r}")


def evaluation(check_key: dg.AssetCheckKey, key: str, check: Check, blocking: bool = False) -> dg.AssetCheckEvaluation:
    """The event for one check of one shard."""
    return dg.AssetCheckEvaluation(
        asset_key=check_key.asset_key,
        check_name=check_key.name,
        passed=check.passed,
        partition=key,
        severity=dg.AssetCheckSeverity[check.severity],
        blocking=blocking,
        metadata=metadata_values(check.metadata),
    )
