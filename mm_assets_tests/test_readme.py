"""What the README tells people to type does what it says."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.quarantine import QUARANTINE_SCHEMA
from mm_assets.settings import describe
from mm_assets_tests.clients.environment import clients_bin

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory in which `make demo` has run."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copyfile(ROOT / "dagster.yaml", folder / "dagster.yaml")
    done = _run([sys.executable, "-m", "mm_assets.demo"], folder)
    rows = [line.split() for line in done.stdout.splitlines() if "demo/storage" in line]
    assert [(row[0], row[1]) for row in rows] == [
        (asset, "5")
        for asset in (
            "curated_parquet",
            "image_scores",
            "filtered_parquet",
            "arrow_cache",
            "final_tars",
            "lance_table",
        )
    ]
    assert "checks failed: 0" in done.stdout
    return folder


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MM_", "DAGSTER_"))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make ([\w-]+)", "\n".join(_blocks("sh")), re.MULTILINE) + re.findall(
        r"`make ([\w-]+)`", README
    )
    assert {"demo", "test", "ui", "check", "test-clients"} <= set(targets)
    for target in set(targets):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_command_lines_work_in_the_order_given(folder: Path) -> None:
    lines = [line for block in _blocks("sh") for line in block.splitlines() if line.startswith("mm-assets ")]
    assert len(lines) == 6
    (lost, *_) = pq.read_table(
        folder / "demo/storage/ledger/items/filtered_parquet/web-00000.parquet"
    ).to_pylist()
    words = [shlex.split(line.replace("SAMPLE_ID", lost["sample_id"]), comments=True) for line in lines]
    outputs = [_run([sys.executable, "-m", "mm_assets.cli", *line[1:]], folder).stdout for line in words]
    said = {line.split()[1]: output for line, output in zip(lines, outputs, strict=True)}
    assert "5 partitions, 60 samples" in outputs[0]
    assert "lance, 5 partitions, 60 samples" in said["inspect"]
    assert said["verify"].splitlines()[-1] == "equal"
    (row,) = [
        line for line in said["explain"].splitlines() if line.split()[:2] == [str(lost["position"]), "image"]
    ]
    assert "filtered by aspect_ratio" in row
    assert (folder / "out" / "tars" / "index.json").exists()


@pytest.mark.clients
def test_sql_works_in_duckdb(folder: Path) -> None:
    (block,) = _blocks("sql")
    balance, filtered, quarantined = [statement for statement in block.split(";") if statement.strip()]
    code = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.argv[1]).fetchall()))"
    python = str(clients_bin("python"))
    entries = {
        (asset, entry): items
        for asset, entry, _, items in json.loads(_run([python, "-c", code, balance], folder).stdout)
    }
    assert (
        entries["curated_parquet", "in"]
        == entries["curated_parquet", "out"]
        == entries["filtered_parquet", "in"]
    )
    assert (
        entries["filtered_parquet", "in"]
        == entries["filtered_parquet", "out"] + entries["filtered_parquet", "filtered"]
    )
    assert (
        len(json.loads(_run([python, "-c", code, filtered], folder).stdout))
        == entries["filtered_parquet", "filtered"]
    )
    # The demo has nothing in quarantine: an empty table of the same columns stands for a shard's.
    (folder / "demo/storage/quarantine").mkdir(exist_ok=True)
    pq.write_table(QUARANTINE_SCHEMA.empty_table(), folder / "demo/storage/quarantine/none.parquet")
    assert json.loads(_run([python, "-c", code, quarantined], folder).stdout) == []


def test_python_blocks_work(folder: Path) -> None:
    blocks = _blocks("python")
    assert len(blocks) == 2
    first, second = (_run([sys.executable, "-c", block], folder).stdout for block in blocks)
    assert re.fullmatch(r"\d+ items\n", first)
    assert second.splitlines()[-1].startswith("60 samples, 211 images")


def test_every_file_it_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_variable_it_names_is_a_setting() -> None:
    assert set(re.findall(r"`(MM_[A-Z_]+)`", README)) <= set(describe())
