"""Release of memory that allocators keep after a job, so that a worker's peak is that of one job."""

from __future__ import annotations

import ctypes
import os
import sys

_MAX_GROWTH = 32 << 20  # bytes that may stay: releasing less costs more than it is worth
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Options of glibc's malloc. With an arena for each of Lance's threads, memory freed by one thread is not
# reused by others. Blocks of at least _LARGE_BLOCK go back to the system when freed; by default glibc raises
# that threshold to the largest block freed so far, and keeps such blocks. Smaller ones stay, up to _KEPT at
# the end of the heap: the system would clear their pages again for the next batch.
_M_ARENA_MAX, _ARENAS = -8, 2
_M_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 16 << 20
_M_TRIM_THRESHOLD, _KEPT = -1, 32 << 20


class FreeMemory:
    """Memory that this process holds but does not need. Linux only; elsewhere nothing is done.

    Create it before the threads that allocate: their memory is less fragmented then.
    """

    def __init__(self) -> None:
        self._baseline = _resident()
        option = getattr(ctypes.CDLL(None), "mallopt", None)
        if option is not None:
            option(_M_ARENA_MAX, _ARENAS)
            option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
            option(_M_TRIM_THRESHOLD, _KEPT)

    def release_to_os(self) -> None:
        """Return free memory to the system if the process has grown since the last call."""
        if _resident() < self._baseline + _MAX_GROWTH:
            return
        if (arrow := sys.modules.get("pyarrow")) is not None:
            arrow.default_memory_pool().release_unused()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        self._baseline = _resident()


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0
