"""Bytes of a remote file come back as they are, each from the store about once, and ahead of who reads on."""

import multiprocessing
import random
import threading
import tracemalloc
from itertools import pairwise

import pytest

from mm_assets.storage.files import ReadAhead

PART = 64 << 10
DATA = random.Random(1).randbytes(20 * PART + 17)


class Store:
    """The ranges that were requested; ``failing`` parts raise, and ``short`` ones lack their last byte."""

    def __init__(self, failing: int | None = None, short: int | None = None) -> None:
        self.requests: list[tuple[int, int]] = []
        self._failing, self._short = failing, short
        self._lock = threading.Lock()

    def __call__(self, start: int, stop: int) -> bytes:
        with self._lock:
            self.requests.append((start, stop))
        if start == self._failing:
            raise ConnectionResetError("the store went away")
        return DATA[start : stop - (start == self._short)]

    @property
    def nbytes(self) -> int:
        return sum(stop - start for start, stop in self.requests)


def opened(store: Store) -> ReadAhead:
    return ReadAhead(PART, store, len(DATA))


def test_sequential_reading_requests_each_part_once() -> None:
    store = Store()
    file = opened(store)
    steps = list(range(0, len(DATA) + 5000, 5000))
    assert b"".join(file._fetch(start, stop) for start, stop in pairwise(steps)) == DATA
    assert sorted(store.requests) == [(at, min(at + PART, len(DATA))) for at in range(0, len(DATA), PART)]
    file.close()


def test_parts_are_requested_before_they_are_read() -> None:
    store = Store()
    file = opened(store)
    assert file._fetch(0, 10) == DATA[:10]
    assert store.requests == [(0, PART)], "a look at the start is no sequential reading yet"
    assert file._fetch(10, PART + 1) == DATA[10 : PART + 1]
    file.close()  # waits for requests under way
    assert 2 < len(store.requests) <= 5
    assert set(store.requests) <= {(at, at + PART) for at in range(0, 5 * PART, PART)}


def test_no_more_than_four_parts_are_in_memory() -> None:
    tracemalloc.start()
    try:
        file = ReadAhead(4 << 20, lambda start, stop: bytes(stop - start), 60 << 20)
        for at in range(0, 60 << 20, 1 << 16):
            file._fetch(at, at + (1 << 16))
        assert tracemalloc.get_traced_memory()[1] < 4.5 * (4 << 20)
        file.close()
    finally:
        tracemalloc.stop()


def test_a_forked_process_reads_on() -> None:
    file = opened(Store())
    assert file._fetch(0, 2 * PART) == DATA[: 2 * PART]
    child = multiprocessing.get_context("fork").Process(target=_reads_the_rest, args=(file,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert file._fetch(2 * PART, len(DATA)) == DATA[2 * PART :]
    file.close()


def _reads_the_rest(file: ReadAhead) -> None:
    assert file._fetch(2 * PART, len(DATA)) == DATA[2 * PART :]
    assert file._fetch(0, len(DATA)) == DATA


def test_single_ranges_are_requested_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_assets.storage.files._LEAST_BYTES", 1000)
    store = Store()
    file = opened(store)
    assert file._fetch(5 * PART, 5 * PART + 2000) == DATA[5 * PART : 5 * PART + 2000]
    assert store.requests == [(5 * PART, 5 * PART + 2000)]
    file.close()


def test_a_long_range_is_requested_in_parts() -> None:
    store = Store()
    file = opened(store)
    start, stop = 7 * PART + 3, 12 * PART + 5
    assert file._fetch(start, stop) == DATA[start:stop]
    assert store.nbytes <= stop - start + 4 * PART
    assert max(end - begin for begin, end in store.requests) == PART
    file.close()


def test_small_ranges_nearby_share_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_assets.storage.files._LEAST_BYTES", 1000)
    store = Store()
    file = opened(store)
    for at in (3 * PART, 3 * PART + 500, 3 * PART + 100, 3 * PART + 900):
        assert file._fetch(at, at + 50) == DATA[at : at + 50]
    assert store.requests == [(3 * PART, 3 * PART + 1000)]
    file.close()


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_reading_gives_the_bytes(seed: int) -> None:
    rng = random.Random(seed)
    file = opened(Store())
    position = 0
    for _ in range(60):
        start = position if rng.random() < 0.6 else rng.randrange(len(DATA))
        stop = start + rng.choice([1, 100, 5000, PART, 3 * PART])
        assert file._fetch(start, stop) == DATA[start:stop]
        position = min(stop, len(DATA))
    file.close()


def test_the_end_of_the_file() -> None:
    file = opened(Store())
    assert file._fetch(len(DATA), len(DATA) + 10) == b""
    assert file._fetch(len(DATA) - 3, None) == DATA[-3:]
    assert file._fetch(None, 3) == DATA[:3]
    file.close()


def test_an_error_ahead_is_raised_where_it_is_read() -> None:
    file = opened(Store(failing=2 * PART))
    assert file._fetch(0, 2 * PART) == DATA[: 2 * PART]
    with pytest.raises(ConnectionResetError, match="went away"):
        file._fetch(2 * PART, 2 * PART + 1)
    file.close()


def test_fewer_bytes_than_requested_are_an_error() -> None:
    file = opened(Store(short=PART))
    with pytest.raises(OSError, match=f"gave {PART - 1} bytes of the {PART} from byte {PART} on"):
        file._fetch(0, len(DATA))
    file.close()
