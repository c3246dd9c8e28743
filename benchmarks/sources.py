"""Files to convert: raw shards of a shape, or the Parquet that a program makes of them. They are kept for the
next time.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.programs import OURS, Program, Source
from benchmarks.shards import Shape, make_shards
from benchmarks.workbench import DATA, fresh_output


@cache
def files_of(shape: Shape, kind: str, maker: Program = OURS) -> Source:
    """Shards of a shape as files of a format."""
    tiny = Shape(shape.layout, shards=1, samples=2, sample_bytes=20_000, images=(2, 3))
    tars = Source(make_shards(DATA, shape), make_shards(DATA, tiny))
    if kind == "webdataset":
        return tars
    return Source(_parquet(maker, tars.files, tars.warm_up), _parquet(maker, tars.warm_up, tars.warm_up))


def forget(shape: Shape) -> None:
    """Remove all files of a shape."""
    for folder in DATA.glob(f"{shape.name}*"):
        shutil.rmtree(folder)
    files_of.cache_clear()


def _parquet(maker: Program, tars: Sequence[Path], warm_up: Sequence[Path]) -> list[Path]:
    """All rows of the shards, none filtered.

    This project's are made anew in every process: an older version may have written others.
    """
    folder = tars[0].parent.with_name(f"{tars[0].parent.name}-{maker.name.replace(' ', '-')}")
    if maker == OURS:
        shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        with fresh_output() as output:
            maker.convert(
                "webdataset", "parquet", Source(list(tars), list(warm_up)), output, is_filtered=False
            )
            output.rename(folder)
    return sorted(folder.glob("*.parquet"))
