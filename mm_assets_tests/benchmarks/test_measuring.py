"""A measured task runs alone in its process, and only its work counts."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.measuring import TaskFailed, Work, measure

_MIB = 1 << 20


def allocate(before: int, during: int) -> Work:
    """A task that touches ``before`` MiB while it is prepared and ``during`` MiB as its work."""
    bytearray(os.urandom(_MIB) * before)

    def work() -> dict[str, Any]:
        return {"length": len(os.urandom(_MIB) * during), "process": os.getpid()}

    return work


def fail() -> Work:
    raise ValueError("the reason")


def test_memory_of_the_preparation_does_not_count() -> None:
    done = measure(f"{__name__}:allocate", before=400, during=100)
    assert done.result["length"] == 100 * _MIB
    assert done.result["process"] != os.getpid()
    assert 100 <= done.peak < 200


def test_a_task_that_fails_says_why() -> None:
    with pytest.raises(TaskFailed, match="ValueError: the reason"):
        measure(f"{__name__}:fail")
