"""Where pytest makes its temporary folders: in memory, where the machine has a file system there.

Dagster's SQLite databases are below them. SQLite waits for the disk at each commit, and a run of the graph
commits hundreds of times: on a disk that took half of the time of such a test.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")
_NEEDED = 4 << 30  # the suite has up to 3 GB there; containers often have 64 MB there


def use_memory() -> None:
    """Let pytest make its folders in memory, unless ``PYTEST_DEBUG_TEMPROOT`` names a place."""
    if not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return
    may_execute = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC  # tests write programs
    if may_execute and shutil.disk_usage(_MEMORY).free >= _NEEDED:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
