"""A bound on work that does not depend on the machine: how many lines of Python run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LIMIT = 30_000_000  # one to two seconds of CPU when not counted


@contextmanager
def line_budget(limit: int = LIMIT) -> Iterator[None]:
    """Fail once more than so many lines of Python have run in the block."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        assert count <= limit, f"more than {limit:,} lines of Python ran"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
