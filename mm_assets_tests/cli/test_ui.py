"""`mm-assets ui` before it serves: what is wrong with the settings is one line. That it serves is seen by
`mm_assets_tests/live`.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mm_assets.headless import instance
from mm_assets_tests.cli.commands import environment, ok, only_line, run
from mm_assets_tests.free_port import free_port
from mm_assets_tests.live.daemon import is_running

_WAITS = "DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS"


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"MM_WORKERS": "many"}, "MM_WORKERS must be a whole number, not 'many'"),
        ({"MM_STORGE": "x"}, "MM_STORGE: no such setting; the nearest is MM_STORAGE"),
        ({"MM_RAW_SHARDS": "it's"}, 'raw shards "it\'s": No closing quotation'),
        ({"DAGSTER_HOME": "{folder}/notes.txt"}, "{folder}/notes.txt: a file, not a folder"),
        ({"MM_PLUGINS": "no_such_module"}, "MM_PLUGINS: module 'no_such_module' cannot be imported"),
    ],
)
def test_settings_that_cannot_work_are_one_line(
    variables: dict[str, str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("no folder")
    given = {name: value.format(folder=tmp_path) for name, value in variables.items()}
    done = run("ui", **given)
    assert only_line(done).startswith(line.format(folder=tmp_path))
    assert not (tmp_path / ".dagster").exists()


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1"])
def test_a_port_that_is_none(port: str) -> None:
    done = run("ui", f"--port={port}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith(f"argument --port: not a port, 1 to 65535: {port!r}")


def test_a_port_that_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run("ui", "--port", port)
    assert (done.returncode, done.stdout) == (2, "")
    line = f"mm-assets: port {port} of 127.0.0.1: address already in use; name another with --port"
    assert done.stderr.splitlines() == [line]
    assert not (tmp_path / ".dagster").exists()


@pytest.mark.parametrize(
    ("variables", "arguments", "seconds", "level"),
    [
        ({}, [], "300", "warning"),
        ({_WAITS: "90", "MM_LOG_LEVEL": "error"}, [], "90", "error"),
        ({_WAITS: "90", "MM_LOG_LEVEL": "error"}, ["--log-level", "debug"], "90", "debug"),
    ],
)
def test_how_long_a_look_at_partitions_may_take_and_the_level_of_what_is_printed(
    variables: dict[str, str],
    arguments: list[str],
    seconds: str,
    level: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What its servers would be started with, instead of starting them."""
    served = []

    def serve(host: str, port: int, level: str) -> int:
        served.append((level, os.environ["MM_LOG_LEVEL"], os.environ[_WAITS]))
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(instance, "serve", serve)
    ok("ui", "--port", free_port(), *arguments, **variables)
    assert served == [(level, level, seconds)]


# A code server that cannot start.
_ENDS = """
import sys
from mm_assets.headless import instance
instance._PAUSES = (0.01,)
instance._servers = lambda *given: [instance._Server("code server", ["no_such_program"])]
sys.exit(instance.serve("127.0.0.1", 1, "warning"))
"""


def test_a_server_that_cannot_start_ends_it_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ENDS],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("mm-assets: ")]
    again = "mm-assets: the code server has ended, exit code 1; it is started again in 0.01 s"
    last = "mm-assets: the code server has ended, exit code 1, after 1 restarts; its own lines are above"
    assert lines == [again, last]


# A code server that has started a process, and tells of both.
_STAYS = """
import os, subprocess, sys, time
run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), run.pid, flush=True)
time.sleep(600)
"""
_SERVES_IT = """
import signal, sys
from mm_assets.headless import instance
signal.signal(signal.SIGHUP, signal.SIG_DFL)
instance._servers = lambda *given: [instance._Server("code server", ["stays"])]
sys.exit(instance.serve("127.0.0.1", 1, "warning"))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_all_that_its_servers_have_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "stays.py").write_text(_STAYS)
    with subprocess.Popen(
        [sys.executable, "-c", _SERVES_IT],
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        told = process.stdout.readline()
        os.kill(process.pid, number)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
    assert not any(map(is_running, map(int, told.split())))
