"""Partition records: read only where needed, refused when damaged, never those of an earlier table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from mm_assets.formats.lance import Location
from mm_assets.formats.lance.reader_writer import InterleavedLanceWriter
from mm_assets.formats.lance.records import FOLDER, INDEX_FOLDER, PartitionRecord, PartitionRecords
from mm_assets.formats.lance.table import LanceTable
from mm_assets_tests.formats.lance.tables import content, expected, names, record_files, rows, write


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    return LanceTable(tmp_path / "items.lance")


def test_some_partitions_are_told_apart_from_the_others(table: LanceTable) -> None:
    table.commit([write(table.uri, name) for name in "abc"])
    assert table.partitions(["b", "absent"]) == {"b": table.partitions()["b"]}


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"rows": 6', b'"rows": 5'), (b'"}', b'", "rows": 99}'), (b'"nbytes"', b'"nbytes" ')],
    ids=["changed", "appended", "respaced"],
)
def test_a_record_that_is_not_as_it_was_written_is_refused(table: LanceTable, old: bytes, new: bytes) -> None:
    table.commit([write(table.uri, "a")])
    path = Path(table.uri, "_mm_assets", "partitions", record_files(table)[0])
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    text = data[8:end].replace(old, new)
    assert text != data[8:end]
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    with pytest.raises(ValueError, match="damaged partition record .* not as it was written"):
        table.partitions()


def test_a_table_that_was_made_anew_is_not_taken_for_the_one_before(table: LanceTable) -> None:
    versions = []
    for mark in ("first", "second"):
        shutil.rmtree(table.uri, ignore_errors=True)
        version = table.commit([write(table.uri, "a", rows(names("a"), mark=mark), digest=mark)])
        found = table.partitions()["a"]
        versions.append(version)
        assert (found.digest, found.is_whole, len(found.fragment_ids)) == (mark, True, 1)
        assert table.orphan_rows() == []
        assert content(table) == expected(rows(names("a"), mark=mark))
    assert versions[0] == versions[1]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partitions whose records are opened, as they are."""
    found: list[str] = []
    read = Location.read

    def noted(self: Location, path: str) -> bytes | None:
        found.append(path.rpartition("/")[2].partition("@")[0])
        return read(self, path)

    monkeypatch.setattr(Location, "read", noted)
    return found


def test_a_commit_reads_no_records_of_other_partitions(table: LanceTable, opened: list[str]) -> None:
    table.commit([write(table.uri, "a"), write(table.uri, "b")])
    opened.clear()
    writer = InterleavedLanceWriter(table.uri)
    for mark in ("new", "newer"):
        fragments = write(table.uri, "b", rows(names("b"), mark=mark), digest=mark)
        table.commit([fragments])
        assert table.repeated_ids([write(table.uri, "c")]) == {}
    assert set(writer.partition_stats(["b"]) or {}) == {"b"}
    assert set(opened) == {"b"}


def _clash() -> pa.Table:
    return rows([*names("z"), "a/1"])


def _told(table: LanceTable) -> tuple[object, ...]:
    """What takes the records of all partitions."""
    clashing = write(table.uri, "z", _clash())
    told = (table.partitions(), table.orphan_rows(), table.repeated_ids([clashing]))
    table.discard_unused([clashing])
    return told


def test_records_of_all_partitions_are_opened_once(table: LanceTable, opened: list[str]) -> None:
    table.commit([write(table.uri, name) for name in "abc"])
    table.commit([write(table.uri, "b", rows(names("b"), mark="new"), digest="new")])
    opened.clear()
    assert {name: found.rows for name, found in table.partitions().items()} == {"a": 6, "b": 6, "c": 6}
    assert table.orphan_rows() == []
    assert opened == []


@pytest.mark.parametrize("spoil", ["lost", "damaged"])
def test_the_index_of_records_says_what_they_say(table: LanceTable, spoil: str) -> None:
    table.commit([write(table.uri, name) for name in "abc"])
    table.commit([write(table.uri, "b", rows(names("b"), mark="new"), digest="new")])
    table.dataset().optimize.compact_files()  # the ids alone tell whose rows these are
    told = _told(table)
    assert told[2] == {
        "z": "sample id 'a/1' of partition 'z' is already in partition 'a': sample ids are unique in a table"
    }
    for segment in Path(table.uri, INDEX_FOLDER).iterdir():
        segment.write_bytes(b"PAR1") if spoil == "damaged" else segment.unlink()
    assert _told(table) == told


def test_a_record_that_was_replaced_is_not_what_the_index_says(table: LanceTable) -> None:
    table.commit([write(table.uri, name) for name in "ab"])
    record = next(name for name in record_files(table) if name.startswith("a@"))
    Path(table.uri, FOLDER, record).write_bytes(b"other")
    with pytest.raises(ValueError, match=f"damaged partition record .*{record}"):
        table.partitions()


def test_a_damaged_record_of_another_partition_stops_no_commit(table: LanceTable) -> None:
    table.commit([write(table.uri, name) for name in "ab"])
    record = next(name for name in record_files(table) if name.startswith("a@"))
    Path(table.uri, FOLDER, record).write_bytes(b"other")
    table.commit([write(table.uri, "c")])
    assert table.partitions(["b", "c"]).keys() == {"b", "c"}


def test_an_intent_is_not_indexed_before_it_is_committed(table: LanceTable) -> None:
    table.commit([write(table.uri, "a")])
    records = PartitionRecords(Location(table.uri))
    intent = PartitionRecord.intent(write(table.uri, "b"), 1, "attempt")
    records.put([intent])
    records.index()
    records.put([intent.committed(2, "attempt")])
    assert [record.version for record in records.all()["b"]] == [2]


def test_the_ids_of_a_record_that_was_pruned_meanwhile_are_nobodys(table: LanceTable) -> None:
    table.commit([write(table.uri, "a")])
    records = PartitionRecords(Location(table.uri))
    (record,) = records.all()["a"]
    assert record.sample_ids().to_pylist() == names("a")
    records.delete([record])
    assert record.sample_ids().to_pylist() == []
