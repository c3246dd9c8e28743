"""`mm-assets ui` before it serves: what is wrong with the settings is one line. That it serves is seen by
`mm_assets_tests/live`.
"""

import socket
from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import only_line, run_process


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
def test_settings_that_cannot_work_are_one_line(variables: dict[str, str], line: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no folder")
    given = {name: value.format(folder=tmp_path) for name, value in variables.items()}
    done = run_process("ui", env=given, cwd=tmp_path)
    assert only_line(done).startswith(line.format(folder=tmp_path))
    assert not (tmp_path / ".dagster").exists()


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1"])
def test_a_port_that_is_none(port: str, tmp_path: Path) -> None:
    done = run_process("ui", f"--port={port}", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith(f"argument --port: not a port, 1 to 65535: {port!r}")


def test_a_port_that_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run_process("ui", "--port", str(port), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    line = f"mm-assets: port {port} of 127.0.0.1: address already in use; name another with --port"
    assert done.stderr.splitlines() == [line]
    assert not (tmp_path / ".dagster").exists()
