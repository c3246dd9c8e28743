"""`make demo`, the headless run: its exit code, what it tells, and which partitions it leaves alone or forgets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.demo.shards import make_shards
from mm_assets_tests.formats.raw_tars import make_tar

ROOT = Path(__file__).parent.parent


def demo(folder: Path, locations: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A run over these raw shards, with the outputs in a folder's ``storage``."""
    if not (folder / "dagster.yaml").exists():
        shutil.copyfile(ROOT / "dagster.yaml", folder / "dagster.yaml")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MM_", "DAGSTER_"))}
    environment |= {"MM_RAW_SHARDS": locations, "MM_STORAGE": str(folder / "storage"), "MM_WORKERS": "1", **variables}
    command = [sys.executable, "-m", "mm_assets.demo"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("is_users", "exit_code"), [(True, 1), (False, 0)])
def test_partitions_of_shards_that_are_gone(tmp_path: Path, is_users: bool, exit_code: int) -> None:
    """In a Dagster instance of the user's all partitions stay; in its own it forgets those of shards that are gone."""
    gone = make_shards(tmp_path / "raw", members=2, pdf=0, samples=2)[1]
    variables = {"DAGSTER_HOME": str(tmp_path / "home")} if is_users else {}
    assert demo(tmp_path, str(tmp_path / "raw"), **variables).returncode == 0
    gone.unlink()
    assert demo(tmp_path, str(tmp_path / "raw"), **variables).returncode == exit_code
    (home,) = [tmp_path / "home"] if is_users else (tmp_path / ".dagster").iterdir()
    with dg.DagsterInstance.from_config(str(home)) as instance:
        known = instance.get_dynamic_partitions("shards")
    assert list(known) == (["web-00000", "web-00001"] if is_users else ["web-00000"])


def test_what_is_wrong_with_raw_shards_is_told_in_lines(tmp_path: Path) -> None:
    """One is absent, a folder is gone, an image is absent, a list is too long: the rest lands, and no line is Python's own."""
    raw = tmp_path / "raw"
    document = {"texts": ["x", None], "images": [None, "none.png"], "widths": [1, 2, 3]}
    make_tar(raw / "a.tar", [("s.json", document)])
    make_tar(raw / "b.tar", [("t.json", {"texts": ["y"], "images": [None]})])
    done = demo(tmp_path, f"{raw}/{{a,b,c}}.tar {raw}/gone", MM_ON_MATERIALIZE_ERROR="warn", MM_PER_IMAGE_FIELDS="widths")
    assert done.returncode == 1
    assert "check failed: curated_parquet.landed: c" in done.stdout.splitlines()
    assert sorted(path.name for path in (tmp_path / "storage" / "webdataset").glob("*.tar")) == ["a.tar", "b.tar"]
    lines = done.stderr.splitlines()
    assert len(set(lines)) == len(lines)
    assert f"mm-assets: warning: {raw}/gone: no such file" in lines
    assert "mm-assets: warning: a.tar: s.json: 'widths' has 3 values for 1 items; kept whole on the metadata row" in lines
    assert f"mm-assets: warning: {raw}/a.tar: sample 's', position 1: missing member 'none.png'" in lines
    assert [line for line in lines if not line.startswith("mm-assets: warning: ")] == []


def test_partitions_of_a_folder_that_is_gone_are_not_forgotten(tmp_path: Path) -> None:
    for name in "ab":
        make_tar(tmp_path / name / f"{name}.tar", [(f"{name}.json", {"texts": ["x"], "images": [None]})])
    locations = f"{tmp_path}/a {tmp_path}/b"
    assert demo(tmp_path, locations).returncode == 0
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    done = demo(tmp_path, locations)
    assert done.returncode == 1
    assert "shard 'b/b' of curated_parquet: input missing: shard 'b/b' of raw_shards: no such raw shard" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("locations", "message"),
    [
        ("{storage}/x.tar {storage}", "mm-assets: no raw shards: those found lie below MM_STORAGE\n"),
        ("{storage}/../gone/*.tar", "mm-assets: no raw shards: {storage}/../gone/*.tar: no such file\n"),
    ],
)
def test_without_raw_shards_one_line_says_why(tmp_path: Path, locations: str, message: str) -> None:
    storage = tmp_path / "storage"
    make_tar(storage / "x.tar", [])
    done = demo(tmp_path, locations.format(storage=storage))
    assert (done.returncode, done.stderr) == (1, message.format(storage=storage).replace("/storage/..", ""))
