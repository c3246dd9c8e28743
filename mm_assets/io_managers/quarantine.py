"""The quarantine: faulty items of each shard with their raw bytes, from the ledger of the asset that read
them.
"""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from mm_assets.accounting.ledger import Ledger
from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.parquet_file import UnreadableFile
from mm_assets.formats.storage import join
from mm_assets.io_managers.raw_input import RawInput
from mm_assets.io_managers.shards import Check, Plan, ShardJob, ShardResult, digest

# Side input: the raw shards, whose bytes the records hold.
RAW = "raw"
# Metadata: how many records the run closed.
_CLOSED = "closed"


def quarantine_shard(job: ShardJob) -> ShardResult:
    """Collect the open records of one shard; one that has none any more is closed, and its file goes."""
    from collections import Counter

    from mm_assets.accounting.file_digests import FILES, digest_files
    from mm_assets.accounting.quarantine import publish_quarantine, quarantine_table, record_names
    from mm_assets.formats.raw_shards import files_of
    from mm_assets.interleaved.digest import ContentDigest

    before = record_names(job.dest)
    losses = Ledger(job.root).items(job.options["source_asset"], job.key)
    records = quarantine_table(losses, files_of(job.side_inputs[RAW].uri), job.options["raw_roots"])
    nbytes = publish_quarantine(job.dest, records)
    content = ContentDigest()
    content.observe(
        records.drop_columns(["raw"])
    )  # the locators and the version of the raw shard stand for the bytes
    kinds = dict(Counter(records.column("kind").to_pylist()))
    first = (
        records.select(["sample_id", "position", "kind", "message", "source_uri", "byte_offset"])
        .slice(0, 20)
        .to_pylist()
    )
    metadata = {
        "dagster/partition_row_count": len(records),
        "records": len(records),
        _CLOSED: len(before - record_names(job.dest)),
        "kinds": {"json": kinds},
        "first": {"json": first},
        "bytes": nbytes,
    }
    summary = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    check = Check(
        "empty",
        not len(records),
        "WARN",
        {"records": len(records), "kinds": {"json": kinds}, "summary": summary},
    )
    uri = job.dest if len(records) else ""
    account = {FILES: digest_files(job.root, [job.dest])}
    return ShardResult(
        job.key,
        ok=True,
        uri=uri,
        version=content.hexdigest(),
        metadata=metadata,
        checks=(check,),
        account=account,
    )


class QuarantineIOManager(RawInput):
    """Writes the quarantine records of each shard; no file for a shard that has none."""

    folder: str = Field(default="quarantine", description="Folder of the records below the storage root.")

    run_job = staticmethod(quarantine_shard)

    def locate(self, asset: str, key: str) -> str:
        return join(self.root, self.folder, f"{partition_filename(key)}.parquet")

    def resolve_jobs(self, plan: Plan, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """The ledger to read is that of the asset that the plan takes its shards from; what is in it decides
        the records.

        One that is damaged fails its shard: what was lost is not known, and no record may be closed for that.
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
        """What an earlier run closed is not closed again."""
        return replace(record, metadata={**record.metadata, _CLOSED: 0})
