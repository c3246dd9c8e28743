"""A program ``mm-assets`` whose processes are forked off one that has imported Dagster: that takes a second
of CPU, and the pages have dozens of commands.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mm_assets_tests.docs.pages import ROOT

_LARGEST = 1 << 17  # bytes of arguments and environment

_PROGRAM = """#!{python} -IS
import json, os, socket, sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    message = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [message], [0, 1, 2])
    code = int(server.recv(16))  # nothing comes from a process that was killed
    server.recv(16)  # its end
    sys.exit(code)
"""


@contextmanager
def warm_commands(folder: Path) -> Iterator[Path]:
    """Give the folder of the program, for ``PATH``."""
    program, address = folder / "bin" / "mm-assets", str(folder / "server")
    program.parent.mkdir(parents=True)
    program.write_text(_PROGRAM.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        command = [sys.executable, "-m", __name__, str(listener.fileno())]
        server = subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()])
    try:
        yield program.parent
    finally:
        server.kill()
        server.wait()


def _serve(listener: socket.socket) -> None:
    running: list[int] = []
    while True:
        connection, _ = listener.accept()
        message, streams, *_ = socket.recv_fds(connection, _LARGEST, 3)
        running = [process for process in running if os.waitpid(process, os.WNOHANG) == (0, 0)]
        process = os.fork()
        if process == 0:
            listener.close()
            _run(connection, message, streams)
        running.append(process)
        for descriptor in streams:
            os.close(descriptor)
        connection.close()


def _run(connection: socket.socket, message: bytes, streams: list[int]) -> None:
    from mm_assets.cli import main

    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.argv, folder, environment = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code = main()
    connection.send(str(code).encode())
    os._exit(code)  # to end an interpreter with Dagster takes long


def _import() -> None:
    """Import what commands import, except what is made of settings (`mm_assets.definitions`) or starts
    threads, which do not survive a fork.
    """
    import alembic.config  # noqa: F401
    import dagster  # noqa: F401

    import mm_assets.automation.sensors
    import mm_assets.graph
    import mm_assets.graph.assets
    import mm_assets.headless.run
    import mm_assets.view.overview  # noqa: F401


if __name__ == "__main__":
    _import()
    _serve(socket.socket(fileno=int(sys.argv[1])))
