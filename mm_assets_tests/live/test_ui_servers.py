"""The servers of `mm-assets ui`: quiet, started again when one dies, one UI a home, and none outlives it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.graph.dagster_internals import LANCE_POOL
from mm_assets_tests.cli.commands import only_line, run_process
from mm_assets_tests.deploy.recipe import compose, environment
from mm_assets_tests.free_port import free_port
from mm_assets_tests.live.daemon import REPOSITORY, DagsterDev, is_running, wait_for
from tools.demo import make_shards

pytestmark = pytest.mark.live

SECONDS = 120
BAD = "zoo-bad"
SERVERS = {"code server": "code-server", "web server": "dagster_webserver", "daemon": "dagster._daemon"}


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterDev]:
    folder = tmp_path_factory.mktemp("ui")
    make_shards(folder / "raw", members=1, pdf=0, samples=2)
    (folder / "raw" / f"{BAD}.tar").write_bytes(b"no tar" * 100)
    with server(folder) as dev:
        yield dev


def server(folder: Path) -> DagsterDev:
    variables = {"MM_RAW_SHARDS": str(folder / "raw"), "MM_STORAGE": str(folder / "storage")}
    return DagsterDev("mm_assets.definitions", folder / "home", variables | {"MM_WORKERS": "1"})


def pid_of(ui: DagsterDev, name: str) -> int | None:
    """The process of a server: the leader of its group."""
    for pid in ui.processes():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if SERVERS[name] in words and os.getpgid(pid) == pid:
            return pid
    return None


def test_what_a_run_prints_is_its_errors_and_the_event_log_has_all(ui: DagsterDev) -> None:
    ui.wait_for(lambda instance: instance.get_dynamic_partitions("shards"), SECONDS, "the shards")
    tags = {"dagster/asset_partition_range_start": BAD, "dagster/asset_partition_range_end": BAD}
    run = ui.launch_run("all_assets", tags)
    assert ui.wait_for_run(run) == "FAILURE"
    with ui.instance() as instance:
        levels = {entry.level for entry in instance.all_logs(run)}
    assert {10, 40} <= levels
    assert " - ERROR - all_assets - " in ui.log() and BAD in ui.log()
    assert " - DEBUG - " not in ui.log() and " - INFO - " not in ui.log()


def test_a_second_one_on_the_same_home_is_refused(ui: DagsterDev) -> None:
    for port in (ui.port, 1):
        done = run_process("ui", "--port", str(port), env={"DAGSTER_HOME": str(ui.home)})
        assert only_line(done).startswith(f"DAGSTER_HOME {ui.home} has a UI already: {ui.url} (process ")


def launched(ui: DagsterDev) -> str | None:
    """A run of a job; None while the servers cannot launch one."""
    try:
        return ui.launch_run("prove")
    except (OSError, RuntimeError, ValueError):
        return None


def test_killed_servers_are_started_again(ui: DagsterDev) -> None:
    """Each in turn, and the others stay; a run that all of them are needed for comes to its end."""
    for name in SERVERS:
        before = pid_of(ui, name)
        assert before is not None
        others = [pid_of(ui, other) for other in SERVERS if other != name]
        os.kill(before, signal.SIGKILL)
        wait_for(lambda name=name, before=before: pid_of(ui, name) not in (None, before), SECONDS, name)
        assert f"mm-assets: the {name} has ended, by signal 9; it is started again in 1 s\n" in ui.log()
        assert [pid_of(ui, other) for other in SERVERS if other != name] == others
    run = wait_for(lambda: launched(ui), SECONDS, "the servers")
    assert ui.wait_for_run(run) == "SUCCESS"


def test_nothing_outlives_it_nor_keeps_a_next_one_away(ui: DagsterDev) -> None:
    """Not a run that is going on, either, though it dies by SIGKILL, and so can do nothing about it. This is
    the last test of that server.
    """
    ui.wait_for(lambda instance: instance.get_dynamic_partitions("shards"), SECONDS, "the shards")
    with ui.instance() as instance:  # so that the run does not end
        instance.event_log_storage.set_concurrency_slots(LANCE_POOL, 1)
        claim = instance.event_log_storage.claim_concurrency_slot(LANCE_POOL, "somebody", "step")
        assert claim.is_claimed
    ends_with_its_fork_server(ui)
    run = ui.launch_run("all_assets", {"dagster/partition": "web-00000"})
    wait_for(lambda: ui.run_status(run) == "STARTED", SECONDS, "the run")
    told = ui.log()
    assert end(ui, signal.SIGKILL) == -signal.SIGKILL
    # One that sees another gone before it is killed itself may begin to end.
    more = ui.log().removeprefix(told).splitlines()
    assert [line for line in more if "shutting down" not in line.lower()] == []
    with ui.instance() as instance:
        record = instance.get_run_by_id(run)
        assert record is not None and record.status is dg.DagsterRunStatus.STARTED
    with server(ui.home.parent) as again:
        assert pid_of(again, "daemon") is not None
        assert end(again, signal.SIGTERM) == 0


def ends_with_its_fork_server(ui: DagsterDev) -> None:
    """A run that goes on; the next one is forked off another server."""
    run = ui.launch_run("all_assets", {"dagster/partition": "web-00000", "dagster/max_retries": "0"})
    wait_for(lambda: ui.run_status(run) == "STARTED", SECONDS, "the run")
    process = ui.run_process(run)
    parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"multiprocessing.forkserver" in Path(f"/proc/{parent}/cmdline").read_bytes()
    os.kill(parent, signal.SIGKILL)
    assert ui.wait_for_run(run) == "FAILURE"
    assert not is_running(process)


def end(ui: DagsterDev, number: signal.Signals) -> int:
    """Send a signal, and wait until all its processes have ended; the exit code."""
    pids = ui.processes()
    os.kill(ui.pid, number)
    wait_for(lambda: not any(map(is_running, pids)), SECONDS, "all to end")
    assert ui.processes() == []
    return ui.wait()


def test_the_code_server_of_a_deployment_ends_though_a_call_hangs(tmp_path: Path) -> None:
    """A sensor asks a store that does not answer; Dagster's own server would wait for it."""
    port = free_port()
    location = {"host": "127.0.0.1", "port": port, "location_name": "mm_assets"}
    (tmp_path / "workspace.yaml").write_text(json.dumps({"load_from": [{"grpc_server": location}]}))
    shutil.copyfile(REPOSITORY / "dagster.yaml", tmp_path / "dagster.yaml")
    command = compose()["services"]["code"]["command"]
    assert command[0] == "python"
    moved = {"0.0.0.0": "127.0.0.1", environment()["DAGSTER_CODE_PORT"]: str(port)}
    with socket.create_server(("127.0.0.1", 0)) as store, ExitStack() as stack:
        variables = {
            **os.environ,
            "DAGSTER_HOME": str(tmp_path),
            "MM_RAW_SHARDS": "s3://bucket/raw/*.tar",
            "MM_STORAGE": str(tmp_path / "storage"),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "FSSPEC_S3": '{"config_kwargs": {"read_timeout": 3600}}',
        }

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([sys.executable, *arguments], env=variables, cwd=tmp_path)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        code = start(*(moved.get(word, word) for word in command[1:]))
        wait_for(lambda: listens(port), SECONDS, "the code server")
        start("-m", "dagster._daemon", "run", "-w", str(tmp_path / "workspace.yaml"))
        store.settimeout(SECONDS)
        request, _ = store.accept()
        with request:
            assert request.recv(1)
            code.terminate()
            assert code.wait(SECONDS) == 0


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
