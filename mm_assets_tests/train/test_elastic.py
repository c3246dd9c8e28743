"""Runs that stop anywhere and resume on other ranks: every sample exactly once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from mm_assets.model.errors import DataError
from mm_assets.train import Mixture
from mm_assets.train.loader import EpochDataset
from mm_assets_tests.train.numbered import Numbered, alone, mixed, random_stops, whole_epoch

Make = Callable[[int, int], EpochDataset]
BOTH = pytest.mark.parametrize("make", [alone, mixed])


def run(
    make: Make, ranks: int, states: Any, batch_size: int, steps: list[int]
) -> tuple[list[Any], list[Any]]:
    """What each rank is given in so many steps, at most to the end of the epoch; samples, and states."""
    given, kept = [], []
    for rank in range(ranks):
        loader = make(rank, ranks).loader(batch_size)
        if states is not None:
            loader.load_state_dict(states)
        batches = iter(loader)
        epoch = loader.dataset.epoch
        for _ in range(min(steps[rank], len(loader))):
            given += next(batches)
            assert loader.dataset.epoch == epoch
        kept.append(json.loads(json.dumps(loader.state_dict())))
    return given, kept


@BOTH
@pytest.mark.parametrize("seed", range(20))
def test_twenty_random_stops_in_step(make: Make, seed: int) -> None:
    """Three to five runs on other ranks, each resumed from the state of one rank of the one before."""
    random = Random(seed)
    given: list[Any] = []
    states = None
    for ranks in random_stops(random):
        steps, batch_size = random.randint(0, 4), random.randint(1, 3)
        part, kept = run(make, ranks, states, batch_size, [steps] * ranks)
        given += part
        states = random.choice(kept)
    rest, _ = run(make, 1, states, 2, [10_000])
    assert Counter(given + rest) == Counter(whole_epoch(make(0, 1), 0))


@BOTH
@pytest.mark.parametrize("seed", range(20))
def test_twenty_random_stops_out_of_step(make: Make, seed: int) -> None:
    """Each rank has got another number of steps; the states of all are loaded."""
    random = Random(100 + seed)
    given: list[Any] = []
    states = None
    for ranks in random_stops(random):
        part, states = run(
            make, ranks, states, random.randint(1, 3), [random.randint(0, 4) for _ in range(ranks)]
        )
        given += part
        assert len(json.dumps(states[0])) < 1000
    rest, _ = run(make, 1, states, 2, [10_000])
    assert Counter(given + rest) == Counter(whole_epoch(make(0, 1), 0))


@BOTH
def test_eight_then_three_then_five_ranks(make: Make) -> None:
    given: list[Any] = []
    states: Any = None
    for ranks in (8, 3, 5):
        part, kept = run(make, ranks, states, 2, [2] * ranks)
        given += part
        states = kept[-1]
    rest, _ = run(make, 2, states, 3, [10_000] * 2)
    assert Counter(given + rest) == Counter(whole_epoch(make(0, 1), 0))


@BOTH
def test_samples_of_a_resumed_run_are_those_of_one_that_did_not_stop(make: Make) -> None:
    """The same ranks and batches: not only the set, each batch."""
    whole = [list(make(rank, 3).loader(2)) for rank in range(3)]
    for stop in (1, 4):
        for rank in range(3):
            loader = make(rank, 3).loader(2)
            batches = iter(loader)
            first = [next(batches) for _ in range(stop)]
            for state_of in (rank, 0):  # its own state, or that of rank 0
                other = make(state_of, 3).loader(2)
                taken = iter(other)
                for _ in range(stop):
                    next(taken)
                resumed = make(rank, 3).loader(2)
                resumed.load_state_dict(other.state_dict())
                assert first + list(resumed) == whole[rank]


@BOTH
def test_a_rank_that_has_begun_the_next_epoch(make: Make) -> None:
    """Ranks do not end an epoch at the same moment."""
    loaders = [make(rank, 2).loader(4) for rank in range(2)]
    given: dict[int, list[Any]] = {0: [], 1: []}
    for loader, steps in zip(loaders, (len(loaders[0]) + 2, len(loaders[1]) - 1), strict=True):
        while steps:
            for batch in loader:
                given[loader.dataset.epoch] += batch
                steps -= 1
                if not steps:
                    break
    resumed = make(0, 1).loader(3)
    resumed.load_state_dict([loader.state_dict() for loader in loaders])
    for epoch in range(2):
        assert resumed.dataset.epoch == epoch
        given[epoch] += [sample for batch in resumed for sample in batch]
        assert Counter(given[epoch]) == Counter(whole_epoch(make(0, 1), epoch))


def test_single_samples_resume_as_batches_and_back() -> None:
    dataset = alone(0, 1)
    samples = iter(dataset)
    given = [next(samples) for _ in range(30)]
    batched = alone(0, 1).loader(4)
    batched.load_state_dict(dataset.state_dict())
    batches = iter(batched)
    given += next(batches) + next(batches)
    again = alone(0, 1)
    again.load_state_dict(batched.state_dict())
    assert Counter(given + list(again)) == Counter(whole_epoch(again, 0))
    assert again.epoch == 1


def test_samples_without_batches_are_shared_by_ranks() -> None:
    given = [list(alone(rank, 5)) for rank in range(5)]
    assert [len(each) for each in given] == [len(alone(rank, 5)) for rank in range(5)]
    assert max(map(len, given)) - min(map(len, given)) <= 1
    assert Counter(sample for each in given for sample in each) == Counter(whole_epoch(alone(0, 1), 0))


@BOTH
@pytest.mark.parametrize("stop", [1, 5, 10_000])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_length_after_a_resume_is_what_comes(make: Make, stop: int, ranks: int) -> None:
    """Of our loader in batches, and in samples, of which torch's counts its batches."""
    loader = make(0, 2).loader(4)
    for _ in zip(range(stop), loader, strict=False):
        pass
    single = make(0, 2)
    for _ in zip(range(stop), single, strict=False):
        pass
    for state in (loader.state_dict(), single.state_dict()):
        for rank in range(ranks):
            resumed = make(rank, ranks)
            resumed.load_state_dict(state)
            batches = resumed.loader(4)
            assert len(batches) == len(list(batches))
            resumed.load_state_dict(state)
            assert len(resumed) == len(list(resumed))


def test_a_loop_that_was_left_goes_on() -> None:
    loader = alone(0, 1).loader(10)
    first = next(iter(loader))
    rest = list(loader)
    assert Counter(sum(rest, first)) == Counter(whole_epoch(alone(0, 1), 0))
    assert [sample for batch in loader for sample in batch] == whole_epoch(alone(0, 1), 1)


def test_what_is_dropped_does_not_come_after_a_resume() -> None:
    loader = Numbered("a", [113]).loader(10, drop_last=True)
    batches = [batch for _, batch in zip(range(11), loader, strict=False)]
    assert [len(batch) for batch in batches] == [10] * 11
    resumed = Numbered("a", [113]).loader(7)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed)) == whole_epoch(Numbered("a", [113]), 1)[:7]
    assert resumed.dataset.epoch == 1


def test_a_mixture_gives_all_of_a_source_before_it_repeats() -> None:
    small, large = Numbered("small", [10]), Numbered("large", [90])
    mixture = Mixture([small, large], [1, 1])
    drawn = [sample for epoch in range(2) for sample in whole_epoch(mixture, epoch)]
    of_small = [sample for sample in drawn if sample[0] == "small"]
    assert len(of_small) == 100
    for start in range(0, 100, 10):
        assert sorted(of_small[start : start + 10]) == sorted(whole_epoch(small, 0))
    of_large = [sample for sample in drawn if sample[0] == "large"]
    assert len(set(of_large[:90])) == 90  # over the end of the mixture's first epoch


def test_a_rank_without_data_is_refused() -> None:
    dataset = Numbered("a", [3], rank=4, world_size=5)
    for iterate in (lambda: next(iter(dataset)), lambda: next(iter(dataset.loader(1)))):
        with pytest.raises(DataError, match=r"3 samples for 5 ranks.*: a rank would have none\. Start fewer"):
            iterate()


def test_a_rest_for_fewer_ranks_than_there_are_says_what_to_do() -> None:
    loader = Numbered("a", [10]).loader(9)
    next(iter(loader))
    resumed = Numbered("a", [10], 0, 3).loader(2)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(DataError, match=r"1 sample left of the epoch for 3 ranks .*set_epoch\(1\)"):
        next(iter(resumed))
    resumed.dataset.set_epoch(1)
    assert len(list(resumed)) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda states: states[:2], r"2 states of 3 ranks: none of rank 2"),
        (lambda states: [states[0], states[1], states[1]], r"none of rank 2"),
        (lambda states: [*states[:2], {**states[2], "batch_size": 9}], r"different runs"),
        (lambda states: [*states[:2], {**states[2], "done": {"0": [[0, 5]]}}], r"different runs"),
        (lambda states: {**states[0], "order": "x"}, r"another order .*other data"),
        (
            lambda states: [{**state, "ranks": 10**9} for state in states],
            r"3 states of 1000000000 ranks: none",
        ),
        (lambda states: {"epoch": 1}, r"not the state of a dataset"),
        (lambda states: {**states[0], "done": [1]}, r"not the state of a dataset"),
    ],
)
def test_states_that_do_not_fit_are_refused(change: Any, words: str) -> None:
    _, states = run(alone, 3, None, 2, [3, 2, 1])
    with pytest.raises(DataError, match=words):
        alone(0, 1).load_state_dict(change(states))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"steps": -3}, "steps is -3"),
        ({"steps": "x"}, "steps is 'x'"),
        ({"steps": True}, "steps is True"),
        ({"epoch": -1}, "epoch is -1"),
        ({"epoch": 1 << 62}, f"epoch is {1 << 62}"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"rank": 9}, "rank is 9 of 3"),
        ({"drop_last": 1}, "order and drop_last are '.*' and 1"),
        ({"done": {"-1": [[0, 3]]}}, "done has a negative number"),
        ({"done": {"0": [[-5, 3]]}}, "done has a negative number"),
        ({"done": {"0": [[0, 10**6]]}}, "done has more than are in an epoch"),
    ],
)
def test_a_state_with_a_number_out_of_its_range_is_one_line(change: dict[str, Any], words: str) -> None:
    _, states = run(alone, 3, None, 2, [3, 3, 3])
    for given in ({**states[0], **change}, [{**state, **change} for state in states]):
        with pytest.raises(DataError, match=rf"not the state of a dataset: {words}") as caught:
            alone(0, 1).load_state_dict(given)
        assert "\n" not in str(caught.value)


def test_ranks_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    mixture = Mixture([Numbered("a", [4])], [1])
    assert (mixture.rank, mixture.world_size) == (1, 2)
    with pytest.raises(ValueError, match="rank 3 of 2"):
        Mixture([Numbered("a", [4])], [1], rank=3)


def test_a_mixture_has_the_ranks_of_its_datasets() -> None:
    def parts(ranks: list[tuple[int | None, int | None]]) -> list[Numbered]:
        return [Numbered(str(at), [40], *each) for at, each in enumerate(ranks)]

    for ranks in ([(1, 2), (1, 2)], [(None, None), (1, 2)]):
        mixture = Mixture(parts(ranks), [1, 1])
        assert (mixture.rank, mixture.world_size) == (1, 2)
    nested = Mixture([Mixture(parts([(1, 2)]), [1])], [1], rank=1)
    assert (nested.rank, nested.world_size) == (1, 2)
    halves = [list(Mixture(parts([(rank, 2), (rank, 2)]), [1, 1])) for rank in range(2)]
    whole = Mixture(parts([(None, None)] * 2), [1, 1])
    assert Counter(halves[0] + halves[1]) == Counter(whole_epoch(whole, 0))
    with pytest.raises(ValueError, match="rank=0 and 1: a dataset and its parts have one"):
        Mixture(parts([(0, 2), (1, 2)]), [1, 1])
    with pytest.raises(ValueError, match="world_size=2 and 4: "):
        Mixture(parts([(0, 2)]), [1], rank=0, world_size=4)
