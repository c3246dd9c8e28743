"""Retries of requests to object stores: how often, after which pauses, and of which errors.

A request is tried again in one place, the lowest that can repeat it. Nested retries would multiply: five by
five by five requests for one that a store refuses is how a short outage becomes a long one.
"""

from __future__ import annotations

import os
import random

_ATTEMPTS = 8  # when one in five requests fails, one in 400,000 does so eight times
_FIRST_PAUSE = 0.1  # seconds; all together 10, with half of each at random
_LONGEST_PAUSE = 10.0

# Codes in answers of S3 servers, or the status of answers without a body, as those to HEAD.
_CODES = frozenset(
    "InternalError OperationAborted RequestTimeout RequestTimeTooSlow ServiceUnavailable SlowDown Throttling "
    "ThrottlingException TooManyRequests XAmzContentSHA256Mismatch 408 429 500 502 503 504".split()
)


def attempts() -> int:
    """Return how often a request is tried in all: ``AWS_MAX_ATTEMPTS``, as in other programs, or 8."""
    given = os.environ.get("AWS_MAX_ATTEMPTS", "")
    return max(int(given), 1) if given.isdecimal() else _ATTEMPTS


def pause(failures: int) -> float:
    """Return the seconds to wait after so many failures: twice as long each time, and at random.

    Clients that failed together would otherwise come back together.
    """
    return random.uniform(0.5, 1.0) * min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)


def is_passing_code(code: str) -> bool:
    """Return whether a later request may succeed that a store has answered with this code."""
    return code in _CODES
