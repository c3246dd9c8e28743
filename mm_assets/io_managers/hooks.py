"""Hooks by which the IO managers of formats differ; `mm_assets.io_managers.base` calls them.

No `from __future__ import annotations` in modules with a `ResourceDependency`: see
`mm_assets.io_managers.workers`.
"""

import os
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.accounting.records import ShardRecord, account_folders, stat_outputs
from mm_assets.formats.storage import is_remote, local_path, sweep, sweep_output
from mm_assets.io_managers.planned_jobs import PlannedJob
from mm_assets.io_managers.shards import Plan, ShardJob, ShardResult
from mm_assets.io_managers.workers import Workers


class ShardHooks(dg.ConfigurableIOManager):
    """Contract between `ShardIOManager`, which carries a run out, and the IO manager of a format.

    IO managers define `locate` and `run_job`; their config fields become job options. All other hooks have
    defaults. An override of a hook whose default does something calls ``super()``. `handle_output` calls the
    hooks in this order, all but `run_job` in the parent:

    ===================  ===================================================================================
    `options`            what determines an output's bytes besides the plan
    `locate`             the URI of each shard's output
    `resolve_jobs`       options that depend on all shards (types of columns, the owner of a sample id)
    `remove_leftovers`   remove what dead processes left; the default removes files
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

        Called also when there is no other work to do. Default: temporary files beside the outputs and among
        the records.
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

    def after_jobs(self, made: Collection[str]) -> None:
        """Derive what is derived from shards that were made in this run; their events are logged by then.

        Not called after a crash, so the next run must do without it.
        """
