"""Base IO manager of sharded assets: many shards per run, worker processes, one event per shard.

* `ShardIOManager` carries out the `Plan` of an asset. A shard that fails is logged and not published; the
  others go on to the next asset in the same run. The check `landed` (`mm_assets.graph.assets`) then fails the
  run.
* `ShardHooks` are the methods by which the IO managers of formats differ. Its docstring lists them in the
  order of their calls.
* `Workers`: the worker processes of a run, or tasks on a Ray cluster, as a Dagster resource. Run on
  `in_process_executor`: only there do the assets share their workers, and a step costs 2 to 10 s less.

No `from __future__ import annotations` here or in any module with a `ResourceDependency` field: Dagster reads
the annotations of the class as objects. As text they end in a pydantic validation error when the code
location loads.
"""

import os
import traceback
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import dagster as dg
from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field, PrivateAttr

from mm_assets.accounting import BY_ASSET, ShardRecord, account_folders
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.proof import damaged_shards
from mm_assets.filters.chain import VERDICTS
from mm_assets.filters.duplicates import ASSET as DUPLICATES
from mm_assets.filters.duplicates import NO_COPIES
from mm_assets.formats.raw_shards import RawLocations
from mm_assets.graph import (
    INPUT_MISSING,
    Plan,
    Shard,
    ShardJob,
    ShardResult,
    ShardSet,
    dagster_internals,
    digest,
    fingerprint_name,
)
from mm_assets.graph.instance_queries import watched
from mm_assets.graph.planned_jobs import ShardReports, is_intact, readable_settings, recorded_result
from mm_assets.graph.shard_jobs import NOT_FOUND_AGAIN, PlannedJob, RecordedJob, record_shard
from mm_assets.model.errors import counted
from mm_assets.pool import J, JobPool, R, WorkerFailure
from mm_assets.pool.ray import RayPool
from mm_assets.pool.workers import WorkerPool
from mm_assets.storage.errors import error_line, readable_store_errors
from mm_assets.storage.files import is_remote, local_path, sweep, sweep_output
from mm_assets.storage.stamps import stat_outputs

# Dagster copies a nested resource for every IO manager that has it. The copies of one run share a pool.
_Key = tuple[str, int, str, str, float | None]
_pools: dict[_Key, JobPool] = {}
_users: Counter[_Key] = Counter()


class Workers(ConfigurableResource[Any]):
    """Worker processes, started with the first job and shared by all assets that run in one process.

    Give them to every IO manager. Under the multiprocess executor each step is a process and starts workers
    of its own; use `in_process_executor` and let the workers do the work in parallel.
    """

    processes: int = Field(default=0, ge=0, description="Worker processes of a run; 0 = one for every core.")
    engine: str = Field(
        default="local",
        pattern="^(local|ray)$",
        description="local: processes of the run; ray: tasks on a cluster.",
    )
    ray_address: str = Field(default="auto", description="auto, host:port or ray://host:port.")
    raw_shards: str = Field(default="", description="Locations of raw shards, which Ray nodes have to see.")
    storage: str = Field(default="", description="Output root, which Ray nodes have to share if it is local.")
    shard_timeout: float | None = Field(
        default=None, gt=0, description="Seconds that a worker may take for one shard in one asset."
    )

    _pool: JobPool | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: InitResourceContext) -> Iterator[Any]:
        """Set up the workers, and end them with the run, however it ends (also by an interrupt)."""
        run_id = context.run.run_id if context.run else ""
        key = (run_id, self.processes, self.engine, self.ray_address, self.shard_timeout)
        if key not in _pools:
            _pools[key] = self._new_pool()
        self._pool = _pools[key]
        _users[key] += 1
        try:
            with _watched_run(context) if _users[key] == 1 else nullcontext():
                yield self
        finally:
            _users[key] -= 1
            if not _users[key]:
                del _users[key]
                _pools.pop(key).close()

    def _new_pool(self) -> JobPool:
        if self.engine == "ray":
            written = [self.storage] if self.storage and not is_remote(self.storage) else []
            read = RawLocations(self.raw_shards).local_folders()
            return RayPool(self.ray_address, self.processes, self.shard_timeout, written, read)
        return WorkerPool(self.processes, time_limit=self.shard_timeout)

    def map(
        self, fn: Callable[[J], R], jobs: Iterable[J]
    ) -> Generator[tuple[J, R | WorkerFailure], None, None]:
        """Run a function on jobs; see `WorkerPool.map` and `RayPool.map`.

        Raises:
            RuntimeError: outside of a run or of `build_resources`; use a `WorkerPool` itself there.
        """
        if self._pool is None:
            raise RuntimeError("the workers have not been set up by a run or build_resources()")
        return self._pool.map(fn, jobs)


def _watched_run(context: InitResourceContext) -> AbstractContextManager[None]:
    if context.instance is None or context.run is None:
        return nullcontext()
    return watched(context.instance, context.run)


class ShardHooks(dg.ConfigurableIOManager):
    """Contract between `ShardIOManager`, which carries a run out, and the IO manager of a format.

    IO managers define `locate` and `run_job`; their config fields become job options. All other hooks have
    defaults. An override of a hook whose default does something calls ``super()``. `handle_output` calls the
    hooks in this order, all but `run_job` in the parent:

    ===================  ===================================================================================
    `options`            what determines an output's bytes besides the plan
    `locate`             the URI of each shard's output
    `resolve_jobs`       options that depend on all shards (types of columns, the owner of a sample id)
    `remove_leftovers`   remove what dead processes left, also at the end of a run that is interrupted
    `stat_outputs`       state of each output, to see whether it is still the recorded one
    `unchanged_record`   the record to report again for a shard that needs no work
    `before_jobs`        preparation before the first job, also where there is none
    `prepare_chunk`      the last change to the remaining jobs, together
    `run_job`            in a worker, for each shard: read, transform, check, publish in one step
    `publish_chunk`      only for formats that publish all shards of a chunk in one commit
    `after_jobs`         what is derived from the published shards of the run
    ===================  ===================================================================================
    """

    root: str = Field(description="Where outputs and their records are stored: a directory or a URL.")
    workers: dg.ResourceDependency[Workers]

    @abstractmethod
    def locate(self, asset: str, key: str) -> str:
        """Return the URI at which shard `key` of `asset` is published."""

    @staticmethod
    def run_job(job: ShardJob) -> ShardResult:
        """Process one shard, in a worker.

        A subclass sets `run_job = staticmethod(a_function_of_a_module)`; workers import that module. Expected
        failures are returned as `ShardResult(ok=False, error=one line)`; any exception becomes one. A failed
        job leaves what was published before as it was.
        """
        raise NotImplementedError("an IO manager must set run_job")

    def options(self) -> Mapping[str, Any]:
        """Return what determines the bytes of an output besides the plan; it is sent with each job.

        Default: all config fields of the subclass.
        """
        fields = {
            name: getattr(self, name)
            for name in sorted(set(type(self).model_fields) - set(ShardHooks.model_fields))
        }
        return {
            name: value for name, value in fields.items() if not isinstance(value, dg.ConfigurableResource)
        }

    def stat_outputs(self, dests: Mapping[str, str]) -> Mapping[str, Mapping[str, Any] | None]:
        """Return the current state of the outputs, by key; None for an output that does not exist.

        Default: size and modification time of a file.

        Args:
            dests: URI of each output, by key.
        """
        found = stat_outputs(dests.values())
        return {key: found[uri] for key, uri in dests.items()}

    def resolve_jobs(self, plan: Plan, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Return the jobs with options that follow from all shards; they are part of the fingerprint.

        Called with every shard of the run, also with those that turn out unchanged. Return the same keys, in
        any order. A `ShardResult` in the place of a job fails its shard.
        """
        return jobs

    def remove_leftovers(self, asset: str, planned: Mapping[str, PlannedJob]) -> None:
        """Remove what dead processes left, also those of a survey or a proof.

        Called also when there is no other work to do, and when the step ends with an error or an interrupt.
        Default: temporary files beside the outputs and among the records.
        """
        folders = {
            os.path.dirname(local_path(job.job.dest))
            for job in planned.values()
            if not is_remote(job.job.dest)
        }
        for folder in folders:
            sweep_output(folder)
        if not is_remote(self.root):
            for folder in account_folders(local_path(self.root), asset):
                sweep(folder)

    def unchanged_record(self, record: ShardRecord) -> ShardRecord:
        """Return the record that is reported again for a shard that needs no work. Default: as it is."""
        return record

    def before_jobs(self, planned: Mapping[str, PlannedJob]) -> None:
        """Prepare for the jobs that will run (possibly none). Called before the first of them."""

    def repair_derived(self) -> None:
        """Make again what is derived from the outputs, where no output is to be made. Default: nothing is."""

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Return the jobs of a chunk with their last changes; called in the parent.

        Return the same keys, in any order. A `ShardResult` in the place of a job fails its shard: an input
        that cannot be read here must not keep the others from their work.
        """
        return jobs

    def publish_chunk(self, results: Sequence[ShardResult]) -> Sequence[ShardResult]:
        """Publish the shards that workers prepared, all in one commit.

        No event is logged before this returns. When it raises, no shard of the chunk has landed.

        Returns:
            The results with final `uri`, `version` and `metadata`.
        """
        raise NotImplementedError

    def after_jobs(self, made: Sequence[ShardResult]) -> None:
        """Derive what is derived from shards that were made in this run; their events are logged by then.

        Not called after a crash, so the next run must do without it.
        """


# Name of the check that fails a run with missing shards.
LANDED = "landed"
FAILED_HERE = "failed_in_this_run"  # in its metadata: those of its own run; `shards` are all
# Tag of every sharded asset: whether failed shards fail their run. Selects the assets, too
# (`tag:mm_assets/sharded=strict`).
SHARDED_TAG = "mm_assets/sharded"
STRICT, LENIENT = "strict", "lenient"


class ShardIOManager(ShardHooks):
    """Base of the IO managers of all formats: plans the jobs of a run, has workers do them, logs the events.

    `handle_output` calls the hooks of `ShardHooks`. `load_input` then gives the next asset a `ShardSet`: the
    published shards, with URI and version.
    """

    @readable_store_errors()
    def handle_output(self, context: dg.OutputContext, obj: Plan) -> None:
        """Carry out the plan for the run's shards and log one event for each.

        A plain function on purpose: Dagster would hold back the events of a generator until its end. Raises
        only for errors in code or set-up, and `dagster.Failure` for failed shards when no other step fails
        the run.
        """
        run = dg.AssetExecutionContext.get()
        reports = ShardReports(run, context.asset_key)
        ledger = Ledger(self.root)
        asset = context.asset_key.to_user_string()
        planned: dict[str, PlannedJob] = {}
        try:
            version = reports.code_version
            reports.begin(self.made_by(asset, version, obj), self.settings(asset, version, obj), self.limit())
            keys = context.asset_partition_keys
            planned = self.planned_jobs(asset, keys, obj, version, reports.blocking, reports.failure)
            self.remove_leftovers(asset, planned)
            self._carry_out(planned, run.instance, ledger, reports)
        except BaseException:  # an interrupt, too: the workers were ended in the middle of their writing
            with suppress(OSError):  # it would hide why the run ends; the next run tries again
                self.remove_leftovers(asset, planned)
            raise
        reports.finish()
        # The check `landed` may not be part of this run: then nothing else would fail it.
        fails = run.assets_def.tags_by_key[context.asset_key].get(SHARDED_TAG) != LENIENT
        if (
            reports.failed
            and fails
            and not dagster_internals.runs_check(run, dg.AssetCheckKey(context.asset_key, LANDED))
        ):
            raise dg.Failure(
                f"{counted(len(reports.failed), 'shard')} of {context.asset_key.to_user_string()} failed: "
                f"{', '.join(sorted(reports.failed))}",
                metadata={"shards": dg.MetadataValue.json(reports.failed)},
                allow_retries=False,
            )

    def load_input(self, context: dg.InputContext) -> ShardSet:
        """Return the shards of the upstream asset that this step may read.

        It leaves out shards without any materialization, and those that failed in this very run: their older
        version must not pass for what this run was to make.
        """
        asset = context.asset_key
        if not context.has_asset_partitions:
            raise dg.DagsterInvariantViolationError(f"{asset.to_user_string()} is not partitioned by shard")
        keys = sorted(context.asset_partition_keys)
        found = dagster_internals.latest_materializations(context.instance, asset, keys)
        run = dagster_internals.run_of(context)
        failed = (
            dagster_internals.attempts_without_result(context.instance, asset, keys, [run.run_id])
            if run
            else {}
        )
        told = dagster_internals.latest_observations(context.instance, asset, failed) if failed else {}
        return ShardSet(
            asset.to_user_string(),
            tuple(
                Shard(key, found[key].uri, found[key].version, found[key].pointer)
                for key in keys
                if key in found and key not in failed
            ),
            {
                key: _failed_for(told.get(key), run) if key in failed else "not materialized"
                for key in keys
                if key not in found or key in failed
            },
        )

    def made_by(self, asset: str, code_version: str, plan: Plan) -> str:
        """Return the digest of code and settings that the outputs of a plan are made by."""
        return digest([code_version, plan.digest(), fingerprint_name(type(self)), self._all_options(asset)])

    def settings(self, asset: str, code_version: str, plan: Plan) -> dict[str, Any]:
        """Return what that is a digest of, as far as people can compare it."""
        return readable_settings(code_version, plan, self._all_options(asset))

    def intact_records(self, asset: str, records: Mapping[str, ShardRecord]) -> dict[str, ShardRecord]:
        """Return the records, by key, whose outputs are as published: same state, none found damaged."""
        stats = self.stat_outputs({key: self.locate(asset, key) for key in records})
        damaged = damaged_shards(self.root, asset, records)
        return {
            key: self.unchanged_record(record)
            for key, record in records.items()
            if is_intact(record, stats[key]) and key not in damaged
        }

    def limit(self) -> str:
        """Return the setting that refuses shards, but changes no bytes of others; empty: none does."""
        return ""

    def _all_options(self, asset: str) -> dict[str, Any]:
        options = dict(self.options())
        if asset in BY_ASSET:  # part of every fingerprint so far: without it all shards would be made again
            options["folder"] = BY_ASSET[asset].folder.partition("/")[0]
        return options

    # --- steps of handle_output ---

    def _carry_out(
        self,
        planned: Mapping[str, PlannedJob],
        instance: dg.DagsterInstance,
        ledger: Ledger,
        reports: ShardReports,
    ) -> None:
        """Make the shards that are not as planned, and report all."""
        unchanged = self._unchanged_records(planned, ledger, reports)
        latest = dagster_internals.latest_materializations(instance, reports.asset, unchanged)
        # A record that replaced another would be reported as the version that was made.
        # Its shard is made again.
        unchanged = {
            key: record
            for key, record in unchanged.items()
            if key not in latest or latest[key].version == record.version
        }
        for key, record in unchanged.items():
            job = planned[key]
            if record.is_earlier:
                self._upgrade(ledger, record)
            else:
                ledger.remove_earlier(record)  # what a killed upgrade has left
            reports.landed(recorded_result(record), job.parents, unchanged=True)
        stale = {key: job for key, job in planned.items() if key not in unchanged}
        made: list[ShardResult] = []
        # Closed even when an interrupt strikes while we log: that ends the workers.
        with closing(self._results(stale)) as work:
            for results in work:
                for result in self._write_records(stale, results, ledger):
                    if result.ok:
                        reports.landed(result, stale[result.key].parents)
                        made.append(replace(result, written=None))
                    else:
                        reports.failure(result)
        if made:
            self.after_jobs(made)

    def _upgrade(self, ledger: Ledger, record: ShardRecord) -> None:
        """Write the account of a shard that an earlier release has made, if it can be read."""
        try:
            ledger.upgrade(record)
        except (OSError, ValueError) as error:
            dg.get_dagster_logger().warning(
                f"shard {record.key!r} keeps its earlier record: {error_line(error)}"
            )

    def planned_jobs(
        self,
        asset: str,
        keys: Iterable[str],
        plan: Plan,
        code_version: str,
        blocking: frozenset[str],
        fail: Callable[[ShardResult], None],
    ) -> dict[str, PlannedJob]:
        """Return a job for each shard that can be made, by key; ``fail`` is called for each of the others.

        Args:
            keys: shards of one run.
            blocking: names of the checks that keep a shard back.
        """
        options, ledger = self._all_options(asset), Ledger(self.root)
        made_by = self.made_by(asset, code_version, plan)
        settings = self.settings(asset, code_version, plan)
        sources = plan.source.by_key()
        side_inputs_by_key = {name: shards.by_key() for name, shards in plan.side_inputs.items()}
        inputs = [
            (plan.source, sources),
            *((plan.side_inputs[name], shards) for name, shards in side_inputs_by_key.items()),
        ]
        jobs: list[ShardJob] = []
        for key in sorted(keys):
            missing = [shards.why_absent(key) for shards, by_key in inputs if key not in by_key]
            if missing:
                error = INPUT_MISSING + "; ".join(dict.fromkeys(missing))
                fail(ShardResult(key, ok=False, error=error))
                continue
            side_inputs = {name: shards[key] for name, shards in side_inputs_by_key.items()}
            dest = self.locate(asset, key)
            jobs.append(
                ShardJob(
                    sources[key],
                    dest,
                    side_inputs,
                    plan.steps,
                    options,
                    blocking,
                    asset,
                    self.root,
                    plan.checks,
                )
            )
        unread = {shards.asset: shards.by_key() for shards in plan.unread}
        planned: dict[str, PlannedJob] = {}
        for job in _same_keys(jobs, self.resolve_jobs(plan, jobs) if jobs else [], "resolve_jobs"):
            if isinstance(job, ShardResult):
                fail(replace(job, ok=False))
                continue
            parents = {plan.source.asset: job.shard} | {
                plan.side_inputs[name].asset: shard for name, shard in job.side_inputs.items()
            }
            # Without a pointer they make nothing stale, whatever becomes of them.
            for name, by_key in unread.items():
                parents[name] = replace(by_key.get(job.key, Shard(job.key, "", "")), pointer=None)
            if VERDICTS in job.options:
                parents[DUPLICATES] = Shard(job.key, "", job.options[VERDICTS] or NO_COPIES)
            versions = {
                name: [plan.side_inputs[name].asset, shard.version] for name, shard in job.side_inputs.items()
            }
            resolved = {name: value for name, value in job.options.items() if name not in options}
            made_from = [made_by, ledger.relative(job.dest), plan.source.asset, job.shard.version, versions]
            planned[job.key] = PlannedJob(
                job, digest([*made_from, resolved] if resolved else made_from), parents, made_by, settings
            )
        return planned

    def _unchanged_records(
        self, planned: Mapping[str, PlannedJob], ledger: Ledger, reports: ShardReports
    ) -> dict[str, ShardRecord]:
        """Return records of shards that need no work: same fingerprint, output as recorded."""
        asset = reports.asset.to_user_string()
        known = {
            key: record
            for key, record in ledger.records(asset, planned).items()
            if planned[key].is_up_to_date(record, reports.checks)
        }
        problems = ledger.problems(known.values())
        for key, lines in problems.items():
            dg.get_dagster_logger().warning(f"shard {key!r} of {asset} is made again: {'; '.join(lines)}")
        return self.intact_records(asset, {key: known[key] for key in known if key not in problems})

    def _results(self, planned: Mapping[str, PlannedJob]) -> Generator[Sequence[ShardResult], None, None]:
        """Yield the results as they become known: one by one, or all good ones after their commit."""
        self.before_jobs(planned)
        if not planned:
            return
        jobs = [job.job for job in planned.values()]
        prepared = _same_keys(jobs, self.prepare_chunk(jobs), "prepare_chunk")
        for item in prepared:
            if isinstance(item, ShardResult):
                yield [replace(item, ok=False)]
        cls = type(self)
        commits = cls.publish_chunk is not ShardHooks.publish_chunk
        pending_commit: list[ShardResult] = []
        ready = [item for item in prepared if isinstance(item, ShardJob)]
        recorded = [RecordedJob(cls.run_job, replace(planned[job.key], job=job)) for job in ready]
        work: Generator[tuple[Any, ShardResult | WorkerFailure], None, None] = (
            self.workers.map(cls.run_job, ready)
            if commits or cls.stat_outputs is not ShardHooks.stat_outputs  # which workers cannot ask
            else self.workers.map(record_shard, recorded)
        )
        with closing(work) as answers:
            for job, answer in answers:
                result = planned[job.key].validated(answer)
                if result.ok and commits:
                    pending_commit.append(result)
                else:
                    yield [result]
        if pending_commit:
            yield self._commit(sorted(pending_commit, key=lambda result: result.key))

    def _commit(self, pending_commit: Sequence[ShardResult]) -> Sequence[ShardResult]:
        try:
            published = {result.key: result for result in self.publish_chunk(pending_commit)}
        except Exception as error:  # noqa: BLE001  (whatever went wrong, no shard of the chunk has landed)
            line = f"commit of the chunk failed: {error_line(error)}"
            failed = [ShardResult(result.key, ok=False, error=line) for result in pending_commit]
            return [replace(failed[0], detail="".join(traceback.format_exception(error))), *failed[1:]]
        return [
            published.get(result.key)
            or ShardResult(result.key, ok=False, error="publish_chunk left this shard out")
            for result in pending_commit
        ]

    def _write_records(
        self, planned: Mapping[str, PlannedJob], results: Sequence[ShardResult], ledger: Ledger
    ) -> Iterator[ShardResult]:
        """Write the records of published shards that workers have left to do, and yield the results."""
        left = {one.key: planned[one.key].job.dest for one in results if one.ok and one.written is None}
        try:
            stats = self.stat_outputs(left) if left else {}
        except OSError as error:
            line = f"{NOT_FOUND_AGAIN}: {error_line(error)}"
            results = [replace(one, ok=False, error=line) if one.key in left else one for one in results]
            left = {}
        for result in results:
            if result.key in left:
                result = planned[result.key].recorded(result, stats[result.key], ledger)
            if result.written is not None:
                result.written.remember()
            yield result


def _failed_for(told: dagster_internals.Latest | None, run: dg.DagsterRun | None) -> str:
    """Return that a shard has failed in this run, and why, if an observation of the run tells."""
    is_own = told is not None and run is not None and told.run_id == run.run_id
    reason = str(told.metadata.get(dagster_internals.REASON, "")) if told is not None and is_own else ""
    return f"failed in this run: {reason}" if reason else "failed in this run"


def _same_keys(
    jobs: Sequence[ShardJob], items: Sequence[ShardJob | ShardResult], hook: str
) -> list[ShardJob | ShardResult]:
    if sorted(item.key for item in items) != sorted(job.key for job in jobs):
        raise ValueError(f"{hook} must return one item for each job it was given")
    return list(items)
