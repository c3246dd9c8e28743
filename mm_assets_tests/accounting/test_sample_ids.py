"""Each sample id is kept by one shard, the same one however the shards are put into runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.accounting import survey_store
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets_tests.accounting.stores import claimed_ids, publish, store_of


@pytest.mark.parametrize(
    ("shards", "run", "published", "expected"),
    [
        ({"a": "xy", "b": "z"}, "ab", {}, {"a": {}, "b": {}}),
        ({"a": "xy", "b": "yz"}, "ab", {}, {"a": {}, "b": {"y": "a"}}),
        ({"a": "xy", "b": "yz"}, "b", {}, {"b": {"y": "a"}}),
        ({"a": "xy", "b": "yz"}, "a", {}, {"a": {}}),
        ({"a": "xy", "b": "yz"}, "a", {"b": "yz"}, {"a": {"y": "b"}}),
        ({"a": "xy", "b": "yz"}, "ab", {"b": "yz"}, {"a": {"y": "b"}, "b": {}}),
        ({"a": "xy", "b": "yz"}, "ab", {"a": "xy", "b": "z"}, {"a": {}, "b": {"y": "a"}}),
        # b landed without y, which a kept; then a did not land: it keeps y all the same
        ({"a": "xy", "b": "yz"}, "a", {"b": "z"}, {"a": {}}),
        ({"a": "xy", "b": "yz"}, "b", {"a": "xy", "b": "z"}, {"b": {"y": "a"}}),
        ({"a": "xy", "b": "yz"}, "a", {"a": "x", "b": "yz"}, {"a": {"y": "b"}}),
        # a was mended and now has y, which b has published
        ({"a": "xy", "b": "y"}, "a", {"a": "x", "b": "y"}, {"a": {"y": "b"}}),
        ({"a": "xy", "b": "y"}, "ab", {"a": "x", "b": "y"}, {"a": {"y": "b"}, "b": {}}),
        # a gave y up: free once a is made anew, not while its old output lies there
        ({"a": "x", "b": "y"}, "ab", {"a": "xy"}, {"a": {}, "b": {}}),
        ({"a": "x", "b": "y"}, "b", {"a": "xy"}, {"b": {"y": "a"}}),
        ({"a": "x", "b": "x", "c": "x"}, "abc", {}, {"a": {}, "b": {"x": "a"}, "c": {"x": "a"}}),
        ({"a": "x", "b": "x", "c": "x"}, "ab", {"c": "x"}, {"a": {"x": "c"}, "b": {"x": "c"}}),
        ({"a": "x", "b": "x", "c": "x"}, "ac", {"b": "x"}, {"a": {"x": "b"}, "c": {"x": "b"}}),
        ({"a": "", "b": "x"}, "ab", {}, {"a": {}, "b": {}}),
        ({"a": "x"}, "", {}, {}),
    ],
    ids=str,
)
def test_who_keeps_an_id(
    tmp_path: Path,
    shards: dict[str, str],
    run: str,
    published: dict[str, str],
    expected: dict[str, dict[str, str]],
) -> None:
    store = store_of(tmp_path, shards, published)
    assert claimed_ids(store, list(run), published, list(shards)) == expected
    assert claimed_ids(store, list(reversed(run)), list(reversed(published)), set(shards)) == expected


def test_a_shard_of_which_nothing_new_will_come_keeps_what_is_published(tmp_path: Path) -> None:
    store = store_of(tmp_path, {"a": "x", "b": "y"}, {"a": "xy"})
    assert claimed_ids(store, "ab", "a", "ab", stuck=["a"]) == {"a": {}, "b": {"y": "a"}}


def test_a_faulty_sample_yields_to_a_sound_one_unless_it_is_published(tmp_path: Path) -> None:
    store = store_of(tmp_path, {"a": "xy", "b": "xy"}, {"a": "y"})
    assert claimed_ids(store, "ab", "a", "ab", faulty={"a": "xy", "b": ""}.__getitem__) == {
        "a": {"x": "b"},
        "b": {"y": "a"},
    }


def test_faulty_samples_yield_whichever_of_the_shards_are_in_the_run(tmp_path: Path) -> None:
    store, faulty = store_of(tmp_path, {"a": "xy", "b": "xy"}), {"a": "x", "b": ""}.__getitem__
    assert claimed_ids(store, "ab", "", "ab", faulty) == {"a": {"x": "b"}, "b": {"y": "a"}}
    assert claimed_ids(store, "a", "", "ab", faulty) == {"a": {"x": "b"}}
    assert claimed_ids(store, "b", "", "ab", faulty) == {"b": {"y": "a"}}


def test_a_shard_that_is_neither_raw_nor_landed_any_more_keeps_nothing(tmp_path: Path) -> None:
    store = store_of(tmp_path, {"a": "xy", "b": "yz", "c": "z"})
    assert claimed_ids(store, ["b"], {}, ["b", "c"]) == {"b": {}}
    assert claimed_ids(store, ["c"], {}, ["a", "c"]) == {"c": {}}


SHARDS = st.dictionaries(
    st.sampled_from("abcdefg"),
    st.sets(st.sampled_from("uvwxyz"), max_size=6).map(lambda ids: "".join(sorted(ids))),
    min_size=1,
)


@given(SHARDS, st.data(), st.integers(1, 8))
def test_the_rule_for_any_shards(
    tmp_path_factory: pytest.TempPathFactory, shards: dict[str, str], data: st.DataObject, at_once: int
) -> None:
    some = st.sets(st.sampled_from(sorted(shards)))
    run, known = data.draw(some), data.draw(some)
    published = {
        key: "".join(sorted(data.draw(st.sets(st.sampled_from("uvwxyz"))))) for key in data.draw(some)
    }
    store = store_of(tmp_path_factory.mktemp("store"), shards, published)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey_store, "_LEAST_IDS", at_once)
        found = claimed_ids(store, run, published, known)
    expected: dict[str, dict[str, str]] = {key: {} for key in run}
    for letter in "uvwxyz":
        holders = sorted(key for key in run | known if letter in shards[key])
        owners = (
            sorted(
                key
                for key, ids in published.items()
                if letter in ids and (key not in run or letter in shards[key])
            )
            or holders
        )
        for key in holders:
            if key in run and key != owners[0]:
                expected[key][letter] = owners[0]
    assert found == expected


@given(SHARDS, st.lists(st.sampled_from("abcdefg"), max_size=12), st.integers(1, 7))
def test_after_any_runs_each_id_is_published_once(
    tmp_path_factory: pytest.TempPathFactory, shards: dict[str, str], order: list[str], size: int
) -> None:
    """Some shards run early and in vain, some land; in the end all have run: every id is in one output, and
    in one only.
    """
    store = store_of(tmp_path_factory.mktemp("store"), shards)
    published: dict[str, str] = {}
    order = [partition for partition in order if partition in shards]
    for number, run in enumerate(
        [order[at : at + size] for at in range(0, len(order), size)] + [sorted(shards)] * 2
    ):
        left_out = claimed_ids(store, set(run), published, list(shards))
        for partition in run:
            if number % 2 or partition != run[0] or run == sorted(shards):  # else it fails
                published[partition] = "".join(
                    letter for letter in shards[partition] if letter not in left_out[partition]
                )
                publish(store.root, partition, published[partition])
        assert len(set("".join(published.values()))) == len("".join(published.values()))
    assert sorted("".join(published.values())) == sorted(set("".join(shards.values())))


def test_outputs_are_opened_only_where_several_shards_have_an_id(tmp_path: Path) -> None:
    store = store_of(tmp_path, {"a": "vx", "b": "xy", "c": "z"}, {"a": "vx", "b": "y", "c": "z"})
    claimed_ids(store, "abc", "abc", "abc")  # this has indexed all
    opened: list[str] = []

    class Watched(SurveyStore):
        def published_ids(self, landed: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
            opened.extend(landed := sorted(landed))
            return super().published_ids(landed)

    assert claimed_ids(Watched(str(tmp_path)), "abc", "abc", "abc") == {"a": {}, "b": {"x": "a"}, "c": {}}
    assert opened == ["a"]  # b has left x to it
    opened.clear()
    assert claimed_ids(Watched(str(tmp_path)), "c", "abc", "abc") == {"c": {}}
    assert not opened
