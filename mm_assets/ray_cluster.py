"""Connection of this process to a Ray cluster, shared by all pools of the process.

The package itself travels with the run, so that all nodes have the same code. What it imports (pyarrow,
pylance, pillow and so on), modules of plugins, and credentials of stores are those of the nodes.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mm_assets.formats.error_lines import error_line
from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.interleaved.extras import MissingExtra, explained
from mm_assets.setting_parsers import ray_host_and_port
from mm_assets.worker_environment import WORKER_ENVIRONMENT

_CONNECT_SECONDS = 10

_lock = threading.Lock()
_users = 0  # pools that are connected; none of them owns a connection that somebody else has made


class RayClusterError(MmAssetsError, ConnectionError):
    """The cluster cannot be used; the message is one line."""


def connect(address: str) -> None:
    """Connect this process to a cluster, unless it is connected.

    If the program that we are part of has connected it, its connection is used as it is: nodes then run the
    package that they have installed.

    Args:
        address: ``auto``, ``host:port`` or ``ray://host:port``.

    Raises:
        MissingExtra: Ray is not installed.
        RayClusterError: there is no cluster.
    """
    global _users
    # Else a call after the end of a connection starts a cluster of its own on this machine.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(f"MM_ENGINE=ray: {explained(error)}") from error
    with _lock:
        if not _users and ray.is_initialized():
            return
        if not _users:
            _initialize(address)
        _users += 1


def disconnect() -> None:
    """Undo one `connect`. The last one ends the tasks of this process."""
    global _users
    import ray

    with _lock:
        if _users:
            _users -= 1
            if not _users:
                ray.shutdown()


def _initialize(address: str) -> None:
    import ray

    variables = {name: os.environ.get(name, text) for name, text in WORKER_ENVIRONMENT.items()}
    code = {"py_modules": [str(Path(__file__).parent)], "env_vars": variables}
    try:
        _refuse_unreachable(address)
        with _kept_signals():
            # What tasks print comes with their answers. Ray would add long messages on dead workers.
            ray.init(address=address, runtime_env=code, logging_level=logging.WARNING, log_to_driver=False)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RayClusterError(
            f"MM_RAY_ADDRESS={address}: no Ray cluster: {_cause(address, error)}"
        ) from error


def _cause(address: str, error: Exception) -> str:
    if not isinstance(error, ConnectionError) or isinstance(error, ConnectionRefusedError):
        return error_line(error)
    if address == "auto":
        return "none runs on this machine; set MM_RAY_ADDRESS to one that runs elsewhere"
    hint = "it may ask for a token (RAY_AUTH_MODE=token), or have another version of Ray"
    return f"something listens there, and does not take this run: {hint}"


def _refuse_unreachable(address: str) -> None:
    """Raise `OSError` at once if nobody listens at the address; Ray would try for one or two minutes."""
    if found := ray_host_and_port(address):
        socket.create_connection(found, timeout=_CONNECT_SECONDS).close()


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Put back the handler of SIGTERM, which `ray.init` replaces: Dagster ends its runs by it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
