"""Real runs, whose workers or whose own process are killed at chosen moments, and a witness of what the world
could see meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets_tests.live.daemon import REPOSITORY
from mm_assets_tests.live.watching import Event

RUN_SECONDS = 120  # a run that takes longer hangs
DAGSTER_YAML = """\
telemetry: {enabled: false}
event_log_storage: {module: mm_assets.event_log.sqlite, class: BatchedSqliteEventLogStorage}
"""
_MEAN_DELAY = 0.005
_ANY, _WORKER = b"multiprocessing", b"spawn_main"  # in the command lines of a run's children
TABLE = "lance/items.lance"
BUILDING = re.compile(r"/\.[0-9a-f]{12}\.building/")  # where a cache is made
TEMPORARY = re.compile(r"^\..*\.[0-9a-f]{8}-(\d+)-[0-9a-f]{12}\.tmp$")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``died`` are (job function, shard) of jobs that a worker died of, ``failed`` the
    checks that did not pass.
    """

    ok: bool
    died: list[tuple[str, str]]
    failed: set[str]
    errors: list[str]


class RunServer:
    """A process of `mm_assets_tests.live.run_server`; it and its workers are gone at the end of the block."""

    def __init__(self, raw: Path, storage: Path, home: Path) -> None:
        home.mkdir(exist_ok=True)
        (home / "dagster.yaml").write_text(DAGSTER_YAML)
        self._log = home / "runs.log"
        settings = {
            "MM_RAW_SHARDS": raw,
            "MM_STORAGE": storage,
            "DAGSTER_HOME": home,
            "MM_WORKERS": 2,
            "PYTHONPATH": REPOSITORY,
        }
        settings |= {
            "MM_MAX_LOSS": 1,
            "MM_MIN_ASPECT_RATIO": 1.0,
            "MM_MAX_ASPECT_RATIO": 2.0,
        }  # some shards hold little that is sound
        environment = os.environ | {name: str(value) for name, value in settings.items()}
        with open(self._log, "ab") as log:
            command = [sys.executable, "-m", "mm_assets_tests.live.run_server"]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=home,
                text=True,
            )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> RunServer:
        assert self._answer() == "ready"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.wait()
        self._reader.join()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def run(self, assets: Sequence[str]) -> Outcome:
        """Materialize assets for all shards.

        Raises ``AssertionError`` when there is no end to it, ``EOFError`` when the process dies.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(assets)) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._answer())
        return Outcome(
            answer["ok"],
            [(fn, shard) for fn, shard in answer["died"]],
            set(answer["failed"]),
            answer["errors"],
        )

    def _answer(self) -> str:
        try:
            answer = self._answers.get(timeout=RUN_SECONDS)
        except queue.Empty:
            self.kill()
            raise AssertionError(
                f"no end of the run after {RUN_SECONDS} s:\n{self._log.read_text()[-3000:]}"
            ) from None
        if not answer:
            self._process.wait()  # else it would pass for alive
            raise EOFError(f"the process of the run has died:\n{self._log.read_text()[-3000:]}")
        return answer.strip()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")


def children_of(pid: int) -> list[int]:
    """The processes that a run's process has started: its workers, and what looks after them."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_child(int(name), pid)]


def _is_child(pid: int, parent: int, kind: bytes = _ANY) -> bool:
    try:
        state, ppid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has just ended
    return int(ppid) == parent and state != "Z" and _is_running(pid, kind)


def _is_running(pid: int, kind: bytes) -> bool:
    try:
        return kind in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: Sequence[int], seconds: float = 10) -> list[int]:
    """Those of the children that are still there after so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if _is_running(pid, _ANY)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@dataclass(frozen=True)
class Moment:
    """``delay`` seconds after the event of this number (from 1)."""

    event: int
    delay: float

    @classmethod
    def draw(cls, rng: random.Random, events: int) -> Moment:
        """Any of so many events; half of the moments right then, half a little later: not all that a worker
        does can be seen.

        The last tenth is left out: writes in quick succession may be one event, so that it does not always
        come to so many.
        """
        return cls(
            rng.randint(1, max(1, events * 9 // 10)), rng.choice([0.0, rng.expovariate(1 / _MEAN_DELAY)])
        )


class Killer:
    """Strikes at moments, counted in events of files whose path matches ``clock``."""

    def __init__(
        self, clock: re.Pattern[str], moments: Sequence[Moment], strike: Callable[[Event], None]
    ) -> None:
        self.events = 0
        self._clock = clock
        self._moments = sorted(moments, key=lambda moment: moment.event, reverse=True)
        self._strike = strike
        self._timers: list[threading.Timer] = []

    def see(self, event: Event) -> None:
        if not self._clock.match(event.path):
            return
        self.events += 1
        while self._moments and self._moments[-1].event <= self.events:
            moment = self._moments.pop()
            if moment.delay:
                self._timers.append(threading.Timer(moment.delay, self._strike, [event]))
                self._timers[-1].start()
            else:
                self._strike(event)

    def close(self) -> None:
        """No strike comes after this."""
        self._moments = []
        for timer in self._timers:
            timer.cancel()
            timer.join()


def kill_a_worker(server: RunServer, rng: random.Random) -> Callable[[Event], None]:
    """A strike at the worker that works on the event's file, as far as its name tells; else at any."""

    def strike(event: Event) -> None:
        match = TEMPORARY.match(os.path.basename(event.path))
        if match and _is_child(int(match[1]), server.pid, _WORKER):
            victim = int(match[1])
        elif workers := [pid for pid in children_of(server.pid) if _is_running(pid, _WORKER)]:
            victim = rng.choice(workers)
        else:
            return
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)

    return strike


class Witness:
    """Looks at every file as it gets its final name: it must appear there whole, and never be written to in
    place.

    ``legal`` are the digests of the contents each file may have (by path; files that are derived on the way
    need not be named). ``rows`` collects how many rows the Lance table was seen to have.
    """

    def __init__(self, storage: Path, legal: Mapping[str, frozenset[str]]) -> None:
        self._faults: list[str] = []
        self.rows: set[int] = set()
        self._storage = storage
        self._legal = legal
        self._arrivals: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def see(self, event: Event) -> None:
        if event.path.startswith(TABLE) and not event.path.endswith(".manifest"):
            return  # what no manifest names nobody sees
        if event.path.startswith(TABLE) and event.what == "created":
            self._arrivals.put(TABLE)  # Lance makes it appear by a link
        elif (
            TEMPORARY.match(os.path.basename(event.path))
            or event.path == "webdataset/.mm_assets/lock"
            or BUILDING.search(event.path)
        ):
            return
        elif event.what == "moved_to":
            self._arrivals.put(TABLE if event.path.startswith(TABLE) else event.path)
        elif event.what != "deleted":
            self._faults.append(f"{event.path}: {event.what} under its final name")

    def close(self) -> list[str]:
        """Everything that was wrong, each once."""
        self._arrivals.put(None)
        self._thread.join()
        return list(dict.fromkeys(self._faults))

    def _look(self) -> None:
        while (path := self._arrivals.get()) is not None:
            try:
                self._judge(path)
            except FileNotFoundError:
                continue  # it has gone again
            except (ValueError, OSError) as error:
                self._faults.append(f"{path}: {error}")

    def _judge(self, path: str) -> None:
        if path == TABLE:
            self.rows.add(lance.dataset(str(self._storage / TABLE)).count_rows())
            return
        data = (self._storage / path).read_bytes()
        if path.endswith(".json"):
            json.loads(data)
        elif path.startswith(("ledger/accounts/", "proof/")):  # they say when they were made
            pq.read_table(pa.BufferReader(data))
        elif path in self._legal and digest(data) not in self._legal[path]:
            self._faults.append(
                f"{path}: appeared with {len(data)} bytes that are neither of the old nor of the new version"
            )
        elif not data:
            self._faults.append(f"{path}: appeared empty")


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
