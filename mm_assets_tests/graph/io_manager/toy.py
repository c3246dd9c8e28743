"""A toy format in the seam, as small as a real one should be: raw text shards -> curated -> scores ->
filtered -> table, summary.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg

from mm_assets.graph import Plan, ShardCheck, ShardJob, ShardResult, ShardSet
from mm_assets.graph.assets import landed_checks, sharded
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets.graph.io_manager import ShardIOManager, Workers
from mm_assets.graph.raw import RawShardIOManager, observe_changes
from mm_assets.storage.files import staged
from mm_assets_tests.graph.io_manager import toy_job
from mm_assets_tests.graph.io_manager.toy_job import Measure, MinLength, Upper

CHUNK = int(os.environ.get("TOY_CHUNK", "100"))
CHECKS = (
    ShardCheck("not_empty", toy_job.not_empty, blocking=True),
    ShardCheck("short_lines", toy_job.short_lines),
)


def check_key(asset: str, name: str) -> dg.AssetCheckKey:
    return dg.AssetCheckKey(dg.AssetKey(asset), name)


@dataclass(frozen=True)
class ToyRawShard:
    uri: str
    version: str


class ToyRawShards(dg.ConfigurableResource[Any]):
    folder: str

    def listing(self) -> dict[str, ToyRawShard]:
        files = sorted(Path(self.folder).glob("*.txt"))
        return {f.stem: ToyRawShard(str(f), hashlib.sha256(f.read_bytes()).hexdigest()[:12]) for f in files}


class ToyIOManager(ShardIOManager):
    suffix: str = ""

    run_job = staticmethod(toy_job.run)

    def locate(self, asset: str, key: str) -> str:
        return f"{self.root}/{asset}/{quote(key, safe='')}.out"


class ToyTableIOManager(ShardIOManager):
    """One JSON file for all shards, replaced by one commit per chunk."""

    fields: list[str] = []

    run_job = staticmethod(toy_job.run_fragment)

    def locate(self, asset: str, key: str) -> str:
        return f"{self.root}/{asset}.json"

    def rows(self, uri: str) -> dict[str, Any]:
        return json.loads(Path(uri).read_text()) if Path(uri).exists() else {}

    def stat_outputs(self, dests: Mapping[str, str]) -> Mapping[str, Mapping[str, Any] | None]:
        return {
            key: {"rows": rows[key]} if key in (rows := self.rows(uri)) else None
            for key, uri in dests.items()
        }

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        return [
            replace(job, options={**job.options, "fields": {"json": [job.key for job in jobs]}})
            for job in jobs
        ]

    def publish_chunk(self, results: Sequence[ShardResult]) -> Sequence[ShardResult]:
        if os.path.exists(f"{self.root}/refuse-commit"):
            raise OSError("the table refuses the commit")
        uri = results[0].uri
        with staged(uri) as file:
            Path(file.path).write_text(
                json.dumps(self.rows(uri) | {result.key: result.payload for result in results})
            )
            file.publish()
        return [replace(result, metadata={**result.metadata, "commit": len(results)}) for result in results]


@dg.observable_source_asset(partitions_def=SHARDS, io_manager_key="raw_io")
def raw_shards(
    context: dg.OpExecutionContext, raw: dg.ResourceParam[ToyRawShards]
) -> dg.DataVersionsByPartition:
    return observe_changes(context, dg.AssetKey("raw_shards"), raw.listing())


@sharded(code_version="1", checks=CHECKS, chunk_shards=CHUNK)
def curated(raw_shards: ShardSet) -> Plan:
    return Plan(raw_shards, (Upper(),))


@sharded(code_version="1", chunk_shards=CHUNK)
def scores(curated: ShardSet) -> Plan:
    return Plan(curated, (Measure(),))


@sharded(code_version="1", chunk_shards=CHUNK)
def filtered(curated: ShardSet, scores: ShardSet) -> Plan:
    return Plan(
        curated, (MinLength(int(os.environ.get("TOY_MINIMUM", "2"))),), side_inputs={"scores": scores}
    )


@sharded(code_version="1", io_manager_key="table_io", chunk_shards=CHUNK)
def table(filtered: ShardSet) -> Plan:
    return Plan(filtered)


@sharded(code_version="1", on_failed_shards="skip")
def skipping(raw_shards: ShardSet) -> Plan:
    return Plan(raw_shards)


@dg.asset(
    ins={"filtered": dg.AssetIn(partition_mapping=dg.AllPartitionMapping())}, io_manager_key="summary_io"
)
def summary(filtered: ShardSet) -> list[str]:
    return [shard.key for shard in filtered]


ASSETS: list[Any] = [raw_shards, curated, scores, filtered, table, skipping, summary]


JOBS = {
    "all": dg.AssetSelection.assets("curated", "scores", "filtered", "table"),
    "two": dg.AssetSelection.assets("curated", "scores"),
    "gate": dg.AssetSelection.checks(check_key("curated", "landed")),
    "ungated": dg.AssetSelection.assets("curated") - dg.AssetSelection.checks(check_key("curated", "landed")),
    "skip": dg.AssetSelection.assets("skipping"),
    "only summary": dg.AssetSelection.assets("summary"),
    "with summary": dg.AssetSelection.assets("curated", "scores", "filtered", "summary"),
    "observe": dg.AssetSelection.assets("raw_shards"),
}


def definitions(raw: str, root: str, **config: Any) -> dg.Definitions:
    """The toy's code location.

    `config`: other `assets`, `checks`, `jobs` (selections by name), `processes`, IO manager fields.
    """
    assets = config.pop("assets", ASSETS)
    checks = config.pop("checks", landed_checks(assets))
    jobs = config.pop("jobs", JOBS)
    executor = config.pop("executor", dg.in_process_executor)
    workers = Workers(processes=config.pop("processes", 2))
    listing = ToyRawShards(folder=raw)
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        executor=executor,
        jobs=[
            dg.define_asset_job(name.replace(" ", "_"), selection=selection)
            for name, selection in jobs.items()
        ],
        resources={
            "raw": listing,
            "raw_io": RawShardIOManager(raw=listing),
            "workers": workers,
            "io_manager": ToyIOManager(root=root, workers=workers, **config),
            "table_io": ToyTableIOManager(root=root, workers=workers),
            "summary_io": dg.mem_io_manager,
        },
    )


def two_job(raw: str, root: str) -> dg.JobDefinition:
    """The job "two" over these folders, for processes that import it."""
    return definitions(raw, root).resolve_job_def("two")


def parallel_job(raw: str, root: str) -> dg.JobDefinition:
    """`two_job` with a process for each step, forked from one that has imported this module.

    The process that forks is shared by all who ask for one, and keeps the environment of the first.
    """
    forked = {"start_method": {"forkserver": {"preload_modules": [__name__]}}}
    executor = dg.multiprocess_executor.configured(forked)
    return definitions(raw, root, executor=executor, processes=1).resolve_job_def("two")
