"""The Dagster instance of a command."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from mm_assets.formats.error_places import located

_UNSET = re.compile(r'environment variable "(\w+)" which is not set')


@contextmanager
def open_instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """Open the instance that ``DAGSTER_HOME`` names.

    Raises:
        ValueError: its ``dagster.yaml`` is wrong, a variable in it is not set, or its database cannot be
            reached. One line.
    """
    warnings.simplefilter("ignore", dg.BetaWarning)
    try:
        with located(f"DAGSTER_HOME {home}"):
            instance = dg.DagsterInstance.get()
    except (OSError, ValueError):
        raise
    except Exception as error:  # storage classes raise what they like
        raise ValueError(f"{home / 'dagster.yaml'}: {_reason(error)}") from error
    with instance:
        yield instance


def _reason(error: Exception) -> str:
    if unset := sorted(set(_UNSET.findall(str(error)))):
        return f"not set in the environment: {', '.join(unset)}"
    lines = [
        line.strip()
        for cause in (error, error.__cause__ or error.__context__)
        for line in str(cause or "").splitlines()
    ]
    return "; ".join(dict.fromkeys(filter(None, lines)))[:500]
