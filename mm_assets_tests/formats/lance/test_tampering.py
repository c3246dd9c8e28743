"""What others did to the table: compaction is legal, the rest is found; all of it goes when its partition is
committed again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from mm_assets.formats.lance.fragments import FragmentSet, removal
from mm_assets.formats.lance.table import LanceTable
from mm_assets_tests.formats.lance.tables import content, expected, names, rows, write


def compact(table: LanceTable) -> None:
    table.dataset().optimize.compact_files()


def compact_indexed(table: LanceTable) -> None:
    table.ensure_indexes()
    compact(table)


def compact_deleted(table: LanceTable) -> None:
    table.dataset().delete("sample_id = 'a/1'")
    table.dataset().optimize.compact_files(materialize_deletions_threshold=0.0)


def clean_up(table: LanceTable) -> None:
    compact(table)
    table.dataset().cleanup_old_versions(older_than=timedelta(0))


def update(table: LanceTable) -> None:
    table.dataset().update({"text_content": "'mine'"}, where="sample_id IN ('a/0', 'a/1', 'b/0')")


def update_compacted(table: LanceTable) -> None:
    update(table)
    compact(table)


def append(table: LanceTable) -> None:
    lance.write_dataset(
        table.dataset().to_table(filter="sample_id IN ('a/0', 'a/2', 'b/1')"), table.uri, mode="append"
    )


def append_compacted(table: LanceTable) -> None:
    append(table)
    compact(table)


def overwrite(table: LanceTable) -> None:
    lance.write_dataset(table.dataset().to_table(), table.uri, mode="overwrite")


def restore(table: LanceTable) -> None:
    """An older version, whose records are gone, is made the newest."""
    old = table.dataset().version
    changed = [write(table.uri, name, rows(names(name), mark="between")) for name in ("a", "b", "c")]
    table.commit(changed)
    lance.dataset(table.uri, version=old).restore()


CHANGES = [
    compact,
    compact_indexed,
    compact_deleted,
    clean_up,
    update,
    update_compacted,
    append,
    append_compacted,
    overwrite,
    restore,
]
Change = Callable[[LanceTable], None]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    table = LanceTable(tmp_path / "items.lance")
    table.commit([write(table.uri, name) for name in ("a", "b", "c")])
    return table


def land(table: LanceTable, *sets: FragmentSet, afresh: tuple[str, ...] = ()) -> None:
    """What a run does: ask which sets clash, commit the others."""
    assert table.repeated_ids(sets) == {}
    table.commit(sets, afresh=afresh)


def of(*partitions: str) -> str:
    return " OR ".join(f"sample_id LIKE '{name}/%'" for name in partitions)


def rows_of(table: LanceTable, *partitions: str) -> pa.Table:
    return table.dataset().to_table(filter=of(*partitions))


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_partition_lands_whatever_was_done(table: LanceTable, change: Change) -> None:
    change(table)
    others = rows_of(table, "b", "c")
    new = rows(names("a", 4), mark="new")
    version = table.dataset().version
    land(table, write(table.uri, "a", new))
    assert table.dataset().version == version + 1
    assert content(table) == expected(new, others)


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_partition_is_made_again_of_the_same_rows(table: LanceTable, change: Change) -> None:
    change(table)
    others = rows_of(table, "b", "c")
    land(table, write(table.uri, "a"), afresh=("a",))
    assert content(table) == expected(rows(names("a")), others)


@pytest.mark.parametrize("change", CHANGES)
def test_partitions_of_one_chunk_are_replaced_together(table: LanceTable, change: Change) -> None:
    change(table)
    others = rows_of(table, "c")
    new_a, new_b = rows(["a/0", "b/2", "a/new"], mark="new"), rows(["b/0", "a/1"], mark="new")
    version = table.dataset().version
    land(table, write(table.uri, "a", new_a), write(table.uri, "b", new_b), write(table.uri, "d"))
    assert table.dataset().version == version + 1
    assert content(table) == expected(new_a, new_b, rows(names("d")), others)
    facts = {name: (found.rows, found.is_whole) for name, found in table.partitions().items()}
    assert facts == {"a": (6, True), "b": (4, True), "c": (6, True), "d": (6, True)}
    assert table.orphan_rows() == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_partition_is_removed_whole(table: LanceTable, change: Change) -> None:
    change(table)
    others = rows_of(table, "b", "c")
    land(table, removal("a", table.schema()))
    assert content(table) == expected(others)


@pytest.mark.parametrize("change", CHANGES)
def test_ids_of_other_partitions_are_refused_all_the_same(table: LanceTable, change: Change) -> None:
    change(table)
    before = content(table)
    thief = write(table.uri, "a", rows(["a/0", "c/1"]))
    said = "sample id 'c/1' of partition 'a' is already in partition 'c': sample ids are unique in a table"
    assert table.repeated_ids([thief, write(table.uri, "b")]) == {"a": said}
    with pytest.raises(ValueError, match=said):
        table.commit([thief])
    assert content(table) == before


@pytest.mark.parametrize("change", CHANGES)
def test_committing_everything_again_makes_the_table_exact(table: LanceTable, change: Change) -> None:
    change(table)
    land(table, *(write(table.uri, name) for name in ("a", "b", "c")))
    assert content(table) == expected(*(rows(names(name)) for name in ("a", "b", "c")))
    assert table.orphan_rows() == []


def test_a_partition_that_is_refused_keeps_its_ids(table: LanceTable) -> None:
    """b would take a sample that a gives up; but a is refused, so that b cannot land either, and d alone
    does.
    """
    sets = [
        write(table.uri, "a", rows(["a/0", "c/0"])),
        write(table.uri, "b", rows(["b/0", "a/1"])),
        write(table.uri, "d"),
    ]
    complaints = table.repeated_ids(sets)
    assert {name: line.split(": ")[0] for name, line in complaints.items()} == {
        "a": "sample id 'c/0' of partition 'a' is already in partition 'c'",
        "b": "sample id 'a/1' of partition 'b' is already in partition 'a'",
    }
    table.commit(sets[2:])


# --- while a commit is under way
# --------------------------------------------------------------------------------------


def meanwhile(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """``change`` happens between the look of the next commit at the table and its landing."""
    real = LanceTable._apply

    def overtaken(self: LanceTable, *args: Any) -> Any:
        monkeypatch.setattr(LanceTable, "_apply", real)
        change()
        return real(self, *args)

    monkeypatch.setattr(LanceTable, "_apply", overtaken)


@pytest.mark.parametrize("compacted", [False, True])
def test_of_a_chunk_only_what_repeats_an_id_is_undone(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    theirs = rows(["x", "z/own"])

    def other() -> None:
        table.commit([write(table.uri, "z", theirs)])
        if compacted:
            compact(table)

    meanwhile(monkeypatch, other)
    sets = [write(table.uri, "d", rows(["d/0", "x"])), write(table.uri, "e")]
    with pytest.raises(
        ValueError,
        match="^sample id 'x' of partition 'd' is already in partition 'z': sample ids are unique in "
        "a table$",
    ):
        table.commit(sets)
    assert content(table) == expected(*(rows(names(name)) for name in ("a", "b", "c", "e")), theirs)
    assert sorted(table.partitions()) == ["a", "b", "c", "e", "z"]
    version = table.dataset().version
    assert table.commit(sets[1:]) == version


def test_rows_appended_meanwhile_are_nobodys(table: LanceTable, monkeypatch: pytest.MonkeyPatch) -> None:
    new = rows(names("a"), mark="new")
    meanwhile(monkeypatch, lambda: append(table))
    table.commit([write(table.uri, "a", new)])
    assert found(table) == [("b/1", "b", 2)]
    table.remove_orphan_rows()
    assert content(table) == expected(new, rows(names("b")), rows(names("c")))


# --- rows that are no partition's
# -------------------------------------------------------------------------------------


def found(table: LanceTable) -> list[tuple[str, str, int]]:
    return [(stray.sample_id, stray.partition, stray.rows) for stray in table.orphan_rows()]


@pytest.mark.parametrize("change", [compact, compact_indexed, clean_up, update, update_compacted, overwrite])
def test_rows_that_were_moved_are_no_orphan_rows(table: LanceTable, change: Change) -> None:
    change(table)
    before = content(table)
    version = table.dataset().version
    assert table.orphan_rows() == []
    assert table.remove_orphan_rows() == 0
    assert (content(table), table.dataset().version) == (before, version)


def test_orphan_rows_are_named_and_removed_in_one_version(table: LanceTable) -> None:
    append(table)
    lance.write_dataset(rows(["theirs", "it's"]), table.uri, mode="append")
    assert found(table) == [
        ("a/0", "a", 2),
        ("a/2", "a", 2),
        ("b/1", "b", 2),
        ("it's", "", 2),
        ("theirs", "", 2),
    ]
    version = table.dataset().version
    assert table.remove_orphan_rows() == 10
    assert table.dataset().version == version + 1
    assert content(table) == expected(*(rows(names(name)) for name in ("a", "b", "c")))
    assert lance.dataset(table.uri, version=version).count_rows() == 28
    assert table.orphan_rows() == []
    assert LanceTable(Path(table.uri).parent / "none.lance").remove_orphan_rows() == 0


def test_orphan_rows_among_compacted_rows(table: LanceTable) -> None:
    """Rows of b and c are moved, then a is made anew; a stray of each kind is compacted with the rest of
    them.
    """
    lance.write_dataset(rows(["theirs"]), table.uri, mode="append")
    compact(table)
    table.commit([write(table.uri, "a", rows(names("a"), mark="new"))])
    lance.write_dataset(rows(["a/1"]), table.uri, mode="append")
    assert found(table) == [("a/1", "a", 2), ("theirs", "", 2)]
    table.remove_orphan_rows()
    assert content(table) == expected(rows(names("a"), mark="new"), rows(names("b")), rows(names("c")))


def test_a_surplus_row_among_compacted_ones_is_a_damaged_partition(table: LanceTable) -> None:
    """Nothing can tell which of the two is the right one: both go when the partition is committed again."""
    append_compacted(table)
    assert {name: facts.is_whole for name, facts in table.partitions().items()} == {
        "a": False,
        "b": False,
        "c": True,
    }
    assert found(table) == []
    assert table.remove_orphan_rows() == 0
    land(table, write(table.uri, "a"), write(table.uri, "b"))
    assert content(table) == expected(*(rows(names(name)) for name in ("a", "b", "c")))


def test_a_fragment_that_is_there_twice_is_stray(table: LanceTable) -> None:
    fragment = table.dataset().get_fragments()[0].metadata
    transaction = lance.Transaction(table.dataset().version, lance.LanceOperation.Append([fragment]))
    lance.LanceDataset.commit(table.dataset(), transaction)
    assert table.dataset().count_rows() == 24
    assert found(table) == [(sample_id, "a", 2) for sample_id in names("a")]
    table.remove_orphan_rows()
    assert content(table) == expected(*(rows(names(name)) for name in ("a", "b", "c")))
    assert table.partitions()["a"].is_whole


@pytest.mark.parametrize("compacted", [False, True])
def test_values_in_a_column_are_found_by_partition(table: LanceTable, compacted: bool) -> None:
    struct = pa.struct([("x", pa.int64())])
    more = rows(names("d"), {"n": (pa.int64(), [1, None, 3]), "It is": (struct, [{"x": 1}, None, None])})
    table.commit([write(table.uri, "d", more)])
    table.dataset().add_columns(pa.field("cc", pa.string()))
    table.dataset().update({"cc": "'x'"}, where="sample_id = 'b/1'")
    if compacted:
        compact(table)
    everything = ["a", "b", "c", "d"]
    columns = ("n", "It is", "cc", "text_content", "materialize_error", "no such")
    answers = {name: table.partitions_with_values([name], everything) for name in columns}
    assert answers == {
        "n": {"d"},
        "It is": {"d"},
        "cc": {"b"},
        "text_content": set(everything),
        "materialize_error": set(),
        "no such": set(),
    }
    assert table.partitions_with_values(["text_content"], ["a", "c"]) == {"a", "c"}
    assert table.partitions_with_values(["n", "cc"], ["a", "b", "d"]) == {"b", "d"}
