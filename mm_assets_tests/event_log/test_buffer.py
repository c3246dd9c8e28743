"""The buffer of events that are written together."""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mm_assets import event_log
from mm_assets.event_log import NotWritten, WriteBuffer
from mm_assets.storage.errors import error_line


class Store:
    """Keeps what it is given, and refuses to while ``full``."""

    def __init__(self, error: str = "disk full") -> None:
        self.batches: list[list[int]] = []
        self.attempts = 0
        self.full = False
        self.written = threading.Event()
        self._error = error

    def write(self, items: list[int]) -> None:
        self.attempts += 1
        if self.full:
            raise OSError(self._error)
        self.batches.append(items)
        self.written.set()


def test_items_are_written_in_order_once_enough_have_gathered() -> None:
    store = Store()
    buffer = WriteBuffer(store.write, max_items=3, max_seconds=1000)
    for number in range(7):
        buffer.add(number)
    assert store.batches == [[0, 1, 2], [3, 4, 5]]
    buffer.flush()
    buffer.flush()
    assert store.batches == [[0, 1, 2], [3, 4, 5], [6]]


def test_an_item_does_not_wait_for_others_for_long() -> None:
    store = Store()
    buffer = WriteBuffer(store.write, max_seconds=0.01)
    buffer.add(1)
    assert store.written.wait(30)
    assert store.batches == [[1]]


class Timers:
    """Stands for `threading.Timer`: keeps what would be called later, to call it now."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._waiting: list[Callable[[], None]] = []

    def __call__(self, seconds: float, call: Callable[[], None]) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: self._begin(seconds, call))

    def _begin(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds.append(seconds)
        self._waiting.append(call)

    def elapse(self) -> None:
        """Let the time of all that wait be over."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(event_log, "threading", SimpleNamespace(**{**vars(threading), "Timer": timers}))
    return timers


def test_an_error_reaches_one_who_adds_and_all_who_flush_and_nothing_is_lost(timers: Timers) -> None:
    store = Store()
    buffer = WriteBuffer(store.write, max_items=2)
    store.full = True
    buffer.add(1)
    with pytest.raises(NotWritten, match="^events cannot be written, 2 wait in memory: disk full$"):
        buffer.add(2)
    buffer.add(3)
    for _ in range(2):
        with pytest.raises(NotWritten, match="^events cannot be written, 3 wait in memory: disk full$"):
            buffer.flush()
    store.full = False
    buffer.add(4)
    buffer.flush()
    assert store.batches == [[1, 2, 3, 4]]
    store.full = True
    buffer.add(5)
    with pytest.raises(NotWritten, match="disk full"):
        buffer.add(6)


def test_what_cannot_be_written_is_not_tried_for_each_item_that_comes(timers: Timers) -> None:
    store = Store()
    buffer = WriteBuffer(store.write, max_items=10, max_seconds=0.5)
    store.full = True
    for number in range(9):
        buffer.add(number)
    with pytest.raises(NotWritten):
        buffer.add(9)
    for number in range(10, 5000):
        buffer.add(number)
    assert store.attempts == 1
    for _ in range(9):
        timers.elapse()
    assert store.attempts == 10
    assert timers.seconds == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30]
    store.full = False
    timers.elapse()
    assert store.batches == [list(range(5000))]
    buffer.add(5000)
    assert timers.seconds[-1] == 0.5


def test_an_error_in_the_background_is_told_once_in_one_line(
    timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store = Store(error="disk full\n[SQL: INSERT]\n[parameters: thousands]")
    buffer = WriteBuffer(store.write)
    store.full = True
    buffer.add(1)
    timers.elapse()
    with pytest.raises(NotWritten, match="^events cannot be written, 2 wait in memory: disk full$"):
        buffer.add(2)
    buffer.add(3)
    timers.elapse()
    buffer.add(4)
    assert [record.getMessage() for record in caplog.records] == [
        "events cannot be written, 1 wait in memory: disk full"
    ]
    store.full = False
    timers.elapse()
    assert store.batches == [[1, 2, 3, 4]]
    assert [record.getMessage() for record in caplog.records][1:] == [
        "events can be written again, 4 had waited in memory"
    ]


def test_the_error_is_a_line_of_the_command_line_and_pickles() -> None:
    problem = pickle.loads(pickle.dumps(NotWritten(7, "disk full")))  # noqa: S301
    assert error_line(problem) == "events cannot be written, 7 wait in memory: disk full"
    assert (problem.count, problem.reason) == (7, "disk full")


def test_an_error_that_is_over_reaches_nobody(timers: Timers) -> None:
    store = Store()
    buffer = WriteBuffer(store.write)
    store.full = True
    buffer.add(1)
    timers.elapse()
    store.full = False
    buffer.add(2)
    assert store.batches == [[1, 2]]


def test_what_is_lost_at_the_end_of_the_process_is_told() -> None:
    program = (
        "from mm_assets.event_log import WriteBuffer\n"
        "def write(items): raise OSError('disk full')\n"
        "buffer = WriteBuffer(write, max_seconds=1000)\n"
        "sound = WriteBuffer(print, max_seconds=1000)\n"
        "buffer.add(1)\n"
        "buffer.add(2)\n"
        "sound.add(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[3]\n"
    assert done.stderr.splitlines() == [
        "events cannot be written, 2 wait in memory: disk full",
        "the process ends, 2 events are lost: disk full",
    ]


def test_who_writes_may_flush() -> None:
    batches: list[list[int]] = []

    def write(items: list[int]) -> None:
        buffer.flush()
        batches.append(items)

    buffer = WriteBuffer(write, max_seconds=1000)
    buffer.add(1)
    buffer.flush()
    assert batches == [[1]]


def test_a_reader_waits_for_a_thread_that_is_writing() -> None:
    started, may_end = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def write(items: list[int]) -> None:
        started.set()
        assert may_end.wait(30)
        batches.append(items)

    buffer = WriteBuffer(write, max_seconds=0.01)
    buffer.add(1)
    assert started.wait(30)
    threading.Timer(0.1, may_end.set).start()
    buffer.flush()
    assert batches == [[1]]


def test_what_waits_is_written_at_the_end_of_the_process() -> None:
    program = (
        "from mm_assets.event_log import WriteBuffer\n"
        "buffer = WriteBuffer(print, max_seconds=1000)\n"
        "buffer.add(1)\n"
        "buffer.add(2)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[1, 2]\n"


def test_a_forked_process_leaves_the_items_of_its_parent_alone() -> None:
    store = Store()
    buffer = WriteBuffer(store.write, max_seconds=1000)
    buffer.add(1)
    child = os.fork()
    if not child:
        buffer.add(2)
        buffer.flush()
        os._exit(0 if store.batches == [[2]] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    buffer.flush()
    assert store.batches == [[1]]


def test_items_that_somebody_looks_at_stay() -> None:
    store, seen = Store(), list[list[int]]()
    buffer = WriteBuffer(store.write, max_seconds=1000)
    buffer.show(seen.append)
    for number in range(2):
        buffer.add(number)
        buffer.show(seen.append)
    assert seen == [[0], [0, 1]] and store.batches == []
    buffer.flush()
    buffer.show(seen.append)
    assert seen == [[0], [0, 1]] and store.batches == [[0, 1]]


def test_an_error_of_who_looks_is_that_of_who_writes(timers: Timers) -> None:
    store = Store()
    buffer = WriteBuffer(store.write)
    buffer.add(1)
    store.full = True
    for _ in range(2):
        with pytest.raises(NotWritten, match="^events cannot be written, 1 wait in memory: disk full$"):
            buffer.show(store.write)
    store.full = False
    timers.elapse()
    assert store.batches == [[1]]


def test_who_writes_may_ask_to_look() -> None:
    """Whatever writes reads the database first, which shows what waits."""
    written: list[list[int]] = []

    def write(items: list[int]) -> None:
        buffer.show(lambda _: pytest.fail("they are being written"))
        written.append(items)

    buffer = WriteBuffer(write)
    buffer.add(1)
    buffer.flush()
    assert written == [[1]]
