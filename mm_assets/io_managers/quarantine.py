"""The quarantine: faulty items of each shard with their raw bytes, from the ledger of the asset that read them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import Field

from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.formats.storage import join
from mm_assets.formats.webdataset.keys import partition_filename
from mm_assets.io_managers.raw_input import RawInput
from mm_assets.io_managers.reports import ShardReports
from mm_assets.io_managers.shards import Check, Done, Job, Plan, digest
from mm_assets.io_managers.tasks import Task

# Side input: the raw shards, whose bytes the records hold.
RAW = "raw"
# Metadata: how many records the run closed.
_CLOSED = "closed"


def set_aside_shard(job: Job) -> Done:
    """Collect the open records of one shard; one that has none any more is closed, and its file goes."""
    from collections import Counter

    from mm_assets.accounting.ledger import Ledger
    from mm_assets.accounting.quarantine import publish_quarantine, quarantine_table, record_names
    from mm_assets.formats.raw_shards import files_of
    from mm_assets.interleaved.digest import ContentDigest

    before = record_names(job.dest)
    losses = Ledger(job.root).items(job.options["source_asset"], job.key)
    records = quarantine_table(losses, files_of(job.side[RAW].uri), job.options["raw_roots"])
    nbytes = publish_quarantine(job.dest, records)
    content = ContentDigest()
    content.observe(records.drop_columns(["raw"]))  # the locators and the version of the raw shard stand for the bytes
    kinds = dict(Counter(records.column("kind").to_pylist()))
    first = records.select(["sample_id", "position", "kind", "message", "source_uri", "byte_offset"]).slice(0, 20).to_pylist()
    metadata = {
        "dagster/partition_row_count": len(records),
        "records": len(records),
        _CLOSED: len(before - record_names(job.dest)),
        "kinds": {"json": kinds},
        "first": {"json": first},
        "bytes": nbytes,
    }
    summary = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    check = Check("empty", not len(records), "WARN", {"records": len(records), "kinds": {"json": kinds}, "summary": summary})
    uri = job.dest if len(records) else ""
    return Done(job.key, ok=True, uri=uri, version=content.hexdigest(), metadata=metadata, checks=(check,))


class QuarantineIOManager(RawInput):
    """Writes the quarantine records of each shard; no file for a shard that has none."""

    folder: str = Field(default="quarantine", description="Folder of the records below the storage root.")

    run_job = staticmethod(set_aside_shard)

    def locate(self, asset: str, key: str) -> str:
        return join(self.root, self.folder, f"{partition_filename(key)}.parquet")

    def settle(self, plan: Plan, jobs: Sequence[Job]) -> Sequence[Job | Done]:
        """The ledger to read is that of the asset that the plan takes its shards from; what is in it decides the records."""
        from mm_assets.accounting.ledger import Ledger

        ledger = Ledger(self.root)
        return [
            replace(
                job,
                options={
                    **job.options,
                    "source_asset": plan.source.asset,
                    "losses": digest(ledger.items(plan.source.asset, job.key).to_pylist()),
                },
            )
            for job in jobs
        ]

    def _unchanged(self, tasks: Mapping[str, Task], ledger: ShardRecords, reports: ShardReports) -> dict[str, ShardRecord]:
        """What an earlier run closed is not closed again."""
        unchanged = super()._unchanged(tasks, ledger, reports)
        return {key: replace(record, metadata={**record.metadata, _CLOSED: 0}) for key, record in unchanged.items()}
