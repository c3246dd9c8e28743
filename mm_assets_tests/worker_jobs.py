"""Functions for workers to import: they have to lie in a module, and this one imports nothing heavy."""

import os
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple


class RefusesPickling:
    def __reduce__(self) -> Any:
        raise RuntimeError("cannot be pickled")


class RefusesUnpickling:
    def __reduce__(self) -> Any:
        return (int, ("not a number",))


def act(order: tuple[str, Any]) -> Any:
    """Do what the order says, so that one `map` can mix good and bad jobs."""
    match order:
        case ("echo", value):
            return value
        case ("sleep", (seconds, value)):
            time.sleep(seconds)
            return value
        case ("wait for", path):
            end = time.monotonic() + 60
            while not Path(path).exists() and time.monotonic() < end:
                time.sleep(0.01)
            return "waited"
        case ("raise", message):
            raise ValueError(message)
        case ("signal", number):
            os.kill(os.getpid(), number)
            time.sleep(60)
        case ("exit", status):
            os._exit(status)
        case ("system exit", status):
            sys.exit(status)
        case ("bytes", size):
            return b"x" * size
        case ("echo bytes", data):
            return bytes(data)
        case ("unpicklable result", _):
            return lambda: None
        case ("bad result", _):
            return RefusesUnpickling()
        case ("keep free memory", size):
            import pyarrow as pa

            pa.array([b"x" * size]).take([0])
            return os.getpid(), resident(os.getpid())
        case ("resident", _):
            return resident(os.getpid())
        case ("pid", _):
            return os.getpid()
        case ("modules", prefix):
            return sorted(name for name in sys.modules if name.startswith(prefix))
        case ("sockets", _):
            names = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
            return sum(name.startswith("socket:") for name in names)
        case ("environment", name):
            return os.environ.get(name)
        case ("temporary", _):
            descriptor, name = tempfile.mkstemp()
            os.close(descriptor)
            return name
        case ("folder", _):
            return os.getcwd()
        case ("sigint", _):
            return signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        case ("touch then sleep", (path, seconds)):
            Path(path).write_text(str(os.getpid()))
            time.sleep(seconds)
        case ("hold pipe and die", path):
            # A child that survives and still has our end of the pipe: the parent sees no end of file.
            if child := os.fork():
                Path(path).write_text(str(child))
                os._exit(7)
            time.sleep(60)
    return None


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Warned(NamedTuple):
    """A job that warns, and what it is about."""

    place: str
    text: str


class WarnedKey(NamedTuple):
    """A job of a shard that warns."""

    key: str
    text: str


def die(job: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def warn(job: Warned | WarnedKey) -> None:
    warnings.warn(job.text, stacklevel=1)
