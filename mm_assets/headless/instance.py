"""The Dagster instance of a command."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
from dagster._core.instance.ref import InstanceRef
from sqlalchemy.exc import DBAPIError

from mm_assets.event_log.tables import make_stock_tables
from mm_assets.formats.error_places import located, place_of

_UNSET = re.compile(r'environment variable "(\w+)" which is not set')


@contextmanager
def open_instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """Open the instance that ``DAGSTER_HOME`` names.

    Raises:
        ValueError: its ``dagster.yaml`` is wrong, a variable in it is not set, or its database cannot be
            reached or made. One line.
    """
    warnings.simplefilter("ignore", dg.BetaWarning)
    place = f"DAGSTER_HOME {home}"
    try:
        with located(place):
            ref = InstanceRef.from_dir(str(home))
            # What is half made, or broken by two that were first, is mended for the stock classes, too.
            make_stock_tables((ref.run_storage_data, ref.event_storage_data, ref.schedule_storage_data))
            instance = dg.DagsterInstance.from_ref(ref)
    except (OSError, ValueError):
        raise
    except Exception as error:  # storage classes raise what they like
        database = place_of(error)
        at = home / "dagster.yaml" if database in (None, place) else database
        raise ValueError(f"{at}: {_reason(error)}") from error
    with instance:
        yield instance


def _reason(error: Exception) -> str:
    if unset := sorted(set(_UNSET.findall(str(error)))):
        return f"not set in the environment: {', '.join(unset)}"
    if isinstance(error, DBAPIError):
        return f"Dagster's database cannot be made or read: {error.orig}"
    lines = [
        line.strip()
        for cause in (error, error.__cause__ or error.__context__)
        for line in str(cause or "").splitlines()
    ]
    return "; ".join(dict.fromkeys(filter(None, lines)))[:500]
