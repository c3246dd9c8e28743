"""Sensors, schedules and jobs of the code location, and the checks of what is there.

* Sensor `new_shards`: keeps partitions, versions and the inventory of the raw shards up to date, and launches
  what the job `refresh` has found.
* Sensor `report`: renews the asset of the same name when something has been made.
* Sensor `automation`: has shards made without a click, in backfills of chunked runs. Not by Dagster's
  declarative automation: that knows neither the settings that an output depends on nor a shard that is still
  being uploaded, asks again for shards that fail for their content, and evaluates seven assets times all
  partitions at each tick (docs/decisions.md).
* Schedules `refresh`, `prove` and `maintenance`: each runs where its setting has a cron expression.
* Job `refresh`: finds what is missing, failed or stale. It does not wait until it can launch that: its run
  would keep others from running.
* Job `maintenance`: table compaction, old versions, old runs, temporary files of dead processes.
* Checks of what is there (`inventory_checks`): `present`, that no raw shard with a partition is gone, and
  `up_to_date`, that no shard of an asset is stale. Dagster calls a partition unsynced only on its own page:
  of a partitioned asset as a whole it always says that it is fresh, and of an asset two steps behind a
  changed one, too.

`new_shards` evaluates these checks whenever the answer changes, or an asset was made since: the UI calls a
check "not evaluated" that is older than the asset. The command `run` does the same at its end. Launched in
the UI they are evaluated at once. In a run that makes assets they do nothing: they would look at all shards
for each run of a hundred.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.run_request import InstigatorType

from mm_assets.accounting import CURATED, DERIVED, FILTERED, LANCE, OUTPUTS, account_folders
from mm_assets.automation import (
    MISSING,
    STALE,
    Due,
    due_shards,
    latest_versions,
    runs_in_use,
    versions_of_partitions,
)
from mm_assets.automation.backfills import (
    LOOK_AGAIN_SECONDS,
    DueBackfills,
    StatusFinder,
    cursor_of,
    digest_of,
    digests_in,
    launch_found,
    note_found,
)
from mm_assets.automation.whole_set import JOB, TRAINING_JOB, TRAINING_SET, duplicates, statistics
from mm_assets.formats.raw_shards import Listing
from mm_assets.graph import dagster_internals
from mm_assets.graph.assets import REPORT
from mm_assets.graph.dagster_internals import LANCE_POOL, SHARDS, UNFINISHED, unfinished_runs
from mm_assets.graph.instance_queries import STARTED_BY, fail_lost_runs, withdraw_planned
from mm_assets.graph.planned_jobs import metadata_values
from mm_assets.graph.proof import proof_keys
from mm_assets.graph.raw import RAW_SHARDS, RawShards, observation
from mm_assets.graph.resources import MaintainedStorage
from mm_assets.model.errors import counted
from mm_assets.settings import Settings, machine_zone
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import is_remote, join, local_path, sweep, sweep_output
from mm_assets.view.overview import Status

_SCORES = "image_scores"
_SHOWN = [dg.AssetKey(name) for name in (CURATED.asset, _SCORES, FILTERED.asset)]
# While a long backfill is going on. Reading 10,000 shards takes seconds.
_SECONDS_BETWEEN = 600
# Of the events of all shards only this is kept in memory, and pictures only of some shards.
_COUNTED = frozenset({"samples", "texts", "images", "filtered", "quarantined", dagster_internals.URI})
_PICTURES = frozenset({"preview", "preview_dropped"})
_CANDIDATES = 25  # shards for each strip of pictures: not every one has any
_AT_ONCE = 1000


@dg.sensor(
    name="report",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Renews the asset report after each backfill, and every 10 minutes during a long one.",
)
def report_sensor(
    context: dg.SensorEvaluationContext, maintained: MaintainedStorage, raw: RawShards
) -> dg.SensorResult | dg.SkipReason:
    """Renew the report if a shard was made or retired, or a run has ended, since the last one."""
    seen = json.loads(context.cursor or "{}")
    state = _state(context.instance)
    if state == seen.get("state"):
        return dg.SkipReason("nothing was made since the last report")
    waits = time.time() < seen.get("time", 0) + _SECONDS_BETWEEN
    if waits and unfinished_runs(context.instance, limit=1):
        return dg.SkipReason("runs are going on; the report is renewed when they have ended")
    cursor = json.dumps({"state": state, "time": time.time()})
    repository, status = context.repository_def, None
    if repository is not None:
        status = StatusFinder(context.instance, repository.asset_graph, maintained.root, raw).status()
    made = report_event(context.instance, maintained.root, status)
    if made is None:
        context.update_cursor(cursor)
        return dg.SkipReason("no shard was made yet")
    return dg.SensorResult(
        asset_events=[made], skip_reason=str(made.metadata["summary"].value), cursor=cursor
    )


def report_event(
    instance: dg.DagsterInstance, root: str, status: Status | None = None
) -> dg.AssetMaterialization | None:
    """Return the report on all shards as they are now; None if there are none.

    Args:
        root: storage root, with scores and ledger.
        status: of all shards.
    """
    from mm_assets.view.overview import STRIPS, Figures, description, evenly_spread, measure, metadata
    from mm_assets.view.report_page import page_entry

    keys = instance.get_dynamic_partitions(str(SHARDS.name))
    pictured = set(evenly_spread(keys, STRIPS * _CANDIDATES))
    curated, scores, filtered = (_shown(instance, asset, keys, pictured) for asset in _SHOWN)
    if not filtered:
        return None
    figures = Figures.of(curated, filtered, STRIPS, raw_shards=len(keys))
    measures = measure(
        root,
        {
            key: str(told[dagster_internals.URI])
            for key, told in scores.items()
            if key in filtered and dagster_internals.URI in told
        },
        {key: int(told["samples"]) for key, told in curated.items()},
    )
    return dg.AssetMaterialization(
        REPORT,
        description=description(figures),
        metadata=metadata_values({**metadata(figures, measures, status), **page_entry(root, len(filtered))}),
    )


def _shown(
    instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Sequence[str], pictured: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return of the latest event of each shard what the report is made from, with pictures of some."""
    found: dict[str, dict[str, Any]] = {}
    for start in range(0, len(keys), _AT_ONCE):
        batch = keys[start : start + _AT_ONCE]
        for key, latest in dagster_internals.latest_materializations(instance, asset, batch).items():
            names = _COUNTED | _PICTURES if key in pictured else _COUNTED
            found[key] = {name: value for name, value in latest.metadata.items() if name in names}
    return found


def _state(instance: dg.DagsterInstance) -> list[int | str]:
    """Return what changes when a shard is made or retired, or a run ends."""
    ids = {
        record.asset_entry.asset_key: record.asset_entry.last_materialization_storage_id or 0
        for record in instance.get_asset_records(_SHOWN)
    }
    partitions = len(instance.get_dynamic_partitions(str(SHARDS.name)))
    over = dg.RunsFilter(statuses=[status for status in dg.DagsterRunStatus if status not in UNFINISHED])
    last = instance.get_run_records(over, limit=1, order_by="update_timestamp")
    ended = [f"{record.dagster_run.run_id} {record.end_time}" for record in last]
    return [partitions, *(ids.get(asset, 0) for asset in _SHOWN), *ended]


OFF, NEW, ALL = "off", "new", "all"


def automation_sensor(mode: str) -> dg.SensorDefinition:
    """Return the sensor.

    Args:
        mode: ``off``: the sensor is stopped; ``new``: it takes shards that were never made; ``all``: also
            stale ones, and failed ones whose raw shard, code or settings have changed since.
    """

    @dg.sensor(
        name="automation",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.STOPPED if mode == OFF else dg.DefaultSensorStatus.RUNNING,
        description=f"Launches backfills of due shards (MM_AUTOMATION={mode}).",
        job_name=JOB,  # filters wait for what it finds
    )
    def automation(context: dg.SensorEvaluationContext, raw: RawShards) -> dg.SensorResult | dg.SkipReason:
        try:
            listing = raw.listing()
        except (OSError, ValueError) as error:
            context.log.error(line := error_line(error))
            return dg.SkipReason(line)
        assert context.repository_def is not None, "sensors of a code location have one"
        found = DueBackfills.find(context.instance, context.repository_def.asset_graph, listing)
        wanted = found.due.where(lambda why: _is_wanted(why, mode))
        before = digests_in(context.cursor)
        digests = {key: digest_of(key, found.versions[key]) for key in wanted.partitions()}
        # A shard that is being uploaded has another version at the next tick.
        complete = {key for key, digest in digests.items() if digest in before}
        chosen = wanted.restricted(complete)
        lines = found.launch(context.instance, chosen, "sensor automation")
        for line in lines:
            context.log.info(line)
        waiting = [digest for key, digest in digests.items() if key not in complete]
        cursor = cursor_of(waiting)
        request = found.request(chosen, "sensor automation")
        if request is not None:
            return dg.SensorResult([request], cursor=cursor)
        if awaiting := found.awaiting(chosen):
            lines.append(f"{counted(len(awaiting), 'shard waits', 'shards wait')} for verdicts on duplicates")
        uploading = (
            counted(len(waiting), "shard waits until it is", "shards wait until they are")
            + " seen unchanged at the next tick"
        )
        reason = "; ".join([*lines, *([uploading] if waiting else [])]) or "nothing is due"
        return dg.SensorResult(skip_reason=reason, cursor=cursor)

    return automation


def _is_wanted(why: Due, mode: str) -> bool:
    return why.may_land and (why.kind == MISSING or mode == ALL)


# Cron expression of a schedule that is stopped, so that starting it in the UI makes sense.
_DEFAULT_CRON = {"refresh": "0 2 * * *", "prove": "0 4 * * 0", "maintenance": "0 5 * * 0"}


def schedules(settings: Settings) -> list[dg.ScheduleDefinition]:
    """Return the schedules of the jobs of the same names."""
    crons = {
        "refresh": settings.refresh_cron,
        "prove": settings.prove_cron,
        "maintenance": settings.maintenance_cron,
    }
    zone = settings.timezone or machine_zone()
    return [
        dg.ScheduleDefinition(
            name=name,
            job_name=name,
            cron_schedule=cron or _DEFAULT_CRON[name],
            execution_timezone=zone,
            description=f"Launches the job at times of {zone} (MM_TIMEZONE).",
            default_status=dg.DefaultScheduleStatus.RUNNING if cron else dg.DefaultScheduleStatus.STOPPED,
            tags={STARTED_BY: f"schedule {name}"},
        )
        for name, cron in crons.items()
    ]


@dg.op(description="Finds all shards that are missing, failed or stale; the sensor new_shards launches them.")
def find_due_shards(context: dg.OpExecutionContext, raw: RawShards) -> None:
    found = DueBackfills.find(context.instance, context.repository_def.asset_graph, raw.listing())
    keys = found.due.partitions()
    if not keys:
        context.log.info("nothing is due")
        return
    due = counted(len(keys), "shard is due", "shards are due")
    instance = context.instance
    if instance.schedule_storage is not None and any(
        each.instigator_name == new_shards.name and not each.is_running
        for each in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    ):
        raise dg.Failure(
            f"{due}, but the sensor new_shards, which launches them, is stopped: start it, then this again",
            allow_retries=False,
        )
    note_found(context.instance, found)
    context.log.info(
        f"{due}: the sensor new_shards launches backfills "
        f"of what has been the same for {LOOK_AGAIN_SECONDS} seconds"
    )


@dg.job(description="Have everything made that is missing, failed or stale.")
def refresh() -> None:
    find_due_shards()


# Runs whose events nobody looks at any more.
KEEP_RUNS_DAYS = 90
_RUNS_PER_QUERY = 200
_SECONDS_PER_DAY = 86_400


@dg.op(
    description="Merges fragments of the Lance table, updates its indexes, removes old versions.",
    pool=LANCE_POOL,
)
def maintain_lance_table(context: dg.OpExecutionContext, maintained: MaintainedStorage) -> None:
    from mm_assets.formats.lance.table import maintain

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


PRESENT = dg.AssetCheckKey(RAW_SHARDS, "present")
_LISTED = 50


def removed_shards(known: Iterable[str], listing: Listing) -> list[str]:
    """Return partitions whose raw shards are gone, sorted; none while a location cannot be listed."""
    return [] if listing.unmatched else sorted(set(known).difference(listing))


def presence(removed: Sequence[str]) -> dg.AssetCheckEvaluation:
    """Return the outcome of the check.

    Args:
        removed: partitions whose raw shards are gone, sorted.
    """
    summary = (
        counted(len(removed), "raw shard is gone", "raw shards are gone")
        + "; mm-assets retire removes the outputs"
        if removed
        else ""
    )
    return _evaluation(PRESENT, "removed", len(removed), list(removed[:_LISTED]), summary)


def _evaluation(
    check: dg.AssetCheckKey, name: str, count: int, shards: Any, summary: str, target: Any = None
) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=check.asset_key,
        check_name=check.name,
        passed=not count,
        severity=dg.AssetCheckSeverity.WARN,
        metadata=metadata_values({name: count, "shards": {"json": shards}, "summary": summary}),
        target_materialization_data=target,
        blocking=False,
    )


UP_TO_DATE = "up_to_date"
_REASONS = 3  # in the summary


def staleness(asset: dg.AssetKey, due: Mapping[str, Due], target: Any) -> dg.AssetCheckEvaluation:
    """Return the outcome of the check.

    Args:
        due: what is due of the asset.
        target: its latest materialization.
    """
    stale = {key: why.reason for key, why in due.items() if why.kind == STALE}
    reasons = sorted(set(stale.values()))
    summary = (
        f"{counted(len(stale), 'shard is stale', 'shards are stale')}: {', '.join(reasons[:_REASONS])}"
        if stale
        else ""
    )
    listed = dict(sorted(stale.items())[:_LISTED])
    return _evaluation(dg.AssetCheckKey(asset, UP_TO_DATE), "stale", len(stale), listed, summary, target)


ALL_ASSETS = dg.define_asset_job(
    "all_assets",
    selection=dg.AssetSelection.all() - TRAINING_SET,
    description="Take shards through all assets and checks.",
)
PROVE = dg.define_asset_job(
    "prove", selection=dg.AssetSelection.checks(*proof_keys()), description="Read every output again."
)
JOBS: list[Any] = [ALL_ASSETS, TRAINING_JOB, PROVE, refresh, statistics, duplicates, maintenance]


def inventory_checks(assets: Iterable[dg.AssetsDefinition]) -> dg.AssetChecksDefinition:
    """Return the checks of the raw shards and of these assets; they run in one step."""
    keys = [asset.key for asset in assets]
    text = (
        "No shard was made from other raw data, code or settings than there are now. "
        "The job `refresh` makes those that were."
    )

    @dg.multi_asset_check(
        name="inventory",
        can_subset=True,
        specs=[
            dg.AssetCheckSpec(
                PRESENT.name,
                asset=PRESENT.asset_key,
                description="No raw shard whose outputs are there has been removed.",
            ),
            *(dg.AssetCheckSpec(UP_TO_DATE, asset=key, description=text) for key in keys),
        ],
    )
    def inventory(context: dg.AssetCheckExecutionContext, raw: RawShards) -> Iterator[dg.Output[None]]:
        selected = [spec for spec in context.check_specs if spec.key in context.selected_asset_check_keys]
        withdraw_planned(context.instance, context.run.run_id, [spec.key for spec in selected])
        if not any(dagster_internals.makes_asset(context, key) for key in keys):
            chosen = {spec.key for spec in selected}
            graph = context.op_execution_context.repository_def.asset_graph
            # It takes evaluations, too, its annotation does not say so.
            log_event: Callable[[Any], None] = context.op_execution_context.log_event
            for evaluation in evaluations(context.instance, graph, raw.listing()):
                if evaluation.asset_check_key in chosen:
                    log_event(evaluation)
        for spec in selected:  # for an `AssetCheckResult` Dagster would ask for one of each check
            yield dg.Output(None, output_name=spec.get_python_identifier())

    return inventory


def evaluations(
    instance: dg.DagsterInstance, graph: AssetGraph, listing: Listing
) -> list[dg.AssetCheckEvaluation]:
    """Return the outcomes as they are now, without those of assets that a run is working on."""
    known = instance.get_dynamic_partitions(str(SHARDS.name))
    due = due_shards(instance, graph, versions_of_partitions(instance, listing))
    found = {asset: each for asset, each in due.by_asset.items() if not due.in_progress.get(asset)}
    latest = {asset: dagster_internals.latest_of_asset(instance, asset) for asset in found}
    return [
        presence(removed_shards(known, listing)),
        *(staleness(asset, each, dagster_internals.target(latest[asset])) for asset, each in found.items()),
    ]


def report_inventory(instance: dg.DagsterInstance, graph: AssetGraph, listing: Listing) -> None:
    """Evaluate these checks outside of a run, and log what is new."""
    for evaluation in changed(instance, evaluations(instance, graph, listing)):
        instance.report_runless_asset_event(evaluation)


def changed(
    instance: dg.DagsterInstance, found: Sequence[dg.AssetCheckEvaluation]
) -> list[dg.AssetCheckEvaluation]:
    """Return the outcomes that the latest ones do not say, or say of an asset before it was made again.

    A check that was never evaluated counts as passed, until something is made.
    """
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [evaluation.asset_check_key for evaluation in found]
    )

    def is_known(evaluation: dg.AssetCheckEvaluation) -> bool:
        record = latest.get(evaluation.asset_check_key)
        if record is None:
            return evaluation.passed and not any(each.target_materialization_data for each in found)
        if not isinstance(record.evaluation, dg.AssetCheckEvaluation):  # planned by a run that was lost
            return False
        known, now = (each.target_materialization_data for each in (record.evaluation, evaluation))
        is_older = now is not None and (known is None or known.storage_id != now.storage_id)
        return not is_older and dict(record.evaluation.metadata) == dict(evaluation.metadata)

    return [evaluation for evaluation in found if not is_known(evaluation)]


# Observations in one tick; the others follow in the next ones.
_MAX_OBSERVED = 500


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Adds a partition for every new raw shard, notes those that have changed or are gone, and "
    "launches what the job refresh has found.",
    job_name=JOB,
)
def new_shards(context: dg.SensorEvaluationContext, raw: RawShards) -> dg.SensorResult | dg.SkipReason:
    """Add a partition for every raw shard that has none yet; note those that have changed or are gone.

    Shards that were never observed are observed by the run that reads them first. What the job `refresh` has
    found is launched here because this sensor runs whatever `MM_AUTOMATION` says.
    """
    location = context.code_location_origin
    fail_lost_runs(context.instance, None if location is None else location.location_name)
    known = set(context.instance.get_dynamic_partitions(str(SHARDS.name)))
    try:
        listed = raw.listing()
    except (OSError, ValueError) as error:
        line = error_line(error)
        context.log.error(line)
        return dg.SkipReason(line)
    for line in listed.warnings:
        context.log.warning(line)
    new = [key for key in listed if key not in known]
    replaced = _replaced(context.instance, listed)
    noted: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = [
        observation(RAW_SHARDS, key, listed[key]) for key in replaced[:_MAX_OBSERVED]
    ]
    state = _listing_state(context.instance, listed)
    launched: list[str] = []
    requests: list[dg.RunRequest] = []
    if context.repository_def is not None:
        graph = context.repository_def.asset_graph
        launched, requests = launch_found(context.instance, graph, listed)
        for line in launched:
            context.log.info(line)
        if state != context.cursor:
            noted += changed(context.instance, evaluations(context.instance, graph, listed))
    outcomes = [each for each in noted if isinstance(each, dg.AssetCheckEvaluation)]
    passed = sum(each.passed for each in outcomes)
    told = [
        *launched,
        *([counted(len(replaced), "raw shard has changed", "raw shards have changed")] if replaced else []),
        *(f"{each.asset_check_key.to_user_string()}: {each.metadata['summary'].value}"
          for each in outcomes if not each.passed),
        *([counted(passed, "check has passed", "checks have passed")] if passed else []),
        *listed.unmatched,
    ]  # fmt: skip
    if not (new or noted or requests):
        context.update_cursor(state)
        return dg.SkipReason(
            "; ".join([counted(len(listed), "raw shard is known", "raw shards are known"), *told])
        )
    reason = "; ".join([*([counted(len(new), "new raw shard")] if new else []), *told])
    return dg.SensorResult(
        requests,
        dynamic_partitions_requests=[SHARDS.build_add_request(new)] if new else [],
        asset_events=noted,
        skip_reason=None if requests else reason,
    )


def _replaced(instance: dg.DagsterInstance, listed: Listing) -> list[str]:
    """Return raw shards that have another version than was last observed."""
    seen = latest_versions(instance, RAW_SHARDS, dg.DagsterEventType.ASSET_OBSERVATION)
    return [key for key, version in seen.items() if key in listed and listed[key].version != version]


def _listing_state(instance: dg.DagsterInstance, listed: Listing) -> str:
    """Return a digest that changes whenever an event is logged, or a raw shard comes, goes or changes."""
    digest = hashlib.sha256(str(instance.event_log_storage.get_maximum_record_id()).encode())
    for key in sorted(listed):
        digest.update(f"{key}\0{listed[key].version}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()
