"""Check `zero_loss`: every published output still has every item as it was written, to the last byte.

* `Prover` is the Dagster resource: it has workers read outputs, and keeps the results below `proof/`.
* `zero_loss_checks` are the checks themselves, one for each output.
"""

import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.accounting import (
    BY_ASSET,
    DERIVED,
    OUTPUTS,
    ShardRecord,
    made_from,
    present_stats,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.canonical import TableAccount
from mm_assets.accounting.formats import accounted_format
from mm_assets.accounting.proof import Evidence, ProofStore, ShardProof
from mm_assets.graph import Check, dagster_internals
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets.graph.io_manager import Workers
from mm_assets.graph.planned_jobs import report_shards, specs_by_shard
from mm_assets.model.errors import counted
from mm_assets.model.schema import schema_from_text, schema_to_text, unify_schemas
from mm_assets.pool import WorkerFailure
from mm_assets.storage.errors import readable_store_errors
from mm_assets.storage.files import exists

ZERO_LOSS = "zero_loss"
_NAMED = 20  # samples with orphan rows
_COUNTS = ("rows", "samples", "images", "texts", "digest")
_NOTHING = {"rows": 0, "samples": 0, "images": 0, "texts": 0, "digest": ""}


@dataclass(frozen=True)
class ProofRequest:
    """A request to prove shards of an asset.

    Args:
        keys: the shards.
        materialized: the version of each materialized shard, by the event log.
        again: whether to read every shard, also one that has not changed since it was found good.
        is_whole: whether all shards of the asset are meant, also those that only the storage knows, and files
            that belong to none of them.
    """

    asset: str
    keys: Sequence[str]
    materialized: Mapping[str, str] = field(default_factory=dict)
    again: bool = False
    is_whole: bool = False


_KEPT_AT_ONCE = 500  # proofs that a killed process loses at most


class Prover(dg.ConfigurableResource[Any]):
    """Compares published outputs, read by the canonical reader of their format, with what was written."""

    root: str = Field(description="Where outputs and their records are stored: a directory or a URL.")
    workers: dg.ResourceDependency[Workers]

    def prove(self, request: ProofRequest) -> Iterator[tuple[str, Check]]:
        """Yield the check of each shard that should exist; then bring `proof.json` up to date.

        A shard should exist if it has a record, if the event log has it as materialized, or if anything in
        the storage shows that it was published once. Without a record it is unknown what was written: such a
        shard fails.
        """
        asset, output = request.asset, BY_ASSET[request.asset]
        evidence = self._evidence(asset) if request.is_whole else {}
        keys = sorted({*request.keys, *evidence})
        needed = {asset, *(each.asset for each in made_from(asset))}
        if output.source is not None:
            needed.add(output.source)
        # All rows are read once for all outputs that ask for an account.
        records = {name: Ledger(self.root).records(name, keys, with_rows=request.again) for name in needed}
        store = ProofStore(self.root)
        stats = present_stats(asset, records[asset])
        table = accounted_format(output.kind).table
        suspects = self._suspects(table, records[asset]) if table is not None else {}
        problems_by_shard = self._problems_beside(asset, records[asset]) if request.again else {}
        standing = {} if request.again else self._standing(asset, records[asset], stats, suspects)
        jobs: list[Any] = []
        proofs: list[ShardProof] = []
        proof_id = uuid.uuid4().hex
        for key in keys:
            record = records[asset].get(key)
            if record is None:
                known_from = [
                    *(["the event log"] if key in request.materialized else []),
                    *evidence.get(key, []),
                ]
                if known_from:
                    proofs.append(self._unrecorded(asset, key, known_from))
                    yield key, _check(proofs[-1])
                continue
            if (known := standing.get(key)) is not None:
                proofs.append(known)  # so that a summary without it is repaired
                yield key, _check(known)
                continue
            nbytes = stats.get(key, {}).get("size")
            jobs.append(replace(self._job(asset, key, records), nbytes=nbytes, proof=proof_id))
        if table is not None and jobs:
            schema = self._table_schema(asset) if request.again else ""
            jobs = [
                replace(job, table_schema=schema, orphan_rows=sum(suspects.get(job.key, {}).values()))
                for job in jobs
            ]
        try:
            for job, answer in self._answers(jobs, is_table=table is not None):
                if isinstance(answer, WorkerFailure):
                    answer = self._unread(job, str(answer))
                problems = [*answer.problems, *_orphan_problems(suspects.get(job.key, {}))]
                problems += _version_problems(records[asset][job.key], request.materialized.get(job.key))
                file_problems = tuple(problems_by_shard.get(job.key, ()))
                proof = replace(
                    answer,
                    stat=stats.get(job.key),
                    problems=(*problems, *file_problems),
                    beside=(*answer.beside, *file_problems),
                )
                proofs.append(proof)
                if len(proofs) % _KEPT_AT_ONCE == 0:
                    store.add(asset, proofs[-_KEPT_AT_ONCE:])
                yield job.key, _check(proof)
        except BaseException:  # also when the run is interrupted: what is proven need not be read again
            store.add(asset, proofs)
            raise
        if request.is_whole:
            unmade, unknown = Evidence(self.root).unmade(asset), self.unknown_files(asset)
            store.roll_up({asset: proofs}, {asset: unmade}, {asset: unknown})
        else:
            store.roll_up({asset: proofs})

    def proven(self, records: Mapping[str, Mapping[str, ShardRecord]]) -> dict[str, set[str]]:
        """Return the shards by asset, of those with these records, that were proven as they are now.

        `proof.json` is brought up to date with their proofs.
        """
        standing = {}
        for asset, of_asset in records.items():
            table = accounted_format(BY_ASSET[asset].kind).table
            suspects = self._suspects(table, of_asset) if table is not None else {}
            standing[asset] = self._standing(asset, of_asset, present_stats(asset, of_asset), suspects)
        ProofStore(self.root).roll_up({asset: list(proofs.values()) for asset, proofs in standing.items()})
        return {asset: set(proofs) for asset, proofs in standing.items()}

    def unknown_files(self, asset: str) -> list[str]:
        """Return the files in the output's folder that belong to no recorded shard."""
        return Evidence(self.root).unknown_files(asset, Ledger(self.root).partitions(asset))

    def _standing(
        self,
        asset: str,
        records: Mapping[str, ShardRecord],
        stats: Mapping[str, Mapping[str, Any]],
        suspects: Collection[str],
    ) -> dict[str, ShardProof]:
        """Return the proofs that still hold: of outputs that were found equal, and have not changed since."""
        proofs = ProofStore(self.root).read(asset, [key for key in records if key not in suspects])
        return {key: proof for key, proof in proofs.items() if proof.holds(records[key], stats.get(key))}

    def _answers(self, jobs: Sequence[Any], is_table: bool) -> Iterator[tuple[Any, Any]]:
        """Yield each `ProofJob` with its proof, or the failure of its worker.

        Of a table, a shard that differs is read once more in the types that all shards share: other shards
        may have widened its columns since. To know those types takes the records of all shards.
        """
        from mm_assets.graph.shard_work import prove_shard

        differing = []
        for job, answer in self.workers.map(prove_shard, jobs):
            may_be_widened = is_table and not job.table_schema
            if may_be_widened and isinstance(answer, ShardProof) and not _is_written_digest(job, answer):
                differing.append(job)
            else:
                yield job, answer
        if differing:
            schema = self._table_schema(differing[0].output.asset)
            yield from self.workers.map(prove_shard, [replace(job, table_schema=schema) for job in differing])

    def _evidence(self, asset: str) -> dict[str, list[str]]:
        found = Evidence(self.root).of(asset)
        output = BY_ASSET[asset]
        if (table := accounted_format(output.kind).table) is not None:
            try:
                committed = table.partitions(output.uri(self.root, ""))
            except (OSError, ValueError):  # the readers of the shards report the reason
                committed = ()
            for key in committed:
                found.setdefault(key, []).append("the table")
        return found

    def _problems_beside(self, asset: str, records: Mapping[str, ShardRecord]) -> dict[str, list[str]]:
        """Return a line, by shard, for each altered file of its ledger, scores and quarantine.

        The next run repairs it.
        """
        ledger = Ledger(self.root)
        found = ledger.problems(records.values())
        for derived in DERIVED.get(asset, ()):
            of_derived = ledger.records(derived, records, with_rows=True)
            for key, problems in ledger.problems(of_derived.values()).items():
                found.setdefault(key, []).extend(problems)
            for key in {*ledger.named(derived)}.intersection(records) - of_derived.keys():
                path = ledger.relative(ledger.uri(derived, key)).removeprefix("./")
                found.setdefault(key, []).append(f"{path}: unreadable")
        return found

    def _unrecorded(self, asset: str, key: str, known_from: Sequence[str]) -> ShardProof:
        output = BY_ASSET[asset]
        place = output.uri(self.root, key).removeprefix(f"{self.root.rstrip('/')}/")
        there = (
            "nobody can tell whether what lies there is what was written"
            if exists(output.uri(self.root, key))
            else "nothing is there"
        )
        problem = f"{place}: no record says what was written, known from {', '.join(known_from)}; {there}"
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

    def _unread(self, job: Any, why: str) -> ShardProof:
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
        from mm_assets.graph.shard_work import ProofJob, ProofTarget

        def output(name: str) -> ProofTarget:
            return ProofTarget(name, BY_ASSET[name].kind, records[name][key].uri)

        record = records[asset][key]
        source = BY_ASSET[asset].source
        before = output(source) if source is not None and key in records[source] else None
        after = tuple(output(each.asset) for each in made_from(asset) if key in records[each.asset])
        return ProofJob(key, output(asset), record.account, self.root, before, after)

    def _table_schema(self, asset: str) -> str:
        """Return the columns that the shards of a table share, as writers resolved them."""
        ledger = Ledger(self.root)
        records = ledger.records(asset, ledger.partitions(asset)).values()
        return schema_to_text(
            unify_schemas([schema_from_text(record.account["schema"]) for record in records])
        )

    def _suspects(self, table: TableAccount, records: Mapping[str, ShardRecord]) -> dict[str, Counter[str]]:
        """Return shards of a table that have problems, with their orphan rows by sample id."""
        suspects: dict[str, Counter[str]] = {}
        schema_of = cache(schema_from_text)  # shards of a dataset share theirs
        for uri in {record.uri for record in records.values() if record.uri}:
            schemas = {
                key: schema_of(record.account["schema"])
                for key, record in records.items()
                if record.uri == uri
            }
            try:
                suspects |= table.suspects(uri, schemas)
            except (OSError, ValueError):  # the readers of the shards report the reason
                suspects |= {key: Counter() for key in schemas}
        return suspects


def _is_written_digest(job: Any, proof: ShardProof) -> bool:
    return bool(proof.derived["digest"] == job.account["written"]["digest"])


def _orphan_problems(rows_by_sample: Mapping[str, int]) -> list[str]:
    return [
        f"sample {name!r}: {counted(rows, 'row')} that no shard has written"
        for name, rows in list(rows_by_sample.items())[:_NAMED]
    ]


def _version_problems(record: ShardRecord, materialized: str | None) -> list[str]:
    """Return a line if the event log has another version than the record: one of them was replaced."""
    if materialized in (None, record.version):
        return []
    return [
        f"the record is of version {record.version}, the event log of {materialized}: "
        "materialize the shard again"
    ]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _check(proof: ShardProof) -> Check:
    metadata = {
        **{f"{name}_found": proof.derived[name] for name in _COUNTS},
        "reader": proof.reader,
        "examined_at": proof.examined_at,
        "problems": {"json": list(proof.problems)},
        "summary": proof.problems[0] if proof.problems else "",
    }
    return Check(ZERO_LOSS, proof.is_equal, "ERROR", metadata)


UNKNOWN_FILES = "unknown_files"  # metadata of a failure: how many files no shard has written
_DAMAGED_NAMED = 5  # shards in the message of a failure


def zero_loss_checks() -> list[dg.AssetChecksDefinition]:
    """Return the check of each output that is proven.

    Launched alone it reads every shard again, and fails its run for one that is damaged.
    """
    return [_zero_loss(dg.AssetKey(output.asset)) for output in OUTPUTS]


def proof_keys() -> list[dg.AssetCheckKey]:
    """Return the keys of these checks."""
    return [dg.AssetCheckKey(dg.AssetKey(output.asset), ZERO_LOSS) for output in OUTPUTS]


def _zero_loss(asset: dg.AssetKey) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=f"{asset.to_python_identifier()}_{ZERO_LOSS}",
        specs=specs_by_shard(
            asset,
            {ZERO_LOSS: "The library that users read this format with finds every item as it was written."},
        ),
    )
    def zero_loss(context: dg.AssetCheckExecutionContext, prover: Prover) -> Iterator[dg.Output[None]]:
        with readable_store_errors():
            yield from verify(context, prover)

    def verify(context: dg.AssetCheckExecutionContext, prover: Prover) -> Iterator[dg.Output[None]]:
        request = _request(context, asset)
        damaged: dict[str, str] = {}

        def verdicts() -> Iterator[tuple[str, list[Check]]]:
            for key, check in prover.prove(request):
                if not check.passed:
                    damaged[key] = str(check.metadata["summary"])
                yield key, [check]

        unknown: list[str] = []

        def beyond_shards() -> dict[str, list[str]]:
            unknown.extend(prover.unknown_files(request.asset) if request.is_whole else ())
            return {ZERO_LOSS: [f"{file}: no shard has written it" for file in unknown]}

        yield from report_shards(context, asset, verdicts(), beyond_shards)
        if request.again and (
            damaged or unknown
        ):  # all is stored by now; in a run that makes the asset, the check alone reports it
            for key, summary in sorted(damaged.items()):
                context.log.error(f"{request.asset}, shard {key}: {summary}")
            for file in unknown:
                context.log.error(f"{request.asset}: {file}: no shard has written it")
            raise dg.Failure(
                _failure(request.asset, damaged, unknown),
                metadata={UNKNOWN_FILES: len(unknown)},
                allow_retries=False,
            )

    return zero_loss


def _request(context: dg.AssetCheckExecutionContext, asset: dg.AssetKey) -> ProofRequest:
    selected = dagster_internals.keys_of_run(context.run, SHARDS, context.instance)
    again = not dagster_internals.makes_asset(context, asset)
    keys = selected or sorted(SHARDS.get_partition_keys(dynamic_partitions_store=context.instance))
    latest = dagster_internals.latest_materializations(context.instance, asset, keys)
    versions = {key: found.version for key, found in latest.items()}
    return ProofRequest(asset.to_user_string(), keys, versions, again, is_whole=again and not selected)


def _failure(asset: str, damaged: dict[str, str], unknown: list[str]) -> str:
    parts = []
    if damaged:
        listed = "; ".join(f"{key}: {summary}" for key, summary in sorted(damaged.items())[:_DAMAGED_NAMED])
        more = f"; and {len(damaged) - _DAMAGED_NAMED} more" if len(damaged) > _DAMAGED_NAMED else ""
        which = counted(
            len(damaged),
            f"shard of {asset} is not as it was written",
            f"shards of {asset} are not as they were written",
        )
        parts.append(f"{which}: {listed}{more}")
    if unknown:
        parts.append(
            f"{len(unknown)} file(s) that no shard has written: "
            f"{', '.join(unknown[:_DAMAGED_NAMED])}{', …' if unknown[_DAMAGED_NAMED:] else ''}"
        )
    return "; ".join(parts)
