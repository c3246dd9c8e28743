"""The order of samples is arithmetic: fixed for ever, and the same for everybody."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from mm_assets.train.order import Division, EpochOrder, Schedule, permutation, united
from mm_assets_tests.train.numbered import Numbered, whole_epoch


def test_permutations_of_all_releases() -> None:
    """These numbers are the order of runs that are under way: no release may change them."""
    assert permutation(10, "samples", 7, 0, 0).tolist() == FIRST
    assert permutation(10, "samples", 7, 1, 0).tolist() != FIRST
    assert sorted(permutation(1000, "x").tolist()) == list(range(1000))
    assert permutation(0, "x").tolist() == []


FIRST = [0, 8, 9, 4, 1, 7, 2, 3, 5, 6]


def test_an_epoch_has_each_sample_once_window_by_window() -> None:
    counts = [5, 0, 3, 8, 1, 4, 6]
    order = EpochOrder(counts, 1, 0, 3)
    shards, numbers = order.locate(np.arange(sum(counts)))
    found = list(zip(shards.tolist(), numbers.tolist(), strict=True))
    assert sorted(found) == [(shard, at) for shard, count in enumerate(counts) for at in range(count)]
    ahead = iter(shards.tolist())
    windows = [set(islice(ahead, size)) for size in _sizes_of_windows(counts, shards.tolist())]
    assert all(len(window) <= 3 for window in windows)
    assert sum(map(len, windows)) == 6  # none of the six shards with samples is in two windows

    other = EpochOrder(counts, 1, 1, 3).locate(np.arange(sum(counts)))
    assert other[0].tolist() != shards.tolist()


def _sizes_of_windows(counts: list[int], shards: list[int]) -> list[int]:
    """Sizes of the runs of positions behind which no shard comes again."""
    last = {shard: at for at, shard in enumerate(shards)}
    ends, end, start = [], 0, 0
    for at, shard in enumerate(shards):
        end = max(end, last[shard])
        if at == end:
            ends.append(at + 1 - start)
            start = at + 1
    return ends


def test_without_a_seed_samples_come_as_they_lie() -> None:
    shards, numbers = EpochOrder([2, 3], None, 5, 1).locate(np.arange(5))
    assert shards.tolist() == [0, 0, 1, 1, 1]
    assert numbers.tolist() == [0, 1, 0, 1, 2]


def test_any_position_alone_is_as_in_the_whole() -> None:
    dataset = Numbered("a", [5, 9, 2, 30])
    for epoch in (0, 3):
        whole = whole_epoch(dataset, epoch)
        assert [dataset.fetch(epoch, np.array([at]))[0] for at in range(46)] == whole


def test_a_schedule_has_the_shares_of_the_weights() -> None:
    schedule = Schedule([1, 2, 7])
    sources, draws = schedule.locate(np.arange(30_000))
    assert Counter(sources.tolist()) == {0: 3000, 1: 6000, 2: 21_000}
    for source in range(3):
        assert draws[sources == source].tolist() == list(range(int((sources == source).sum())))
    for start in range(0, 30_000, 997):  # any batch, wherever it begins
        counts = np.bincount(sources[start : start + 50], minlength=3)
        assert abs(counts - np.array([5, 10, 35])).max() <= 1


def test_shares_that_are_no_whole_numbers_go_to_the_largest_remainders() -> None:
    schedule = Schedule([1, 1, 1])
    assert schedule.counts.tolist() == [3334, 3333, 3333]
    assert Schedule([0.5]).counts.tolist() == [10_000]


@pytest.mark.parametrize("weights", [[], [0, 1], [-1, 2], [float("nan")], [1, 1e-9]])
def test_weights_that_draw_nothing_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match=r"weight"):
        Schedule(weights)


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_have_equally_many_batches_and_each_position_once(drop_last: bool) -> None:
    for length in range(1, 60):
        for ranks in (1, 2, 3, 5):
            for batch_size in (1, 2, 4):
                done = united([(3, 5), (11, 12)]) if length > 20 else ()
                division = Division(length, done, ranks, batch_size, drop_last)
                if division.left < ranks:
                    continue
                batches = [
                    [division.batch(step, rank).tolist() for step in range(division.steps)]
                    for rank in range(ranks)
                ]
                sizes = [len(batch) for each in batches for batch in each]
                given = sorted(at for each in batches for batch in each for at in batch)
                left = [at for at in range(length) if not any(a <= at < b for a, b in done)]
                if drop_last:
                    assert set(sizes) <= {batch_size}
                    assert len(left) - len(given) < ranks * batch_size
                    assert set(given) <= set(left)
                    assert len(set(given)) == len(given)
                else:
                    assert given == left
                    assert 0 < min(sizes) <= max(sizes) <= batch_size + 1
                    last = [len(each[-1]) for each in batches]
                    assert max(last) - min(last) <= 1
                    assert {len(batch) for each in batches for batch in each[:-1]} <= {batch_size}


def test_ranks_take_turns() -> None:
    """A schedule that alternates would give one rank all of a source, else."""
    division = Division(8, (), 2, 1, False)
    assert [division.batch(step, 0).tolist() for step in range(4)] == [[0], [3], [4], [7]]
