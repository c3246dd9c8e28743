"""Memory that allocators keep after a job is given back before the next: a worker's peak is that of one job,
not their sum.
"""

from __future__ import annotations

import ctypes
import os
import sys

_KEPT = 32 << 20  # bytes that may stay: giving back little costs more than it is worth
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Of glibc. With an arena for each of Lance's threads, what one frees no other takes. A block of this size
# goes back to the system when it is freed; left alone, glibc raises the bound to the largest block it has
# seen freed, and keeps such blocks.
_M_ARENA_MAX, _ARENAS = -8, 2
_M_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 4 << 20


class FreeMemory:
    """What this process holds beyond what it needs. Linux only; elsewhere nothing is done.

    To be made before the threads that allocate: their memory is in few pieces then.
    """

    def __init__(self) -> None:
        self._level = _resident()
        option = getattr(ctypes.CDLL(None), "mallopt", None)
        if option is not None:
            option(_M_ARENA_MAX, _ARENAS)
            option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)

    def release_to_os(self) -> None:
        """Return free memory to the system if the process has grown since the last time."""
        if _resident() < self._level + _KEPT:
            return
        if (arrow := sys.modules.get("pyarrow")) is not None:
            arrow.default_memory_pool().release_unused()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        self._level = _resident()


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0
