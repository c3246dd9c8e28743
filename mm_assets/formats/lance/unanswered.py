"""Repetition of what Lance gave up because a store did not answer one of its requests.

Lance repeats most requests itself. It does not repeat listings that broke off, nor puts that may have been
carried out: the commit of a version is one. Who calls Lance can tell whether it was, and begins anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

from mm_assets.formats.store_retries import attempts, pause

Result = TypeVar("Result")

_UNANSWERED = re.compile(
    r"HTTP error: (?:error sending request|request or response body error|error decoding response)"
)
_REPEATED_BY_LANCE = re.compile(r"after [1-9]\d* retries")


def is_unanswered(error: BaseException) -> bool:
    """Return whether a request of Lance got no answer, or half of one, and was not repeated."""
    text = str(error)
    return (
        isinstance(error, OSError | ValueError | RuntimeError)
        and _UNANSWERED.search(text) is not None
        and _REPEATED_BY_LANCE.search(text) is None
    )


def until_answered(action: Callable[[], Result]) -> Result:
    """Return the result of ``action``, which is called again after each `is_unanswered` error.

    Raises:
        OSError: the store does not answer, after several attempts.
    """
    most, failures = attempts(), 0
    while True:
        try:
            return action()
        except (OSError, ValueError, RuntimeError) as error:
            failures += 1
            if failures >= most or not is_unanswered(error):
                raise
        time.sleep(pause(failures))
