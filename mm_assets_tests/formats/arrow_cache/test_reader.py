"""Rows by number, in order, and from workers."""

from __future__ import annotations

import multiprocessing
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_assets.formats import ArrowCache, arrow_cache, validate_sharded_cache
from mm_assets_tests.formats.arrow_cache.caches import FEATURES, build, examples

EXPECTED = [example for _, example in examples("first", 30)]


@pytest.fixture
def cache(tmp_path: Path) -> ArrowCache:
    assert build(tmp_path / "cache").num_shards > 3
    return ArrowCache(tmp_path / "cache", FEATURES, decode=False)


def test_rows_by_number(cache: ArrowCache) -> None:
    assert len(cache) == 30
    assert [cache[i] for i in range(30)] == list(cache) == EXPECTED
    assert [cache[-1], cache[-30], cache[np.int64(7)]] == [EXPECTED[29], EXPECTED[0], EXPECTED[7]]
    for wrong in (30, -31):
        with pytest.raises(IndexError, match=f"row {wrong} of 30"):
            cache[wrong]
    with pytest.raises(TypeError):
        cache[1.0]  # type: ignore[index]


def test_rows_in_any_order(cache: ArrowCache) -> None:
    order = random.Random(3).choices(range(30), k=100)
    assert cache.take(order) == cache.__getitems__(order) == [EXPECTED[i] for i in order]


def test_a_shard_is_opened_when_a_row_of_it_is_asked_for(
    cache: ArrowCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    digest = arrow_cache.file_digest
    monkeypatch.setattr(arrow_cache, "file_digest", lambda path: read.append(path.name) or digest(path))
    assert len(cache) == 30 and read == []
    for _ in range(3):
        cache.take([0, 1, 0])
    assert read == ["shard-00000.arrow"]
    list(cache)
    list(ArrowCache(cache.meta.cache_dir, decode=False))
    assert read == cache.meta.shard_filenames  # each once in this process


def test_features_come_from_the_metadata(cache: ArrowCache) -> None:
    assert ArrowCache(cache.meta.cache_dir).features == FEATURES


def test_pickling_takes_no_data_along(cache: ArrowCache) -> None:
    assert list(cache) == EXPECTED
    pickled = pickle.dumps(cache)
    assert len(pickled) < 4000
    assert list(pickle.loads(pickled)) == EXPECTED  # noqa: S301


def read_without_digests(cache: ArrowCache, answers: Any) -> None:
    arrow_cache.file_digest = None  # type: ignore[assignment]
    answers.put(cache.take(range(30)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_the_parent_has_validated_no_worker_reads_for_its_digest(cache: ArrowCache, method: str) -> None:
    validate_sharded_cache(cache.meta.cache_dir, FEATURES)
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    worker = context.Process(target=read_without_digests, args=(cache, answers))
    worker.start()
    assert answers.get(timeout=50) == EXPECTED
    worker.join(timeout=50)


def read_rows(cache: ArrowCache, rows: Sequence[int], answers: Any) -> None:
    answers.put((rows[0], cache.__getitems__(rows)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("opened", [False, True])
def test_workers_read_shards_that_are_open_in_the_parent_and_others(
    cache: ArrowCache, method: str, opened: bool
) -> None:
    if opened:
        cache.take(range(15))
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    parts = [range(20), range(10, 30)]
    workers = [context.Process(target=read_rows, args=(cache, part, answers)) for part in parts]
    for worker in workers:
        worker.start()
    found = dict(answers.get(timeout=50) for _ in parts)
    for worker in workers:
        worker.join(timeout=50)
    assert found == {part[0]: EXPECTED[part.start : part.stop] for part in parts}
    assert cache.take(range(30)) == EXPECTED
