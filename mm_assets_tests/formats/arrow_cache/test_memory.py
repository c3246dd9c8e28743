"""Memory of a build is a few batches, whatever the number and size of the examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import os, sys
from mm_assets.formats import Features, Image, Value, write_sharded_arrow_cache
import mm_assets.formats.arrow_cache.build, PIL.Image
def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]) << 10
folder, count, size, batch, huge = sys.argv[1], *map(int, sys.argv[2:])
source = os.urandom(size + count)
def examples():
    for i in range(count):
        yield i, {'name': str(i), 'image': bytes(huge) if i == count // 2 and huge else source[i:i + size]}
base = peak()
features = Features({'name': Value('string'), 'image': Image()})
meta = write_sharded_arrow_cache(examples(), features, folder, max_batch_bytes=batch)
print(meta.num_rows, peak() - base)
"""


@pytest.mark.parametrize(("batch", "huge"), [(16 << 20, 0), (4 << 20, 0), (4 << 20, 60 << 20)])
def test_examples_of_300_kb(tmp_path: Path, batch: int, huge: int) -> None:
    arguments = [str(number) for number in (700, 300_000, batch, huge)]
    out = subprocess.check_output(
        [sys.executable, "-c", _CODE, str(tmp_path / "cache"), *arguments], text=True
    )
    rows, grown = map(int, out.split())
    assert rows == 700
    assert grown < 3 * batch + 2 * huge + (8 << 20), grown >> 20
