"""`make demo` in a Dagster instance of the user's leaves their partitions alone; in its own it forgets shards that are gone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.demo.shards import make_shards

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(("is_users", "exit_code"), [(True, 1), (False, 0)])
def test_partitions_of_shards_that_are_gone(tmp_path: Path, is_users: bool, exit_code: int) -> None:
    shutil.copyfile(ROOT / "dagster.yaml", tmp_path / "dagster.yaml")
    gone = make_shards(tmp_path / "raw", members=2, pdf=0, samples=2)[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MM_", "DAGSTER_"))}
    environment |= {"MM_RAW_SHARDS": str(tmp_path / "raw"), "MM_STORAGE": str(tmp_path / "storage")}
    if is_users:
        environment["DAGSTER_HOME"] = str(tmp_path / "home")
    command = [sys.executable, "-m", "mm_assets.demo"]
    assert subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode == 0
    gone.unlink()
    assert subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode == exit_code
    (home,) = [tmp_path / "home"] if is_users else (tmp_path / ".dagster").iterdir()
    with dg.DagsterInstance.from_config(str(home)) as instance:
        known = instance.get_dynamic_partitions("shards")
    assert list(known) == (["web-00000", "web-00001"] if is_users else ["web-00000"])
