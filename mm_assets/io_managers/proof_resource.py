"""The proof of zero loss, as a resource that checks use: outputs examined in worker processes, verdicts kept
below `proof/`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.accounting.accounted_format import TableAccount, accounted_format
from mm_assets.accounting.evidence import Evidence
from mm_assets.accounting.file_digests import shards_with_problems
from mm_assets.accounting.outputs import BY_ASSET, DERIVED, OUTPUTS, made_from
from mm_assets.accounting.proof_store import ProofStore, ShardProof
from mm_assets.accounting.records import ShardRecord, ShardRecords, stat_outputs
from mm_assets.formats.storage import exists
from mm_assets.interleaved.schema_text import schema_from_text, schema_to_text
from mm_assets.interleaved.unify import unify_schemas
from mm_assets.io_managers.shards import Check, digest
from mm_assets.io_managers.workers import Workers
from mm_assets.workers import WorkerFailure

ZERO_LOSS = "zero_loss"
_NAMED = 20  # samples of rows that no shard has written
_COUNTS = ("rows", "samples", "images", "texts", "digest")
_NOTHING = {"rows": 0, "samples": 0, "images": 0, "texts": 0, "digest": ""}


@dataclass(frozen=True)
class Question:
    """What is to be proven of an asset: these shards, of which the event log knows the versions of those that
    were ``materialized``.

    ``again``: every shard is read, also one that has not changed since it was found good. ``is_whole``: all
    shards of the asset are meant, also those of which only the storage knows, and files that are of none of
    them.
    """

    asset: str
    keys: Sequence[str]
    materialized: Mapping[str, str] = field(default_factory=dict)
    again: bool = False
    is_whole: bool = False


class Prover(dg.ConfigurableResource[Any]):
    """Compares what lies there, read by the canonical reader of its format, with what was written."""

    root: str = Field(description="Where outputs and their records are stored: a directory or a URL.")
    workers: dg.ResourceDependency[Workers]

    def prove(self, question: Question) -> Iterator[tuple[str, Check]]:
        """The verdict on each shard that should be there; then `proof.json` is brought up to date.

        A shard should be there if it has a record, if the event log has it as materialized, or if anything in
        the storage tells that it landed once. Without a record nobody knows what was written: such a shard is
        not proven.
        """
        from mm_assets.io_managers.proof_job import ProofJob, prove_shard

        asset, output = question.asset, BY_ASSET[question.asset]
        evidence = self._evidence(asset) if question.is_whole else {}
        keys = sorted({*question.keys, *evidence})
        records = {each.asset: ShardRecords(self.root).read(each.asset, keys) for each in OUTPUTS}
        proofs = ProofStore(self.root)
        stats = self._stats(asset, records[asset])
        table = accounted_format(output.kind).table
        suspects = self._suspects(table, records[asset]) if table is not None else {}
        beside = self._problems_beside(asset, records[asset]) if question.again else {}
        jobs: list[ProofJob] = []
        examined: list[ShardProof] = []
        for key in keys:
            record = records[asset].get(key)
            if record is None:
                told_by = [
                    *(["the event log"] if key in question.materialized else []),
                    *evidence.get(key, []),
                ]
                if told_by:
                    examined.append(self._unrecorded(asset, key, told_by))
                    proofs.write(examined[-1])
                    yield key, _check(examined[-1])
                continue
            known = None if question.again or key in suspects else proofs.read(asset, key)
            if known is not None and known.is_equal and known.stat and _same(known, record, stats.get(key)):
                examined.append(known)  # so that a summary that misses it, for whatever reason, is put right
                yield key, _check(known)
                continue
            jobs.append(self._job(asset, key, records))
        if table is not None and jobs:
            schema = self._table_schema(asset)
            jobs = [
                replace(job, table_schema=schema, orphan_rows=sum(suspects.get(job.key, {}).values()))
                for job in jobs
            ]
        for job, answer in self.workers.map(prove_shard, jobs):
            if isinstance(answer, WorkerFailure):
                answer = self._unexamined(job, str(answer))
            problems = [*answer.problems, *_of_no_shard(suspects.get(job.key, {}))]
            problems += _versions_differ(records[asset][job.key], question.materialized.get(job.key))
            told = tuple(beside.get(job.key, ()))
            proof = replace(
                answer, stat=stats.get(job.key), problems=(*problems, *told), beside=(*answer.beside, *told)
            )
            proofs.write(proof)
            examined.append(proof)
            yield job.key, _check(proof)
        if question.is_whole:
            proofs.roll_up(
                examined, {asset: Evidence(self.root).unmade(asset)}, {asset: self.unknown_files(asset)}
            )
        else:
            proofs.roll_up(examined)

    def unknown_files(self, asset: str) -> list[str]:
        """Files in the output's folder, as its readers would find them, that are of no shard that has a
        record.
        """
        return Evidence(self.root).unknown_files(asset, ShardRecords(self.root).keys(asset))

    def _evidence(self, asset: str) -> dict[str, list[str]]:
        found = Evidence(self.root).of(asset)
        output = BY_ASSET[asset]
        if (table := accounted_format(output.kind).table) is not None:
            try:
                committed = table.partitions(output.uri(self.root, ""))
            except (OSError, ValueError):  # whoever reads the shards will say why
                committed = ()
            for key in committed:
                found.setdefault(key, []).append("the table")
        return found

    def _problems_beside(self, asset: str, records: Mapping[str, ShardRecord]) -> dict[str, list[str]]:
        """A line, by shard, for each file of its ledger, scores and quarantine that is not as it was written;
        the next run mends it.
        """
        found = shards_with_problems(self.root, records.values())
        for derived in DERIVED.get(asset, ()):
            of_derived = ShardRecords(self.root).read(derived, records)
            for key, problems in shards_with_problems(self.root, of_derived.values()).items():
                found.setdefault(key, []).extend(problems)
        return found

    def _unrecorded(self, asset: str, key: str, told_by: Sequence[str]) -> ShardProof:
        output = BY_ASSET[asset]
        place = output.uri(self.root, key).removeprefix(f"{self.root.rstrip('/')}/")
        there = (
            "nobody can tell whether what lies there is what was written"
            if exists(output.uri(self.root, key))
            else "nothing is there"
        )
        problem = f"{place}: no record says what was written, known from {', '.join(told_by)}; {there}"
        return ShardProof(
            asset,
            key,
            "",
            _NOTHING,
            _NOTHING,
            {"rows": 0, "digest": ""},
            problems=(problem,),
            examined_at=_now(),
        )

    def _unexamined(self, job: Any, why: str) -> ShardProof:
        written, lost, made_by = (job.account[name] for name in ("written", "lost", "made_by"))
        return ShardProof(
            job.output.asset,
            job.key,
            "",
            written,
            _NOTHING,
            lost,
            made_by,
            problems=(why,),
            examined_at=_now(),
        )

    def _job(self, asset: str, key: str, records: Mapping[str, Mapping[str, ShardRecord]]) -> Any:
        from mm_assets.io_managers.proof_job import ProofJob, ProofTarget

        def output(name: str) -> ProofTarget:
            return ProofTarget(name, BY_ASSET[name].kind, records[name][key].uri)

        record = records[asset][key]
        source = BY_ASSET[asset].source
        before = output(source) if source is not None and key in records[source] else None
        after = tuple(output(each.asset) for each in made_from(asset) if key in records[each.asset])
        return ProofJob(key, output(asset), record.account, self.root, before, after)

    def _stats(self, asset: str, records: Mapping[str, ShardRecord]) -> dict[str, Mapping[str, Any]]:
        if BY_ASSET[asset].format.is_table:
            # It has no file of a shard's own; the commit that its rows came with is in the record.
            return {key: record.stat for key, record in records.items() if record.stat is not None}
        found = stat_outputs({record.uri for record in records.values() if record.uri})
        return {key: stat for key, record in records.items() if (stat := found.get(record.uri)) is not None}

    def _table_schema(self, asset: str) -> str:
        """The columns that the shards of a table share, as writers resolved them."""
        ledger = ShardRecords(self.root)
        records = ledger.read(asset, ledger.keys(asset)).values()
        return schema_to_text(
            unify_schemas([schema_from_text(record.account["schema"]) for record in records])
        )

    def _suspects(self, table: TableAccount, records: Mapping[str, ShardRecord]) -> dict[str, Counter[str]]:
        """Shards of a table with which something is wrong, and the rows that are no shard's, by sample id."""
        suspects: dict[str, Counter[str]] = {}
        for uri in {record.uri for record in records.values() if record.uri}:
            schemas = {
                key: schema_from_text(record.account["schema"])
                for key, record in records.items()
                if record.uri == uri
            }
            try:
                suspects |= table.suspects(uri, schemas)
            except (OSError, ValueError):  # whoever reads the shards will say why
                suspects |= {key: Counter() for key in schemas}
        return suspects


def _of_no_shard(rows_by_sample: Mapping[str, int]) -> list[str]:
    return [
        f"sample {name!r}: {rows} rows that no shard has written"
        for name, rows in list(rows_by_sample.items())[:_NAMED]
    ]


def _versions_differ(record: ShardRecord, materialized: str | None) -> list[str]:
    """A record that was put in the place of another, or an event log that knows of another making."""
    if materialized in (None, record.version):
        return []
    return [
        f"the record is of version {record.version}, the event log of {materialized}: materialize the shard again"
    ]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _same(proof: ShardProof, record: ShardRecord, stat: Mapping[str, Any] | None) -> bool:
    return digest([proof.stat, proof.written]) == digest([stat, record.account["written"]])


def _check(proof: ShardProof) -> Check:
    metadata = {
        **{f"{name}_found": proof.derived[name] for name in _COUNTS},
        "reader": proof.reader,
        "examined_at": proof.examined_at,
        "problems": {"json": list(proof.problems)},
        "summary": proof.problems[0] if proof.problems else "",
    }
    return Check(ZERO_LOSS, proof.is_equal, "ERROR", metadata)
