"""The proof of zero loss, as a resource that checks use: outputs examined in worker processes, verdicts kept below `proof/`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.accounting.proof import Proofs, ShardProof
from mm_assets.accounting.records import ShardRecord, ShardRecords, stat_outputs
from mm_assets.interleaved.schema_text import schema_from_text, schema_to_text
from mm_assets.interleaved.unify import unify_schemas
from mm_assets.io_managers.shards import Check, digest
from mm_assets.io_managers.workers import Workers
from mm_assets.workers import WorkerFailure

ZERO_LOSS = "zero_loss"
# The outputs that are proven: the format of each, and the output it is made from.
PROVEN = {
    "curated_parquet": ("parquet", None),
    "filtered_parquet": ("parquet", "curated_parquet"),
    "final_tars": ("webdataset", "filtered_parquet"),
    "lance_table": ("lance", "filtered_parquet"),
}


class Prover(dg.ConfigurableResource[Any]):
    """Compares what lies there, read by the canonical reader of its format, with what was written."""

    root: str = Field(description="Where outputs and their records are stored: a directory or a URL.")
    workers: dg.ResourceDependency[Workers]

    def prove(self, asset: str, keys: Sequence[str], again: bool) -> Iterator[tuple[str, Check]]:
        """The verdict on each of these shards that has landed; then `proof.json` is brought up to date.

        Without `again`, a shard whose output is still the one that was found good is not read once more.
        """
        from mm_assets.io_managers.proving import ProofJob, prove_shard

        records = {name: ShardRecords(self.root).read(name, keys) for name in PROVEN}
        proofs = Proofs(self.root)
        stats = self._stats(asset, records[asset])
        jobs: list[ProofJob] = []
        examined: list[ShardProof] = []
        for key, record in records[asset].items():
            known = None if again else proofs.read(asset, key)
            if known is not None and known.is_equal and known.stat and _same(known, record, stats.get(key)):
                examined.append(known)  # so that a summary that misses it, for whatever reason, is put right
                yield key, _check(known)
                continue
            jobs.append(self._job(asset, key, records))
        if PROVEN[asset][0] == "lance" and jobs:
            schema, strays = self._table_facts(asset)
            jobs = [replace(job, table_schema=schema, strays=strays) for job in jobs]
        for job, answer in self.workers.map(prove_shard, jobs):
            if isinstance(answer, WorkerFailure):
                yield job.key, Check(ZERO_LOSS, False, "ERROR", {"summary": str(answer), "problems": {"json": [str(answer)]}})
                continue
            proof = replace(answer, stat=stats.get(job.key))
            proofs.write(proof)
            examined.append(proof)
            yield job.key, _check(proof)
        proofs.roll_up(examined)

    def _job(self, asset: str, key: str, records: Mapping[str, Mapping[str, ShardRecord]]) -> Any:
        from mm_assets.io_managers.proving import Output, ProofJob

        def output(name: str) -> Output:
            return Output(name, PROVEN[name][0], records[name][key].uri)

        record = records[asset][key]
        source = PROVEN[asset][1]
        before = output(source) if source is not None and key in records[source] else None
        after = tuple(output(name) for name, (_, made_from) in PROVEN.items() if made_from == asset and key in records[name])
        return ProofJob(key, output(asset), record.account, self.root, before, after)

    def _stats(self, asset: str, records: Mapping[str, ShardRecord]) -> dict[str, Mapping[str, Any]]:
        if PROVEN[asset][0] == "lance":  # the table has no file of a shard's own; the commit that its rows came with is in the record
            return {key: record.stat for key, record in records.items() if record.stat is not None}
        found = stat_outputs({record.uri for record in records.values() if record.uri})
        return {key: stat for key, record in records.items() if (stat := found.get(record.uri)) is not None}

    def _table_facts(self, asset: str) -> tuple[str, int]:
        """The columns that the shards of a table share, as writers settled them, and how many rows it has beyond those of its shards."""
        from mm_assets.accounting.canonical.lance import stray_rows

        ledger = ShardRecords(self.root)
        records = ledger.read(asset, ledger.keys(asset)).values()
        schema = unify_schemas([schema_from_text(record.account["schema"]) for record in records])
        uris = {record.uri for record in records if record.uri}
        return schema_to_text(schema), sum(map(stray_rows, uris))


def _same(proof: ShardProof, record: ShardRecord, stat: Mapping[str, Any] | None) -> bool:
    return digest([proof.stat, proof.written]) == digest([stat, record.account["written"]])


def _check(proof: ShardProof) -> Check:
    metadata = {
        **{f"{name}_found": proof.derived[name] for name in ("rows", "samples", "images", "texts", "digest")},
        "reader": proof.reader,
        "problems": {"json": list(proof.problems)},
        "summary": proof.problems[0] if proof.problems else "",
    }
    return Check(ZERO_LOSS, proof.is_equal, "ERROR", metadata)
