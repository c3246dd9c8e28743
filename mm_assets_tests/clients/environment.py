"""The clients' interpreter, and how tests start it and our command line."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mm_assets_tests.cli import commands

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ("webdataset", "parquet", "lance")
_SCRIPTS = Path(__file__).with_name("open_with")


def clients_bin(name: str) -> Path:
    """A program of ``.venv-clients``. Its absence fails, never skips: nothing would be proven."""
    program = ROOT / ".venv-clients" / "bin" / name
    if not (ROOT / ".venv-clients" / ".made-from").is_file() or not program.exists():
        pytest.fail(f"{program} is missing: run clients/install", pytrace=False)
    return program


def run(command: Sequence[str | Path], *, seconds: float = 300, **env: str) -> str:
    """Standard output of a program that must succeed."""
    # The scripts see their own environment only, not what the test run was started with.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHONPATH")}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=ROOT,
        env={**clean, **env},
        check=False,
    )
    if done.returncode != 0:
        tail = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        pytest.fail(f"exit {done.returncode}: {' '.join(map(str, command))}\n{tail}", pytrace=False)
    return done.stdout


_EACH = """
import os, runpy, sys
script, *folders = sys.argv[1:]
sys.path[0] = os.path.dirname(script)
for folder in folders:
    sys.argv = [script, folder]
    runpy.run_path(script, run_name="__main__")
    print("\\n--- end of a report", flush=True)
"""


def open_with(client: str, *folders: Path) -> list[dict[str, Any]]:
    """What ``open_with/<client>.py`` reports of each folder, in one process: to import a client takes longer
    than to open a folder.
    """
    told = run([clients_bin("python"), "-c", _EACH, _SCRIPTS / f"{client}.py", *folders])
    *reports, _ = told.split("\n--- end of a report")
    return [json.loads(report.splitlines()[-1]) for report in reports]  # a library may have printed before


def convert(raw: Path, out: Path, to: str, *flags: str) -> None:
    """Convert by our command line."""
    done = commands.run("convert", raw, out, "--to", to, *flags)
    assert done.returncode == 0, done


def convert_to_all(raw: Path, out: Path, per_image: Sequence[str] = (), per_text: Sequence[str] = ()) -> None:
    """``out`` gets webdataset/, parquet/ and lance/, by our command line."""
    fields = ["--per-image-fields", ",".join(per_image), "--per-text-fields", ",".join(per_text)]
    for format_name in FORMATS:
        convert(raw, out / format_name, format_name, "--sample-id-field", "sample_id", *fields)
