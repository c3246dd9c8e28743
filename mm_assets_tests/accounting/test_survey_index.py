"""Index of surveys and accounts: the answers of the files themselves, without opening each."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mm_assets.accounting import INDEXES, account_folders, survey_store
from mm_assets.accounting.contract import Published, SchemaContract
from mm_assets.accounting.survey import ShardColumns, merge_files
from mm_assets.accounting.survey_store import SurveyIndex, SurveyStore
from mm_assets.formats.reader import FileSurvey, SurveyedSample
from mm_assets.model.json_codec import FieldTally
from mm_assets.storage.small_files import hashes_of
from mm_assets.storage.stamps import files_in
from mm_assets.storage.temporary import temporary_name
from mm_assets_tests.accounting.stores import NO_COLUMNS, claimed_ids, publish, store_of


@pytest.fixture(params=["local", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://index-{uuid.uuid4().hex}"


def tally(*values: object) -> FieldTally:
    found = FieldTally()
    for value in values:
        found.observe(value)
    return found


def write(store: SurveyStore, partition: str, ids: str = "", **columns: FieldTally) -> None:
    samples = tuple(SurveyedSample(letter, f"{letter}.json", 512, 10, 1, 0) for letter in ids)
    survey = FileSurvey(samples=samples, tallies=columns)
    store.write(partition, merge_files([(f"{partition}.tar", survey)], "v1", "layout"))


class CountedStore(SurveyStore):
    """Counts the files that are opened."""

    opened = 0

    def _read_many(self, names: Iterable[str]) -> dict[str, bytes]:
        found = super()._read_many(names)
        self.opened += len(found)
        return found


def test_answers_are_those_of_the_files(root: str) -> None:
    store = SurveyStore(root)
    write(store, "train/a", "xy", n=tally(1), t=tally("a"))
    write(store, "b", "yz", n=tally(7), t=tally("b"))
    write(store, "c", "", n=tally(2**60))
    schema = pa.schema([("n", pa.int64())])
    publish(root, "b", "z", Published(schema, ShardColumns({"n": tally(7)})))
    for _ in range(2):
        index = SurveyIndex(store)
        columns = index.columns(["train/a", "b", "c", "d"])
        assert columns.keys() == {"train/a", "b", "c"}
        assert columns["train/a"] is columns["b"]  # what is the same is kept once
        for key, (exact, _) in store.columns_and_ids(columns):
            assert columns[key].required_types() == exact.required_types()
        published = index.published(["b"])["b"]
        assert published.schema.equals(schema, check_metadata=True)
        assert published.columns.required_types() == {
            "n": ShardColumns({"n": tally(7)}).required_types()["n"]
        }
        assert set(index.surveys_sharing(["train/a", "b", "c", "d"], hashes_of("y"))) == {"train/a", "b"}
        assert set(index.surveys_sharing(["train/a"], hashes_of("xyz"))) == {"train/a"}
        assert set(index.published_sharing(["b"], hashes_of("z"))) == {"b"}
        assert set(index.published_sharing(["b"], hashes_of("y"))) == set()


def test_what_another_run_has_published_meanwhile_is_not_indexed_as_ours(root: str) -> None:
    store = SurveyStore(root)
    publish(root, "a", "pq")
    facts = survey_store.published_facts(NO_COLUMNS, "xy")
    SurveyIndex(store).add_published({"a": "v0"}, {"a": facts})
    assert set(SurveyIndex(store).published_sharing(["a"], hashes_of("p"))) == {"a"}
    assert set(SurveyIndex(store).published_sharing(["a"], hashes_of("x"))) == set()


def test_a_shard_without_an_account_may_share_any_id(tmp_path: Path) -> None:
    index = SurveyIndex(store_of(tmp_path, {"a": "x", "b": "y"}, {"a": "x"}))
    assert set(index.published_sharing(["a", "b"], hashes_of("q"))) == {"b"}


def test_files_are_opened_once_and_again_when_they_are_replaced(root: str) -> None:
    store = CountedStore(root)
    for number in range(30):
        write(store, f"s{number}", "x", n=tally(1))
        publish(root, f"s{number}", "x")
    keys = [f"s{number}" for number in range(30)]

    def ask() -> tuple[set[str], set[str]]:
        index = SurveyIndex(store)
        assert index.columns(keys).keys() == index.published(keys).keys() == set(keys)
        return set(index.surveys_sharing(keys, hashes_of("x"))), set(
            index.published_sharing(keys, hashes_of("x"))
        )

    assert ask() == (set(keys), set(keys))
    store.opened = 0
    assert ask() == (set(keys), set(keys))
    assert store.opened == 0
    write(store, "s7", "y", n=tally("text"))
    publish(root, "s7", "y")
    assert ask() == (set(keys) - {"s7"}, set(keys) - {"s7"})
    assert 0 < store.opened <= 6
    contract = SchemaContract.derive(SurveyIndex(store).columns(keys), {})
    assert [len(contract.columns), contract.columns["n"].shards] == [1, 30]
    assert contract.columns["n"].required_type.field.type == pa.string()


def test_a_damaged_survey_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = store_of(tmp_path, {"a": "x", "b": "x"})
    index = SurveyIndex(store)
    assert set(index.surveys_sharing(["a", "b"], hashes_of("x"))) == {"a", "b"}
    path = tmp_path / "ledger" / "raw_shards" / "a.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"?")  # the same size
    assert set(index.surveys_sharing(["a", "b"], hashes_of("x"))) == {"b"}
    assert index.columns(["a", "b"]).keys() == {"b"}
    assert "a.parquet is unreadable" in caplog.text


def test_a_lost_index_changes_no_answer(tmp_path: Path) -> None:
    store = store_of(tmp_path, {"a": "xy", "b": "yz", "c": "z"}, {"b": "yz"})
    before = claimed_ids(store, "ac", "b", "abc")
    assert before == {"a": {"y": "b"}, "c": {"z": "b"}}
    for path in (tmp_path / "ledger" / "index").rglob("*.parquet"):
        path.unlink()
    assert claimed_ids(store, "ac", "b", "abc") == before


def test_ids_of_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_store, "hashes_of", lambda ids: np.zeros(len(list(ids)), np.uint64))
    store = store_of(tmp_path, {"a": "xy", "b": "yz", "c": "q"}, {"b": "yz", "c": "q"})
    assert claimed_ids(store, "a", "bc", "abc") == {"a": {"y": "b"}}


def test_columns_keep_the_order_of_their_shard(root: str) -> None:
    store = SurveyStore(root)
    write(store, "a", "x", zeta=tally(1), url=tally("u"), alpha=tally(2))
    for _ in range(2):
        contract = SchemaContract.derive(SurveyIndex(store).columns(["a"]), {})
        assert list(contract.columns) == ["zeta", "url", "alpha"]


def test_a_survey_that_is_replaced_and_put_back_while_it_is_read_is_not_indexed(tmp_path: Path) -> None:
    """Of an object store the etag tells the content only: it is the same before and after."""
    root = f"memory://index-{uuid.uuid4().hex}"
    sample = "x"

    class Replaced(SurveyStore):
        def survey_stamps(self) -> dict[str, str]:
            found = super().survey_stamps()
            write(SurveyStore(root), "a", "q")
            return found

    write(SurveyStore(root), "a", sample)
    assert set(SurveyIndex(Replaced(root)).surveys_sharing(["a"], hashes_of("z"))) == {
        "a"
    }  # it may have any id
    assert set(SurveyIndex(SurveyStore(root)).surveys_sharing(["a"], hashes_of("q"))) == {"a"}
    write(SurveyStore(root), "a", sample)
    assert set(SurveyIndex(SurveyStore(root)).surveys_sharing(["a"], hashes_of("q"))) == set()


def test_a_store_that_refuses_to_list_is_no_empty_store(monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"memory://index-{uuid.uuid4().hex}"
    store = SurveyStore(root)
    write(store, "a", "x")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(f"{root}: access denied")

    monkeypatch.setattr(MemoryFileSystem, "ls", refused)
    with pytest.raises(PermissionError):
        set(SurveyIndex(store).surveys_sharing(["a"], hashes_of("x")))


def test_files_that_vanish_during_a_listing_take_no_other_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    listed = os.scandir(tmp_path)

    class Vanished:
        def __enter__(self) -> Vanished:
            return self

        def __exit__(self, *_: object) -> None:
            listed.close()

        def __iter__(self) -> Iterator[os.DirEntry[str]]:
            return listed

    monkeypatch.setattr(os, "scandir", lambda _: Vanished())
    (tmp_path / "b").unlink()
    assert files_in(str(tmp_path)).keys() == {"a", "c"}


def test_temporary_files_of_the_index_are_swept(tmp_path: Path) -> None:
    swept = account_folders(str(tmp_path), "curated_parquet")
    for name in INDEXES:
        temporary = tmp_path / "ledger" / "index" / name / temporary_name("x")
        assert str(temporary.parent) in swept
