"""The floor: the same bytes read and written, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.measuring import Work

_BLOCK = 1 << 20


def prepare(files: Sequence[str], output: str, nbytes: int) -> Work:
    """Read ``files`` whole and write ``nbytes`` of what was read into a folder, a file for each, synced as
    the project syncs its own.
    """
    share = -(-nbytes // len(files))

    def work() -> dict[str, Any]:
        os.makedirs(output)
        return {
            "nbytes": sum(_copy(file, os.path.join(output, os.path.basename(file)), share) for file in files)
        }

    return work


def _copy(source: str, target: str, wanted: int) -> int:
    block, written = memoryview(bytearray(_BLOCK)), 0
    with open(source, "rb", buffering=0) as reading, open(target, "wb", buffering=0) as writing:
        while count := reading.readinto(block):
            written += writing.write(block[: min(count, wanted - written)])
        os.fsync(writing.fileno())
    return written
