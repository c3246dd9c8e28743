"""Raw shards as an observable source: the shards that exist, with URI and version.

They change outside of the graph, so each new version is logged as an `AssetObservation` of its partition.
Staleness of everything made from the shard is measured against the latest one. Only new and changed shards
are logged: an event costs ~10 ms, a listing far less.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import dagster as dg

from mm_assets.formats.raw_shards import Listing
from mm_assets.io_managers import events
from mm_assets.io_managers.shards import Shard, ShardSet

RAW_SHARDS = dg.AssetKey("raw_shards")


class RawShardLike(Protocol):
    """A raw shard: its URI, and a version that changes whenever the data do."""

    @property
    def uri(self) -> str: ...

    @property
    def version(self) -> str: ...


class RawListing(Protocol):
    """Interface of `RawShardIOManager.raw`: lists the current raw shards by partition key."""

    def listing(self) -> Mapping[str, RawShardLike]: ...


def observe_changes(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    asset: dg.AssetKey,
    listing: Mapping[str, RawShardLike],
) -> dg.DataVersionsByPartition:
    """Log each shard of `listing` that is new or has another version than last seen.

    This is the body of the observable source asset.

    Returns:
        An empty result: Dagster would log all shards of a full one, changed or not, and without their URI.
    """
    _warn_of_unmatched(context.log, listing)
    seen = events.latest_observations(context.instance, asset, listing)
    for key in _changed(listing, seen):
        context.log_event(observation(asset, key, listing[key]))
    return dg.DataVersionsByPartition({})


class RawShardIOManager(dg.ConfigurableIOManager):
    """Loads raw shards as a `ShardSet`, with their current version and the event that logged it.

    A shard that was never observed, or has changed since, is observed now (inside a run). So what is made
    from it names the version that was read, and repairing a raw shard is enough to have it processed again.
    """

    raw: dg.ResourceDependency[Any]

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        raise dg.DagsterInvariantViolationError("raw shards are observed, never written")

    def load_input(self, context: dg.InputContext) -> ShardSet:
        asset = context.asset_key
        keys = sorted(context.asset_partition_keys)
        listing: Mapping[str, RawShardLike] = self.raw.listing()
        _warn_of_unmatched(context.log, listing)
        present = {key: listing[key] for key in keys if key in listing}
        seen = events.latest_observations(context.instance, asset, present)
        changed = _changed(present, seen)
        if changed and (run := events.asset_step()) is not None:
            for key in changed:
                run.log_event(observation(asset, key, present[key]))
            seen |= events.latest_observations(context.instance, asset, changed)
        return ShardSet(
            asset.to_user_string(),
            tuple(
                Shard(
                    key,
                    raw.uri,
                    raw.version,
                    seen[key].pointer if key in seen and seen[key].version == raw.version else None,
                )
                for key, raw in present.items()
            ),
            {key: "no such raw shard" for key in keys if key not in present},
        )


def _warn_of_unmatched(log: dg.DagsterLogManager, listing: Mapping[str, RawShardLike]) -> None:
    """Tell the warnings of a listing: of an unreachable folder, a pattern that matches nothing, and so on.

    They do not keep other shards from being processed.
    """
    for line in listing.warnings if isinstance(listing, Listing) else ():
        log.warning(line)


def _changed(listing: Mapping[str, RawShardLike], seen: Mapping[str, events.Latest]) -> list[str]:
    return [key for key, raw in listing.items() if key not in seen or seen[key].version != raw.version]


def observation(asset: dg.AssetKey, key: str, raw: RawShardLike) -> dg.AssetObservation:
    """Return the event that notes the version of a raw shard."""
    return dg.AssetObservation(
        asset, partition=key, metadata={events.URI: raw.uri}, tags=events.observed_version(raw.version)
    )
