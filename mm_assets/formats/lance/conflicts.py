"""Again, when another committer came first."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from lance.commit import CommitConflictError

Result = TypeVar("Result")

_ATTEMPTS = (
    60  # a conflict means that another commit landed; with 0.5 s between the last ones this is half a minute
)
_LONGEST_WAIT = 0.5  # seconds


class StaleSnapshot(CommitConflictError):
    """The table got a new version while its records were read."""


def retry_on_conflict(action: Callable[[], Result]) -> Result:
    """What ``action`` returns, once it does not raise ``CommitConflictError``; raises that after about half a
    minute.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except CommitConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(random.uniform(0.2, 1.0) * min(_LONGEST_WAIT, 0.01 * 2 ** min(attempt, 10)))
    raise AssertionError("unreachable")
