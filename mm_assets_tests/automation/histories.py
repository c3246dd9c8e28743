"""Random histories of a toy deployment: what happens to it between two looks at what is due."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from mm_assets.automation import DueShardFinder, DueShards
from mm_assets.graph.assets import with_settings
from mm_assets.graph.planned_jobs import ShardReports
from mm_assets_tests.graph.io_manager import toy
from mm_assets_tests.graph.io_manager.conftest import Toy

ASSETS = ("curated", "scores", "filtered", "table")
_SHARDED = {"curated": toy.curated, "scores": toy.scores, "filtered": toy.filtered, "table": toy.table}


@dataclass
class History:
    """A deployment to which things happen.

    ``suffix``, digits, is a setting of all files, ``minimum`` one of the asset ``filtered``.
    """

    deployment: Toy
    patch: pytest.MonkeyPatch
    suffix: str = ""
    minimum: int = 2
    told: list[str] = field(default_factory=list)

    def definitions(self) -> dg.Definitions:
        """The code location with the settings of now, which are in the code versions."""
        self.patch.setenv("TOY_MINIMUM", str(self.minimum))
        raw, root = str(self.deployment.raw), str(self.deployment.root)
        resources = dict(toy.definitions(raw, root, suffix=self.suffix).resources or {})
        assets = [toy.raw_shards, *(with_settings(asset, resources) for asset in _SHARDED.values())]
        return toy.definitions(
            raw,
            root,
            suffix=self.suffix,
            assets=assets,
            jobs={"all": dg.AssetSelection.assets(*ASSETS), "observe": toy.JOBS["observe"]},
        )

    def run(self, keys: Iterable[str] = (), assets: Iterable[str] = ()) -> dg.ExecuteInProcessResult:
        """Make neighbouring shards (default: all) in some assets (default: all)."""
        known = list(self.deployment.instance.get_dynamic_partitions("shards"))
        chosen = list(keys) or known
        return (
            self.definitions()
            .resolve_job_def("all")
            .execute_in_process(
                instance=self.deployment.instance,
                raise_on_error=False,
                tags={
                    "dagster/asset_partition_range_start": chosen[0],
                    "dagster/asset_partition_range_end": chosen[-1],
                },
                asset_selection=[dg.AssetKey(asset) for asset in assets] or None,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
        )

    def interrupted_run(self, after: int) -> None:
        """A run that an interrupt ends when so many shards have landed."""
        landed = ShardReports.landed
        left = after

        def landed_until(*args: Any, **kwargs: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise dg.DagsterExecutionInterruptedError
            landed(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ShardReports, "landed", landed_until)
            self.run()

    def find(self, assets: Iterable[str] = (), **how: Any) -> DueShards:
        """What is due now."""
        chosen = {dg.AssetKey(asset) for asset in assets} or None
        specs = [
            spec for spec in self.definitions().resolve_all_asset_specs() if spec.key.to_user_string() in TREE
        ]
        return DueShardFinder(self.deployment.instance, specs, self.versions(), **how).find(chosen)

    def versions(self) -> Mapping[str, str]:
        listing = toy.ToyRawShards(folder=str(self.deployment.raw)).listing()
        return {key: shard.version for key, shard in listing.items()}

    def staleness(self) -> dict[tuple[str, str], StaleStatus]:
        """What Dagster's UI says of each partition, once the raw shards are observed."""
        job = self.definitions().resolve_job_def("observe")
        assert job.execute_in_process(instance=self.deployment.instance).success
        resolver = CachingStaleStatusResolver(
            self.deployment.instance,
            self.definitions().resolve_asset_graph(),
            LoadingContextForTest(self.deployment.instance),
        )
        return {
            (asset, key): resolver.get_status(dg.AssetKey(asset), key)
            for asset in ASSETS
            for key in self.versions()
        }

    def step(self, chance: random.Random) -> None:
        """Let something happen."""
        keys = list(self.versions())
        key = chance.choice(keys)
        first, last = sorted(chance.choices(range(len(keys)), k=2))
        what = chance.choice(_EVENTS)
        self.told.append(f"{what} ({key}, {first}..{last})")
        match what:
            case "run":
                self.run()
            case "run of some shards":
                self.run(keys[first : last + 1])
            case "run of an asset":
                self.run(assets=[chance.choice(ASSETS)])
            case "run of some shards and assets":
                start = chance.randrange(len(ASSETS))
                self.run(keys[first : last + 1], ASSETS[start : start + 2])
            case "interrupted run":
                self.interrupted_run(chance.randrange(10))
            case "raw shard changed":
                self.deployment.shard(key, f"{chance.random()}\nab\nabcdef\n")
            case "raw shard changed, its rows not":
                text = (self.deployment.raw / f"{key}.txt").read_text()
                self.deployment.shard(key, text.swapcase() if "RAISE" not in text else text)
            case "raw shard broken":
                self.deployment.shard(key, "RAISE\n")
            case "new raw shard":
                self.deployment.shard(f"k{len(keys) + 1:02d}")
            case "other suffix":
                self.suffix = chance.choice(["", "1", "22"])
            case "other minimum":
                self.minimum = chance.choice([1, 2, 5])
            case "look":
                self.find()
            case "look at an asset":
                self.find([chance.choice(ASSETS)])
            case "observation":
                self.staleness()


TREE = ("raw_shards", *ASSETS)
_EVENTS = (
    *("run", "run", "run of some shards", "run of some shards", "run of an asset", "interrupted run"),
    *("run of some shards and assets", "run of some shards and assets", "raw shard changed"),
    *("raw shard changed", "raw shard changed, its rows not", "raw shard broken", "new raw shard"),
    *("other suffix", "other minimum", "other minimum", "look", "look", "look at an asset", "observation"),
)
