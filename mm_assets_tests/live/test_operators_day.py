"""A day of an operator: shards arrive, some are bad, people and schedules retry, processes are killed. Each
trouble is told once, and that it is over once.

``TEST_DAY_TICKS`` is the number of times that the schedule `refresh` runs before the bad shards are mended
(1); with it, the day is also lived on Postgres.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import pytest
from dagster._core.execution.backfill import PartitionBackfill

from mm_assets.automation.backfills import unfinished_backfills
from mm_assets.graph.dagster_internals import SHARDS, keys_of_run, unfinished_runs
from mm_assets.graph.instance_queries import STARTED_BY
from mm_assets.graph.io_manager import LANDED
from mm_assets_tests.automation.alerts.receivers import Webhook, webhook
from mm_assets_tests.graph.deployment import ASSETS, Deployment
from mm_assets_tests.live.automated import BROKEN, SECONDS, Storage, ended_ticks
from mm_assets_tests.live.daemon import PAUSE, DagsterDev, wait_for
from tools.demo import make_shards

T = TypeVar("T")
LONG = "TEST_DAY_TICKS" in os.environ
TICKS = int(os.environ.get("TEST_DAY_TICKS", "1"))
NAMED = re.compile(r"^- ([\w-]+): ", re.MULTILINE)
TEMPORARY = re.compile(r"\.(tmp|building)$")

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800 + 60 * TICKS)]


@dataclass
class Day:
    """What goes on, and what is told of it.

    Args:
        arrived: shards that there are.
        bad: those of them that have been tried and cannot land.
        messages: so many there may be by now.
        quiet: moments at which nothing was going on, and all that is shown was compared.
    """

    storage: Storage
    dev: DagsterDev
    hook: Webhook
    instance: dg.DagsterInstance
    arrived: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    messages: int = 1
    quiet: int = 0
    _seen: int = 0

    def wait_for(self, condition: Callable[[], T | None], what: str, seconds: float = 2 * SECONDS) -> T:
        """`wait_for`, with a look at what is shown whenever nothing goes on."""

        def ask() -> T | None:
            self.look()
            return condition()

        return wait_for(ask, seconds, what, PAUSE)

    def look(self) -> None:
        """If nothing goes on, and did not while it was looked at: `landed` of each asset names the shards
        that Dagster shows as failed, and these are the bad ones. Messages are looked at each time.
        """
        assert len(self.hook.received) <= self.messages, self.hook.told
        last = self._last_event()
        if last == self._seen or self._is_busy():
            return
        named = {asset: self._named(asset) for asset in ASSETS}
        failed = {asset: set(self.dev.partitions(asset)["failed"]) for asset in ASSETS}
        if self._is_busy() or self._last_event() != last:
            return
        self._seen = last
        self.quiet += 1
        assert named == failed == dict.fromkeys(ASSETS, self.bad)

    def _last_event(self) -> int:
        return self.instance.event_log_storage.get_maximum_record_id() or 0

    def _is_busy(self) -> bool:
        lost = self.instance.get_runs(dg.RunsFilter(tags={"dagster/will_retry": "true"}))
        return (
            bool(unfinished_backfills(self.instance))
            or any(run.job_name != "refresh" for run in unfinished_runs(self.instance))
            or any("dagster/auto_retry_run_id" not in run.tags for run in lost)
        )

    def _named(self, asset: str) -> set[str]:
        """The shards that the latest evaluation of `landed` names."""
        key = dg.AssetCheckKey(dg.AssetKey(asset), LANDED)
        record = self.instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
        if record is None:
            return set()
        assert isinstance(record.evaluation, dg.AssetCheckEvaluation), f"{key} was planned, and never made"
        shards = record.evaluation.metadata["shards"].value
        assert isinstance(shards, list) and record.evaluation.passed is not bool(shards)
        return {str(shard) for shard in shards}

    def arrive(self, tars: Sequence[Path], broken: Sequence[Path] = ()) -> set[str]:
        """Move raw shards in, and return their names; the content of broken ones is kept back."""
        self.storage.raw.mkdir(exist_ok=True)
        for tar in tars:
            if tar in broken:
                tar.rename(tar.with_suffix(".whole"))
                tar.write_bytes(BROKEN)
            tar.rename(self.storage.raw / tar.name)
        arriving = {tar.stem for tar in tars}
        self.arrived |= arriving
        return arriving

    def arrive_after_a_refresh(self, tars: Sequence[Path]) -> set[str]:
        """`arrive` when the schedule has just run, so that the sensor is the first to see them."""
        seen = self.refreshes()
        wait_for(lambda: self.refreshes() > seen, SECONDS, "a run of refresh")
        return self.arrive(tars)

    def wait_until_quiet(self) -> None:
        seen = self.quiet
        self.wait_for(lambda: self.quiet > seen, "a quiet moment")

    def all_is_made(self) -> bool:
        """Whether all good shards are in the last assets, and what the sensor launched has ended."""
        going_on = {each.tags.get(STARTED_BY) for each in unfinished_backfills(self.instance)}
        return self.arrived - self.bad <= self.storage.tars() and "sensor automation" not in going_on

    def end_of(self, backfills: Iterable[str]) -> list[str]:
        """Wait for the end of backfills; their statuses."""
        return [self.wait_for(partial(self._status, each), f"the end of {each}") for each in backfills]

    def _status(self, backfill: str) -> str | None:
        status = self.dev.backfill_status(backfill)
        return status if status.startswith("COMPLETED_") else None

    def runs_of(self, backfill: str) -> Sequence[dg.DagsterRun]:
        return self.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))

    def keys_of(self, backfill: str) -> set[str]:
        """The shards of a backfill's runs."""
        return {key for run in self.runs_of(backfill) for key in keys_of_run(run, SHARDS, self.instance)}

    def started_by(self, what: str) -> list[PartitionBackfill]:
        return [each for each in self.instance.get_backfills() if each.tags.get(STARTED_BY) == what]

    def refreshes(self) -> int:
        """How often the schedule has run."""
        done = dg.RunsFilter(job_name="refresh", statuses=[dg.DagsterRunStatus.SUCCESS])
        return self.instance.get_runs_count(done)

    def run_that_made_something(self, shards: set[str], but: Sequence[str] = ()) -> str | None:
        """A run of some of these shards that goes on and has made the first of its outputs."""
        for run in unfinished_runs(self.instance):
            if run.run_id in but or shards.isdisjoint(keys_of_run(run, SHARDS, self.instance)):
                continue
            if self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION):
                return run.run_id
        return None

    def kill(self, run: str) -> None:
        os.kill(self.dev.run_process(run), signal.SIGKILL)

    def red(self) -> dict[str, Any]:
        """What Dagster shows of checks that do not pass for all shards, in the UI and by the function that
        its page calls.
        """
        found: dict[str, Any] = {}
        variables = self.dev.environment
        deployment = Deployment(str(self.storage.raw), variables["MM_STORAGE"], self.instance, variables)
        every = set(self.instance.get_dynamic_partitions("shards"))
        states = deployment.check_states()
        for asset in ("raw_shards", *ASSETS):
            for name, shown in self.dev.checks(asset).items():
                state = {status.lower(): sorted(keys) for status, keys in states[f"{asset}.{name}"].items()}
                if not shown == state == {"succeeded": sorted(every)}:
                    found[f"{asset}.{name}"] = (shown, state)
            for name, status in self.over_all(asset).items():
                if status not in (None, "SUCCEEDED"):
                    found[f"{asset}.{name} over all"] = status
        return found

    def over_all(self, asset: str) -> Mapping[str, str | None]:
        """What the UI shows of each check of an asset as a whole."""
        text = """query($key: AssetKeyInput!) { found: assetNodeOrError(assetKey: $key) { ... on AssetNode {
            assetChecksOrError { ... on AssetChecks { checks { name
            executionForLatestMaterialization { status } } } } } } }"""
        checks = self.dev.query(text, key={"path": [asset]})["found"]["assetChecksOrError"]["checks"]
        executions = {each["name"]: each["executionForLatestMaterialization"] for each in checks}
        return {name: found and found["status"] for name, found in executions.items()}


PROFILES = [
    "sqlite",
    pytest.param(
        "in_postgres",
        marks=[pytest.mark.clients, pytest.mark.skipif(not LONG, reason="TEST_DAY_TICKS is not set")],
    ),
]


@pytest.mark.parametrize("profile", PROFILES)
def test_each_trouble_of_a_day_is_told_once_and_is_over_once(
    profile: str, request: pytest.FixtureRequest
) -> None:
    storage: Storage = request.getfixturevalue(profile)
    tars = make_shards(storage.folder / "spare", members=12, pdf=0, samples=2)
    bad = [tars[1], tars[4]]  # no neighbours
    first, second, third = tars[:6], tars[6:9], tars[9:]
    with webhook() as hook:
        server = storage.dev(
            MM_AUTOMATION="new", MM_REFRESH_CRON="* * * * *", MM_ALERTS=hook.url(), MM_ALERT_ON="error"
        )
        with server as dev, dev.instance() as instance:
            begun = time.time()
            day = Day(storage, dev, hook, instance)
            backfill = _the_first_arrive(day, first, bad)
            told = (
                "2 of 6 shards did not land: curated_parquet (quarantine share over MM_MAX_LOSS) "
                f"in backfill {backfill}"
            )
            assert hook.titles == [f"mm_assets: {told}"], hook.told
            assert set(NAMED.findall(hook.received[0]["message"])) == day.bad
            _more_arrive(day, second)
            _bad_ones_are_tried_again(day, backfill)
            _processes_are_killed(day, third)
            day.wait_for(lambda: day.refreshes() >= TICKS, f"{TICKS} runs of refresh", 60 * TICKS + SECONDS)
            for tar in bad:
                _one_is_mended(day, tar)
            assert hook.titles == [f"mm_assets: {told}", f"mm_assets: all clear: {told}"], hook.told
            _all_is_well(day)
            _assert_nobody_was_disturbed(day)
            by_sensor = {
                key for each in day.started_by("sensor automation") for key in day.keys_of(each.backfill_id)
            }
            assert by_sensor == {tar.stem for tar in (*second, *third)}, "it tries no bad shard"
            assert len(hook.received) == 2, hook.told
            print(
                f"{len(hook.received)} messages, {ended_ticks(instance, begun)} ticks of alerts, "
                f"{day.refreshes()} of refresh with {len(day.started_by('schedule refresh'))} backfills, "
                f"{instance.get_runs_count()} runs, {day.quiet} quiet moments, "
                f"{(time.time() - begun) / 60:.1f} minutes"
            )


def _the_first_arrive(day: Day, tars: Sequence[Path], bad: Sequence[Path]) -> str:
    """Have shards made by a backfill, until bad ones have been told of; its id."""
    day.arrive(tars, broken=bad)
    day.wait_for(
        lambda: day.arrived <= set(day.instance.get_dynamic_partitions("shards")), "the first partitions"
    )
    backfill = day.dev.launch_backfill(ASSETS, sorted(day.arrived))
    day.bad = {tar.stem for tar in bad}
    assert day.end_of([backfill]) == ["COMPLETED_FAILED"]
    day.wait_for(lambda: day.hook.received, "the message")
    return backfill


def _more_arrive(day: Day, tars: Sequence[Path]) -> None:
    """Good ones, which the sensor `automation` has made; and the schedule tries the bad ones again."""
    day.arrive_after_a_refresh(tars)
    day.wait_for(day.all_is_made, "the second shards")
    day.wait_for(lambda: day.started_by("schedule refresh"), "a backfill of refresh")


def _bad_ones_are_tried_again(day: Day, backfill: str) -> None:
    """By somebody, in all ways that the UI has."""
    (run,) = day.runs_of(backfill)
    again = day.dev.rerun_failed(run.run_id)
    retries = [day.dev.relaunch_failed(backfill), day.dev.launch_backfill(ASSETS, sorted(day.bad))]
    assert day.end_of(retries) == ["COMPLETED_FAILED"] * 2
    assert day.dev.wait_for_run(again) == "FAILURE"


def _processes_are_killed(day: Day, tars: Sequence[Path]) -> None:
    """That of a run, and that of the run which Dagster starts in its place. While the next one completes
    them, two backfills try one bad shard.
    """
    arriving = day.arrive_after_a_refresh(tars)
    killed: list[str] = []
    for which in ("the run", "its retry"):
        lost = wait_for(lambda: day.run_that_made_something(arriving, killed), SECONDS, which)
        day.kill(lost)
        killed.append(lost)
    both = [day.dev.launch_backfill(ASSETS, [min(day.bad)]) for _ in range(2)]
    assert day.end_of(both) == ["COMPLETED_FAILED"] * 2
    assert [run.status.value for each in both for run in day.runs_of(each)] == ["FAILURE"] * 2
    day.wait_for(day.all_is_made, "the third shards")
    for lost in killed:
        stored = day.instance.get_run_by_id(lost)
        assert stored is not None and stored.status == dg.DagsterRunStatus.FAILURE
        assert stored.tags["dagster/will_retry"] == "true"
        assert "dagster/auto_retry_run_id" in stored.tags


def _one_is_mended(day: Day, tar: Path) -> None:
    """The schedule has it made, and the alerts have time to tell what they know."""
    if day.bad == {tar.stem}:  # nothing is clear as long as another one is bad
        day.messages = 2
    tar.with_suffix(".whole").rename(day.storage.raw / tar.name)
    wait_for(lambda: tar.stem in day.storage.tars(), 2 * SECONDS, f"{tar.stem}, which was mended")
    day.bad.remove(tar.stem)
    if not day.bad:
        day.wait_until_quiet()
    now = time.time()
    day.wait_for(lambda: ended_ticks(day.instance, now) >= 2, "two ticks of the alerts")


def _all_is_well(day: Day) -> None:
    wait_for(lambda: not day.red(), SECONDS, "all checks to pass")
    day.wait_until_quiet()
    for asset in ASSETS:
        assert set(day.dev.partitions(asset)["materialized"]) == day.arrived
        assert day.over_all(asset)["landed"] == "SUCCEEDED", asset
    in_parquet, in_table = day.storage.rows()
    assert in_parquet == in_table and in_parquet.keys() == day.arrived
    files = (day.storage.folder / "storage").rglob("*")
    assert [path for path in files if TEMPORARY.search(path.name)] == []


def _assert_nobody_was_disturbed(day: Day) -> None:
    """What sensor and schedule launch is in no backfill that was going on then."""
    every = day.instance.get_backfills()
    for ours in [*day.started_by("schedule refresh"), *day.started_by("sensor automation")]:
        for other in every:
            ended = other.backfill_end_timestamp or time.time()
            if other.backfill_timestamp < ours.backfill_timestamp < ended:
                common = day.keys_of(ours.backfill_id) & day.keys_of(other.backfill_id)
                assert not common, (ours.title, other.title, common)
