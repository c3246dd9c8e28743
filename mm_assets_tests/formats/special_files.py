"""Files that are no regular files, as parameters of tests."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def a_linked_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "hidden-pipe")
    path.symlink_to(path.parent / "hidden-pipe")


SPECIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "a named pipe": (os.mkfifo, "a named pipe"),
    "a link to a pipe": (a_linked_pipe, "a named pipe"),
    "a socket": (a_socket, "a socket"),
    "a link to an endless device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
    "a link to an empty device": (lambda path: path.symlink_to("/dev/null"), "a device"),
}


special = pytest.mark.parametrize(("make", "words"), SPECIAL.values(), ids=SPECIAL)
