"""``make demo-ray``: the demo on a Ray cluster of two nodes, which it starts on this machine and ends."""

from __future__ import annotations

import os
import sys

from mm_assets_tests.live.ray_nodes import ray_nodes
from tools.demo import main


def demo() -> int:
    """Run the demo with its outputs in ``demo/ray_storage``."""
    with ray_nodes() as nodes:
        print(f"Ray cluster of two nodes: MM_ENGINE=ray MM_RAY_ADDRESS={nodes.address}")
        storage = os.path.join("demo", "ray_storage")
        os.environ.update(MM_ENGINE="ray", MM_RAY_ADDRESS=nodes.address, MM_STORAGE=storage)
        return main()


if __name__ == "__main__":
    sys.exit(demo())
