"""Outputs appear whole or not at all, and are the same bytes each time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mm_assets.formats.names import format_of
from mm_assets.formats.registry import writer_for
from mm_assets.interleaved import INTERLEAVED_SCHEMA, InterleavedBatch
from mm_assets.model.samples import BatchStream
from mm_assets.storage.files import sweep
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.conformance.outputs import N, rows, snapshot, visible
from mm_assets_tests.formats.datasets import FORMATS, batch_of, read, write


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_input_makes_the_same_bytes(tmp_path: Path, kind: str) -> None:
    source = [batch_of(rows(f"a{i}", n=i), [N], partition=f"dir/p.{i}") for i in range(3)]
    first = write(kind, tmp_path / "1", source)
    second = write(kind, tmp_path / "1", source)
    assert [p.digest for p in first.partitions] == [p.digest for p in second.partitions]
    entry = format_of(kind)
    if entry.is_table:  # data files have random names; the rows are the same, none twice
        assert read(kind, tmp_path / "1").num_rows == 9
        return
    before = snapshot(tmp_path / "1")
    write(kind, tmp_path / "1", source)
    assert snapshot(tmp_path / "1") == before
    write(kind, tmp_path / "elsewhere" / "1", source)
    assert snapshot(tmp_path / "elsewhere" / "1") == before
    written = {name for name in before if name.endswith(entry.written)}
    assert {name for name in written if not name.endswith(entry.sidecars or "\0")} == {
        f"dir%2Fp%2E{i}{entry.written}" for i in range(3)
    }
    assert str(tmp_path).encode() not in b"".join(before.values())


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_to_write(tmp_path: Path, kind: str) -> None:
    assert write(kind, tmp_path / "a", []).partitions == ()
    report = write(kind, tmp_path / "b", batch_of([], partition="p"))
    assert (report.rows, len(report.partitions)) == (0, 1)


class Trouble(Exception):
    pass


@pytest.mark.parametrize("kind", FORMATS)
def test_an_exception_midway_leaves_the_version_before(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, batch_of(rows("old"), partition="p"))
    before = read(kind, tmp_path)
    files = visible(kind, tmp_path)

    def batches() -> Iterator[InterleavedBatch]:
        yield batch_of(rows("new"))
        raise Trouble

    stream = BatchStream("p", INTERLEAVED_SCHEMA, batches)
    with pytest.raises(Trouble):
        write(kind, tmp_path, stream)
    same(read(kind, tmp_path), before)
    assert visible(kind, tmp_path) == files


@pytest.mark.parametrize("kind", FORMATS)
def test_a_withheld_partition_is_not_published(tmp_path: Path, kind: str) -> None:
    def refuse(report: Any) -> None:
        assert report.rows == 3
        raise Trouble

    batch = batch_of(rows("a"))
    stream = BatchStream("p", batch.data.schema, lambda: [batch])
    with pytest.raises(Trouble):
        writer_for(kind, str(tmp_path)).write_partition(stream, refuse)
    assert visible(kind, tmp_path) == set()


_SLOW = """
import sys, time, pyarrow as pa
from mm_assets.formats.registry import writer_for
from mm_assets.model.losses import Loss
from mm_assets.model.samples import BatchStream
from mm_assets_tests.formats.datasets import batch_of, item
kind, target = sys.argv[1:]
def batches():
    for i in range(10_000):
        yield batch_of([item(f"new{i}", 0, "image", binary_content=bytes(1 << 20))])
        print(i, flush=True)
batch = batch_of([])
writer_for(kind, target).write_partition(BatchStream("p", batch.data.schema, batches))
"""


@pytest.mark.parametrize("kind", FORMATS)
def test_a_kill_leaves_the_version_before_and_nothing_under_a_final_name(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, batch_of(rows("old"), partition="p"))
    before = read(kind, tmp_path)
    names = _names(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW, kind, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while int(process.stdout.readline()) < 40:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    same(read(kind, tmp_path), before)
    assert _names(tmp_path) == names
    if not format_of(kind).is_table:
        folder = tmp_path / "p" if format_of(kind).marker else tmp_path
        left = [str(folder / name) for name in os.listdir(folder) if name.endswith(".tmp")]
        assert len(left) == 1
        assert sweep(str(folder)) == left
    write(kind, tmp_path, batch_of(rows("new"), partition="p"))
    if format_of(kind).marker:
        assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".tmp", ".building"))]
    assert read(kind, tmp_path)["sample_id"].unique().to_pylist() == ["new"]


def _names(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if not name.startswith(".")}
