"""Streaming a large shard takes a few batches of memory, not the shard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets_tests.formats.raw_tars import make_tar

LIMIT = 150 << 20
LANCE_LIMIT = 220 << 20  # it writes in threads of its own, several batches ahead
_CODE = """
import sys, ctypes
from mm_assets.formats.registry import reader_for, writer_for
import pyarrow.parquet, mm_assets.formats.webdataset.native
def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]) << 10
source, kind, target, to = sys.argv[1:]
if to == 'lance' or kind == 'lance': import lance
base = peak()
reader = reader_for(kind, source, max_batch_bytes=16 << 20)
if to:
    report = writer_for(to, target).write(reader)
    rows = report.rows
else:
    rows = sum(batch.num_rows for batch in reader)
print(rows, peak() - base)
"""


# What is freed goes back at once: how much of it Arrow's allocator keeps depends on the machine's timing.
_ENVIRONMENT = {**os.environ, "MIMALLOC_PURGE_DELAY": "0"}


def run(source: Path, kind: str, target: Path, to: str = "") -> tuple[int, int]:
    out = subprocess.check_output(
        [sys.executable, "-c", _CODE, str(source), kind, str(target), to], env=_ENVIRONMENT, text=True
    )
    rows, grown = out.split()
    return int(rows), int(grown)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 MB in 300 samples of three images."""
    picture = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 1300
    members: list[tuple[str, object]] = []
    for i in range(300):
        names = [f"{i}.{n}.png" for n in range(3)]
        members += [
            (f"{i}.json", {"texts": ["t" * 500], "images": names}),
            *((name, picture) for name in names),
        ]
    return make_tar(tmp_path_factory.mktemp("big") / "x.tar", members)


def test_a_shard_of_300_mb_through_every_format(shard: Path, tmp_path: Path) -> None:
    rows, grown = run(shard, "webdataset", tmp_path)
    assert (rows, grown < LIMIT) == (1500, True), grown >> 20
    source, kind = shard, "webdataset"
    for number, to in enumerate(("parquet", "arrow_cache", "webdataset", "lance", "parquet")):
        target = tmp_path / f"{number}-{to}"
        rows, grown = run(source, kind, target, to)
        assert (rows, grown < (LANCE_LIMIT if "lance" in (kind, to) else LIMIT)) == (1500, True), (
            kind,
            to,
            grown >> 20,
        )
        source, kind = target, to
    rows, grown = run(source, kind, tmp_path)
    assert (rows, grown < LIMIT) == (1500, True), grown >> 20


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 MB in 300 rows of three images, as others write them: ten rows in a row group, compressed, with
    dictionaries.
    """
    type_ = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("texts", pa.list_(pa.string())), ("images", pa.list_(type_))])
    file = tmp_path_factory.mktemp("documents") / "x.parquet"
    with pq.ParquetWriter(file, schema) as writer:
        for _ in range(30):
            images = [
                [None, *({"bytes": b"\x89PNG" + os.urandom(330_000), "path": None} for _ in range(3))]
                for _ in range(10)
            ]
            writer.write_table(
                pa.table({"texts": [["t" * 500, None, None, None]] * 10, "images": images}, schema=schema)
            )
    return file


def test_documents_of_300_mb(documents: Path, tmp_path: Path) -> None:
    for to in ("", "parquet"):
        rows, grown = run(documents, "parquet", tmp_path / "out", to)
        assert (rows, grown < LIMIT) == (1500, True), (to, grown >> 20)
