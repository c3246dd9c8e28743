"""IO manager of the Lance table: workers write fragments, the parent commits a chunk of shards at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.accounting.file_digests import FILES
from mm_assets.accounting.outputs import BY_ASSET, LANCE
from mm_assets.accounting.proof_store import damaged_shards
from mm_assets.formats.error_lines import error_line
from mm_assets.interleaved.counted import counted
from mm_assets.interleaved.schema_text import schema_from_text, schema_to_text
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.planned_jobs import PlannedJob
from mm_assets.io_managers.shards import ShardJob, ShardResult


@dataclass(frozen=True)
class Fragments:
    """Payload for the commit: asset and report of the shard, and the digest of its input rows."""

    asset: str
    report: Any
    in_digest: str


def fragment_shard(job: ShardJob) -> ShardResult:
    """Write one filtered shard as fragments of the table; they are invisible before the commit."""
    from mm_assets.formats.lance.writer import InterleavedLanceWriter
    from mm_assets.formats.parquet import InterleavedParquetReader
    from mm_assets.io_managers.shard_work import convert_shard, reader_arguments

    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    writer = InterleavedLanceWriter(
        job.dest, on_materialize_error=job.options["on_materialize_error"], roots=()
    )
    planned = schema_from_text(job.options["planned"])
    result, report = convert_shard(job, reader, writer.planned_as(planned), job.shard.version, enters=False)
    return (
        result if report is None else replace(result, payload=Fragments(job.asset, report, job.shard.version))
    )


class LanceIOManager(ShardIOManager):
    """Writes all shards into one table with scalar indexes; replacing a chunk of shards is one commit."""

    on_materialize_error: str = Field(default="error", description="error, warn, drop_row or drop_sample.")

    run_job = staticmethod(fragment_shard)

    def locate(self, asset: str, key: str) -> str:
        return BY_ASSET[asset].place(self.root, key)

    def remove_leftovers(self, asset: str, planned: Mapping[str, PlannedJob]) -> None:
        """Also remove damaged partition records from the table: they would fail every reader of it."""
        super().remove_leftovers(asset, planned)
        self._writer().drop_damaged_records(list(planned))

    def stat_outputs(self, dests: Mapping[str, str]) -> Mapping[str, Mapping[str, Any] | None]:
        """Return the rows that the table holds of each shard. Zero rows are a state, too."""
        if not dests:
            return {}
        stats = self._writer().partition_stats(dests)
        return {key: stats.get(key, {"rows": 0}) if stats is not None else None for key in dests}

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Resolve the table's columns over all shards of the chunk.

        A shard whose schema cannot be read fails alone.
        """
        from mm_assets.formats.parquet import InterleavedParquetReader
        from mm_assets.formats.partitions import Partition

        reader = InterleavedParquetReader(())
        schemas, unreadable = {}, {}
        for job in jobs:
            try:
                schemas[job.key] = reader.open(Partition(job.key, (job.shard.uri,))).schema
            except (OSError, ValueError) as error:
                unreadable[job.key] = ShardResult(job.key, ok=False, error=error_line(error))
        if not schemas:
            return list(unreadable.values())
        planned = self._writer().prepared(list(schemas.values())).planned
        assert planned is not None
        text = schema_to_text(planned)
        return [
            unreadable.get(job.key) or replace(job, options={**job.options, "planned": text}) for job in jobs
        ]

    def publish_chunk(self, results: Sequence[ShardResult]) -> Sequence[ShardResult]:
        assets = {result.key: result.payload.asset for result in results}
        damaged = {key for key, asset in assets.items() if damaged_shards(self.root, asset, [key])}
        writer = self._writer()
        errors = writer.commit([result.payload.report for result in results], damaged)
        if damaged and (rows := writer.remove_orphan_rows()):
            dg.AssetExecutionContext.get().log.warning(
                f"{counted(rows, 'row')} that no shard has written: removed from {writer.table_uri}: "
                "the version before still has them"
            )
        return [
            replace(result, payload=None, ok=False, error=errors[result.key])
            if result.key in errors
            else self._entered(result)
            for result in results
        ]

    def _entered(self, result: ShardResult) -> ShardResult:
        """Enter a committed shard in the ledger; before the commit it is not published."""
        from mm_assets.io_managers.shard_work import enter

        files = enter(self.root, result.payload.asset, result.payload.report, result.payload.in_digest)
        return replace(result, payload=None, account={**result.account, FILES: files})

    def _writer(self) -> Any:
        from mm_assets.formats.lance.writer import InterleavedLanceWriter

        return InterleavedLanceWriter(LANCE.place(self.root, ""))


IO_MANAGER = LanceIOManager
