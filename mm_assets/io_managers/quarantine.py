"""Quarantine of each shard: its faulty items with their raw bytes, collected from the ledger."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from mm_assets.accounting.ledger import Ledger
from mm_assets.accounting.outputs import DERIVED_FOLDERS
from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.parquet_file import UnreadableFile
from mm_assets.formats.storage import join
from mm_assets.io_managers.raw_input import RawInput
from mm_assets.io_managers.shards import Plan, ShardJob, ShardResult, digest

# Side input: the raw shards, whose bytes the records hold.
RAW = "raw"
# Metadata: number of records that the run closed.
_CLOSED = "closed"


def quarantine_shard(job: ShardJob) -> ShardResult:
    """Write the open quarantine records of one shard.

    Records of items that are not faulty any more are closed. Without open records the file is removed.
    """
    from collections import Counter

    from mm_assets.accounting.file_digests import FILES, digest_files
    from mm_assets.accounting.quarantine import publish_quarantine, quarantine_table, record_names
    from mm_assets.formats.raw_shards import files_of
    from mm_assets.interleaved.digest import ContentDigest

    previous = record_names(job.dest)
    losses = Ledger(job.root).items(job.options["source_asset"], job.key)
    records = quarantine_table(losses, files_of(job.side_inputs[RAW].uri), job.options["raw_roots"])
    nbytes = publish_quarantine(job.dest, records)
    content = ContentDigest()
    content.observe(
        records.drop_columns(["raw"])
    )  # locators and version of the raw shard determine the bytes
    kinds = dict(Counter(records.column("kind").to_pylist()))
    first = (
        records.select(["sample_id", "position", "kind", "message", "source_uri", "byte_offset"])
        .slice(0, 20)
        .to_pylist()
    )
    metadata = {
        "dagster/partition_row_count": len(records),
        "records": len(records),
        _CLOSED: len(previous - record_names(job.dest)),
        "kinds": {"json": kinds},
        "first": {"json": first},
        "bytes": nbytes,
    }
    uri = job.dest if len(records) else ""
    account = {FILES: digest_files(job.root, [job.dest])}
    return ShardResult(
        job.key,
        ok=True,
        uri=uri,
        version=content.hexdigest(),
        metadata=metadata,
        checks=tuple(check.outcome(records) for check in job.checks),
        account=account,
    )


class QuarantineIOManager(RawInput):
    """Writes the quarantine records of each shard; no file for a shard that has none."""

    folder: str = Field(
        default=DERIVED_FOLDERS["quarantine"], description="Folder of the records below the storage root."
    )

    run_job = staticmethod(quarantine_shard)

    def locate(self, asset: str, key: str) -> str:
        return join(self.root, self.folder, f"{partition_filename(key)}.parquet")

    def resolve_jobs(self, plan: Plan, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Return the jobs with the ledger to read, that of the plan's source, and a digest of its losses.

        A damaged ledger fails its shard: the losses are unknown, and no record may be closed for that.
        """
        ledger, source = Ledger(self.root), plan.source.asset
        records = ShardRecords(self.root).read(source, [job.key for job in jobs])
        resolved: list[ShardJob | ShardResult] = []
        for job in jobs:
            try:
                losses = digest(ledger.recorded_items(source, job.key, records.get(job.key)).to_pylist())
            except UnreadableFile as error:
                resolved.append(ShardResult(job.key, ok=False, error=f"{error}; materialize {source} again"))
                continue
            resolved.append(replace(job, options={**job.options, "source_asset": source, "losses": losses}))
        return resolved

    def unchanged_record(self, record: ShardRecord) -> ShardRecord:
        """Return the record with a count of 0 closed records: an earlier run closed them."""
        return replace(record, metadata={**record.metadata, _CLOSED: 0})
