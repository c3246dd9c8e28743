"""What the README tells people to type does what it says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
        (asset, "5") for asset in ("curated_parquet", "image_scores", "filtered_parquet", "final_tars", "lance_table")
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
    targets = re.findall(r"^make ([\w-]+)", "\n".join(_blocks("sh")), re.MULTILINE) + re.findall(r"`make ([\w-]+)`", README)
    assert {"demo", "test", "ui", "check", "test-clients"} <= set(targets)
    for target in set(targets):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_command_lines_work_in_the_order_given(folder: Path) -> None:
    lines = [line for block in _blocks("sh") for line in block.splitlines() if line.startswith("mm-assets ")]
    assert len(lines) == 4
    outputs = [_run([sys.executable, "-m", "mm_assets.cli", *shlex.split(line)[1:]], folder).stdout for line in lines]
    assert "5 partitions, 60 samples" in outputs[0]
    assert "lance, 5 partitions, 60 samples" in outputs[3]
    assert (folder / "out" / "tars" / "index.json").exists()


def test_python_blocks_work(folder: Path) -> None:
    blocks = _blocks("python")
    assert len(blocks) == 2
    first, second = (_run([sys.executable, "-c", block], folder).stdout for block in blocks)
    assert re.fullmatch(r"\d+ items\n", first)
    assert second.splitlines()[-1].startswith("60 samples, 211 images")


def test_every_file_it_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_variable_it_names_is_read() -> None:
    source = (ROOT / "mm_assets" / "resources" / "environment.py").read_text()
    for variable in set(re.findall(r"`(MM_[A-Z_]+)`", README)):
        assert variable in source, variable
