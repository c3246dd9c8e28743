"""A shard's job on the parent's side: what it is made from, what its answer must be, what is recorded of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mm_assets.accounting.records import ShardRecord
from mm_assets.io_managers.shards import Check, Shard, ShardJob, ShardResult, blocked_by, digest
from mm_assets.workers import WorkerFailure


@dataclass(frozen=True)
class PlannedJob:
    """A job with what the parent keeps of it: the fingerprint for its record, the parent shards for its
    provenance, and what identifies code and configuration (`made_by`, part of the fingerprint).
    """

    job: ShardJob
    fingerprint: str
    parents: Mapping[str, Shard]
    made_by: str = ""

    @property
    def key(self) -> str:
        return self.job.key

    def validated(self, answer: ShardResult | WorkerFailure) -> ShardResult:
        """The worker's answer, held to the contract of `run_job`."""
        if isinstance(answer, WorkerFailure):
            return ShardResult(self.key, ok=False, error=str(answer), detail=answer.traceback)
        if not isinstance(answer, ShardResult) or answer.key != self.key:
            return ShardResult(self.key, ok=False, error=f"run_job returned {answer!r} for this shard")
        blocked = blocked_by(answer.checks, self.job.blocking)
        if answer.ok and blocked:
            return replace(answer, ok=False, error=f"{blocked}, but run_job published the shard")
        return answer if answer.ok or answer.error else replace(answer, error=blocked or "no reason given")

    def record(self, asset: str, done: ShardResult, stat: Mapping[str, Any] | None) -> ShardRecord:
        """What to remember of the published shard."""
        checks = [asdict(check) for check in done.checks]
        account = {**done.account, "made_by": self.made_by}
        return ShardRecord(
            asset,
            self.key,
            self.fingerprint,
            done.version,
            done.uri,
            stat,
            dict(done.metadata),
            checks,
            account,
        )

    def is_done(self, record: ShardRecord, asked_for: frozenset[str]) -> bool:
        """Whether the record is of the same work, with a result for each check asked for and none that
        forbids to publish.
        """
        checks = [Check(**check) for check in record.checks]
        return (
            record.fingerprint == self.fingerprint
            and asked_for <= {check.name for check in checks}
            and not blocked_by(checks, self.job.blocking)
        )


def is_intact(record: ShardRecord, stat: Mapping[str, Any] | None) -> bool:
    """Whether the output is the recorded one.

    A shard without content may have no output (an empty tar is never written).
    """
    return digest(stat) == digest(record.stat) and not (stat is None and record.uri)


def done_before(record: ShardRecord) -> ShardResult:
    """The answer of the worker that made the recorded shard."""
    checks = tuple(Check(**check) for check in record.checks)
    return ShardResult(
        record.key, ok=True, uri=record.uri, version=record.version, metadata=record.metadata, checks=checks
    )
