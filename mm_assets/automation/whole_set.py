"""What looks at all shards at once, from their stored scores, before filters judge any of them.

* Job `statistics`: the statistics that conditions look at.
* Job `duplicates`: the verdicts on duplicates, and the making of the shards that they have changed. The asset
  of the same name shows what was found.
* `PendingVerdicts`: where duplicates are dropped, `filtered_parquet` has metadata that name the verdicts
  (`VERDICTS_OF`), and its materializations the digest of those on their shard, as of an input. So it is known
  without a look at any shard which have no verdicts on their curated rows as they are now (nobody launches
  them, they would fail), and which were filtered with other verdicts than there are now: they are stale.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.data_version import DATA_VERSION_TAG, get_input_data_version_tag

from mm_assets.accounting import statistics_folder
from mm_assets.filters import Filter
from mm_assets.filters.duplicates import NO_COPIES, VerdictIndex, duplicate_filters
from mm_assets.filters.scores import ImageScores, SampleScores
from mm_assets.graph import digest
from mm_assets.graph.assets import DUPLICATES, FILTERED_PARQUET
from mm_assets.graph.dagster_internals import SHARDS, UNFINISHED, read_events
from mm_assets.graph.instance_queries import launch_backfill
from mm_assets.graph.planned_jobs import metadata_values
from mm_assets.graph.resources import FilterThresholds, MaintainedStorage
from mm_assets.model.errors import counted
from mm_assets.view.whole_set import FoundDuplicates, compute_statistics, find_duplicates, found_with

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
