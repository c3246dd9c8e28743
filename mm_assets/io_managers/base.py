"""The IO manager behind every sharded asset: many shards in one run, worker processes, one event for each
shard.

A shard that fails is logged and simply does not land; the good ones go on to the next asset in the same run.
The check `landed` (`mm_assets.io_managers.sharded`) then fails the run. Run on `in_process_executor`: only
there do the assets share their workers, and a step costs 2 to 10 s less.

No `from __future__ import annotations` in modules with a `ResourceDependency`: see
`mm_assets.io_managers.workers`.
"""

import os
import traceback
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.accounting import records
from mm_assets.accounting.file_digests import shards_with_problems
from mm_assets.accounting.proof_store import damaged_shards
from mm_assets.accounting.outputs import BY_ASSET
from mm_assets.accounting.records import ShardRecord, ShardRecords, account_folders
from mm_assets.formats.error_lines import error_line, readable_store_errors
from mm_assets.formats.storage import is_remote, local_path, sweep, sweep_output
from mm_assets.io_managers import events
from mm_assets.io_managers.planned_jobs import PlannedJob, done_before, is_intact
from mm_assets.io_managers.reports import ShardReports
from mm_assets.io_managers.shards import Plan, Shard, ShardJob, ShardResult, ShardSet, digest
from mm_assets.io_managers.workers import Workers

# Name of the check that fails a run of which shards are missing.
LANDED = "landed"
# Tag of every sharded asset, so that one can select them (`tag:mm_assets/sharded=fail`): what failed shards
# mean for their run.
SHARDED_TAG = "mm_assets/sharded"


class ShardIOManager(dg.ConfigurableIOManager):
    """Base of the IO managers of all formats.

    Subclasses give `locate` and `run_job`; further config fields become job options. All other hooks have
    defaults. Those that do something by default say so: who overrides one calls ``super()``. Within
    `handle_output` they are called in this order, all but `run_job` in the parent:

    ===================  ===================================================================================
    `options`            what decides an output's bytes besides the plan
    `locate`             for each shard: the place of its output
    `resolve_jobs`       what all shards together decide for each (types of columns, which shard keeps an id)
    `remove_leftovers`   what processes that died have left; files are removed by default
    `stat_outputs`       how each output looks, to see whether it is still the recorded one
    `unchanged_record`   for each shard that needs no work: what of its record is reported again
    `before_jobs`        what is to be done before the first job, also where there is none
    `prepare_chunk`      the last change to the jobs that are left, together
    `run_job`            in a worker, for each shard: read, transform, check, publish in one step
    `publish_chunk`      only for formats whose shards appear by a commit for the whole chunk
    ===================  ===================================================================================

    `load_input` then gives the next asset a `ShardSet`: which shards landed, where, in which version.
    """

    root: str = Field(description="Where outputs and their records are stored: a directory or a URL.")
    workers: dg.ResourceDependency[Workers]

    # --- what a format supplies ---

    @abstractmethod
    def locate(self, asset: str, key: str) -> str:
        """The URI at which shard `key` of `asset` is published."""

    @staticmethod
    def run_job(job: ShardJob) -> ShardResult:
        """Do one shard, in a worker. A subclass says `run_job = staticmethod(a_function_of_a_module)`;
        workers import that module.

        Expected failures come back as `ShardResult(ok=False, error=one line)`, anything raised becomes one. A
        failed job leaves what was published before as it was.
        """
        raise NotImplementedError("an IO manager must set run_job")

    def options(self) -> Mapping[str, Any]:
        """What decides the bytes of an output besides the plan; sent with each job. Default: all config
        fields of the subclass.
        """
        fields = {
            name: getattr(self, name)
            for name in sorted(set(type(self).model_fields) - set(ShardIOManager.model_fields))
        }
        return {
            name: value for name, value in fields.items() if not isinstance(value, dg.ConfigurableResource)
        }

    def stat_outputs(self, dests: Mapping[str, str]) -> Mapping[str, Mapping[str, Any] | None]:
        """How the outputs (key -> uri) look now, by key; None for one that is not there. Default: size and
        time of a file.
        """
        found = records.stat_outputs(dests.values())
        return {key: found[uri] for key, uri in dests.items()}

    def resolve_jobs(self, plan: Plan, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Options of single shards that follow from all shards together; part of the fingerprint. Same keys,
        any order.

        Asked for every shard of the run, also for those that turn out unchanged. A `ShardResult` in the place
        of a job fails its shard.
        """
        return jobs

    def remove_leftovers(self, asset: str, planned: Mapping[str, PlannedJob]) -> None:
        """Remove what processes that died left, also those of a survey or a proof: there may be no other work
        to do any more. Default: temporary files beside the outputs and among the records.
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
        """The record of a shard that needs no work, as it is reported again. Default: as it is."""
        return record

    def before_jobs(self, planned: Mapping[str, PlannedJob]) -> None:
        """Called once the shards that are to be made are known (none, it may be), before the first of them."""

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Last change to the jobs of a chunk, in the parent, before they are handed out. Same keys, any
        order.

        A `ShardResult` in the place of a job fails its shard: an input that cannot be read here must not keep
        the others from their work.
        """
        return jobs

    def publish_chunk(self, dones: Sequence[ShardResult]) -> Sequence[ShardResult]:
        """Publish the shards that workers prepared, all in one commit; return them with final `uri`,
        `version`, `metadata`.

        A subclass that defines this gets no event logged before it returns. When it raises, no shard of the
        chunk has landed.
        """
        raise NotImplementedError

    # --- Dagster's side ---

    @readable_store_errors()
    def handle_output(self, context: dg.OutputContext, obj: Plan) -> None:
        """Carry out the plan for the run's shards and log one event for each. Raises only for faults of code
        or set-up.

        A plain function on purpose: events of a generator would be held back to its end.
        """
        run = dg.AssetExecutionContext.get()
        reports = ShardReports(run, context.asset_key)
        ledger = ShardRecords(self.root)
        planned = self._planned(context, obj, ledger, reports)
        self.remove_leftovers(context.asset_key.to_user_string(), planned)
        unchanged = self._unchanged(planned, ledger, reports)
        latest = events.latest_materializations(run.instance, context.asset_key, unchanged)
        # A record that was put in the place of another would be reported as what was made: its shard is made
        # again.
        unchanged = {
            key: record
            for key, record in unchanged.items()
            if key not in latest or latest[key].version == record.version
        }
        for key, record in unchanged.items():
            reports.landed(done_before(record), planned[key].parents, unchanged=True)
        stale = {key: job for key, job in planned.items() if key not in unchanged}
        # Closed even when an interrupt strikes while we log: that ends the workers.
        with closing(self._work(stale)) as work:
            for dones in work:
                for done in self._recorded(stale, dones, ledger, context.asset_key.to_user_string()):
                    if done.ok:
                        reports.landed(done, stale[done.key].parents)
                    else:
                        reports.failure(done)
        reports.finish()
        # The gate may have been left out of this run: then nobody else would fail it.
        fails = run.assets_def.tags_by_key[context.asset_key].get(SHARDED_TAG) != "skip"
        if (
            reports.failed
            and fails
            and not events.runs_check(run, dg.AssetCheckKey(context.asset_key, LANDED))
        ):
            raise dg.Failure(
                f"{len(reports.failed)} shard(s) of {context.asset_key.to_user_string()} failed: {', '.join(sorted(reports.failed))}",
                metadata={"shards": dg.MetadataValue.json(reports.failed)},
                allow_retries=False,
            )

    def load_input(self, context: dg.InputContext) -> ShardSet:
        """The shards of the upstream asset that this step may read.

        Left out are shards without any materialization, and those that failed in this very run: the older
        version that they still have must not pass for what this run was to make.
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
            tuple(
                Shard(key, found[key].uri, found[key].version, found[key].pointer)
                for key in keys
                if key in found and key not in failed
            ),
            {
                key: "failed in this run" if key in failed else "not materialized"
                for key in keys
                if key not in found or key in failed
            },
        )

    # --- steps of handle_output ---

    def _planned(
        self, context: dg.OutputContext, plan: Plan, ledger: ShardRecords, reports: ShardReports
    ) -> dict[str, PlannedJob]:
        """A job for each shard of the run, in the order of the keys; a shard whose input is absent fails
        here.
        """
        asset = context.asset_key.to_user_string()
        options = dict(self.options())
        if asset in BY_ASSET:  # in fingerprints since the first release: without it all shards would be made anew
            options["folder"] = BY_ASSET[asset].folder.partition("/")[0]
        made_by = digest([reports.code_version, plan.digest(), type(self).__qualname__, options])
        sources = plan.source.by_key()
        sides = {name: shards.by_key() for name, shards in plan.side_inputs.items()}
        inputs = [
            (plan.source, sources),
            *((plan.side_inputs[name], shards) for name, shards in sides.items()),
        ]
        jobs: list[ShardJob] = []
        for key in sorted(context.asset_partition_keys):
            missing = [shards.why_absent(key) for shards, by_key in inputs if key not in by_key]
            if missing:
                reports.failure(ShardResult(key, ok=False, error="input missing: " + "; ".join(missing)))
                continue
            side_inputs = {name: shards[key] for name, shards in sides.items()}
            dest = self.locate(asset, key)
            jobs.append(
                ShardJob(
                    sources[key],
                    dest,
                    side_inputs,
                    plan.steps,
                    options,
                    reports.blocking,
                    asset,
                    self.root,
                    plan.checks,
                )
            )
        planned: dict[str, PlannedJob] = {}
        for job in _same_keys(jobs, self.resolve_jobs(plan, jobs) if jobs else [], "resolve_jobs"):
            if isinstance(job, ShardResult):
                reports.failure(replace(job, ok=False))
                continue
            parents = {plan.source.asset: job.shard} | {
                plan.side_inputs[name].asset: shard for name, shard in job.side_inputs.items()
            }
            versions = {
                name: [plan.side_inputs[name].asset, shard.version] for name, shard in job.side_inputs.items()
            }
            resolved = {name: value for name, value in job.options.items() if name not in options}
            made_from = [made_by, ledger.relative(job.dest), plan.source.asset, job.shard.version, versions]
            planned[job.key] = PlannedJob(
                job, digest([*made_from, resolved] if resolved else made_from), parents, made_by
            )
        return planned

    def _unchanged(
        self, planned: Mapping[str, PlannedJob], ledger: ShardRecords, reports: ShardReports
    ) -> dict[str, ShardRecord]:
        """Records of the shards that need no work: made from the same, and the output is still the recorded
        one.
        """
        records = ledger.read(reports.asset.to_user_string(), planned)
        known = {
            key: record for key, record in records.items() if planned[key].is_done(record, reports.checks)
        }
        stats = self.stat_outputs({key: planned[key].job.dest for key in known})
        asset = reports.asset.to_user_string()
        damaged = damaged_shards(self.root, asset, known)
        for key, problems in shards_with_problems(self.root, known.values()).items():
            damaged.add(key)
            dg.get_dagster_logger().warning(f"shard {key!r} of {asset} is made again: {'; '.join(problems)}")
        return {
            key: self.unchanged_record(record)
            for key, record in known.items()
            if is_intact(record, stats[key]) and key not in damaged
        }

    def _work(self, planned: Mapping[str, PlannedJob]) -> Generator[Sequence[ShardResult], None, None]:
        """What becomes of the jobs, as it becomes known: one by one, or all good ones after their commit."""
        self.before_jobs(planned)
        if not planned:
            return
        jobs = [job.job for job in planned.values()]
        prepared = _same_keys(jobs, self.prepare_chunk(jobs), "prepare_chunk")
        for item in prepared:
            if isinstance(item, ShardResult):
                yield [replace(item, ok=False)]
        commits = type(self).publish_chunk is not ShardIOManager.publish_chunk
        held: list[ShardResult] = []
        with closing(
            self.workers.map(type(self).run_job, [item for item in prepared if isinstance(item, ShardJob)])
        ) as answers:
            for job, answer in answers:
                done = planned[job.key].validated(answer)
                if done.ok and commits:
                    held.append(done)
                else:
                    yield [done]
        if held:
            yield self._committed(sorted(held, key=lambda done: done.key))

    def _committed(self, held: Sequence[ShardResult]) -> Sequence[ShardResult]:
        try:
            published = {done.key: done for done in self.publish_chunk(held)}
        except Exception as error:  # noqa: BLE001  (whatever went wrong, no shard of the chunk has landed, and each says so)
            line = f"commit of the chunk failed: {error_line(error)}"
            failed = [ShardResult(done.key, ok=False, error=line) for done in held]
            return [replace(failed[0], detail="".join(traceback.format_exception(error))), *failed[1:]]
        return [
            published.get(done.key)
            or ShardResult(done.key, ok=False, error="publish_chunk left this shard out")
            for done in held
        ]

    def _recorded(
        self,
        planned: Mapping[str, PlannedJob],
        dones: Sequence[ShardResult],
        ledger: ShardRecords,
        asset: str,
    ) -> Iterator[ShardResult]:
        """Write the records of what is published.

        Without one a shard has not landed: its next run could not tell what is there.
        """
        good = {done.key: planned[done.key].job.dest for done in dones if done.ok}
        try:
            stats = self.stat_outputs(good) if good else {}
        except OSError as error:
            line = f"published, but not found again: {error_line(error)}"
            dones, stats = [replace(d, ok=False, error=line) if d.ok else d for d in dones], {}
        for done in dones:
            if done.ok and done.uri and stats[done.key] is None:
                done = replace(
                    done, ok=False, error=f"run_job says it published {done.uri}, but nothing is there"
                )
            if done.ok:
                try:
                    ledger.write(planned[done.key].record(asset, done, stats[done.key]))
                except (OSError, TypeError, ValueError) as error:
                    done = replace(
                        done,
                        ok=False,
                        error=f"published, but its record could not be written: {error_line(error)}",
                    )
            yield done


def _same_keys(
    jobs: Sequence[ShardJob], items: Sequence[ShardJob | ShardResult], hook: str
) -> list[ShardJob | ShardResult]:
    if sorted(item.key for item in items) != sorted(job.key for job in jobs):
        raise ValueError(f"{hook} must return one item for each job it was given")
    return list(items)
