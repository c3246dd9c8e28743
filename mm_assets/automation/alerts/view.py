"""The Dagster instance as one tick of the alerts sees it: runs are read once, with their origin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import dagster as dg

from mm_assets.automation.alerts.cause import Origin
from mm_assets.io_managers import events, instance_queries
from mm_assets.partitions import SHARDS

_BATCH = 500  # run ids in one query
_BACKFILL = "dagster/backfill"
_ACTIVE_BACKFILL = ("REQUESTED", "CANCELING", "FAILING")


@dataclass
class View:
    """What the finders of causes look at.

    Args:
        repository: the code location, with assets, checks, sensors and schedules.
        now: seconds since 1970.
    """

    instance: dg.DagsterInstance
    repository: dg.RepositoryDefinition
    now: float
    _runs: dict[str, dg.DagsterRun] = field(default_factory=dict)
    _origins: dict[str, Origin] = field(default_factory=dict)

    @cached_property
    def shards(self) -> frozenset[str]:
        """Names of the shards there are."""
        return frozenset(self.instance.get_dynamic_partitions(str(SHARDS.name)))

    def is_sharded(self, asset: dg.AssetKey) -> bool:
        """Return whether the partitions of the asset are the shards."""
        graph = self.repository.asset_graph
        return graph.has(asset) and graph.get(asset).partitions_def == SHARDS

    def ancestors(self, asset: dg.AssetKey) -> set[dg.AssetKey]:
        """Return all assets that this one is made from, directly or not."""
        graph = self.repository.asset_graph
        found: set[dg.AssetKey] = set()
        todo = [asset]
        while todo:
            child = todo.pop()
            parents = set(graph.get(child).parent_keys) if graph.has(child) else set()
            todo += parents - found
            found |= parents
        return found

    def runs(self, run_ids: Iterable[str]) -> dict[str, dg.DagsterRun]:
        """Return the runs of these ids that have not been deleted."""
        wanted = list(dict.fromkeys(run_ids))
        missing = [run_id for run_id in wanted if run_id not in self._runs]
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            self.add(self.instance.get_runs(dg.RunsFilter(run_ids=batch)))
        return {run_id: self._runs[run_id] for run_id in wanted if run_id in self._runs}

    def add(self, runs: Iterable[dg.DagsterRun]) -> None:
        """Keep runs that have been read by another query."""
        self._runs |= {run.run_id: run for run in runs}

    def origin(self, run: dg.DagsterRun) -> Origin:
        """Return the backfill of a run, else the run itself."""
        backfill = run.tags.get(_BACKFILL)
        return self.backfill(backfill) if backfill else Origin(run.run_id, False, run.is_finished)

    def origin_id(self, run_id: str) -> str:
        """Return the id of a run's backfill, else that of the run."""
        run = self.runs([run_id]).get(run_id)
        return self.origin(run).id if run else run_id

    def backfill(self, backfill_id: str) -> Origin:
        """Return a backfill; one that is unknown, or has been deleted, has ended."""
        if backfill_id not in self._origins:
            found = self.instance.get_backfill(backfill_id)
            ended = found is None or found.status.value not in _ACTIVE_BACKFILL
            self._origins[backfill_id] = Origin(backfill_id, True, ended)
        return self._origins[backfill_id]

    def run_ids(self, origin: Origin) -> list[str]:
        """Return all runs of a backfill, or the one run."""
        if not origin.is_backfill:
            return [origin.id]
        return list(self.instance.get_run_ids(dg.RunsFilter(tags={_BACKFILL: origin.id})))

    def size(self, origin: Origin, asset: dg.AssetKey) -> int:
        """Return how many shards of an asset a backfill or run is to make; 0 if that is not known."""
        if not origin.is_backfill:
            runs = self.runs([origin.id])
            if not runs or not self.is_sharded(asset):
                return 0
            return len(events.keys_of_run(runs[origin.id], SHARDS, self.instance))
        return instance_queries.backfill_size(self.instance, origin.id, self.repository.asset_graph, asset)
