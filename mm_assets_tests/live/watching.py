"""See everything that happens to the files below a folder, as it happens (inotify: no look comes too
late).
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_NAMES = {
    _MODIFY: "modified",
    _MOVED_FROM: "moved_from",
    _MOVED_TO: "moved_to",
    _CREATE: "created",
    _DELETE: "deleted",
}
_IS_FOLDER, _OVERFLOW = 0x40000000, 0x4000
_HEADER = struct.Struct("iIII")


@dataclass(frozen=True)
class Event:
    """``what`` is created, modified, moved_from, moved_to or deleted; ``path`` is relative to the folder
    watched.
    """

    what: str
    path: str


class Watch:
    """Calls every function of ``see`` with each event, in order, from a thread of its own, until the block
    ends; then all was seen.

    Of a folder that is new, the files that are found in it count as moved there. What ``see`` raises, the end
    of the block raises.
    """

    def __init__(self, root: Path, *see: Callable[[Event], None]) -> None:
        self._root = root
        self._observers = see
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folders: dict[int, Path] = {}
        self._error: BaseException | None = None

    def __enter__(self) -> Watch:
        self._inotify = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._inotify < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._stop = os.eventfd(0)
        self._add(self._root, is_new=False)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._inotify)
        os.close(self._stop)
        if self._error is not None and error is None:
            raise self._error

    def _add(self, folder: Path, is_new: bool) -> None:
        mask = sum(_NAMES)
        watch = self._libc.inotify_add_watch(self._inotify, os.fsencode(folder), mask)
        if watch < 0:
            if is_new and not folder.exists():
                return
            raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")
        self._folders[watch] = folder
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except FileNotFoundError:  # it was renamed meanwhile: under its new name it comes again
            if not is_new:
                raise
            return
        for entry in entries:
            if entry.is_dir():
                self._add(folder / entry.name, is_new)
            elif is_new:
                self._see("moved_to", folder / entry.name)

    def _see(self, what: str, path: Path) -> None:
        event = Event(what, str(path.relative_to(self._root)))
        for see in self._observers:
            see(event)

    def _watch(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._inotify, self._stop], [], [])
                if self._inotify in ready:
                    self._take(os.read(self._inotify, 1 << 16))
                else:
                    return
        except BaseException as error:  # noqa: BLE001  (raised again where the block ends)
            self._error = error

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, at)
            name = data[at + _HEADER.size : at + _HEADER.size + length].rstrip(b"\0")
            at += _HEADER.size + length
            if mask & _OVERFLOW:
                raise RuntimeError("more happened than could be watched")
            what = next((word for bit, word in _NAMES.items() if mask & bit), None)
            if what is None:
                continue  # the watch ended with its folder
            path = self._folders[watch] / os.fsdecode(name)
            if not mask & _IS_FOLDER:
                self._see(what, path)
            elif mask & (_CREATE | _MOVED_TO):
                self._add(path, is_new=True)
