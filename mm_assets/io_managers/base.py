"""The IO manager behind every sharded asset: many shards in one run, worker processes, one event for each shard.

Which hook is called when (a format supplies those marked *):

    handle_output(plan)     parent   fingerprints; unchanged shards are reported at once, without work
      locate*                 parent   the place of each output
      stat_outputs            parent   how each output looks, to see whether it is still the recorded one
      prepare_chunk           parent   a last look at all jobs together (unify schemas)
      run_job*                worker   one shard: read, transform, check, publish in one step
      publish_chunk           parent   only for formats whose shards appear by a commit for the whole chunk
    load_input()            parent   which shards landed, where, in which version: a ShardSet, never data

A shard that fails is logged and simply does not land; the good ones go on to the next asset in the same run. The check `landed`
(`mm_assets.io_managers.sharded`) then fails the run. Run on `in_process_executor`: only there do the assets share their workers,
and a step costs 2 to 10 s less.

No `from __future__ import annotations` in modules with a `ResourceDependency`: see `mm_assets.io_managers.workers`.
"""

import os
import traceback
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.accounting import records
from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.formats.storage import is_remote, local_path, sweep
from mm_assets.io_managers import events
from mm_assets.io_managers.reports import ShardReports
from mm_assets.io_managers.shards import Check, Done, Job, Plan, Shard, ShardSet, blocked_by, digest
from mm_assets.io_managers.workers import Workers
from mm_assets.workers import WorkerFailure

# Name of the check that fails a run of which shards are missing.
LANDED = "landed"
# Tag of every sharded asset, so that one can select them (`tag:mm_assets/sharded=fail`): what failed shards mean for their run.
SHARDED_TAG = "mm_assets/sharded"


@dataclass(frozen=True)
class _Task:
    """A job with what the parent keeps of it: the fingerprint for its record, the parent shards for its provenance."""

    job: Job
    fingerprint: str
    parents: Mapping[str, Shard]


class ShardIOManager(dg.ConfigurableIOManager):
    """Base of the IO managers of all formats. Subclasses give `locate` and `run_job`; further config fields become job options."""

    root: str = Field(description="Where outputs and their records are stored: a directory or a URL.")
    workers: dg.ResourceDependency[Workers]

    # --- what a format supplies ---

    @abstractmethod
    def locate(self, asset: str, key: str) -> str:
        """The URI at which shard `key` of `asset` is published."""

    @staticmethod
    def run_job(job: Job) -> Done:
        """Do one shard, in a worker. A subclass says `run_job = staticmethod(a_function_of_a_module)`; workers import that module.

        Expected failures come back as `Done(ok=False, error=one line)`, anything raised becomes one. A failed job leaves what was
        published before as it was.
        """
        raise NotImplementedError("an IO manager must set run_job")

    def options(self) -> Mapping[str, Any]:
        """What decides the bytes of an output besides the plan; sent with each job. Default: all config fields of the subclass."""
        fields = {name: getattr(self, name) for name in sorted(set(type(self).model_fields) - set(ShardIOManager.model_fields))}
        return {name: value for name, value in fields.items() if not isinstance(value, dg.ConfigurableResource)}

    def stat_outputs(self, dests: Mapping[str, str]) -> Mapping[str, Mapping[str, Any] | None]:
        """How the outputs (key -> uri) look now, by key; None for one that is not there. Default: size and time of a file."""
        found = records.stat_outputs(dests.values())
        return {key: found[uri] for key, uri in dests.items()}

    def prepare_chunk(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Last change to the jobs of a chunk, in the parent, before they are handed out. Same keys, any order."""
        return jobs

    def publish_chunk(self, dones: Sequence[Done]) -> Sequence[Done]:
        """Publish the shards that workers prepared, all in one commit; return them with final `uri`, `version`, `metadata`.

        A subclass that defines this gets no event logged before it returns. When it raises, no shard of the chunk has landed.
        """
        raise NotImplementedError

    # --- Dagster's side ---

    def handle_output(self, context: dg.OutputContext, obj: Plan) -> None:
        """Carry out the plan for the run's shards and log one event for each. Raises only for faults of code or set-up.

        A plain function on purpose: events of a generator would be held back to its end.
        """
        run = dg.AssetExecutionContext.get()
        reports = ShardReports(run, context.asset_key)
        ledger = ShardRecords(self.root)
        tasks = self._tasks(context, obj, reports)
        unchanged = self._unchanged(tasks, ledger, reports)
        for key, record in unchanged.items():
            reports.landed(_done(record), tasks[key].parents, unchanged=True)
        todo = {key: task for key, task in tasks.items() if key not in unchanged}
        for done in self._work(todo, reports):
            if done.ok:
                done = self._record(todo[done.key], done, ledger, context.asset_key)
            if done.ok:
                reports.landed(done, todo[done.key].parents)
            else:
                reports.failure(done)
        # The gate may have been left out of this run: then nobody else would fail it.
        fails = run.assets_def.tags_by_key[context.asset_key].get(SHARDED_TAG) != "skip"
        if reports.failed and fails and not events.runs_check(run, dg.AssetCheckKey(context.asset_key, LANDED)):
            raise dg.Failure(
                f"{len(reports.failed)} shard(s) of {context.asset_key.to_user_string()} failed: {', '.join(reports.failed)}",
                metadata={"shards": dg.MetadataValue.json(reports.failed)},
                allow_retries=False,
            )

    def load_input(self, context: dg.InputContext) -> ShardSet:
        """The shards of the upstream asset that this step may read.

        Left out are shards without any materialization, and those that failed in this very run: the older version that they
        still have must not pass for what this run was to make.
        """
        asset = context.asset_key
        if not context.has_asset_partitions:
            raise dg.DagsterInvariantViolationError(f"{asset.to_user_string()} is not partitioned by shard")
        keys = sorted(context.asset_partition_keys)
        found = events.latest_materializations(context.instance, asset, keys)
        run = events.run_of(context)
        failed = set(events.failed_attempts(context.instance, asset, keys, [run.run_id])) if run else set()
        return ShardSet(
            asset.to_user_string(),
            tuple(Shard(key, found[key].uri, found[key].version, found[key].pointer) for key in keys if key in found and key not in failed),
            {key: "failed in this run" if key in failed else "not materialized" for key in keys if key not in found or key in failed},
        )

    # --- steps of handle_output ---

    def _tasks(self, context: dg.OutputContext, plan: Plan, reports: ShardReports) -> dict[str, _Task]:
        """A task for each shard of the run, in the order of the keys; a shard whose input is absent fails here."""
        asset = context.asset_key.to_user_string()
        options = dict(self.options())
        made_by = digest([reports.code_version, plan.digest(), type(self).__qualname__, options])
        sources = plan.source.by_key()
        sides = {name: shards.by_key() for name, shards in plan.side.items()}
        inputs = [(plan.source, sources), *((plan.side[name], shards) for name, shards in sides.items())]
        tasks: dict[str, _Task] = {}
        for key in sorted(context.asset_partition_keys):
            missing = [shards.why_absent(key) for shards, by_key in inputs if key not in by_key]
            if missing:
                reports.failure(Done(key, ok=False, error="input missing: " + "; ".join(missing)))
                continue
            source, side = sources[key], {name: shards[key] for name, shards in sides.items()}
            parents = {plan.source.asset: source} | {plan.side[name].asset: shard for name, shard in side.items()}
            versions = {name: [plan.side[name].asset, shard.version] for name, shard in side.items()}
            job = Job(source, self.locate(asset, key), side, plan.steps, options, reports.blocking)
            fingerprint = digest([made_by, job.dest, plan.source.asset, source.version, versions])
            tasks[key] = _Task(job, fingerprint, parents)
        return tasks

    def _unchanged(self, tasks: Mapping[str, _Task], ledger: ShardRecords, reports: ShardReports) -> dict[str, ShardRecord]:
        """Records of the shards that need no work: made from the same, and the output is still the recorded one."""
        asset = reports.asset.to_user_string()
        known = {
            key: record
            for key, record in ledger.read(asset, tasks).items()
            if record.fingerprint == tasks[key].fingerprint and _answers(record, reports)
        }
        stats = self.stat_outputs({key: tasks[key].job.dest for key in known})
        return {key: known[key] for key in known if stats[key] == known[key].stat and (stats[key] is not None) == bool(known[key].uri)}

    def _work(self, tasks: Mapping[str, _Task], reports: ShardReports) -> Iterator[Done]:
        """What becomes of each task, as it becomes known: at once, or after the commit for formats that commit per chunk."""
        if not tasks:
            return
        for folder in {os.path.dirname(local_path(task.job.dest)) for task in tasks.values() if not is_remote(task.job.dest)}:
            sweep(folder)
        jobs = list(self.prepare_chunk([task.job for task in tasks.values()]))
        if {job.key for job in jobs} != set(tasks) or len(jobs) != len(tasks):
            raise ValueError(f"{type(self).__name__}.prepare_chunk must return one job for each it was given")
        commits = type(self).publish_chunk is not ShardIOManager.publish_chunk
        held: list[Done] = []
        # Closed also when an interrupt strikes while we log: its end kills the workers.
        with closing(self.workers.map(type(self).run_job, jobs)) as results:
            for job, result in results:
                done = _judged(job, result, reports.blocking)
                if done.ok and commits:
                    held.append(done)
                else:
                    yield done
        if held:
            yield from self._commit(sorted(held, key=lambda done: done.key))

    def _commit(self, held: Sequence[Done]) -> Iterator[Done]:
        try:
            published = {done.key: done for done in self.publish_chunk(held)}
        except Exception as error:  # noqa: BLE001  (whatever went wrong, no shard of the chunk has landed, and each says so)
            line = f"commit of the chunk failed: {type(error).__name__}: {error}"
            detail = "".join(traceback.format_exception(error))
            for number, done in enumerate(held):
                yield Done(done.key, ok=False, error=line, detail="" if number else detail)
            return
        for done in held:
            yield published.get(done.key) or Done(done.key, ok=False, error="publish_chunk left this shard out")

    def _record(self, task: _Task, done: Done, ledger: ShardRecords, asset: dg.AssetKey) -> Done:
        """Write the shard's record; a shard without one is not reported as landed, since its next run could not tell."""
        try:
            stat = self.stat_outputs({done.key: task.job.dest})[done.key]
            if stat is None and done.uri:
                return replace(done, ok=False, error=f"run_job says it published {done.uri}, but nothing is there")
            ledger.write(
                ShardRecord(
                    asset.to_user_string(), done.key, task.fingerprint, done.version, done.uri, stat,
                    dict(done.metadata), [asdict(check) for check in done.checks],
                )
            )  # fmt: skip
        except (OSError, TypeError, ValueError) as error:
            return replace(done, ok=False, error=f"published, but its record could not be written: {error}")
        return done


def _judged(job: Job, result: Done | WorkerFailure, blocking: frozenset[str]) -> Done:
    """The worker's answer, held to its contract."""
    if isinstance(result, WorkerFailure):
        return Done(job.key, ok=False, error=str(result), detail=result.traceback)
    if not isinstance(result, Done) or result.key != job.key:
        return Done(job.key, ok=False, error=f"run_job returned {result!r} for this shard")
    blocked = blocked_by(result.checks, blocking)
    if result.ok and blocked:
        return replace(result, ok=False, error=f"{blocked}, but run_job published the shard")
    return result if result.ok or result.error else replace(result, error=blocked or "no reason given")


def _answers(record: ShardRecord, reports: ShardReports) -> bool:
    """Whether a record has a result for each check this run asks for, and none that forbids to publish."""
    checks = [Check(**check) for check in record.checks]
    return reports.checks <= {check.name for check in checks} and not blocked_by(checks, reports.blocking)


def _done(record: ShardRecord) -> Done:
    checks = tuple(Check(**check) for check in record.checks)
    return Done(record.key, ok=True, uri=record.uri, version=record.version, metadata=record.metadata, checks=checks)
