"""The real graph over a folder of raw shards, on a SQLite instance of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.loader import LoadingContext

from mm_assets.definitions import SHARDED_ASSETS, build_definitions
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets.graph.resources import resources_from_environment
from mm_assets.storage.small_files import unseal
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.quick_instance import copy_of


class Loading(LoadingContext):
    """What a request of the UI loads with."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._loaders: dict[Any, Any] = {}

    @property
    def instance(self) -> dg.DagsterInstance:
        return self._instance

    @property
    def loaders(self) -> dict[Any, Any]:
        return self._loaders


ASSETS = [asset.key.to_user_string() for asset in SHARDED_ASSETS]
# A run of these alone, where a test is about what is read, or filtered, takes half of the time.
CURATED = ["raw_shards", "curated_parquet"]
SCORED = ["image_scores", "sample_scores", "filtered_parquet"]
FILTERED = [*CURATED, *SCORED]


@dataclass
class Deployment:
    """Raw shards, an output root (folders or URLs) and an instance; environment variables configure the
    resources.
    """

    raw: str
    storage: str
    instance: dg.DagsterInstance
    environment: dict[str, str]

    def copied(self, folder: Path) -> Deployment:
        """The same in another folder, to change it there: raw shards, outputs, runs and events."""
        for path, name in ((self.raw, "raw"), (self.storage, "storage")):
            shutil.copytree(path, folder / name)
        instance = copy_of(self.instance, folder / "dagster_home", Path(self.raw).parent, folder)
        raw, storage = str(folder / "raw"), str(folder / "storage")
        return replace(self, raw=raw, storage=storage, instance=instance, environment=dict(self.environment))

    def run(
        self,
        keys: list[str] | None = None,
        assets: list[str] | None = None,
        launchpad: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Materialize every asset, or some, for some neighbouring shards (default: all) in one run.

        Args:
            launchpad: other values of resources for this run, by resource.
        """
        with self._configured():
            self.instance.add_dynamic_partitions(
                str(SHARDS.name), list(resources_from_environment()["raw"].listing())
            )
            known = list(self.instance.get_dynamic_partitions(str(SHARDS.name)))
            first, last = (keys[0], keys[-1]) if keys else (known[0], known[-1])
            tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
            job = build_definitions().resolve_job_def("all_assets")
            result = job.execute_in_process(
                instance=self.instance,
                tags=tags,
                raise_on_error=False,
                asset_selection=None if assets is None else [dg.AssetKey(asset) for asset in assets],
                run_config={
                    "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
                    "resources": {name: {"config": dict(set_)} for name, set_ in (launchpad or {}).items()},
                },
            )
        _print_failed_checks(result)
        return result

    def log(self, result: dg.ExecuteInProcessResult) -> str:
        """The messages of all events of a run, a line each."""
        records = self.instance.get_records_for_run(result.run_id).records
        return "\n".join(record.event_log_entry.user_message for record in records)

    def check(self, asset: str, name: str) -> dg.ExecuteInProcessResult:
        """Run one check alone, over all shards there are."""
        with self._configured():
            self.instance.add_dynamic_partitions(
                str(SHARDS.name), list(resources_from_environment()["raw"].listing())
            )
            key = dg.AssetCheckKey(dg.AssetKey(asset), name)
            alone = dg.Definitions(
                jobs=[dg.define_asset_job("alone", selection=dg.AssetSelection.checks(key))]
            )
            job = dg.Definitions.merge(build_definitions(), alone).resolve_job_def("alone")
            return job.execute_in_process(
                instance=self.instance,
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )

    def check_states(self) -> dict[str, dict[str, set[str]]]:
        """By ``asset.check``, the shards of each status as the UI counts them: this is what its query
        resolves to.
        """
        with self._configured():
            graph = build_definitions().resolve_asset_graph()
        found: dict[str, dict[str, set[str]]] = {}
        for key in graph.asset_check_keys:
            partitions_def = graph.get(key).partitions_def
            if partitions_def is None:
                continue
            with dg.partition_loading_context(dynamic_partitions_store=self.instance):
                state = self.instance.event_log_storage.get_asset_check_state([(key, partitions_def)])[key]
                shards = {
                    status.value: set(subset.subset_value.get_partition_keys())
                    for status, subset in state.subsets.items()
                }
            found[f"{key.asset_key.to_user_string()}.{key.name}"] = {
                status: keys for status, keys in shards.items() if keys
            }
        return found

    def overview(self, asset: str, check: str) -> tuple[bool, dict[str, Any]]:
        """What the overview of an asset shows of a check: its latest row, if it is of the latest
        materialization; and its metadata.
        """
        key = dg.AssetCheckKey(dg.AssetKey(asset), check)
        record = self.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
        assert asyncio.run(record.targets_latest_materialization(Loading(self.instance)))
        assert record.evaluation is not None
        return record.evaluation.passed, {
            name: value.value for name, value in record.evaluation.metadata.items()
        }

    @contextmanager
    def _configured(self) -> Iterator[None]:
        before = dict(os.environ)
        os.environ.update({"MM_RAW_SHARDS": self.raw, "MM_STORAGE": self.storage, **self.environment})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _print_failed_checks(result: dg.ExecuteInProcessResult) -> None:
    """Print what failed, with its reasons; pytest shows it beside a test that fails because of it."""
    for evaluation in result.get_asset_check_evaluations():
        if not evaluation.passed:
            metadata = {name: value.value for name, value in evaluation.metadata.items()}
            print(evaluation.asset_key, evaluation.check_name, evaluation.partition, metadata)


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    """A raw shard of these members, in place of the one that may be there."""
    make_tar(path, members.items(), kind=tarfile.USTAR_FORMAT)


def materialized(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, dg.AssetMaterialization]]:
    """asset -> shard -> its one materialization of this run. A second one for a shard fails the test."""
    found: dict[str, dict[str, dg.AssetMaterialization]] = {}
    for event in result.get_asset_materialization_events():
        made = event.step_materialization_data.materialization
        shards = found.setdefault(made.asset_key.to_user_string(), {})
        assert made.partition is not None and made.partition not in shards, (
            f"{made.asset_key} {made.partition}: two events"
        )
        shards[made.partition] = made
    return found


def failed_checks(result: dg.ExecuteInProcessResult) -> set[tuple[str, str, str | None]]:
    """(asset, check, shard) of every evaluation that did not pass; the shard is None where all are judged
    together.
    """
    return {
        (e.asset_key.to_user_string(), e.check_name, e.partition)
        for e in result.get_asset_check_evaluations()
        if not e.passed
    }


def failed_shard_checks(result: dg.ExecuteInProcessResult) -> set[tuple[str, str, str | None]]:
    """Those of single shards."""
    return {failed for failed in failed_checks(result) if failed[2] is not None}


def prove(deployment: Deployment) -> tuple[bool, dict[str, dict[str, list[str]]], dict[str, Any]]:
    """Whether the job succeeded; problems by asset and shard, of those that have some; and what
    ``proof.json`` says.
    """
    with deployment._configured():
        job = build_definitions().resolve_job_def("prove")
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        result = job.execute_in_process(instance=deployment.instance, raise_on_error=False, run_config=quiet)
    found: dict[str, dict[str, list[str]]] = {}
    for evaluation in result.get_asset_check_evaluations():
        if evaluation.partition is not None and not evaluation.passed:
            lines = evaluation.metadata["problems"].value
            found.setdefault(evaluation.asset_key.to_user_string(), {})[evaluation.partition] = list(lines)  # type: ignore[call-overload]
    proof = unseal(Path(deployment.storage, "proof", "proof.json").read_bytes())
    assert proof["is_equal"] is result.success
    for asset, shards in found.items():
        assert proof["assets"][asset]["problems"] == shards
    return result.success, found, proof
