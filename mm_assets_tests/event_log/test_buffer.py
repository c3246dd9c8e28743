"""The buffer of events that are written together."""

import os
import subprocess
import sys
import threading

import pytest

from mm_assets.event_log.buffer import WriteBuffer


class Store:
    """Keeps what it is given, and refuses to while ``full``."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.full = False
        self.written = threading.Event()

    def write(self, items: list[int]) -> None:
        if self.full:
            raise OSError("disk full")
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


def test_an_error_reaches_whoever_comes_next_and_nothing_is_lost() -> None:
    store = Store()
    buffer = WriteBuffer(store.write, max_items=2, max_seconds=1000)
    store.full = True
    buffer.add(1)
    with pytest.raises(OSError, match="disk full"):
        buffer.add(2)
    with pytest.raises(OSError, match="disk full"):
        buffer.add(3)
    with pytest.raises(OSError, match="disk full"):
        buffer.flush()
    store.full = False
    buffer.add(4)
    assert store.batches == [[1, 2, 3, 4]]


def test_an_error_in_the_background_reaches_whoever_comes_next(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    tried = threading.Event()

    def write(items: list[int]) -> None:
        tried.set()
        store.write(items)

    buffer = WriteBuffer(write, max_seconds=0.01)
    store.full = True
    buffer.add(1)
    assert tried.wait(30)
    with pytest.raises(OSError, match="disk full"):
        for number in range(2, 1000):  # the first may come before the attempt has failed
            buffer.add(number)
    store.full = False
    buffer.flush()
    written = [number for batch in store.batches for number in batch]
    assert written == list(range(1, len(written) + 1)) and len(written) >= 2


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
        "from mm_assets.event_log.buffer import WriteBuffer\n"
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
