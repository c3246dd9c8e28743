"""Index of many small files: right whatever happens to its segments, and few of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.storage import small_files
from mm_assets.storage.small_files import FileFacts, FileIndex, hashes_of


def facts(text: str, *ids: str) -> FileFacts:
    return FileFacts(text, hashes_of(ids))


def index_of(folder: Path) -> FileIndex:
    index = FileIndex(str(folder))
    index.add({"a": facts("A", "x", "y"), "b": facts("B")}, {"a": "1", "b": "1"})
    index.add({"c": facts("A", "y", "é")}, {"a": "1", "b": "1", "c": "1"})
    return index


def sharing(index: FileIndex, stamps: dict[str, str], *ids: str) -> dict[str, set[str]]:
    by_hash = dict(zip(hashes_of(ids).tolist(), ids, strict=True))
    found = index.sharing(stamps, hashes_of(ids))
    return {
        name: set(ids) if hashes is None else {by_hash[found_hash] for found_hash in hashes.tolist()}
        for name, hashes in found.items()
    }


ALL = {"a": "1", "b": "1", "c": "1"}


def test_what_was_added_is_found(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    assert index.texts(ALL) == {"a": "A", "b": "B", "c": "A"}
    assert index.texts({"a": "1", "d": "1"}) == {"a": "A"}
    assert sharing(index, ALL, "y") == {"a": {"y"}, "c": {"y"}}
    assert sharing(index, {"a": "1"}, "y") == {"a": {"y"}}
    assert sharing(index, ALL, "x", "y") == {"a": {"x", "y"}, "c": {"y"}}
    assert sharing(index, ALL, "é", "é", "z") == {"c": {"é"}}
    assert sharing(index, ALL) == {}
    assert FileIndex(str(tmp_path / "none")).texts(ALL) == {}


def test_a_replaced_file_is_not_indexed_until_it_is_added_again(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    stamps = {**ALL, "a": "2"}
    assert index.texts(stamps) == {"b": "B", "c": "A"}
    # nobody knows what a has now
    assert sharing(index, stamps, "x", "y") == {"a": {"x", "y"}, "c": {"y"}}
    assert sharing(index, stamps, "z") == {"a": {"z"}}
    index.add({"a": facts("new", "z")}, stamps)
    assert index.texts(stamps) == {"a": "new", "b": "B", "c": "A"}
    assert sharing(index, stamps, "x", "z") == {"a": {"z"}}


@pytest.mark.parametrize("at", [0, 5, 200, -30, -9, -1])
def test_a_damaged_segment_counts_as_lost_and_is_replaced(tmp_path: Path, at: int) -> None:
    index = FileIndex(str(tmp_path))
    index.add({"a": facts("A", "x")}, ALL)
    (segment,) = tmp_path.iterdir()
    data = bytearray(segment.read_bytes())
    data[at] ^= 1
    segment.write_bytes(data)
    assert index.texts(ALL) == {}
    assert sharing(index, ALL, "z") == {name: {"z"} for name in ALL}
    index.add({"a": facts("A", "x")}, ALL)
    assert index.texts(ALL) == {"a": "A"}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_foreign_file_is_passed_over(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ("0" * 32 + ".parquet")).write_bytes(b"no Parquet")
    assert index.texts(ALL) == {"a": "A", "b": "B", "c": "A"}
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_two_who_add_at_once_lose_nothing(tmp_path: Path) -> None:
    one, other = FileIndex(str(tmp_path)), FileIndex(str(tmp_path))
    for number in range(20):
        for index, name in ((one, "a"), (other, "b")):
            index.texts({})  # each has looked before the other adds
            key = f"{name}{number}"
            index.add({key: facts(key, key)}, {f"{n}{k}": "1" for n in "ab" for k in range(20)})
    stamps = {f"{name}{number}": "1" for name in "ab" for number in range(20)}
    assert FileIndex(str(tmp_path)).texts(stamps) == {key: key for key in stamps}


def test_segments_are_few_and_rows_of_removed_files_go(tmp_path: Path) -> None:
    index = FileIndex(str(tmp_path))
    stamps: dict[str, str] = {}
    for number in range(300):
        stamps[str(number)] = "1"
        index.add({str(number): facts("", *(f"{number}-{place}" for place in range(20)))}, stamps)
    assert len(list(tmp_path.iterdir())) <= math.log2(300)
    assert index.texts(stamps).keys() == stamps.keys()
    before = sum(path.stat().st_size for path in tmp_path.iterdir())
    kept = {str(number): "1" for number in range(30)}
    index.texts(kept)
    index.add({"new": facts("", "x")}, {**kept, "new": "1"})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < before / 2
    assert index.texts({**kept, "new": "1"}).keys() == {*kept, "new"}


NAMES = st.text("abc", min_size=1, max_size=2)


@given(
    st.lists(
        st.dictionaries(NAMES, st.tuples(st.sampled_from("12"), st.lists(st.text(max_size=3)))), max_size=6
    ),
    st.lists(st.text(max_size=3), max_size=5),
)
def test_any_history_is_found_as_it_last_was(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[dict[str, tuple[str, list[str]]]],
    asked: list[str],
) -> None:
    index = FileIndex(str(tmp_path_factory.mktemp("index")))
    latest: dict[str, tuple[str, list[str]]] = {}
    for added in history:
        # as of files: what has changed has a stamp of its own
        added = {name: (f"{stamp}{ids}", ids) for name, (stamp, ids) in added.items()}
        latest |= added
        stamps = {name: stamp for name, (stamp, _) in latest.items()}
        index.add({name: facts(repr(ids), *ids) for name, (_, ids) in added.items()}, stamps)
    stamps = {name: stamp for name, (stamp, _) in latest.items()}
    assert index.texts(stamps) == {name: repr(ids) for name, (_, ids) in latest.items()}
    shared = {name: set(ids) & set(asked) for name, (_, ids) in latest.items()}
    assert sharing(index, stamps, *asked) == {name: ids for name, ids in shared.items() if ids}


def test_hashes_at_the_ends_of_their_range_are_found(tmp_path: Path) -> None:
    index = FileIndex(str(tmp_path))
    ends = np.array([0, 2**64 - 1], np.uint64)
    stamps = {"a": "1", "b": "1"}
    index.add({"a": FileFacts("", ends[:1]), "b": FileFacts("", ends[1:])}, stamps)
    assert index.sharing(stamps, ends[:1]) == {"a": ends[:1]}
    assert index.sharing(stamps, ends[1:]) == {"b": ends[1:]}
    assert index.sharing(stamps, np.array([1, 2**63], np.uint64)) == {}


def test_a_segment_that_is_merged_meanwhile_hides_nothing(tmp_path: Path) -> None:
    """Between listing and reading another process replaces the segments."""
    index = index_of(tmp_path)

    class Overtaken(FileIndex):
        merged = ""

        def _read(self, name: str, columns: Sequence[str]) -> pa.Table | None:
            return None if name == self.merged else super()._read(name, columns)

    for name in sorted(path.name for path in tmp_path.iterdir()):
        overtaken = Overtaken(str(tmp_path))
        overtaken.merged = name
        assert sharing(overtaken, ALL, "y").items() >= {"a": {"y"}, "c": {"y"}}.items()
        assert overtaken.texts(ALL).items() <= index.texts(ALL).items()


def test_segments_have_a_limit_and_outdated_ones_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "_MAX_SEGMENT_BYTES", 40_000)
    index = FileIndex(str(tmp_path))
    for stamp in "123":
        stamps = {f"{name}{number}": stamp for name in "abcd" for number in range(10)}
        for name in "abcd":
            some = {f"{name}{number}": facts("", *(f"{name}{n}" for n in range(200))) for number in range(10)}
            index.texts(stamps)
            index.add(some, stamps)
        assert index.texts(stamps).keys() == stamps.keys()
        assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 40_000
    for _ in range(12):
        index.texts(stamps)
        index.add({"a0": facts("", "x")}, stamps)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 40 * 200 * 8
