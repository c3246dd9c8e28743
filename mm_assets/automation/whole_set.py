"""What looks at all shards at once, and has no partitions.

From stored scores, before filters judge any shard:

* Job `statistics`: the statistics that conditions look at.
* Job `duplicates`: the verdicts on duplicates, and the making of the shards that they have changed. The asset
  of the same name shows what was found.
* `PendingVerdicts`: where duplicates are dropped, `filtered_parquet` has metadata that name the verdicts
  (`VERDICTS_OF`), and its materializations the digest of those on their shard, as of an input. So it is known
  without a look at any shard which have no verdicts on their curated rows as they are now (nobody launches
  them, they would fail), and which were filtered with other verdicts than there are now: they are stale.

From the tars of all shards:

* Asset `training_set`: one set to train from. It is made where it is asked for alone: by its job, the UI, or
  `mm-assets run --assets training_set`. One sample more or less changes the order of all.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import dagster as dg
import pyarrow.compute as pc
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.data_version import DATA_VERSION_TAG, get_input_data_version_tag

from mm_assets.accounting import TARS, TRAINING, TRAINING_FOLDER, TRAINING_NOTE, statistics_folder
from mm_assets.duplicates.finder import FoundDuplicates, find_duplicates, found_with
from mm_assets.filters import Filter
from mm_assets.filters.duplicates import NO_COPIES, VerdictIndex, duplicate_filters
from mm_assets.filters.scores import ImageScores, SampleScores
from mm_assets.formats.names import PLAN_FILE
from mm_assets.graph import digest
from mm_assets.graph.assets import DUPLICATES, FILTERED_PARQUET
from mm_assets.graph.dagster_internals import SHARDS, UNFINISHED, read_events
from mm_assets.graph.instance_queries import launch_backfill
from mm_assets.graph.io_manager import Workers
from mm_assets.graph.planned_jobs import metadata_values
from mm_assets.graph.resources import FilterThresholds, MaintainedStorage, TrainingRecipe
from mm_assets.model.errors import counted
from mm_assets.storage.files import join, publish_bytes, remove
from mm_assets.storage.small_files import seal
from mm_assets.training_set import our_tars, version_of
from mm_assets.training_set.build import MadeSet, TrainingSet
from mm_assets.training_set.plan import totals
from mm_assets.training_set.proof import Proof, as_written, make_proven
from mm_assets.view.statistics import compute_statistics

SCORED: Final = ("curated_parquet", ImageScores.asset, SampleScores.asset)
"""What has to be there of all shards before any is filtered by what is known of the whole set."""

VERDICTS_OF: Final = "mm_assets/verdicts"
"""Metadata of an asset: the folder of the verdicts that it is made with, and what they are found with."""

JOB: Final = "duplicates"
_made_with: dict[tuple[int, str], str | None] = {}  # digest of verdicts, by materialization
_SECONDS_BETWEEN: Final = 600  # while shards are being scored: each search looks at all shards
_SECONDS_OF_TRY: Final = 3600  # until the job is tried again that has failed, and nothing has changed


@dg.op(
    description="Computes the statistics of the whole set that conditions look at, from the stored scores."
)
def compute_set_statistics(
    context: dg.OpExecutionContext, bounds: FilterThresholds, maintained: MaintainedStorage
) -> None:
    for line in compute_statistics(maintained.root, bounds.active()).lines():
        context.log.info(line)


@dg.job(
    description="Compute the statistics of the whole set anew; filtered shards that they change become stale."
)
def statistics() -> None:
    compute_set_statistics()


@dg.op(
    description="Finds the duplicates in all shards, from the stored scores, and launches what they change."
)
def find_set_duplicates(
    context: dg.OpExecutionContext, bounds: FilterThresholds, maintained: MaintainedStorage
) -> None:
    folder = statistics_folder(maintained.root)
    before = VerdictIndex.read(folder).shards
    found = find_duplicates(maintained.root, bounds.active())
    if not found.found:
        context.log.info("MM_DEDUP_IMAGES and MM_DEDUP_DOCUMENTS are off")
        return
    context.log_event(duplicates_event(found))
    for line in found.lines():
        context.log.info(line)
    known = set(context.instance.get_dynamic_partitions(str(SHARDS.name)))
    # Also those that were made anew and waited for what turned out to be the same verdicts.
    now = VerdictIndex.read(folder).shards
    if keys := [key for key, verdicts in now.items() if key in known and before.get(key) != verdicts]:
        graph = context.repository_def.asset_graph
        made_from = dg.AssetSelection.assets(FILTERED_PARQUET).downstream().resolve(graph)
        assets = sorted(made_from & graph.materializable_asset_keys)
        why = f"{counted(len(keys), 'shard')} with other duplicates"
        context.log.info(
            f"backfill {launch_backfill(context.instance, graph, assets, keys, why, 'job duplicates')}: {why}"
        )


@dg.job(
    name=JOB, description="Find duplicates anew, and have the shards filtered again whose verdicts differ."
)
def duplicates() -> None:
    find_set_duplicates()


def duplicates_event(found: FoundDuplicates) -> dg.AssetMaterialization:
    """Return the event that shows what was found."""
    metadata: dict[str, Any] = {
        "summary": "; ".join(line.strip() for line in found.lines()),
        "shards": found.shards,
        "shards_changed": len(found.changed),
    }
    for each in found.found:
        metadata |= {
            f"{each.what}s": each.items,
            f"{each.what}_copies": each.exact + each.near,
            f"{each.what}_clusters": each.clusters,
            f"largest_of_{each.what}s": {"json": dict(each.largest)},
        }
    return dg.AssetMaterialization(DUPLICATES, metadata=metadata_values(metadata))


def with_verdicts(
    asset: dg.AssetsDefinition, folder: str, filters: Collection[Filter[Any]]
) -> dg.AssetsDefinition:
    """Return an asset that says which verdicts it is made with, if it is.

    Args:
        folder: of what was found out about the whole set.
    """
    if asset.key != FILTERED_PARQUET or not duplicate_filters(filters):
        return asset
    told = {VERDICTS_OF: {"folder": folder, "found_with": found_with(filters)}}
    return asset.map_asset_specs(lambda spec: spec.replace_attributes(metadata={**spec.metadata, **told}))


@dataclass(frozen=True)
class PendingVerdicts:
    """The verdicts that an asset is made with, as they are now.

    Attributes:
        index: what there is.
        found_with: what it has to be found with, see `found_with`.
    """

    instance: dg.DagsterInstance
    index: VerdictIndex
    found_with: Mapping[str, Any]

    @classmethod
    def of(cls, instance: dg.DagsterInstance, metadata: Mapping[str, Any]) -> Self | None:
        """Return those of an asset with these metadata; None if it is made without."""
        told = metadata.get(VERDICTS_OF)
        if told is None:
            return None
        told = getattr(told, "value", told)
        return cls(instance, VerdictIndex.read(told["folder"]), told["found_with"])

    @classmethod
    def of_graph(cls, instance: dg.DagsterInstance, graph: AssetGraph) -> Self | None:
        """Return those of the asset `filtered_parquet` of a code location."""
        if not graph.has(FILTERED_PARQUET):
            return None
        return cls.of(instance, graph.get(FILTERED_PARQUET).metadata)

    @cached_property
    def _curated(self) -> Mapping[str, str]:
        """The latest version of the curated rows of each shard."""
        found = self.instance.event_log_storage.get_latest_tags_by_partition(
            dg.AssetKey(SCORED[0]), dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG]
        )
        return {shard: tags[DATA_VERSION_TAG] for shard, tags in found.items()}

    def lacks(self, shard: str) -> bool:
        """Return whether there are none on the curated rows of a shard as they are now."""
        is_fitting = self.index.found_with == self.found_with
        return not is_fitting or self.index.fault(shard, self._curated.get(shard, "")) is not None

    def changed(self, made: Mapping[str, tuple[int, str]]) -> list[str]:
        """Return the shards that were filtered with other verdicts than there are now.

        Args:
            made: storage id and run of the latest materialization of each. Each is read once in a process.
        """
        unread = [event[0] for shard, event in made.items() if event not in _made_with]
        tag = get_input_data_version_tag(DUPLICATES)
        told = {event.partition: event.tags.get(tag) for event in read_events(self.instance, unread)}
        known = {event: _made_with.get(event, told.get(shard)) for shard, event in made.items()}
        _made_with.clear()
        _made_with.update(known)
        return [
            shard
            for shard, event in made.items()
            if known[event] is not None
            and shard in self.index.shards
            and (known[event] != (self.index.shards[shard][1] or NO_COPIES) or self.index.is_outdated(shard))
        ]

    def request(
        self, ready: Collection[str], is_scoring: bool, tags: Mapping[str, str]
    ) -> dg.RunRequest | None:
        """Return the request to find the verdicts that are missing; None if it is not time.

        Args:
            ready: shards that have scores and no verdicts.
            is_scoring: whether others are about to get scores.
            tags: of the run.
        """
        running = dg.RunsFilter(job_name=JOB, statuses=list(UNFINISHED))
        if not ready or self.instance.get_runs_count(running):
            return None
        last = self.instance.get_latest_materialization_event(DUPLICATES)
        if is_scoring and time.time() - (last.timestamp if last else 0) < _SECONDS_BETWEEN:
            return None
        versions = sorted((shard, self._curated.get(shard, "")) for shard in ready)
        moment = int(time.time() // _SECONDS_OF_TRY)
        key = digest([self.index.digest, dict(self.found_with), versions, moment])
        return dg.RunRequest(run_key=f"{JOB} {key}", job_name=JOB, tags=dict(tags))


UNION = "union"
RESHARD = "reshard"  # its job, which cannot have the name of the asset


@dg.asset(
    deps=[TARS.asset],
    group_name="deliver",
    kinds={"webdataset"},
    code_version="1",
    check_specs=[
        dg.AssetCheckSpec(
            UNION,
            asset=TRAINING,
            description="All splits together hold the samples of the tars that the plan does not leave out.",
        )
    ],
    description=(
        "All samples in tars of equal size, shuffled and split, with a plan that says where each is. "
        "Made where it is asked for, not with the shards."
    ),
)
def training_set(training: TrainingRecipe, workers: Workers) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster knows no other
    source = our_tars(join(training.root, TARS.folder), TARS.folder)
    if source is None:
        raise dg.Failure(f"{join(training.root, TARS.folder)}: has tars that no shard has written")
    made = TrainingSet(join(training.root, TRAINING_FOLDER))
    report, proof = make_proven(made, [source], training.recipe(), workers, overwrite=True)
    if proof is None:
        many = counted(len(report.failures), "shard")
        raise dg.Failure(f"{many} of the training set not made: {report.failures[0]}", allow_retries=False)
    told = _told(report, proof)
    if proof.differences:  # without its note nobody takes it for proven
        remove(join(training.root, TRAINING_NOTE))
    else:
        made_of = version_of({tar.name: tar.stamp for tar in source.tars})
        asked = {"made_of": made_of, "recipe": training.recipe().to_json()}
        note = {**told, **asked, "files": as_written(made, proof.stamps)}
        publish_bytes(join(training.root, TRAINING_NOTE), seal(note, indent=1))
    plain = {name: {"json": value} if isinstance(value, list) else value for name, value in told.items()}
    differences = {"differences": {"json": list(proof.differences)}, "digest": proof.digest}
    return dg.MaterializeResult(
        metadata=metadata_values({**plain, "dagster/uri": join(made.folder, PLAN_FILE)}),
        data_version=dg.DataVersion(f"{report.digest}-{proof.digest}"),
        check_results=[
            dg.AssetCheckResult(
                check_name=UNION, passed=not proof.differences, metadata=metadata_values(differences)
            )
        ],
    )


def _told(report: MadeSet, proof: Proof) -> Mapping[str, Any]:
    """Return what is noted of the set."""
    return {
        "plan": join(TRAINING_FOLDER, PLAN_FILE),
        "plan_digest": report.digest,
        "shards": len(report.shards),
        "samples": proof.samples,
        "uses": pc.sum(report.plan.column("repeats")).as_py() or 0,
        "left_out": proof.left_out,
        "content_digest": proof.digest,
        "splits": totals(report.plan, "split"),
    }


TRAINING_SET = dg.AssetSelection.assets(training_set)
TRAINING_JOB = dg.define_asset_job(RESHARD, selection=TRAINING_SET, description="Make the set to train from.")
