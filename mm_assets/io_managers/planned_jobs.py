"""Planned jobs, the parent's side of each shard: fingerprint and parents, validated result, record."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mm_assets.accounting.records import ShardRecord
from mm_assets.io_managers.shards import Check, Shard, ShardJob, ShardResult, blocked_by, digest
from mm_assets.workers import WorkerFailure


@dataclass(frozen=True)
class PlannedJob:
    """A job with what the parent keeps of it.

    Args:
        job: what is sent to the worker.
        fingerprint: digest of everything that the output is made from; kept in its record.
        parents: the upstream shards, by asset, for its provenance; without version if not there and not read.
        made_by: digest of code and configuration, part of the fingerprint.
        settings: the same in readable form; no part of the fingerprint.
    """

    job: ShardJob
    fingerprint: str
    parents: Mapping[str, Shard]
    made_by: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.job.key

    def validated(self, answer: ShardResult | WorkerFailure) -> ShardResult:
        """Return the worker's result, or a failure where it breaks the contract of `run_job`."""
        if isinstance(answer, WorkerFailure):
            return ShardResult(self.key, ok=False, error=str(answer), detail=answer.traceback)
        if not isinstance(answer, ShardResult) or answer.key != self.key:
            return ShardResult(self.key, ok=False, error=f"run_job returned {answer!r} for this shard")
        blocked = blocked_by(answer.checks, self.job.blocking)
        if answer.ok and blocked:
            return replace(answer, ok=False, error=f"{blocked}, but run_job published the shard")
        return answer if answer.ok or answer.error else replace(answer, error=blocked or "no reason given")

    def record(self, asset: str, result: ShardResult, stat: Mapping[str, Any] | None) -> ShardRecord:
        """Return the record of the published shard; `stat` is the state of its output."""
        checks = [dict(vars(check)) for check in result.checks]
        account = {
            **result.account,
            "made_by": self.made_by,
            "settings": self.settings,
            "inputs": {asset: shard.version for asset, shard in self.parents.items() if shard.version},
        }
        return ShardRecord(
            asset,
            self.key,
            self.fingerprint,
            result.version,
            result.uri,
            stat,
            dict(result.metadata),
            checks,
            account,
        )

    def is_up_to_date(self, record: ShardRecord, required_checks: frozenset[str]) -> bool:
        """Return whether the recorded work is the planned one, and passed its checks.

        Every required check needs a result, and none may forbid to publish.
        """
        return record.fingerprint == self.fingerprint and has_passed(
            record, required_checks, self.job.blocking
        )


def has_passed(record: ShardRecord, required: frozenset[str], blocking: frozenset[str]) -> bool:
    """Return whether a shard has a result of each required check, and none that keeps it back."""
    checks = [Check(**check) for check in record.checks]
    return required <= {check.name for check in checks} and not blocked_by(checks, blocking)


def is_intact(record: ShardRecord, stat: Mapping[str, Any] | None) -> bool:
    """Return whether the output is still the recorded one.

    A shard without content may have no output (an empty tar is never written).
    """
    return digest(stat) == digest(record.stat) and not (stat is None and record.uri)


def recorded_result(record: ShardRecord) -> ShardResult:
    """Return the result of the worker that made the recorded shard."""
    checks = tuple(Check(**check) for check in record.checks)
    return ShardResult(
        record.key, ok=True, uri=record.uri, version=record.version, metadata=record.metadata, checks=checks
    )
