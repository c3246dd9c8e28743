"""The Dagster home of commands: its folder and configuration, its instance, its servers, and Ctrl-C.

Dagster is imported when an instance is opened: Ctrl-C has its one line already while that import runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mm_assets.model.errors import warn_user
from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings
from mm_assets.storage.errors import located, place_of
from mm_assets.terminal import FAILED, fail, interrupted

if TYPE_CHECKING:
    import dagster as dg
    from dagster._core.instance.ref import InstanceRef

# How statements begin that change nothing.
_READING = ("SELECT", "WITH", "PRAGMA", "SHOW", "EXPLAIN")
_UNSET = re.compile(r'environment variable "(\w+)" which is not set')


# What Dagster imports for migrations of databases and for its daemon: a tenth of its own import.
_LAZY_MODULES = (
    *("alembic", "alembic.command", "alembic.config", "alembic.script"),
    *("alembic.runtime", "alembic.runtime.environment", "alembic.runtime.migration"),
    "structlog",
)


class _LazyName:
    """What `find` returns, found when it is used. While Dagster is imported, a call of it waits, too."""

    waits = False

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        later = _LazyName(lambda: self._find()(*arguments, **named))
        return later if _LazyName.waits else later._find()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> _LazyName:
        if name.startswith("__"):
            raise AttributeError(name)
        return _LazyName(lambda: getattr(import_module(self.__name__), name))


def import_dagster() -> None:
    """Import Dagster for a command: `_LAZY_MODULES` are imported when they are used.

    Whoever imports one of these libraries afterwards gets the library. Where Dagster or one of them has been
    imported before, and in servers, which do not call this, all is as Dagster has it.
    """
    if "dagster" in sys.modules:
        return
    held = {name: _LazyModule(name) for name in _LAZY_MODULES if name.partition(".")[0] not in sys.modules}
    sys.modules.update(held)
    _LazyName.waits = True
    try:
        for name in ("dagster", "dagster._core.storage.event_log", "dagster._core.storage.runs"):
            import_module(name)
    finally:
        _LazyName.waits = False
        for name in held:
            del sys.modules[name]


@contextmanager
def open_instance(home: Path, *, changes_nothing: bool = False) -> Iterator[dg.DagsterInstance]:
    """Open the instance that ``DAGSTER_HOME`` names.

    What its runs print goes to this command's own streams, and into no file: Dagster would write it to a file
    and let a ``tail`` print it, which is ended before it has printed the last lines.

    Args:
        changes_nothing: for a command that only reads. Nothing is made, mended or migrated: a statement that
            would change a database is refused. Where none is, an empty temporary one stands for it.

    Raises:
        ValueError: its ``dagster.yaml`` is wrong, a variable in it is not set, or its database cannot be
            reached or made. One line.
    """
    import dagster as dg
    from dagster._core.instance.ref import InstanceRef

    from mm_assets.event_log.sqlite import make_stock_tables

    warnings.simplefilter("ignore", dg.BetaWarning)
    place = f"DAGSTER_HOME {home}"
    with ExitStack() as opened:
        try:
            with located(place):
                ref = InstanceRef.from_dir(str(home), config_dir=str(_configuration_of(home).parent))
                if not changes_nothing:
                    # What is half made, or broken by two that were first, is mended for stock classes, too.
                    stock = (ref.run_storage_data, ref.event_storage_data, ref.schedule_storage_data)
                    make_stock_tables(stock)
                elif _has_databases(home, ref):
                    opened.enter_context(_unchanged_databases(place))
                else:
                    warn_user(f"{home}: no database of Dagster is there, so nothing is known to be made")
                    folder = opened.enter_context(TemporaryDirectory())
                    ref = InstanceRef.from_dir(folder, config_dir=str(CONFIGURATION.parent))
                instance = dg.DagsterInstance.from_ref(_without_output_files(ref, home))
        except (OSError, ValueError):
            raise
        except Exception as error:  # storage classes raise what they like
            database = place_of(error)
            at = home / "dagster.yaml" if database in (None, place) else database
            raise ValueError(f"{at}: {_reason(error)}") from error
        yield opened.enter_context(instance)


def _has_databases(home: Path, ref: InstanceRef) -> bool:
    """Return whether the files are there that an instance would make; of a server nobody asks."""
    databases = (
        (ref.run_storage_data, "history/runs.db"),
        (ref.event_storage_data, "history/runs/index.db"),
        (ref.schedule_storage_data, "schedules/schedules.db"),
    )
    for storage, path in databases:
        if storage is not None and "Sqlite" in storage.class_name:
            folder = storage.config_dict.get("base_dir")
            file = Path(folder, Path(path).name) if isinstance(folder, str) else home / path
            if not file.exists():
                return False
    return True


@contextmanager
def _unchanged_databases(place: str) -> Iterator[None]:
    """Have every statement refused that would change a database, within this context."""
    from sqlalchemy import Engine, event

    def refuse(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.lstrip("( \n").upper().startswith(_READING):
            line = " ".join(statement.split())[:80]
            raise ValueError(f"{place}: of an older version, or half made: mm-assets run mends it ({line})")

    event.listen(Engine, "before_cursor_execute", refuse)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", refuse)


def _without_output_files(ref: InstanceRef, home: Path) -> InstanceRef:
    """Keep where somebody has output collected; Dagster's default is a folder of this machine."""
    from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager
    from dagster._serdes import ConfigurableClassData

    if ref.compute_logs_data != ref.config_defaults(str(home))["compute_logs"]:
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


def _configuration_of(home: Path) -> Path:
    """Return the ``dagster.yaml`` of a home: its own, that of the working directory, or the default."""
    found = (path for path in (home / CONFIGURATION.name, Path(CONFIGURATION.name)) if path.exists())
    return next(found, CONFIGURATION)


def prepare_home() -> Path:
    """Set ``DAGSTER_HOME`` to the `home_in_force`, and return it.

    The folder is created, with a ``dagster.yaml`` in it: that of the working directory, else the default one.
    """
    home = home_in_force()
    home.mkdir(parents=True, exist_ok=True)
    target = home / CONFIGURATION.name
    if not target.exists():
        # Another command that starts now, or after this one was killed, must not find half of it.
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(_configuration_of(home), aside)
        os.replace(aside, target)
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def lock_home(home: Path, address: str) -> None:
    """Keep other UIs off a home as long as this process lives: two daemons would launch everything twice.

    Raises:
        ValueError: another process serves it; the message has its address.
    """
    descriptor = os.open(home / "ui.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released however the process ends
    except BlockingIOError:
        running = os.read(descriptor, 1000).decode(errors="replace")
        raise ValueError(f"DAGSTER_HOME {home} has a UI already: {running}") from None
    except OSError:  # not all file systems have locks
        pass
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{address} (process {os.getpid()})".encode())


LOCATION = "mm_assets.definitions"  # its name, too: Dagster keeps by it which sensors somebody has stopped
_LOOK_SECONDS = 0.5
_STOP_SECONDS = 15
_PAUSES = (1, 5, 20)  # seconds before a server that has ended is started again
_LONGEST_PLACE = 60  # bytes
_SOUND_SECONDS = 600  # one that ran for so long can start


class _Stopped(BaseException):
    """A signal has asked the servers to end."""


@dataclass
class _Server:
    """One server, and its process groups: that of the process, and those of processes that have ended."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    groups: tuple[int, ...] = ()
    restarts: int = 0
    since: float = 0.0  # when it was started, or has ended
    has_ended: bool = False

    def start(self, life: int) -> None:
        code = f"from mm_assets.headless.instance import run_server; run_server({life})"
        command = [sys.executable, "-c", code, *self.command]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[life], process_group=0)
        self.groups += (self.process.pid,)
        self.since, self.has_ended = time.monotonic(), False

    def look(self, life: int) -> bool:
        """Start the server if it is due; return whether it is hopeless."""
        if self.process is None:
            self.start(life)
            return False
        if (code := self.process.poll()) is None:
            return False
        now = time.monotonic()
        if not self.has_ended:
            if now - self.since > _SOUND_SECONDS:
                self.restarts = 0
            how = f"by signal {-code}" if code < 0 else f"exit code {code}"
            why = f"the {self.name} has ended, {how}"
            if self.restarts == len(_PAUSES):
                fail(f"{why}, after {self.restarts} restarts; its own lines are above")
                return True
            fail(f"{why}; it is started again in {_PAUSES[self.restarts]} s")
            self.since, self.has_ended = now, True
        elif now - self.since >= _PAUSES[self.restarts]:
            self.restarts += 1
            self.start(life)
        return False


def serve(host: str, port: int, level: str) -> int:
    """Serve the home that ``DAGSTER_HOME`` names until a signal comes: code server, web server and daemon.

    Each is a process group of its own: Ctrl-C in a terminal comes to this process alone, which ends them with
    all that they have started.

    Returns:
        The exit code: 0 after a signal, 1 if a server ends again and again.
    """
    ends = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        ends.append(signal.SIGHUP)
    # The path of a socket has at most some 100 bytes.
    place = None if len(os.fsencode(gettempdir())) < _LONGEST_PLACE else "/tmp"
    with TemporaryDirectory(prefix="mm-assets-ui-", dir=place) as folder:
        servers = _servers(Path(folder), host, port, level)
        life, _held = os.pipe()  # closed however this process ends, and the servers see that
        try:
            # A shell that starts it in the background has it ignore them, others may have blocked them.
            for number in ends:
                signal.signal(number, _stop)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
            while not any(
                server.look(life) for server in servers if server.name == _CODE or _listens(Path(folder))
            ):
                time.sleep(_LOOK_SECONDS)
            return FAILED
        except _Stopped:
            return 0
        finally:
            for number in ends:
                signal.signal(number, signal.SIG_IGN)
            _end(servers)


_CODE = "code server"
_SOCKET = "code.sock"


def _servers(folder: Path, host: str, port: int, level: str) -> list[_Server]:
    workspace = Path(os.environ["DAGSTER_HOME"], "ui_workspace.yaml")  # nothing sweeps that away
    location = {"location_name": LOCATION, "socket": str(folder / _SOCKET)}
    workspace.write_text(json.dumps({"load_from": [{"grpc_server": location}]}))
    code = ["dagster", "code-server", "start", "-m", LOCATION, "-s", str(folder / _SOCKET)]
    code += ["--use-python-environment-entry-point", "--log-level", level]
    web = ["dagster_webserver", "-w", str(workspace), "--dagster-log-level", level]
    web += ["-h", host, "-p", str(port)]
    daemon = ["dagster._daemon", "run", "-w", str(workspace), "--log-level", level]
    return [_Server(_CODE, code), _Server("web server", web), _Server("daemon", daemon)]


def _listens(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(folder / _SOCKET)) == 0


def _stop(number: int, _: Any) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise _Stopped


def _end(servers: Sequence[_Server]) -> None:
    """Ask all but the code server to end, then kill what is left, and what they have started.

    Asked to end, the code server would let its runs finish. Killed ones are found lost, and launched again,
    at the next start.
    """
    asked = [server.process for server in servers if server.process is not None and server.name != _CODE]
    for process in asked:
        process.terminate()
    _wait(lambda: all(process.poll() is not None for process in asked))
    groups = [group for server in servers for group in server.groups]
    for group in groups:
        _send(group, signal.SIGKILL)
    for server in servers:
        if server.process is not None:
            server.process.wait()
    _wait(lambda: not any(_send(group, 0) for group in groups))


def _wait(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while not is_done() and time.monotonic() < deadline:
        time.sleep(0.05)


def _send(group: int, number: int) -> bool:
    """Send a signal to a process group, or none for 0; return whether there is one."""
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of zombies
        os.killpg(group, number)
        return True
    return False


def run_server(life: int) -> None:
    """Be the program that the arguments name, until the process with the other end of a pipe is gone."""

    def end_with_parent() -> None:
        os.read(life, 1)
        os.killpg(0, signal.SIGKILL)

    os.set_inheritable(life, False)
    threading.Thread(target=end_with_parent, daemon=True).start()
    _run_program()


def _run_program() -> None:
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_runs(*_: Any) -> None:
    for run in multiprocessing.active_children():
        run.kill()
    os._exit(0)


if __name__ == "__main__":
    # ``dagster api grpc`` of a deployment. Asked to end, it would wait for its runs, and for calls that hang,
    # as on a store that does not answer. Runs that are killed with it are found lost, and launched again.
    signal.signal(signal.SIGINT, _end_with_runs)  # Dagster takes it for SIGTERM, too
    _run_program()
