"""The Dagster home of commands: its folder and configuration, its instance, and Ctrl-C.

Dagster is imported when an instance is opened: Ctrl-C has its one line already while that import runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings
from mm_assets.storage.errors import located, place_of
from mm_assets.terminal import interrupted

if TYPE_CHECKING:
    import dagster as dg
    from dagster._core.instance.ref import InstanceRef

_UNSET = re.compile(r'environment variable "(\w+)" which is not set')


@contextmanager
def open_instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """Open the instance that ``DAGSTER_HOME`` names.

    What its runs print goes to this command's own streams, and into no file: Dagster would write it to a file
    and let a ``tail`` print it, which is ended before it has printed the last lines.

    Raises:
        ValueError: its ``dagster.yaml`` is wrong, a variable in it is not set, or its database cannot be
            reached or made. One line.
    """
    import dagster as dg
    from dagster._core.instance.ref import InstanceRef

    from mm_assets.event_log.tables import make_stock_tables

    warnings.simplefilter("ignore", dg.BetaWarning)
    place = f"DAGSTER_HOME {home}"
    try:
        with located(place):
            ref = InstanceRef.from_dir(str(home))
            # What is half made, or broken by two that were first, is mended for the stock classes, too.
            make_stock_tables((ref.run_storage_data, ref.event_storage_data, ref.schedule_storage_data))
            instance = dg.DagsterInstance.from_ref(_without_output_files(ref))
    except (OSError, ValueError):
        raise
    except Exception as error:  # storage classes raise what they like
        database = place_of(error)
        at = home / "dagster.yaml" if database in (None, place) else database
        raise ValueError(f"{at}: {_reason(error)}") from error
    with instance:
        yield instance


def _without_output_files(ref: InstanceRef) -> InstanceRef:
    """Keep where a deployment collects output; Dagster's default is a folder of this machine."""
    from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
    from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager
    from dagster._serdes import ConfigurableClassData

    if ref.compute_logs_data.class_name != LocalComputeLogManager.__name__:
        return ref
    nowhere = ConfigurableClassData(NoOpComputeLogManager.__module__, NoOpComputeLogManager.__name__, "{}")
    return ref._replace(compute_logs_data=nowhere)


def _reason(error: Exception) -> str:
    from sqlalchemy.exc import DBAPIError

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


def watch_for_interrupts() -> None:
    """End the command with one line on Ctrl-C; while Dagster runs, it ends the run first.

    Dagster's helper processes would each print a traceback. They inherit that the signal is blocked and end
    with this process, so a thread receives the signal instead, also where a parent has blocked it. Call it
    before Dagster is imported: some imports would swallow the interrupt.
    """

    def receive() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Event().wait()

    signal.signal(signal.SIGINT, lambda *_: os._exit(interrupted()))
    threading.Thread(target=receive, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def was_interrupted(result: Any) -> bool:
    """Return whether a run ended by an interrupt; `result` is an ``ExecuteInProcessResult``."""
    from dagster import DagsterEventType

    if any(event.event_type is DagsterEventType.PIPELINE_CANCELED for event in result.all_events):
        return True
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    errors += [event.job_failure_data.error for event in result.all_events if event.is_job_failure]
    return any(map(_is_interrupt, errors))


def _is_interrupt(error: Any) -> bool:
    """Return whether an error is an interrupt, or was raised from one: an IO manager's are wrapped."""
    while error is not None:
        if error.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt"):
            return True
        error = error.cause or error.context
    return False


CONFIGURATION = Path(__file__).with_name("dagster.yaml")


def home_in_force() -> Path:
    """Return ``DAGSTER_HOME``, else ``.dagster/<name>`` for ``MM_STORAGE``; it need not exist."""
    storage = given_settings().get("MM_STORAGE", "").rstrip("/")
    name = f"{Path(storage).name}-{hashlib.sha256(storage.encode()).hexdigest()[:8]}"
    if storage in ("", Settings.storage):
        name = "demo"
    return Path(os.environ.get("DAGSTER_HOME") or Path(".dagster", name)).expanduser().resolve()


def prepare_home() -> Path:
    """Set ``DAGSTER_HOME`` to the `home_in_force`, and return it.

    The folder is created, with a ``dagster.yaml`` in it: that of the working directory, else the default one.
    """
    home = home_in_force()
    home.mkdir(parents=True, exist_ok=True)
    target = home / CONFIGURATION.name
    if not target.exists():
        own = Path(CONFIGURATION.name)
        # Another command that starts now, or after this one was killed, must not find half of it.
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(own if own.exists() else CONFIGURATION, aside)
        os.replace(aside, target)
    os.environ["DAGSTER_HOME"] = str(home)
    return home
