"""The files of `deploy/postgres/`, as tests read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "postgres"
DAGSTER_YAML, WORKSPACE, COMPOSE, DOCKERFILE, LOCK, ENVIRONMENT = (
    FOLDER / name
    for name in (
        "dagster.yaml",
        "workspace.yaml",
        "compose.yaml",
        "Dockerfile",
        "requirements.lock",
        "env.example",
    )
)


def compose() -> Any:
    return yaml.safe_load(COMPOSE.read_text())


def environment() -> dict[str, str]:
    """What `env.example` sets, and what it has in comments to be set."""
    assignments = re.findall(r"^#?([A-Z][A-Z0-9_]+)=(.*)$", ENVIRONMENT.read_text(), re.MULTILINE)
    return dict(assignments)


def variables_of(path: Path) -> set[str]:
    """The environment variables that a YAML file of Dagster asks for."""
    return set(_variables(yaml.safe_load(path.read_text())))


def _variables(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["env"]] if set(value) == {"env"} else []
        return own + [name for inner in value.values() for name in _variables(inner)]
    if isinstance(value, list):
        return [name for inner in value for name in _variables(inner)]
    return []
