"""A Ray cluster of two real nodes on this machine, of one core each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIMITS = {"num_cpus": 1, "object_store_memory": 100 << 20}


@dataclass
class RayNodes:
    """A head and another node. A node is a raylet with its workers."""

    cluster: Any
    other: Any
    memory: int

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def settings(self) -> dict[str, str]:
        """Variables of a run on this cluster."""
        return {"MM_ENGINE": "ray", "MM_RAY_ADDRESS": self.address}

    def alive(self) -> int:
        """How many nodes the cluster has."""
        return sum(node["Alive"] for node in self.cluster.global_state.node_table())

    def other_is_at_work(self) -> bool:
        """Whether a task runs on the second node."""
        raylet = self.other.all_processes["raylet"][0].process.pid
        processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        return any(_is_task_of(raylet, process) for process in processes)

    def kill_other(self) -> None:
        """Kill the second node with all that runs on it."""
        self.cluster.remove_node(self.other, allow_graceful=False)

    def start_other(self) -> None:
        self.other = self.cluster.add_node(**_LIMITS, memory=self.memory)


def _is_task_of(raylet: int, process: Path) -> bool:
    """Whether a process, by its folder in /proc, is a worker of this raylet and has a task."""
    try:
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == raylet and b"ray::_work" in (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return False


@contextmanager
def ray_nodes(
    environment: dict[str, str] | None = None, memory: int = 2 << 30, others: int = 1
) -> Iterator[RayNodes]:
    """Start a head and ``others``, whose tasks have these variables, too, and which have so many bytes for
    tasks.
    """
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    # Short: Ray's sockets lie in it.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    # `Cluster` notes its address here all the same, in a folder that only other ways to start Ray make.
    Path("/tmp/ray").mkdir(exist_ok=True)
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", **(environment or {})})
    try:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                **_LIMITS,
                "memory": memory,
                "include_dashboard": False,
                "temp_dir": folder,
            },
        )
        try:
            nodes = RayNodes(cluster, None, memory)
            for _ in range(others):
                nodes.start_other()
            yield nodes
        finally:
            cluster.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)
