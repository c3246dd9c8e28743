"""Connection of a run to a Ray cluster.

The package itself travels with the run, so that all nodes have the same code. What it stands on (pyarrow,
pylance, pillow and so on), modules of plugins, and credentials of stores are those of the nodes.
"""

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mm_assets.formats.error_lines import error_line
from mm_assets.formats.temporary_files import temporary_name
from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.interleaved.extras import MissingExtra, explained
from mm_assets.worker_environment import WORKER_ENVIRONMENT

_HOST_AND_PORT = re.compile(r"(?:ray://)?([^:/]+):(\d{1,5})")
_CONNECT_SECONDS = 10
_SETUP_SECONDS = 120  # of a node's first task: it unpacks the package and imports it


class RayClusterError(MmAssetsError, ConnectionError):
    """The cluster cannot be used; the message is one line."""


def connect(address: str) -> bool:
    """Connect this process to a cluster, unless it is connected.

    Args:
        address: ``auto``, ``host:port`` or ``ray://host:port``.

    Returns:
        Whether the connection is new.

    Raises:
        MissingExtra: Ray is not installed.
        RayClusterError: there is no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(f"MM_ENGINE=ray: {explained(error)}") from error
    if ray.is_initialized():
        return False
    code = {"py_modules": [str(Path(__file__).parent)], "env_vars": dict(WORKER_ENVIRONMENT)}
    try:
        _refuse_unreachable(address)
        with _kept_signals():
            # What tasks print comes with their answers. Ray would add long messages on dead workers.
            ray.init(address=address, runtime_env=code, logging_level=logging.WARNING, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RayClusterError(f"MM_RAY_ADDRESS={address}: no Ray cluster: {error_line(error)}") from error
    return True


def _refuse_unreachable(address: str) -> None:
    """Raise `OSError` at once if nobody listens at the address; Ray would try for one or two minutes."""
    if match := _HOST_AND_PORT.fullmatch(address):
        socket.create_connection((match[1], int(match[2])), timeout=_CONNECT_SECONDS).close()


def refuse_unshared(folders: Sequence[str]) -> None:
    """Refuse local folders that are not the same on all nodes of the cluster.

    Raises:
        RayClusterError: in one line that names folder and node.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not folders or not others:
        return
    find = ray.remote(num_cpus=0, max_retries=0)(_missing)
    with _tokens(folders) as tokens:
        for node in others:
            host = node["NodeManagerAddress"]
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            try:
                missing = ray.get(
                    find.options(scheduling_strategy=strategy).remote(list(tokens)), timeout=_SETUP_SECONDS
                )
            except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
                continue  # it has left meanwhile
            except ray.exceptions.RayError as error:
                raise RayClusterError(f"Ray node {host} takes no task: {error_line(error)}") from error
            if missing:
                raise RayClusterError(
                    f"{tokens[missing[0]]}: not the same folder on Ray node {host}: on several nodes, "
                    "shards and storage lie in an object store or a shared file system"
                )


def _missing(paths: list[str]) -> list[str]:
    return [path for path in paths if not os.path.exists(path)]


@contextmanager
def _tokens(folders: Sequence[str]) -> Iterator[dict[str, str]]:
    """Give each folder by a path in it: a new file, or the folder itself if that cannot be written."""
    tokens: dict[str, str] = {}
    try:
        for folder in folders:
            token = os.path.join(folder, temporary_name("ray"))
            try:
                os.makedirs(folder, exist_ok=True)
                Path(token).touch()
            except OSError:
                token = folder
            tokens[token] = folder
        yield tokens
    finally:
        for token, folder in tokens.items():
            if token != folder:
                Path(token).unlink(missing_ok=True)


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
