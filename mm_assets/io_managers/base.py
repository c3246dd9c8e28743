"""Base IO manager of sharded assets: many shards per run, worker processes, one event per shard.

A shard that fails is logged and not published. The others go on to the next asset in the same run. The check
`landed` (`mm_assets.io_managers.sharded`) then fails the run. Run on `in_process_executor`: only there do the
assets share their workers, and a step costs 2 to 10 s less.

No `from __future__ import annotations` in modules with a `ResourceDependency`: see
`mm_assets.io_managers.workers`.
"""

import traceback
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import dagster as dg

from mm_assets.accounting.file_digests import shards_with_problems
from mm_assets.accounting.outputs import BY_ASSET
from mm_assets.accounting.proof_store import damaged_shards
from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.formats.error_lines import error_line, readable_store_errors
from mm_assets.interleaved.counted import counted
from mm_assets.io_managers import events
from mm_assets.io_managers.hooks import ShardHooks
from mm_assets.io_managers.planned_jobs import PlannedJob, is_intact, recorded_result
from mm_assets.io_managers.readable_settings import readable_settings
from mm_assets.io_managers.reports import ShardReports
from mm_assets.io_managers.shards import Plan, Shard, ShardJob, ShardResult, ShardSet, digest

# Name of the check that fails a run with missing shards.
LANDED = "landed"
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
        records = ShardRecords(self.root)
        planned = self._planned_jobs(context, obj, records, reports)
        self.remove_leftovers(context.asset_key.to_user_string(), planned)
        unchanged = self._unchanged_records(planned, records, reports)
        latest = events.latest_materializations(run.instance, context.asset_key, unchanged)
        # A record that replaced another would be reported as the version that was made.
        # Its shard is made again.
        unchanged = {
            key: record
            for key, record in unchanged.items()
            if key not in latest or latest[key].version == record.version
        }
        for key, record in unchanged.items():
            job = planned[key]
            reports.landed(recorded_result(record), job.parents, unchanged=True)
        stale = {key: job for key, job in planned.items() if key not in unchanged}
        made: list[str] = []
        # Closed even when an interrupt strikes while we log: that ends the workers.
        with closing(self._results(stale)) as work:
            for results in work:
                for result in self._write_records(
                    stale, results, records, context.asset_key.to_user_string()
                ):
                    if result.ok:
                        reports.landed(result, stale[result.key].parents)
                        made.append(result.key)
                    else:
                        reports.failure(result)
        if made:
            self.after_jobs(made)
        reports.finish()
        # The check `landed` may not be part of this run: then nothing else would fail it.
        fails = run.assets_def.tags_by_key[context.asset_key].get(SHARDED_TAG) != LENIENT
        if (
            reports.failed
            and fails
            and not events.runs_check(run, dg.AssetCheckKey(context.asset_key, LANDED))
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

    def made_by(self, asset: str, code_version: str, plan: Plan) -> str:
        """Return the digest of code and settings that the outputs of a plan are made by."""
        return digest([code_version, plan.digest(), type(self).__qualname__, self._all_options(asset)])

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

    def _planned_jobs(
        self, context: dg.OutputContext, plan: Plan, records: ShardRecords, reports: ShardReports
    ) -> dict[str, PlannedJob]:
        """Return a job for each shard of the run, by key; report shards without input as failed."""
        asset = context.asset_key.to_user_string()
        options = self._all_options(asset)
        made_by = self.made_by(asset, reports.code_version, plan)
        reports.begin(made_by)
        settings = readable_settings(reports.code_version, plan, options)
        sources = plan.source.by_key()
        side_inputs_by_key = {name: shards.by_key() for name, shards in plan.side_inputs.items()}
        inputs = [
            (plan.source, sources),
            *((plan.side_inputs[name], shards) for name, shards in side_inputs_by_key.items()),
        ]
        jobs: list[ShardJob] = []
        for key in sorted(context.asset_partition_keys):
            missing = [shards.why_absent(key) for shards, by_key in inputs if key not in by_key]
            if missing:
                reports.failure(ShardResult(key, ok=False, error="input missing: " + "; ".join(missing)))
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
                    reports.blocking,
                    asset,
                    self.root,
                    plan.checks,
                )
            )
        unread = {shards.asset: shards.by_key() for shards in plan.unread}
        planned: dict[str, PlannedJob] = {}
        for job in _same_keys(jobs, self.resolve_jobs(plan, jobs) if jobs else [], "resolve_jobs"):
            if isinstance(job, ShardResult):
                reports.failure(replace(job, ok=False))
                continue
            parents = {plan.source.asset: job.shard} | {
                plan.side_inputs[name].asset: shard for name, shard in job.side_inputs.items()
            }
            # Without a pointer they make nothing stale, whatever becomes of them.
            for name, by_key in unread.items():
                parents[name] = replace(by_key.get(job.key, Shard(job.key, "", "")), pointer=None)
            versions = {
                name: [plan.side_inputs[name].asset, shard.version] for name, shard in job.side_inputs.items()
            }
            resolved = {name: value for name, value in job.options.items() if name not in options}
            made_from = [made_by, records.relative(job.dest), plan.source.asset, job.shard.version, versions]
            planned[job.key] = PlannedJob(
                job, digest([*made_from, resolved] if resolved else made_from), parents, made_by, settings
            )
        return planned

    def _unchanged_records(
        self, planned: Mapping[str, PlannedJob], records: ShardRecords, reports: ShardReports
    ) -> dict[str, ShardRecord]:
        """Return records of shards that need no work: same fingerprint, output as recorded."""
        asset = reports.asset.to_user_string()
        known = {
            key: record
            for key, record in records.read(asset, planned).items()
            if planned[key].is_up_to_date(record, reports.checks)
        }
        problems = shards_with_problems(self.root, known.values())
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
        commits = type(self).publish_chunk is not ShardIOManager.publish_chunk
        pending_commit: list[ShardResult] = []
        with closing(
            self.workers.map(type(self).run_job, [item for item in prepared if isinstance(item, ShardJob)])
        ) as answers:
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
        self,
        planned: Mapping[str, PlannedJob],
        results: Sequence[ShardResult],
        records: ShardRecords,
        asset: str,
    ) -> Iterator[ShardResult]:
        """Write the records of published shards, and yield the results.

        A shard without a record has not landed: the next run could not tell what is there.
        """
        good = {result.key: planned[result.key].job.dest for result in results if result.ok}
        try:
            stats = self.stat_outputs(good) if good else {}
        except OSError as error:
            line = f"published, but not found again: {error_line(error)}"
            results, stats = [replace(r, ok=False, error=line) if r.ok else r for r in results], {}
        for result in results:
            if result.ok and result.uri and stats[result.key] is None:
                result = replace(
                    result, ok=False, error=f"run_job says it published {result.uri}, but nothing is there"
                )
            if result.ok:
                try:
                    records.write(planned[result.key].record(asset, result, stats[result.key]))
                except (OSError, TypeError, ValueError) as error:
                    result = replace(
                        result,
                        ok=False,
                        error=f"published, but its record could not be written: {error_line(error)}",
                    )
            yield result


def _same_keys(
    jobs: Sequence[ShardJob], items: Sequence[ShardJob | ShardResult], hook: str
) -> list[ShardJob | ShardResult]:
    if sorted(item.key for item in items) != sorted(job.key for job in jobs):
        raise ValueError(f"{hook} must return one item for each job it was given")
    return list(items)
