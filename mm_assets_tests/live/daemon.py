"""A real Dagster for tests: webserver, daemon and code server on loopback, driven through GraphQL like by the
UI.

    with DagsterDev("mm_assets.definitions", home, {"MM_STORAGE": …}) as dev:
        backfill = dev.launch_backfill(["curated"], keys)
        assert dev.wait_for_backfill(backfill) == "COMPLETED_SUCCESS"

A backfill takes 30 to 60 s: the daemon looks at backfills every 30 s, to launch their runs and to see them
done.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import dagster as dg

from mm_assets_tests.free_port import free_port

T = TypeVar("T")

REPOSITORY = Path(__file__).parent.parent.parent

# Dagster's own storages, and those of `mm-assets ui`, with which a run takes two thirds of the CPU.
STOCK_YAML = """\
telemetry: {enabled: false}
nux: {enabled: false}
concurrency: {runs: {max_concurrent_runs: 2}}
"""
_, _STORAGES = (REPOSITORY / "dagster.yaml").read_text().split("\nrun_storage:\n")
DAGSTER_YAML = f"{STOCK_YAML}run_storage:\n{_STORAGES}"

# Loopback only, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class DagsterDev:
    """`mm-assets ui`, or `dagster dev` over another module, in a `DAGSTER_HOME` of its own; every process of
    it ends with the block.
    """

    start_seconds = 180.0  # on a busy machine

    def __init__(
        self, module: str, home: Path, environment: Mapping[str, str] | None = None, yaml: str = DAGSTER_YAML
    ) -> None:
        self.module = module
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            **(environment or {}),
            "DAGSTER_HOME": str(home),
        }
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "dagster.yaml").exists():
            (home / "dagster.yaml").write_text(yaml)

    def __enter__(self) -> DagsterDev:
        with open(self.home / "dev.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments()],
                env=self.environment,
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_heed_signals,
            )
        try:
            wait_for(self._is_up, self.start_seconds, "the code location to load")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _arguments(self) -> list[str]:
        """What follows ``python -m``."""
        if self.module == "mm_assets.definitions":
            return ["mm_assets.cli", "ui", "--port", str(self.port)]
        return ["dagster", "dev", "-m", self.module, "-h", "127.0.0.1", "-p", str(self.port)]

    def stop(self) -> list[int]:
        """Ask it to end as Ctrl-C does, then end what is left of its session by process id; these are
        returned.
        """
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=30)
        left = self.processes()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(timeout=10)
        wait_for(lambda: not self.processes(), 10, "the last processes to end")
        return left

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self) -> int:
        """Wait for the end of it; the exit code."""
        assert self._process is not None
        return self._process.wait(timeout=60)

    def processes(self) -> list[int]:
        """Running processes of its session: servers, runs, workers."""
        assert self._process is not None
        return [pid for pid in all_pids() if session_of(pid) == self._process.pid]

    def log(self) -> str:
        return (self.home / "dev.log").read_text(errors="replace")

    def instance(self) -> AbstractContextManager[dg.DagsterInstance]:
        """The same storage, opened from here; use it in a `with` block."""
        return dg.DagsterInstance.from_config(str(self.home))

    def wait_for(self, condition: Callable[[dg.DagsterInstance], T | None], seconds: float, what: str) -> T:
        """`wait_for` what its storage says; opened once, for that costs more CPU than to ask it.

        Raises:
            TimeoutError: with a note of what there is instead.
        """
        with self.instance() as instance:
            try:
                return wait_for(lambda: condition(instance), seconds, what)
            except TimeoutError as error:
                error.add_note(_state(instance))
                raise

    # --- GraphQL ---

    def query(self, text: str, **variables: Any) -> Any:
        """Result of one GraphQL operation. Raises `RuntimeError` with the server's message."""
        body = json.dumps({"query": text, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with _OPENER.open(request, timeout=60) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode(errors="replace")) from error
        if answer.get("errors"):
            raise RuntimeError(json.dumps(answer["errors"], indent=1))
        return answer["data"]

    def launch_backfill(self, assets: Sequence[str], keys: Sequence[str]) -> str:
        """Materialize these assets for these partitions; the backfill's id."""
        parameters = {
            "assetSelection": [{"path": asset.split("/")} for asset in assets],
            "partitionNames": list(keys),
        }
        return self._mutate(
            "launchPartitionBackfill",
            "backfillParams: LaunchBackfillParams!",
            parameters,
            "LaunchBackfillSuccess { backfillId }",
        )["backfillId"]

    def relaunch_failed(self, backfill: str) -> str:
        """ "Re-execute from failure" of a backfill; the new backfill's id."""
        parameters = {"parentRunId": backfill, "strategy": "FROM_FAILURE"}
        return self._mutate(
            "reexecutePartitionBackfill",
            "reexecutionParams: ReexecutionParams!",
            parameters,
            "LaunchBackfillSuccess { backfillId }",
        )["backfillId"]

    def wait_for_backfill(self, backfill: str, seconds: float = 240) -> str:
        """Wait for the end of a backfill; its status, COMPLETED_SUCCESS or COMPLETED_FAILED, for instance."""
        return wait_for(
            lambda: status if (status := self.backfill_status(backfill)) in _ENDED else None,
            seconds,
            "the backfill",
            PAUSE,
        )

    def backfill_status(self, backfill: str) -> str:
        text = (
            "query($id: String!) { found: partitionBackfillOrError(backfillId: $id) { ... on "
            "PartitionBackfill { status } } }"
        )
        return str(self.query(text, id=backfill)["found"]["status"])

    def launch_run(self, job: str, tags: Mapping[str, str] | None = None) -> str:
        """Launch a job, over a range of partitions if the tags say so; the run's id."""
        ((repository, location),) = self._repositories()
        parameters = {
            "selector": {"repositoryName": repository, "repositoryLocationName": location, "jobName": job},
            "mode": "default",
            "executionMetadata": {
                "tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]
            },
        }
        return self._mutate(
            "launchRun", "executionParams: ExecutionParams!", parameters, "LaunchRunSuccess { run { runId } }"
        )["run"]["runId"]

    def rerun_failed(self, run: str) -> str:
        """ "Re-execute from failure" of one run; the new run's id."""
        parameters = {"parentRunId": run, "strategy": "FROM_FAILURE"}
        return self._mutate(
            "launchRunReexecution",
            "reexecutionParams: ReexecutionParams!",
            parameters,
            "LaunchRunSuccess { run { runId } }",
        )["run"]["runId"]

    def terminate(self, run: str) -> None:
        self._mutate("terminateRun", "runId: String!", run, "TerminateRunSuccess { run { runId } }")

    def run_status(self, run: str) -> str:
        text = "query($id: ID!) { found: runOrError(runId: $id) { ... on Run { status } } }"
        return str(self.query(text, id=run)["found"]["status"])

    def wait_for_run(self, run: str, seconds: float = 180) -> str:
        return wait_for(
            lambda: (
                status if (status := self.run_status(run)) in ("SUCCESS", "FAILURE", "CANCELED") else None
            ),
            seconds,
            "the run",
            PAUSE,
        )

    def run_process(self, run: str) -> int:
        """Wait for the process of a run; its id."""

        def find(instance: dg.DagsterInstance) -> int | None:
            for entry in instance.all_logs(run, of_type=dg.DagsterEventType.ENGINE_EVENT):
                data = entry.get_dagster_event().event_specific_data
                if (pid := getattr(data, "metadata", {}).get("pid")) is not None:
                    return int(str(pid.value))
            return None

        return self.wait_for(find, 300, "the process of the run")

    def partitions(self, asset: str) -> dict[str, list[str]]:
        """What the UI shows of an asset's partitions: lists of keys by "materialized", "failed",
        "unmaterialized", "materializing".
        """
        kinds = ("materialized", "failed", "unmaterialized", "materializing")
        lists = " ".join(f"{kind}Partitions" for kind in kinds)
        text = f"""query($key: AssetKeyInput!) {{ found: assetNodeOrError(assetKey: $key) {{
            ... on AssetNode {{ assetPartitionStatuses {{
            ... on DefaultPartitionStatuses {{ {lists} }} }} }} }} }}"""
        found = self.query(text, key={"path": asset.split("/")})["found"]["assetPartitionStatuses"]
        return {kind: sorted(found[f"{kind}Partitions"]) for kind in kinds}

    def materializations(self, asset: str) -> list[str]:
        """Times of the latest materializations of an asset, as the UI gets them."""
        text = """query($key: AssetKeyInput!) { found: assetOrError(assetKey: $key) {
            ... on Asset { assetMaterializations(limit: 5) { timestamp } } } }"""
        found = self.query(text, key={"path": asset.split("/")})["found"]
        return [event["timestamp"] for event in found.get("assetMaterializations", [])]

    def checks(self, asset: str) -> dict[str, dict[str, list[str]]]:
        """What the UI shows of an asset's partitioned checks: by name, lists of keys by "succeeded", "failed"
        …; without empty lists.
        """
        kinds = ("succeeded", "failed", "inProgress", "skipped", "executionFailed")
        lists = " ".join(f"{kind}Partitions" for kind in kinds)
        text = f"""query($key: AssetKeyInput!) {{ found: assetNodeOrError(assetKey: $key) {{
            ... on AssetNode {{ assetChecksOrError {{
            ... on AssetChecks {{ checks {{ name partitionStatuses {{
            ... on AssetCheckDefaultPartitionStatuses {{ {lists} }} }} }} }} }} }} }} }}"""
        checks = self.query(text, key={"path": asset.split("/")})["found"]["assetChecksOrError"]["checks"]
        return {
            check["name"]: {
                kind: sorted(keys)
                for kind in kinds
                if (keys := check["partitionStatuses"][f"{kind}Partitions"])
            }
            for check in checks
            if check["partitionStatuses"] is not None
        }

    def _repositories(self) -> list[tuple[str, str]]:
        found = self.query(_REPOSITORIES)["repositoriesOrError"]
        return [(node["name"], node["location"]["name"]) for node in found.get("nodes", [])]

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"dagster dev ended with {self._process.returncode}:\n{self.log()[-3000:]}")
        try:
            entries = self.query(_LOCATIONS)["workspaceOrError"]["locationEntries"]
        except OSError:  # no server yet
            return False
        loaded = [entry["locationOrLoadError"] for entry in entries]
        for location in loaded:
            if location and location["__typename"] == "PythonError":
                raise RuntimeError(f"the code location does not load: {location['message']}")
        return bool(loaded) and all(loaded)

    def _mutate(self, name: str, parameter: str, value: Any, success: str) -> Any:
        variable, _, kind = parameter.partition(": ")
        text = f"""mutation($value: {kind}) {{ done: {name}({variable}: $value) {{
            __typename ... on {success} ... on Error {{ message }} }} }}"""
        done = self.query(text, value=value)["done"]
        if done["__typename"] != success.split()[0]:
            raise RuntimeError(f"{name}: {done['__typename']}: {done.get('message')}")
        return done


PAUSE = 1.0  # between questions about the end of a run, each of which takes the server some CPU
_ENDED = ("COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "CANCELED", "FAILED")
_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
    __typename ... on PythonError { message } } } } } }"""
_REPOSITORIES = (
    """{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"""
)


def wait_for(condition: Callable[[], T | None], seconds: float, what: str, pause: float = 0.25) -> T:
    """The first true value of `condition`, asked after each ``pause``. Raises `TimeoutError`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(pause)
    return value


def _state(instance: dg.DagsterInstance) -> str:
    """Runs, backfills and the latest ticks: what a test that waited in vain needs to say why."""
    lines = [f"at {time.time():.0f}:"]
    for record in instance.get_run_records(limit=30):
        run = record.dagster_run
        times = f"{record.create_timestamp.timestamp():.0f} {record.start_time} {record.end_time}"
        lines.append(f"run {run.run_id} {run.job_name} {run.status.value} {times} {dict(run.tags)}")
    for backfill in instance.get_backfills():
        lines.append(
            f"backfill {backfill.backfill_id} {backfill.status.value} {backfill.title} {backfill.error}"
        )
    for state in instance.all_instigator_state():
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=3):
            what = tick.skip_reason or tick.error or ""
            lines.append(f"tick {state.instigator_name} {tick.timestamp:.0f} {tick.status.value} {what}")
    return "\n".join(lines)


def _heed_signals() -> None:
    """A test run that was started in the background, or by nohup, ignores them, and children inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def session_of(pid: int) -> int | None:
    """The session that a process belongs to; None if it has ended (a zombie has)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[3])


def is_running(pid: int) -> bool:
    return session_of(pid) is not None
