"""The graph as it is, but for how long a run is silent before it hangs: an hour is too long for a test."""

import os

from mm_assets.automation.alerts import runs

runs.SILENT = float(os.environ["TEST_SILENT"])

from mm_assets.definitions import defs  # noqa: E402

__all__ = ["defs"]
