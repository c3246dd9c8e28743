"""Where measurements work: a folder for shards that are kept, and one for outputs that are not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measuring import ROOT

_FOLDER = ROOT / "build" / "benchmarks"
DATA = _FOLDER / "data"


@contextmanager
def fresh_output() -> Iterator[Path]:
    """A path where nothing is, while the kernel owes the disk no writes; what is in its folder is removed
    afterwards.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER, prefix="output-") as folder:
        os.sync()
        yield Path(folder, "output")


def warm(files: Iterable[Path]) -> list[str]:
    """The paths of files, all of which the kernel has in its cache now as far as they go in."""
    paths = [str(file) for file in files]
    block = bytearray(1 << 20)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(block):
                pass
    return paths
