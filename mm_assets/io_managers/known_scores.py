"""Scores that a shard has already: what is measured is not measured again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mm_assets.accounting.records import ShardRecords
from mm_assets.io_managers.shards import Check, ShardJob, ShardResult

if TYPE_CHECKING:
    import pyarrow as pa

_KNOWN = "known_scores"  # option of a job: the data version of the scores of the same rows that are there
S = TypeVar("S", covariant=True)


class Readable(Protocol[S]):
    """A class of scores that are read from a file."""

    def read(self, uri: str, digest: str | None = None) -> S: ...


def with_known_scores(root: str, jobs: Sequence[ShardJob | ShardResult]) -> Sequence[ShardJob | ShardResult]:
    """Return the jobs with what is known of the scores that they replace.

    It is no part of the fingerprint: it says what need not be done, not what comes out.
    """
    found: dict[str, str] = {}
    pending = [job for job in jobs if isinstance(job, ShardJob)]
    if pending:
        records = ShardRecords(root).read(pending[0].asset, [job.key for job in pending])
        versions = {job.key: job.shard.version for job in pending}
        found = {
            key: record.version
            for key, record in records.items()
            if versions[key] in record.account.get("inputs", {}).values()
        }
    return [
        replace(job, options={**job.options, _KNOWN: found[job.key]})
        if isinstance(job, ShardJob) and job.key in found
        else job
        for job in jobs
    ]


def known_scores(job: ShardJob, kind: Readable[S]) -> S | None:
    """Return the scores of the same rows that are there; None where there are none, or others."""
    from mm_assets.formats.parquet_file import UnreadableFile
    from mm_assets.interleaved.notices import warn_user

    if _KNOWN not in job.options:
        return None
    try:
        return kind.read(job.dest, job.options[_KNOWN])
    except FileNotFoundError:
        return None
    except UnreadableFile as error:
        warn_user(f"{error}: everything is measured again")
        return None


def published_scores(
    job: ShardJob,
    scores: pa.Table,
    version: str,
    metadata: Mapping[str, Any],
    checks: tuple[Check, ...] = (),
    ledger: Iterable[str] = (),
) -> ShardResult:
    """Publish the scores of a shard and return the result of its job.

    Args:
        version: digest of the scores.
        metadata: what is reported beside bytes and columns.
        ledger: files of the ledger, to be recorded with the scores.
    """
    from mm_assets.accounting.file_digests import FILES, digest_files
    from mm_assets.formats.parquet_file import publish_table
    from mm_assets.io_managers.shard_work import column_schema

    nbytes = publish_table(job.dest, scores)
    return ShardResult(
        job.key,
        ok=True,
        uri=job.dest,
        version=version,
        metadata={
            **metadata,
            "bytes": nbytes,
            "dagster/column_schema": {"table_schema": column_schema(scores.schema)},
        },
        checks=checks,
        account={FILES: digest_files(job.root, [job.dest, *ledger])},
    )
