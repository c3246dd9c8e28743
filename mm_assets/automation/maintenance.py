"""Job `maintenance`: table compaction, old versions, old runs, temporary files of dead processes."""

import time
from collections.abc import Iterator

import dagster as dg

from mm_assets.accounting.outputs import DERIVED, LANCE, OUTPUTS
from mm_assets.accounting.records import account_folders
from mm_assets.automation.partition_events import runs_in_use
from mm_assets.formats.storage import is_remote, join, local_path, sweep, sweep_output
from mm_assets.interleaved.counted import counted
from mm_assets.partitions import LANCE_POOL
from mm_assets.resources.maintained_storage import MaintainedStorage

# Runs whose events nobody looks at any more.
KEEP_RUNS_DAYS = 90
_RUNS_PER_QUERY = 200
_SECONDS_PER_DAY = 86_400


@dg.op(
    description="Merges fragments of the Lance table, updates its indexes, removes old versions.",
    pool=LANCE_POOL,
)
def maintain_lance_table(context: dg.OpExecutionContext, maintained: MaintainedStorage) -> None:
    from mm_assets.formats.lance.maintenance import maintain

    report = maintain(LANCE.uri(maintained.root, ""))
    context.log.info(
        f"{counted(report.fragments_removed, 'fragment')} merged, "
        f"{counted(report.versions_removed, 'old version')} and "
        f"{counted(report.bytes_removed, 'byte')} removed"
    )


@dg.op(description="Removes temporary files of processes that died.")
def remove_temporary_files(context: dg.OpExecutionContext, maintained: MaintainedStorage) -> None:
    if is_remote(maintained.root):
        context.log.info("a store has no temporary files: outputs are put in one step")
        return
    root = local_path(maintained.root)
    for output in OUTPUTS:
        sweep_output(join(root, output.folder.partition("/")[0]))
    derived = [asset for assets in DERIVED.values() for asset in assets]
    for asset in (*(output.asset for output in OUTPUTS), *derived):
        for folder in account_folders(root, asset):
            for path in sweep(folder):
                context.log.info(f"removed {path}")


@dg.op(description=f"Deletes runs of {KEEP_RUNS_DAYS} days ago that nothing points to, with their logs.")
def delete_old_runs(context: dg.OpExecutionContext) -> None:
    before = time.time() - KEEP_RUNS_DAYS * _SECONDS_PER_DAY
    deleted = delete_runs_before(
        context.instance, before, list(context.repository_def.asset_graph.get_all_asset_keys())
    )
    context.log.info(f"{counted(deleted, 'run')} deleted")


def delete_runs_before(instance: dg.DagsterInstance, before: float, assets: list[dg.AssetKey]) -> int:
    """Delete runs that ended before a time, but for those that hold the latest event of a partition or check.

    Args:
        before: seconds since 1970.

    Returns:
        The number of deleted runs.
    """
    ended = [
        record.dagster_run.run_id
        for record in _run_records(instance)
        if record.end_time is not None and record.end_time < before
    ]
    unused = set(ended).difference(runs_in_use(instance, assets))
    for run_id in unused:
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        instance.delete_run(run_id)
    return len(unused)


def _run_records(instance: dg.DagsterInstance) -> Iterator[dg.RunRecord]:
    cursor: str | None = None
    while records := instance.get_run_records(limit=_RUNS_PER_QUERY, cursor=cursor):
        yield from records
        cursor = records[-1].dagster_run.run_id


@dg.job(description="Keep table, database and folders tidy: nothing that a reader may need is removed.")
def maintenance() -> None:
    maintain_lance_table()
    remove_temporary_files()
    delete_old_runs()
