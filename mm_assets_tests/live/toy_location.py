"""The toy of the seam's tests as a code location; the environment says where its data lie. Runs
are forked as those of the real graph.
"""

import os

import mm_assets.definitions  # noqa: F401
from mm_assets_tests.graph.io_manager import toy

defs = toy.definitions(os.environ["TOY_RAW"], os.environ["TOY_ROOT"])
