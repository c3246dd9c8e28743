"""The proof of zero loss, as a resource that checks use: outputs examined in worker processes, verdicts kept below `proof/`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import Field

from mm_assets.accounting.proof import Proofs, ShardProof
from mm_assets.accounting.records import ShardRecord, ShardRecords, stat_outputs
from mm_assets.accounting.shard_columns import is_same_type
from mm_assets.interleaved.schema_text import schema_from_text, schema_to_text
from mm_assets.interleaved.unify import unify_schemas
from mm_assets.io_managers.shards import Check, digest
from mm_assets.io_managers.workers import Workers
from mm_assets.workers import WorkerFailure

ZERO_LOSS = "zero_loss"
_NAMED = 20  # samples of rows that no shard has written
# The outputs that are proven: the format of each, and the output it is made from.
PROVEN = {
    "curated_parquet": ("parquet", None),
    "filtered_parquet": ("parquet", "curated_parquet"),
    "final_tars": ("webdataset", "filtered_parquet"),
    "lance_table": ("lance", "filtered_parquet"),
    "arrow_cache": ("arrow_cache", "filtered_parquet"),
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
        suspects = self._suspects(records[asset]) if PROVEN[asset][0] == "lance" else {}
        jobs: list[ProofJob] = []
        examined: list[ShardProof] = []
        for key, record in records[asset].items():
            known = None if again or key in suspects else proofs.read(asset, key)
            if known is not None and known.is_equal and known.stat and _same(known, record, stats.get(key)):
                examined.append(known)  # so that a summary that misses it, for whatever reason, is put right
                yield key, _check(known)
                continue
            jobs.append(self._job(asset, key, records))
        if PROVEN[asset][0] == "lance" and jobs:
            schema = self._table_schema(asset)
            jobs = [replace(job, table_schema=schema, strays=sum(suspects.get(job.key, {}).values())) for job in jobs]
        for job, answer in self.workers.map(prove_shard, jobs):
            if isinstance(answer, WorkerFailure):
                yield job.key, Check(ZERO_LOSS, False, "ERROR", {"summary": str(answer), "problems": {"json": [str(answer)]}})
                continue
            named = [f"sample {name!r}: {rows} rows that no shard has written" for name, rows in suspects.get(job.key, {}).items()]
            proof = replace(answer, stat=stats.get(job.key), problems=(*answer.problems, *named[:_NAMED]))
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

    def _table_schema(self, asset: str) -> str:
        """The columns that the shards of a table share, as writers settled them."""
        ledger = ShardRecords(self.root)
        records = ledger.read(asset, ledger.keys(asset)).values()
        return schema_to_text(unify_schemas([schema_from_text(record.account["schema"]) for record in records]))

    def _suspects(self, records: Mapping[str, ShardRecord]) -> dict[str, Counter[str]]:
        """Shards of a Lance table with which something is wrong, found without reading their rows: one of their columns is gone or
        narrower, they have values in a column that is not theirs, or there are rows that no shard has written. Those are counted, by
        sample id, with the shard that has the sample id, else with the first.
        """
        suspects: dict[str, Counter[str]] = {}
        for uri in {record.uri for record in records.values() if record.uri}:
            schemas = {key: schema_from_text(record.account["schema"]) for key, record in records.items() if record.uri == uri}
            try:
                suspects |= _suspects_of_table(uri, schemas)
            except (OSError, ValueError):  # whoever reads the shards will say why
                suspects |= {key: Counter() for key in schemas}
        return suspects


def _suspects_of_table(uri: str, schemas: Mapping[str, pa.Schema]) -> dict[str, Counter[str]]:
    from mm_assets.formats.lance.writer import InterleavedLanceWriter

    writer = InterleavedLanceWriter(uri)
    columns = writer.table_columns()
    if columns is None:
        return {}
    suspects: dict[str, Counter[str]] = {key: Counter() for key, schema in schemas.items() if not _holds(columns, schema)}
    if foreign := sorted(set(columns.names).difference(*(schema.names for schema in schemas.values()))):
        suspects |= {key: Counter() for key in writer.partitions_with_values(foreign, list(schemas))}
    for stray in writer.strays():
        key = stray.partition if stray.partition in schemas else min(schemas)
        suspects.setdefault(key, Counter())[stray.sample_id] += stray.rows
    return suspects


def _holds(columns: pa.Schema, schema: pa.Schema) -> bool:
    """Whether a table of these columns can hold a shard's: each is there, and in no narrower type."""
    united = unify_schemas([columns, schema])
    asked = [field.name for field in schema if not pa.types.is_null(field.type)]
    return all(name in columns.names and is_same_type(columns.field(name), united.field(name)) for name in asked)


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
