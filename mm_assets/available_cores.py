"""The cores that a process may use: those of its container, not of the machine."""

from __future__ import annotations

import math
import os
from pathlib import Path

# As a container sees its own group. Linux's second version of control groups, then the first.
_QUOTA = "cpu.max"
_QUOTA_V1, _PERIOD_V1 = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


def available_cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores of the CPU set, or fewer if the share of CPU time that is allowed is less; at least 1.

    Args:
        groups: where the control group of the container is mounted.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _quota(groups)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(groups: Path) -> float | None:
    """Return how many cores' time may be used; None if there is no limit, or none that can be read."""
    try:
        if (file := groups / _QUOTA).exists():
            quota, period = file.read_text().split()
        else:
            quota, period = ((groups / name).read_text() for name in (_QUOTA_V1, _PERIOD_V1))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None
