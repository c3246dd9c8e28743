"""A folder as readers have it after ``make demo``, and what pasting a block into it does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from mm_assets_tests.clients.environment import clients_bin
from mm_assets_tests.docs.pages import ROOT, Block

_SQL = """
import sys, duckdb
for statement in sys.argv[1].split(";"):
    if statement.strip():
        found = duckdb.sql(statement)
        print(found.shape[0], "rows")
"""


def make_project(folder: Path) -> Path:
    """A checkout in which only what runs leaves files: the sources and environments are links."""
    folder.mkdir(parents=True)
    for name in ("Makefile", "dagster.yaml", "workspace.yaml", "pyproject.toml", "requirements.lock"):
        shutil.copyfile(ROOT / name, folder / name)
        os.utime(folder / name, (0, 0))  # older than the environment: make has nothing to install
    for name in ("mm_assets", "examples", ".venv-clients"):
        (folder / name).symlink_to(ROOT / name)
    environment = folder / ".venv"
    environment.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name != ".made":
            (environment / entry.name).symlink_to(entry)
    (environment / ".made").touch()
    return folder


def copy_project(project: Path, folder: Path) -> Path:
    """Another such folder, with the files of the first; modification times are kept."""
    return Path(shutil.copytree(project, folder, symlinks=True))


def run_block(block: Block, folder: Path, programs: Path) -> str:
    """Standard output of a block, pasted into a shell, an interpreter or DuckDB in that folder; ``programs``
    come before those of its environment.

    Raises ``AssertionError`` that names the block when it fails, or prints something else than the page says.
    """
    done = subprocess.run(
        _command(block),
        cwd=folder,
        env=_environment(folder, programs, block),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, (
        f"{block}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    if block.output is not None:
        wanted = re.escape(block.output.strip()).replace("…", ".*")
        assert re.fullmatch(wanted, done.stdout.strip(), re.DOTALL), f"{block} prints\n{done.stdout}"
    return done.stdout


def _command(block: Block) -> list[str]:
    if block.language == "sql":
        return [str(clients_bin("python")), "-c", _SQL, block.code]
    if block.language == "python":
        return [str(clients_bin("python")) if block.with_clients else sys.executable, "-c", block.code]
    return ["bash", "-euo", "pipefail", "-c", block.code]


def _environment(folder: Path, programs: Path, block: Block) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MM_", "DAGSTER_", "MAKE", "MFLAGS", "AWS_", "PYTEST_"))
    }
    path = os.pathsep.join(map(str, (programs, folder / ".venv" / "bin", clean["PATH"])))
    sources = {"PYTHONPATH": str(ROOT)} if block.with_clients else {}
    return {**clean, **sources, "PATH": path}
