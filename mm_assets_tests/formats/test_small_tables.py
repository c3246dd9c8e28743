"""Small tables, read as a whole."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from mm_assets.formats.parquet import UnreadableFile, publish_table, read_small_table

_TABLE = pa.table({"name": [f"n{i}" for i in range(50)], "value": list(range(50)), "third": [0.5] * 50})

# Threads of Arrow that outlive a read abort the process if they still hold its bytes when it ends.
_THREADS_STARTED = """
import os, sys
from mm_assets.formats.parquet import read_small_table
before = set(os.listdir("/proc/self/task"))
for _ in range(3):
    assert read_small_table(sys.argv[1], ["value", "name"]).num_rows == 50
    assert read_small_table(sys.argv[1]).num_columns == 3
print(len(set(os.listdir("/proc/self/task")) - before))
"""


def test_chosen_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    publish_table(f"{tmp_path}/t.parquet", _TABLE)
    assert read_small_table(f"{tmp_path}/t.parquet", ["value", "name"]) == _TABLE.select(["value", "name"])
    assert read_small_table(f"{tmp_path}/t.parquet") == _TABLE


def test_a_missing_column_is_told(tmp_path: Path) -> None:
    publish_table(f"{tmp_path}/t.parquet", _TABLE)
    with pytest.raises(UnreadableFile, match=r"t\.parquet: damaged: .*fourth"):
        read_small_table(f"{tmp_path}/t.parquet", ["name", "fourth"])


def test_a_torn_file_is_told(tmp_path: Path) -> None:
    publish_table(f"{tmp_path}/t.parquet", _TABLE)
    (tmp_path / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-9])
    with pytest.raises(UnreadableFile, match=r"t\.parquet: damaged"):
        read_small_table(f"{tmp_path}/t.parquet")


def test_reading_starts_no_thread(tmp_path: Path) -> None:
    publish_table(f"{tmp_path}/t.parquet", _TABLE)
    done = subprocess.run(
        [sys.executable, "-c", _THREADS_STARTED, f"{tmp_path}/t.parquet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
