"""Commits: exact rows whatever is repeated, replaced, compacted or interrupted."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mm_assets.formats.lance import Location, snapshot
from mm_assets.formats.lance.fragments import FragmentSet, removal, write_fragments
from mm_assets.formats.lance.table import LanceTable
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets_tests.formats.lance.tables import content, expected, names, record_files, rows, write


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    return LanceTable(tmp_path / "items.lance")


def test_a_chunk_is_one_version(table: LanceTable) -> None:
    sets = [write(table.uri, name) for name in ("a", "b", "c")]
    assert not table.exists()
    version = table.commit(sets)
    assert version == 2  # 1 is the empty table
    assert content(table) == expected(*(rows(names(name)) for name in ("a", "b", "c")))
    facts = table.partitions()
    assert list(facts) == ["a", "b", "c"]
    assert [(f.rows, f.samples, f.version, len(f.fragment_ids)) for f in facts.values()] == [(6, 3, 2, 1)] * 3
    assert all(f.nbytes > 0 for f in facts.values())


def test_columns_equal_parquets_and_bytes_come_back(table: LanceTable) -> None:
    table.commit([write(table.uri, "a")])
    dataset = table.dataset()
    assert dataset.schema.equals(INTERLEAVED_SCHEMA, check_metadata=True)
    assert dataset.to_table().schema.equals(INTERLEAVED_SCHEMA, check_metadata=True)
    assert dataset.to_table().equals(rows(names("a")))
    assert dataset.data_storage_version == "2.2"
    versions = {
        (f.file_major_version, f.file_minor_version)
        for d in dataset.get_fragments()
        for f in d.metadata.files
    }
    assert versions == {(2, 0)}


def test_a_missing_table_is_asked_for_quietly(tmp_path: Path) -> None:
    code = (
        "import sys; from mm_assets_tests.formats.lance.tables import *; from "
        "mm_assets.formats.lance.fragments import plan_schema\n"
        "t = LanceTable(sys.argv[1]); assert not t.exists(); assert t.partitions() == {}\n"
        "plan_schema(t.uri, [INTERLEAVED_SCHEMA]); t.commit([write(t.uri, 'a')]); "
        "print(t.dataset().count_rows())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "t.lance")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("6\n", "")


def test_a_table_made_by_another_process_meanwhile(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit([write(table.uri, "a")])
    answers = [False]
    real = Location.has_table
    monkeypatch.setattr(Location, "has_table", lambda self: answers.pop() if answers else real(self))
    late = write(table.uri, "b")
    monkeypatch.undo()
    table.commit([late])
    assert content(table) == expected(rows(names("a")), rows(names("b")))


def test_the_package_does_not_import_lance() -> None:
    code = (
        "import mm_assets, mm_assets.formats, mm_assets.formats.lance, sys; assert 'lance' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def through_pickle(fragments: FragmentSet) -> FragmentSet:
    return pickle.loads(pickle.dumps(fragments))  # noqa: S301 - our own bytes


def through_json(fragments: FragmentSet) -> FragmentSet:
    return FragmentSet.from_json(fragments.to_json())


@pytest.mark.parametrize("carry", [through_pickle, through_json])
def test_sets_travel_between_processes(
    table: LanceTable, carry: Callable[[FragmentSet], FragmentSet]
) -> None:
    original = write(table.uri, "a", digest="d")
    assert carry(original) == original
    table.commit([carry(original)])
    assert content(table) == expected(rows(names("a")))
    assert table.partitions()["a"].digest == "d"


# --- idempotence
# ------------------------------------------------------------------------------------------------------


def test_a_repeated_commit_changes_nothing(table: LanceTable) -> None:
    sets = [write(table.uri, "a"), write(table.uri, "b")]
    version = table.commit(sets)
    assert [table.commit(sets), table.commit(sets[:1]), LanceTable(table.uri).commit(sets)] == [version] * 3
    assert table.dataset().version == version
    assert content(table) == expected(rows(names("a")), rows(names("b")))


def test_naive_retry_of_an_append_doubles(table: LanceTable) -> None:
    """The trap itself: should Lance ever mend it, this test says so."""
    table.commit([write(table.uri, "a")])
    new = write(table.uri, "b")
    fragments = [lance.FragmentMetadata.from_json(text) for text in new.fragments]
    for _ in range(2):
        dataset = table.dataset()
        transaction = lance.Transaction(dataset.version, lance.LanceOperation.Append(fragments))
        lance.LanceDataset.commit(dataset, transaction)
    assert table.dataset().count_rows() == 18


def test_equal_digest_rows_and_schema_are_the_same_content(table: LanceTable) -> None:
    version = table.commit([write(table.uri, "a", digest="x")])
    assert table.commit([write(table.uri, "a", digest="x")]) == version
    assert table.commit([write(table.uri, "a", digest="y")]) == version + 1
    assert table.commit([write(table.uri, "a")]) == version + 2  # without a digest nothing is taken for equal
    assert table.commit([write(table.uri, "a")]) == version + 3
    more = rows(names("a"), {"url": (pa.string(), ["u", "v", "w"])})
    table.commit([write(table.uri, "a", digest="z")])
    table.commit([write(table.uri, "a", more, digest="z")])  # a digest that overlooks a column
    assert table.dataset().to_table(columns=["url"])["url"].null_count == 3


def test_rows_deleted_by_hand_come_back(table: LanceTable) -> None:
    sets = [write(table.uri, "a"), write(table.uri, "b")]
    table.commit(sets)
    table.dataset().delete("sample_id = 'a/1'")
    table.commit(sets)
    assert content(table) == expected(rows(names("a")), rows(names("b")))


# --- replacement
# ------------------------------------------------------------------------------------------------------


def test_replacement_touches_only_its_partition(table: LanceTable) -> None:
    table.commit([write(table.uri, "a"), write(table.uri, "b")])
    table.ensure_indexes()
    before = table.dataset().version
    new = rows(names("a", 5), mark="new")
    assert table.commit([write(table.uri, "a", new)]) == before + 1
    assert content(table) == expected(new, rows(names("b")))
    assert table.dataset().to_table(filter="sample_id = 'a/4'").num_rows == 2
    assert lance.dataset(table.uri, version=before).count_rows() == 12
    assert len(record_files(table)) == 2  # the old one is pruned


def test_a_set_without_rows_removes_its_partition(table: LanceTable) -> None:
    table.commit([write(table.uri, "a"), write(table.uri, "b")])
    empty = write(table.uri, "a", INTERLEAVED_SCHEMA.empty_table())
    assert (empty.rows, empty.fragments) == (0, ())
    version = table.commit([empty])
    assert table.commit([empty]) == table.commit([removal("zzz", table.schema())]) == version
    assert content(table) == expected(rows(names("b")))
    assert list(table.partitions()) == ["b"]
    assert len(record_files(table)) == 1
    table.commit([write(table.uri, "a")])
    assert content(table) == expected(rows(names("a")), rows(names("b")))


def test_an_empty_partition_alone_makes_an_empty_table(table: LanceTable) -> None:
    empty = write(table.uri, "a", INTERLEAVED_SCHEMA.empty_table())
    assert table.commit([empty]) == table.commit([empty]) == 1
    assert table.dataset().schema.equals(INTERLEAVED_SCHEMA, check_metadata=True)
    assert table.partitions() == {}
    assert table.ensure_indexes() == 1


@pytest.mark.parametrize("mode", ["all", "indexed", "in_part"])
def test_replacing_after_compaction(table: LanceTable, mode: str) -> None:
    big = names("b", 50)
    sets = [write(table.uri, "a"), write(table.uri, "c"), write(table.uri, "d")]
    table.commit(sets)
    if mode == "in_part":
        table.dataset().delete("sample_id = 'c/2'")
    if mode == "indexed":
        table.ensure_indexes()
    table.dataset().optimize.compact_files()
    assert len(table.dataset().get_fragments()) == 1
    if mode == "in_part":
        table.commit(sets[1:2])  # a row is missing: the set is committed anew, its data files are still there
    table.commit([write(table.uri, "b", rows(big))])
    assert [f.rows for f in table.partitions().values()] == [6, 100, 6, 6]
    version = table.dataset().version
    assert table.commit(sets) == version  # compacted, but all there
    new_a, new_b = rows(names("a", 2), mark="new"), rows(big[:10], mark="new")
    assert table.commit([write(table.uri, "a", new_a), write(table.uri, "b", new_b)]) == version + 1
    assert content(table) == expected(new_a, new_b, rows(names("c")), rows(names("d")))
    table.commit([removal("c", table.schema())])
    assert content(table) == expected(new_a, new_b, rows(names("d")))
    assert list(table.partitions()) == ["a", "b", "d"]
    assert table.dataset().to_table(filter="sample_id = 'a/1'").num_rows == 2


def test_facts_name_no_fragments_that_hold_only_a_part(table: LanceTable) -> None:
    table.commit([write(table.uri, "a"), write(table.uri, "b")])
    assert [len(f.fragment_ids) for f in table.partitions().values()] == [1, 1]
    table.dataset().delete("sample_id = 'a/1'")
    assert {n: len(f.fragment_ids) for n, f in table.partitions().items()} == {"a": 0, "b": 1}
    table.dataset().optimize.compact_files()
    assert [f.fragment_ids for f in table.partitions().values()] == [(), ()]


@pytest.mark.parametrize("ids_per_query", [1, 5, 20_000])
def test_of_compacted_partitions_it_is_known_which_have_all_their_rows(
    table: LanceTable, ids_per_query: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_IDS_PER_QUERY", ids_per_query)
    partitions = [f"p{number}" for number in range(6)]
    table.commit([write(table.uri, name) for name in partitions])
    table.dataset().optimize.compact_files()
    table.commit([write(table.uri, "later")])
    table.dataset().delete("sample_id = 'p2/1' AND position = 0")
    found = table.partitions()
    assert {name: stats.is_whole for name, stats in found.items()} == {
        name: name != "p2" for name in [*partitions, "later"]
    }
    assert [name for name, stats in found.items() if stats.fragment_ids] == ["later"]


def test_tables_whose_chunks_cannot_be_joined_are_written_all_the_same(table: LanceTable) -> None:
    few = pa.array([f"value {number}" for number in range(120)])
    others = pa.array([f"other {number}" for number in range(120)])
    kind = pa.dictionary(pa.int8(), pa.string())
    pieces = []
    for number, values in enumerate((few, others)):
        ids = [f"{number}/{row}" for row in range(120)]
        column = pa.DictionaryArray.from_arrays(pa.array(range(120), pa.int8()), values)
        piece = rows(ids)
        pieces.append(piece.filter(pc.equal(piece["modality"], "metadata")).append_column("d", column))
    both = pa.concat_tables(pieces)
    assert both.schema.field("d").type == kind and both["d"].num_chunks == 2
    table.commit([write_fragments(table.uri, "a", iter([both]), schema=both.schema)])
    found = table.dataset().to_table(columns=["d"]).column("d").to_pylist()
    assert found == [*few.to_pylist(), *others.to_pylist()]


def test_the_whole_compacted_fragment_can_go(table: LanceTable) -> None:
    table.commit([write(table.uri, "a"), write(table.uri, "b")])
    table.dataset().optimize.compact_files()
    table.commit([removal("a", table.schema()), removal("b", table.schema())])
    assert (table.dataset().count_rows(), table.partitions(), len(table.dataset().get_fragments())) == (
        0,
        {},
        0,
    )


def test_records_survive_cleanup_and_are_no_trouble_to_lance(table: LanceTable) -> None:
    for mark in ("1", "2"):
        table.commit([write(table.uri, "a", rows(names("a"), mark=mark)), write(table.uri, "b")])
    files = record_files(table)
    dataset = table.dataset()
    dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    dataset.optimize.compact_files()
    dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    dataset.validate()
    assert record_files(table) == files
    table.commit([write(table.uri, "a", rows(names("a"), mark="3"))])
    assert content(table) == expected(rows(names("a"), mark="3"), rows(names("b")))


def test_files_that_cleanup_took_are_refused(table: LanceTable) -> None:
    table.commit([write(table.uri, "a")])
    late = write(table.uri, "b")
    table.dataset().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    with pytest.raises(FileNotFoundError, match=r"partition 'b'.*write it again"):
        table.commit([late])
    assert content(table) == expected(rows(names("a")))


# --- sample ids
# -------------------------------------------------------------------------------------------------------

HOSTILE = [
    "it's",
    "''",
    'q"q',
    "a\\b",
    "new\nline",
    "nul\x00",
    "%_",
    "--",
    "😀",
    "e\u0301",
    " ",
    "../x",
    "@",
    "",
]


def test_hostile_ids_and_partition_names(table: LanceTable) -> None:
    partitions = ["a/b", "a%2Fb", "../x", ".hidden", "@", "ü" * 200, "ü" * 199, "it's", "A", "a"]
    parts = {p: rows([f"{n}{i}" for i in HOSTILE]) for n, p in enumerate(partitions)}
    sets = [write(table.uri, p, part) for p, part in parts.items()]
    version = table.commit(sets)
    assert table.commit(sets) == version
    assert sorted(table.partitions()) == sorted(partitions)
    table.dataset().optimize.compact_files()
    assert table.commit(sets) == table.dataset().version
    parts[".hidden"] = rows([f"3{i}" for i in HOSTILE], mark="new")
    table.commit([write(table.uri, ".hidden", parts[".hidden"])])
    assert content(table) == expected(*parts.values())


@pytest.mark.parametrize("compacted", [False, True])
def test_a_sample_id_of_another_partition_is_refused(table: LanceTable, compacted: bool) -> None:
    table.commit([write(table.uri, "a"), write(table.uri, "b")])
    if compacted:
        table.dataset().optimize.compact_files()
    version = table.dataset().version
    with pytest.raises(ValueError, match=r"sample id 'a/1' of partition 'c' is already in partition 'a'"):
        table.commit([write(table.uri, "c", rows(["c/0", "a/1"]))])
    with pytest.raises(ValueError, match=r"sample id 'b/0' of partition 'a' is already in partition 'b'"):
        table.commit([write(table.uri, "a", rows(["a/0", "b/0"]))])
    with pytest.raises(ValueError, match=r"sample id 'x' of partition 'd' is already in partition 'c'"):
        table.commit([write(table.uri, "c", rows(["x"])), write(table.uri, "d", rows(["x"]))])
    with pytest.raises(ValueError, match="given twice"):
        table.commit([write(table.uri, "e"), write(table.uri, "e")])
    assert table.dataset().version == version
    assert content(table) == expected(rows(names("a")), rows(names("b")))


@pytest.mark.parametrize("compacted", [False, True])
def test_a_sample_may_move_when_both_partitions_are_replaced(table: LanceTable, compacted: bool) -> None:
    table.commit([write(table.uri, "a"), write(table.uri, "b")])
    if compacted:
        table.dataset().optimize.compact_files()
    new_a, new_b = rows(["a/0", "b/2"]), rows(["b/0", "a/1"])
    table.commit([write(table.uri, "a", new_a), write(table.uri, "b", new_b)])
    assert content(table) == expected(new_a, new_b)


def test_a_row_without_sample_id_is_refused(table: LanceTable) -> None:
    schema = INTERLEAVED_SCHEMA.set(0, pa.field("sample_id", pa.string()))
    bad = pa.table(
        {name: [None if name != "position" else 0] for name in schema.names},
        schema=pa.schema([f.with_nullable(True) for f in schema]),
    )
    with pytest.raises(ValueError, match="partition 'a' has a row without sample_id"):
        write(table.uri, "a", bad)


def test_the_error_of_the_stream_arrives(table: LanceTable) -> None:
    class Broken(Exception):
        pass

    def stream() -> Iterator[pa.Table]:
        yield rows(["x"])
        raise Broken("tar is cut")

    with pytest.raises(Broken, match="tar is cut"):
        write(table.uri, "a", stream(), schema=INTERLEAVED_SCHEMA)


# --- indexes
# ----------------------------------------------------------------------------------------------------------


def test_indexes_cover_every_row_and_are_not_made_twice(table: LanceTable) -> None:
    table.commit([write(table.uri, "a")])
    version = table.ensure_indexes()
    assert version == table.ensure_indexes() == table.dataset().version
    table.commit([write(table.uri, "b"), write(table.uri, "a", rows(names("a"), mark="n"))])
    table.ensure_indexes()
    dataset = table.dataset()
    stats = {i.field_names[0]: dataset.stats.index_stats(i.name) for i in dataset.describe_indices()}
    assert {name: s["index_type"] for name, s in stats.items()} == {
        "sample_id": "BTree",
        "modality": "Bitmap",
    }
    assert [(s["num_unindexed_rows"], s["num_unindexed_fragments"]) for s in stats.values()] == [(0, 0)] * 2
    assert table.ensure_indexes() == dataset.version
    assert "ScalarIndexQuery" in dataset.scanner(filter="sample_id = 'b/1'").explain_plan()
    assert dataset.to_table(filter="sample_id = 'a/1'")["text_content"].to_pylist() == ["n", None]
    assert dataset.count_rows(filter="modality = 'image'") == 6


def test_transaction_says_what_it_was_for(table: LanceTable) -> None:
    new = write(table.uri, "a", digest="d1")
    version = table.commit([new], properties={"run": "r-7"})
    properties = table.dataset().read_transaction(version).transaction_properties
    assert properties["run"] == "r-7"
    assert new.set_id in properties["mm_assets:partitions"] and "d1" in properties["mm_assets:partitions"]
