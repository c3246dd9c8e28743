"""Temporary files: names that tell whether the process that made them is still alive, and a pool's folder.

A process is identified by its number, its start time, and the container and machine boot in which these are
valid. Other processes remove what a dead one has left (`is_stale`).

`TemporaryFolder` holds the temporary files of all processes of a pool, of killed ones too.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

# A process that cannot be looked up from here, for example on another machine, counts as dead when its files
# have not changed for this long.
ABANDONED_SECONDS = 7 * 24 * 3600
_JUST_MADE_SECONDS = 60  # a younger file may not be locked yet

_NAME = re.compile(
    r"^\..*?(?:\.on-(?P<boot>[0-9a-f]{8})-(?P<start>\d+))?\.(?P<container>[0-9a-f]{8})-(?P<pid>\d+)-(?P<id>[0-9a-f]{12})\.tmp$"
)
_UNKNOWN = "0"  # start time of a process where there is no /proc
_STATE, _START = 0, 19  # fields of /proc/<pid>/stat, counted after the program's name
_ENDED = ("Z", "X")  # a zombie keeps its number until its parent collects its exit status


def temporary_name(name: str) -> str:
    """Return a hidden name that no client reads and that tells which process made it; see `is_stale`."""
    short = name.encode()[:120].decode(errors="ignore")  # file systems count bytes
    pid = os.getpid()
    return f".{short}.on-{_boot()}-{_own_start(pid)}.{_container()}-{pid}-{uuid.uuid4().hex[:12]}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether this is a `temporary_name`."""
    # Folders of ten thousand files are listed in each run: the expression alone takes 0.5 µs a name.
    return name[:1] == "." and name.endswith(".tmp") and _NAME.match(name) is not None


def create_locked(path: str | os.PathLike[str]) -> int:
    """Create a file of a `temporary_name` and lock it until the returned descriptor is closed.

    Other containers see by the lock that the process is alive.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with suppress(OSError):  # not all file systems have locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


@contextmanager
def locked_folder(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Lock a folder for the block, unless another process has; yield whether it is ours.

    On file systems without locks it always is.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    is_ours = True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
        except OSError as error:
            is_ours = not isinstance(error, BlockingIOError)
        yield is_ours
    finally:
        if is_ours:
            with suppress(OSError):  # not by closing it: processes that were forked off have it, too
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def building_folder(marker: Path) -> Path:
    """Return the hidden folder that a file of a `temporary_name` marks as being built, if it marks one."""
    return marker.parent / f".{marker.name[-16:-4]}.building"


def is_stale(path: Path) -> bool:
    """Return whether a file has a `temporary_name` and its process is dead.

    Processes of this container are looked up. For other containers of this machine the lock of
    `create_locked` decides. Nothing is known of other machines: their files are stale when they, and the
    `building_folder`, have not changed for `ABANDONED_SECONDS`.
    """
    match = _NAME.match(path.name)
    if match is None:
        return False
    is_alive = None
    if match["boot"] == _boot():
        is_alive = is_owner_alive(path.name)
        if is_alive is None:
            is_alive = _is_locked(path)
    if is_alive is not None:
        return not is_alive
    return _last_change(path) < time.time() - ABANDONED_SECONDS


def is_owner_alive(name: str) -> bool | None:
    """Return whether the process of a `temporary_name` runs; None for those of other containers."""
    match = _NAME.match(name)
    if match is None or (match["boot"], match["container"]) != (_boot(), _container()):
        return None
    return _is_running(int(match["pid"]), match["start"])


def _is_running(pid: int, start: str) -> bool | None:
    """Return whether this container still runs the process started then; None if only its number is known."""
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


_CLOCK_SECONDS = 300.0  # by which the clock may have been set since


def was_running(pid: int, moment: float) -> bool:
    """Return whether a process of this container runs that was there at a moment.

    Args:
        moment: seconds since 1970. A process that has started later only has the same number.
    """
    if _is_running(pid, _UNKNOWN) is False:
        return False
    started = _stat_of(pid)[1]
    if started == _UNKNOWN:
        return True
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
    return time.time() - age < moment + _CLOCK_SECONDS


def _stat_of(pid: int) -> tuple[str, str]:
    """Return the state of a process, and its start time in ticks since the boot."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[_STATE], fields[_START]
    except (OSError, IndexError):
        return "", _UNKNOWN


@cache
def _own_start(pid: int) -> str:
    """Return the start time of this process; its number is the key, for those that are forked off."""
    return _stat_of(pid)[1]


def _is_locked(path: Path) -> bool | None:
    """Return whether a living process holds the lock of `create_locked`; None if unknown."""
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
    except FileNotFoundError:  # removed while we look: its process is alive
        return time.time()


@cache
def _boot() -> str:
    """Return an id of this machine's boot, or of the machine's name where that is unknown."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        text = socket.gethostname()
    return f"{zlib.crc32(text.encode()):08x}"


@cache
def _container() -> str:
    """Return an id of the container, within which process numbers are valid."""
    try:
        number = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        number = 0
    return f"{number & 0xFFFFFFFF:08x}"


_FOLDER_NAME = "mm-assets"


class TemporaryFolder:
    """A folder that only this user may enter, below the system's folder of temporary files (``TMPDIR``).

    Folders of processes that have died are removed when a new one is made.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        _remove_stale(parent)
        self.path = str(parent / temporary_name(_FOLDER_NAME))
        os.mkdir(self.path, mode=0o700)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # not all file systems have locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_stale(parent: Path) -> None:
    with os.scandir(parent) as entries:
        ours = [
            Path(entry.path)
            for entry in entries
            if is_temporary(entry.name)
            and entry.name.startswith(f".{_FOLDER_NAME}.")
            and _is_own_folder(entry)
        ]
    for folder in ours:
        if is_stale(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except FileNotFoundError:
        return False
