"""Names of files that are being made: they tell who makes them, so that others can tell whether anybody still
does.

A process is known by its number, by when it started, and by the container and the boot of the machine in
which these mean anything.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
import uuid
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

# A process that cannot be looked up from here, on another machine for one, is taken for dead when nothing of
# it has changed for so long.
ABANDONED_SECONDS = 7 * 24 * 3600
_JUST_MADE_SECONDS = 60  # a file may not be locked yet

_NAME = re.compile(
    r"^\..*?(?:\.on-(?P<boot>[0-9a-f]{8})-(?P<start>\d+))?\.(?P<container>[0-9a-f]{8})-(?P<pid>\d+)-(?P<id>[0-9a-f]{12})\.tmp$"
)
_UNKNOWN = "0"  # when a process started, where there is no /proc
_STATE, _START = 0, 19  # of the fields of /proc/<pid>/stat that follow the name of the program
_ENDED = ("Z", "X")  # a zombie has a number until its parent asks for its end


def temporary_name(name: str) -> str:
    """A dot-prefixed name no client reads, telling which process made it; see `is_stale`."""
    short = name.encode()[:120].decode(errors="ignore")  # file systems count bytes
    pid = os.getpid()
    return f".{short}.on-{_boot()}-{_stat_of(pid)[1]}.{_container()}-{pid}-{uuid.uuid4().hex[:12]}.tmp"


def is_temporary(name: str) -> bool:
    """Whether this is a `temporary_name`."""
    return _NAME.match(name) is not None


def claim(path: str | os.PathLike[str]) -> int:
    """Create a file of a `temporary_name`, and hold a lock on it for other containers to see, until the
    descriptor is closed.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with suppress(OSError):  # not all file systems have locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def building_folder(marker: Path) -> Path:
    """The hidden folder that a file of a `temporary_name` stands for, where it marks one."""
    return marker.parent / f".{marker.name[-16:-4]}.building"


def is_stale(path: Path) -> bool:
    """Whether a file has a `temporary_name` and the process that made it will not come back for it.

    A process of this container is looked up. Of another on this machine the lock of `claim` tells. Of any
    other nothing can be known: its files are stale when they, and the `building_folder`, have not changed for
    `ABANDONED_SECONDS`.
    """
    match = _NAME.match(path.name)
    if match is None:
        return False
    is_alive: bool | None = None
    if match["boot"] == _boot():
        if match["container"] == _container():
            is_alive = _is_running(int(match["pid"]), match["start"])
        if is_alive is None:
            is_alive = _is_locked(path)
    if is_alive is not None:
        return not is_alive
    return _last_change(path) < time.time() - ABANDONED_SECONDS


def _is_running(pid: int, start: str) -> bool | None:
    """Whether a process of this container is the one that started then; None where only its number is known."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    state, started = _stat_of(pid)
    if state in _ENDED:
        return False
    return None if _UNKNOWN in (start, started) else started == start


def _stat_of(pid: int) -> tuple[str, str]:
    """State of a process, and when it started in ticks since the boot."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[_STATE], fields[_START]
    except (OSError, IndexError):
        return "", _UNKNOWN


def _is_locked(path: Path) -> bool | None:
    """Whether a living process holds the lock of `claim`; None where that cannot be known."""
    try:
        if time.time() - path.stat().st_mtime < _JUST_MADE_SECONDS:
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def _last_change(path: Path) -> float:
    folder = building_folder(path)
    try:
        paths = [path, folder, *folder.iterdir()] if folder.is_dir() else [path]
        return max(path.stat().st_mtime for path in paths)
    except FileNotFoundError:  # going as we look: somebody is at it
        return time.time()


@cache
def _boot() -> str:
    """This machine since it was started; where that is not known, the name of the machine."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        text = socket.gethostname()
    return f"{zlib.crc32(text.encode()):08x}"


@cache
def _container() -> str:
    """The container, within which process numbers mean anything."""
    try:
        number = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        number = 0
    return f"{number & 0xFFFFFFFF:08x}"
