"""Good shards never wait for bad ones: one event for each, the bad are named, and a relaunch heals exactly
these.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from mm_assets.accounting.accounts import Ledger
from mm_assets.graph import ShardJob, ShardResult, dagster_internals
from mm_assets.graph.assets import landed_checks
from mm_assets.graph.planned_jobs import ShardReports
from mm_assets_tests.automation.alerts.event_writer import Writer
from mm_assets_tests.graph.io_manager import toy, toy_job
from mm_assets_tests.graph.io_manager.conftest import Toy
from mm_assets_tests.quick_instance import quick_instance

BAD = ["k03", "k07", "k08"]
Ran = tuple[Toy, dg.ExecuteInProcessResult]


def damaged(deployment: Toy, killing: bool = False) -> list[str]:
    """Write 12 shards of which three fail; one of these kills its worker, if that is asked for."""
    keys = deployment.shards(12)
    deployment.shard("k03", "RAISE")
    deployment.shard("k07", "KILL" if killing else "RAISE")
    deployment.shard("k08", "RAISE")
    return keys


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """A run over damaged shards, to look at."""
    folder = tmp_path_factory.mktemp("damaged")
    with quick_instance(folder / "artifacts") as instance:
        deployment = Toy(folder, instance)
        damaged(deployment, killing=True)
        yield deployment, deployment.run("two", "k01", "k12")


def test_good_shards_go_through_every_asset_of_the_run(deployment: Toy) -> None:
    keys = damaged(deployment, killing=True)
    good = [key for key in keys if key not in BAD]
    run = deployment.run("all", "k01", "k12")
    for asset in ("curated", "scores", "filtered", "table"):
        assert deployment.landed(asset, run) == good
        assert deployment.status(asset, keys) == {
            key: "FAILED" if key in BAD else "MATERIALIZED" for key in keys
        }
    assert not run.success
    assert set(deployment.failures(run)) == {
        f"{asset}_landed" for asset in ("curated", "scores", "filtered", "table")
    }


def test_each_event_has_metadata_and_version_of_its_own(ran: Ran) -> None:
    deployment, keys = ran[0], [f"k{number:02d}" for number in range(1, 13)]
    for asset in ("curated", "scores"):
        latest = deployment.latest(asset, keys)
        assert {key: event.uri for key, event in latest.items()} == {
            key: f"{deployment.root}/{asset}/{key}.out" for key in keys if key not in BAD
        }
    curated = deployment.latest("curated", keys)
    assert len({event.version for event in curated.values()}) == 9
    of_k05 = dg.AssetRecordsFilter(dg.AssetKey("curated"), asset_partitions=["k05"])
    (record,) = deployment.instance.fetch_materializations(of_k05, limit=1).records
    assert record.asset_materialization is not None
    metadata = record.asset_materialization.metadata
    assert metadata["first"] == dg.MetadataValue.md("**FIRST OF K05**")
    assert metadata["lines"] == dg.MetadataValue.int(3)
    assert metadata["share"] == dg.MetadataValue.float(0.3)
    assert metadata["lengths"] == dg.MetadataValue.json([12, 1, 3])
    schema = dg.MetadataValue.table_schema(dg.TableSchema([dg.TableColumn("line", "string")]))
    assert metadata["dagster/column_schema"] == schema


def test_errors_name_the_shard_and_the_cause(ran: Ran) -> None:
    deployment, run = ran
    killed = (
        "worker killed by signal 9 (SIGKILL), as the kernel does when memory runs out: "
        "fewer workers (MM_WORKERS, --workers) need less"
    )
    assert sorted(line.splitlines()[0] for line in deployment.log(run)) == [
        "shard 'k03' of curated: line says RAISE",
        "shard 'k03' of scores: input missing: shard 'k03' of curated: failed in this run: line says RAISE",
        f"shard 'k07' of curated: {killed}",
        f"shard 'k07' of scores: input missing: shard 'k07' of curated: failed in this run: {killed}",
        "shard 'k08' of curated: line says RAISE",
        "shard 'k08' of scores: input missing: shard 'k08' of curated: failed in this run: line says RAISE",
    ]
    assert 'raise ValueError("line says RAISE")' in next(
        line for line in deployment.log(run) if "'k03' of curated" in line
    )


def test_the_page_of_a_shard_says_what_to_do(ran: Ran) -> None:
    """Also that of an asset further on, which names the first one that failed."""
    deployment, _ = ran
    told = {
        asset: dagster_internals.latest_observations(deployment.instance, dg.AssetKey(asset), ["k03"])["k03"]
        for asset in ("curated", "scores")
    }
    of_first, of_next = (told[asset].metadata["what_to_do"] for asset in told)
    for text in (of_first, of_next):
        assert "run `mm-assets run k03`, or launch the job `refresh`" in text and "Materialize" in text
    assert of_first.startswith("Mend or replace the raw shard, or change the setting")
    assert "`mm-assets retire k03`" in of_first
    assert of_next.startswith("Nothing is wrong in this asset: an input is missing.")
    reason = "input missing: shard 'k03' of curated: failed in this run: line says RAISE"
    assert told["scores"].metadata["error"] == reason


def test_landed_tells_which_shards_are_missing(ran: Ran) -> None:
    deployment, run = ran
    landed = [
        e
        for e in run.get_asset_check_evaluations()
        if e.asset_check_key == toy.check_key("curated", "landed")
    ]
    assert [(e.passed, e.partition, e.severity) for e in landed] == [
        (False, None, dg.AssetCheckSeverity.ERROR)
    ]
    (evaluation,) = landed
    assert evaluation.metadata["shards"] == dg.MetadataValue.json(BAD)
    assert evaluation.metadata["summary"] == dg.MetadataValue.text("k03, k07, k08")
    assert (
        "3 of 12 shards of curated did not land: k03, k07, k08" in deployment.failures(run)["curated_landed"]
    )


def test_relaunch_after_mending_heals_exactly_the_failed(deployment: Toy) -> None:
    keys = damaged(deployment, killing=True)
    deployment.run("two", "k01", "k12")
    before = {
        key: os.stat(deployment.root / "curated" / f"{key}.out").st_mtime_ns for key in keys if key not in BAD
    }
    for key in BAD:
        deployment.shard(key)
    relaunch = deployment.run("two", "k01", "k12")
    assert relaunch.success
    assert deployment.landed("curated", relaunch) == deployment.landed("scores", relaunch) == keys
    assert set(deployment.status("scores", keys).values()) == {"MATERIALIZED"}
    again = {
        key: "unchanged" not in event.metadata for key, event in deployment.latest("curated", keys).items()
    }
    assert sorted(key for key, worked in again.items() if worked) == BAD
    assert before == {key: os.stat(deployment.root / "curated" / f"{key}.out").st_mtime_ns for key in before}


def test_failed_shard_keeps_its_older_version_but_does_not_pass_it_on(deployment: Toy) -> None:
    keys = deployment.shards(3)
    assert deployment.run("two", "k01", "k03").success
    old = deployment.latest("scores", keys)["k02"]
    text = (deployment.root / "curated" / "k02.out").read_text()
    deployment.shard("k02", "RAISE")
    deployment.shard("k03", "other\n")
    run = deployment.run("two", "k01", "k03")
    assert deployment.landed("curated", run) == deployment.landed("scores", run) == ["k01", "k03"]
    assert (deployment.root / "curated" / "k02.out").read_text() == text
    assert deployment.latest("scores", keys)["k02"] == old
    # A later run of the downstream asset alone uses the last good version again.
    alone = deployment.run("two", "k02", asset_selection=[dg.AssetKey("scores")])
    assert alone.success and deployment.landed("scores", alone) == ["k02"]


def test_worker_that_dies_while_writing_leaves_nothing_published(
    deployment: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.shards(1)
    monkeypatch.setattr(toy.ToyIOManager, "run_job", staticmethod(toy_job.die_while_writing))
    run = deployment.run("two", "k01", "k01")
    assert deployment.landed("curated", run) == []
    assert [p.suffix for p in (deployment.root / "curated").iterdir()] == [".tmp"]
    monkeypatch.undo()
    assert deployment.run("two", "k01", "k01").success
    assert [p.name for p in (deployment.root / "curated").iterdir()] == ["k01.out"]


@pytest.mark.parametrize("death", [toy_job.die_before_account, toy_job.die_after_account])
def test_worker_that_dies_before_its_answer_fails_its_shard_and_the_next_run_lands_it(
    deployment: Toy, monkeypatch: pytest.MonkeyPatch, death: Callable[[ShardJob], ShardResult]
) -> None:
    deployment.shards(1)
    monkeypatch.setattr(toy.ToyIOManager, "run_job", staticmethod(death))
    run = deployment.run("two", "k01", "k01")
    assert deployment.landed("curated", run) == []
    assert deployment.log(run)[0].startswith("shard 'k01' of curated: worker killed by signal 9")
    assert (deployment.root / "curated" / "k01.out").exists()
    recorded = Ledger(str(deployment.root)).records("curated", ["k01"])
    assert bool(recorded) == (death is toy_job.die_after_account)
    monkeypatch.undo()
    again = deployment.run("two", "k01", "k01")
    assert again.success and deployment.landed("curated", again) == ["k01"]
    record = Ledger(str(deployment.root)).records("curated", ["k01"])["k01"]
    assert deployment.latest("curated", ["k01"])["k01"].version == record.version


def test_without_the_gate_the_asset_itself_fails_the_run(deployment: Toy) -> None:
    damaged(deployment)
    deployment.config["checks"] = []
    run = deployment.run("two", "k01", "k12")
    assert not run.success and len(deployment.landed("curated", run)) == 9
    assert list(deployment.failures(run)) == ["curated"]
    assert "3 shards of curated failed: k03, k07, k08" in deployment.failures(run)["curated"]


def test_gate_deselected_in_the_run_counts_as_without(deployment: Toy) -> None:
    damaged(deployment)
    run = deployment.run("ungated", "k01", "k12")
    assert not run.success and len(deployment.landed("curated", run)) == 9


@pytest.mark.parametrize("gate", [True, False])
def test_skip_lets_the_run_succeed_with_a_warning(deployment: Toy, gate: bool) -> None:
    keys = damaged(deployment)
    deployment.config["checks"] = landed_checks([toy.skipping]) if gate else []
    run = deployment.run("skip", "k01", "k12")
    assert run.success and len(deployment.landed("skipping", run)) == 9
    assert {
        key for key, status in deployment.status("skipping", keys).items() if status != "MATERIALIZED"
    } == set(BAD)
    warnings = [
        line for line in deployment.log(run, 30) if line.startswith("3 of 12 shards of skipping did not land")
    ]
    assert len(warnings) == (1 if gate else 0)


def _job_of_other_processes(name: str, deployment: Toy) -> Any:
    return dg.build_reconstructable_job(toy.__name__, name, (str(deployment.raw), str(deployment.root)))


def test_gate_repeated_alone_still_fails(deployment_on_disk: Toy) -> None:
    """ "Re-execute from failure" of a *run* repeats only its failed gate, which must not turn green over
    missing shards.
    """
    deployment = deployment_on_disk
    damaged(deployment)
    first = deployment.run("two", "k01", "k12")
    again = dg.ReexecutionOptions.from_failure(first.run_id, deployment.instance)
    job = _job_of_other_processes("two_job", deployment)
    with dg.execute_job(job, deployment.instance, reexecution_options=again) as second:
        assert second.run_id != first.run_id
        assert {e.step_key for e in second.all_events if e.is_step_event} == {
            "curated_landed",
            "scores_landed",
        }
        assert not second.success
    for key in BAD:
        deployment.shard(key)
    assert deployment.run("two", "k01", "k12").success
    with dg.execute_job(job, deployment.instance, reexecution_options=again) as third:
        assert third.success


def test_multiprocess_executor_gives_the_same(deployment_on_disk: Toy) -> None:
    """Slower, and with a pool for every step, but right: a step knows of the one before from the event log
    alone.
    """
    deployment = deployment_on_disk
    damaged(deployment, killing=True)
    tags = {"dagster/asset_partition_range_start": "k01", "dagster/asset_partition_range_end": "k12"}
    job = _job_of_other_processes("parallel_job", deployment)
    with dg.execute_job(job, deployment.instance, tags=tags) as run:
        assert not run.success
    for asset in ("curated", "scores"):
        events = [str(r.partition_key) for r in deployment.history(asset)]
        assert sorted(events) == [f"k{n:02d}" for n in range(1, 13) if f"k{n:02d}" not in BAD]


def test_gate_launched_alone_takes_stock_of_all_shards(deployment: Toy) -> None:
    damaged(deployment)
    gate = [toy.check_key("curated", "landed")]
    assert deployment.run("gate").success
    deployment.run("two", "k01", "k05")
    deployment.run("two", "k06", "k12")
    run = deployment.run("gate")
    assert not run.success
    assert [
        e.metadata["shards"].value for e in run.get_asset_check_evaluations() if e.asset_check_key in gate
    ] == [BAD]


def test_landed_names_all_that_is_missing_and_fails_its_own_run_only(deployment: Toy) -> None:
    damaged(deployment)
    gate = [toy.check_key("curated", "landed")]

    def landed(run: dg.ExecuteInProcessResult) -> list[tuple[object, object, object]]:
        return [
            (e.passed, e.metadata["shards"].value, e.metadata["failed_in_this_run"].value)
            for e in run.get_asset_check_evaluations()
            if e.asset_check_key in gate
        ]

    first = deployment.run("two", "k01", "k03")
    assert (first.success, landed(first)) == (False, [(False, ["k03"], ["k03"])])
    good = deployment.run("two", "k04", "k06")
    assert (good.success, landed(good)) == (True, [(False, ["k03"], [])])
    last = deployment.run("two", "k07", "k12")
    assert (last.success, landed(last)) == (False, [(False, BAD, ["k07", "k08"])])
    deployment.shard("k03")
    mended = deployment.run("two", "k03")
    assert (mended.success, landed(mended)) == (True, [(False, ["k07", "k08"], [])])


@pytest.mark.parametrize("is_made", [False, True])
def test_a_run_fails_for_a_shard_that_another_has_planned_or_made_since(
    deployment: Toy, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    """Its older version does not pass for what the run was to make."""
    keys = deployment.shards(3)
    assert deployment.run("two", "k01", "k03").success
    deployment.shard("k02", "RAISE")
    writer = Writer(deployment.instance)
    report = ShardReports.failure

    def overtaken(self: ShardReports, result: ShardResult) -> None:
        other = writer.begin_run()
        writer.planned(other, self.asset.to_user_string(), result.key)
        if is_made:
            writer.materialized(other, self.asset.to_user_string(), result.key)
        report(self, result)

    monkeypatch.setattr(ShardReports, "failure", overtaken)
    run = deployment.run("two", "k01", "k03")
    assert len(writer.runs) == 2
    assert not run.success
    assert set(deployment.failures(run)) == {"curated_landed", "scores_landed"}
    assert deployment.landed("scores", run) == ["k01", "k03"]
    assert "1 of 3 shards of scores did not land: k02" in deployment.failures(run)["scores_landed"]
    assert deployment.status("curated", keys)["k02"] == ("MATERIALIZED" if is_made else "IN_PROGRESS")


def test_damaged_output_path_is_the_shards_own_failure(deployment: Toy) -> None:
    """A directory where the file should go: its shard fails, the next one does not."""
    deployment.shards(2)
    Path(deployment.root / "curated" / "k01.out" / "sub").mkdir(parents=True)
    run = deployment.run("two", "k01", "k02")
    assert deployment.landed("scores", run) == ["k02"]
    assert "IsADirectoryError" in deployment.log(run)[0]
