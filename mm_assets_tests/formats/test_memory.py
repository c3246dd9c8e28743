"""Streaming a large shard takes a few batches of memory, not the shard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mm_assets_tests.formats.raw_tars import make_tar

LIMIT = 150 << 20
LANCE_LIMIT = 220 << 20  # it writes in threads of its own, several batches ahead
_CODE = """
import sys, ctypes
from mm_assets.formats.registry import reader_for, writer_for
import pyarrow.parquet, mm_assets.formats.webdataset.encode
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


def run(source: Path, kind: str, target: Path, to: str = "") -> tuple[int, int]:
    out = subprocess.check_output([sys.executable, "-c", _CODE, str(source), kind, str(target), to], text=True)
    rows, grown = out.split()
    return int(rows), int(grown)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 MB in 300 samples of three images."""
    picture = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 1300
    members: list[tuple[str, object]] = []
    for i in range(300):
        names = [f"{i}.{n}.png" for n in range(3)]
        members += [(f"{i}.json", {"texts": ["t" * 500], "images": names}), *((name, picture) for name in names)]
    return make_tar(tmp_path_factory.mktemp("big") / "x.tar", members)


def test_a_shard_of_300_mb_through_every_format(shard: Path, tmp_path: Path) -> None:
    rows, grown = run(shard, "webdataset", tmp_path)
    assert (rows, grown < LIMIT) == (1500, True), grown >> 20
    source, kind = shard, "webdataset"
    for to in ("parquet", "arrow_cache", "webdataset", "lance", "parquet", "arrow_cache"):
        target = tmp_path / f"{kind}-{to}"
        rows, grown = run(source, kind, target, to)
        assert (rows, grown < (LANCE_LIMIT if "lance" in (kind, to) else LIMIT)) == (1500, True), (kind, to, grown >> 20)
        source, kind = target, to
    rows, grown = run(source, kind, tmp_path)
    assert (rows, grown < LIMIT) == (1500, True), grown >> 20
