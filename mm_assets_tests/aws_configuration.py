"""The AWS configuration of a test: none of the machine's."""

import os
from pathlib import Path

import pytest


def use_no_credentials(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Take away all variables, files and metadata servers; ``folder`` may get a file ``credentials``."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
