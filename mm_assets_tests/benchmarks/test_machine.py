"""Results name the commit that they are of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import machine


def test_results_of_other_benchmarks_leave_a_commit_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*command: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(
            ["git", *author, *command], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "-q")
    files = (tmp_path / "code.py", tmp_path / "benchmarks" / "results" / "store.md")
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("first")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    commit = git("describe", "--always")
    code, results = files
    results.write_text("second")
    assert machine.machine_facts()["commit"] == commit
    code.write_text("second")
    assert machine.machine_facts()["commit"] == f"{commit}-dirty"
