"""A Ray cluster of two real nodes on this machine, of one core each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# A driver takes the raylet that has its own address, and dies with it: that has to be the head's.
_OTHER = "127.0.0.2"
_LIMITS = {"num_cpus": 1, "object_store_memory": 100 << 20, "memory": 2 << 30}


@dataclass
class RayNodes:
    """A head and another node. A node is a raylet with its workers."""

    cluster: Any
    other: Any

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def settings(self) -> dict[str, str]:
        """Variables of a run on this cluster."""
        return {"MM_ENGINE": "ray", "MM_RAY_ADDRESS": self.address}

    def kill_other(self) -> None:
        """Kill the second node with all that runs on it."""
        self.cluster.remove_node(self.other, allow_graceful=False)

    def start_other(self) -> None:
        self.other = self.cluster.add_node(**_LIMITS, node_ip_address=_OTHER)


@contextmanager
def ray_nodes(environment: dict[str, str] | None = None) -> Iterator[RayNodes]:
    """Start the nodes, whose tasks have these variables, too."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    # Short: Ray's sockets lie in it.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", **(environment or {})})
    try:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                **_LIMITS,
                "include_dashboard": False,
                "temp_dir": folder,
            },
        )
        try:
            nodes = RayNodes(cluster, None)
            nodes.start_other()
            yield nodes
        finally:
            cluster.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)
