"""Commands over the outputs of a deployment, in this process."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mm_assets_tests.cli import commands
from mm_assets_tests.graph.deployment import Deployment


def run(deployment: Deployment, *arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run ``mm-assets`` with the deployment's settings, without a Dagster home unless one is given."""
    given = {"MM_RAW_SHARDS": deployment.raw, "MM_STORAGE": deployment.storage, "MM_WORKERS": "1"}
    home = {"DAGSTER_HOME": str(Path(deployment.storage).parent / "no-home")}
    return commands.run(*arguments, **{**given, **home, **settings})


def ok(deployment: Deployment, *arguments: object, **settings: str) -> str:
    """Standard output of a command that must do well, without a word on stderr."""
    return commands.fine(run(deployment, *arguments, **settings))
