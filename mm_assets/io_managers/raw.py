"""Raw shards as a source that is observed: which shards there are, where, and in which version.

They change without us, so each version seen is logged as an `AssetObservation` of its partition; staleness of
everything made from the shard is measured against the latest one. Only new and changed shards are logged: an
event costs ~10 ms, a listing far less.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import dagster as dg

from mm_assets.formats.raw_shards import Listing
from mm_assets.io_managers import events
from mm_assets.io_managers.shards import Shard, ShardSet


class RawShardLike(Protocol):
    """A raw shard as it lies there: where, and a version that changes whenever it does."""

    @property
    def uri(self) -> str: ...

    @property
    def version(self) -> str: ...


class RawListing(Protocol):
    """What `RawShardIOManager.raw` must be able to do: list the raw shards by partition key, as they are now."""

    def listing(self) -> Mapping[str, RawShardLike]: ...


def observe_changes(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    asset: dg.AssetKey,
    listing: Mapping[str, RawShardLike],
) -> dg.DataVersionsByPartition:
    """Body of the observable source asset: log each shard of `listing` that is new or has another version
    than last seen.

    The result to return is empty: Dagster would log all shards of it, changed or not, and without their URI.
    """
    _warn_of_unmatched(context.log, listing)
    seen = events.latest_observations(context.instance, asset, listing)
    for key in _changed(listing, seen):
        context.log_event(_observation(asset, key, listing[key]))
    return dg.DataVersionsByPartition({})


class RawShardIOManager(dg.ConfigurableIOManager):
    """Loads raw shards as a `ShardSet` with the version they have now, and the event that says so.

    A shard never observed, or changed since, is observed here and now (inside a run): what is made from it
    then names the version that it was really made from, and mending a raw shard is enough to have it done
    again.
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
                run.log_event(_observation(asset, key, present[key]))
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
    """A folder out of reach, or a pattern that matches nothing, keeps no shard of another from its work; but
    it is told.
    """
    for line in listing.unmatched if isinstance(listing, Listing) else ():
        log.warning(line)


def _changed(listing: Mapping[str, RawShardLike], seen: Mapping[str, events.Latest]) -> list[str]:
    return [key for key, raw in listing.items() if key not in seen or seen[key].version != raw.version]


def _observation(asset: dg.AssetKey, key: str, raw: RawShardLike) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset, partition=key, metadata={events.URI: raw.uri}, tags=events.observed_version(raw.version)
    )
