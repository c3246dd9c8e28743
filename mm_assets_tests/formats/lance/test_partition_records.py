"""Partition records: read only where needed, refused when damaged, never those of an earlier table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mm_assets.formats.lance.location import Location
from mm_assets.formats.lance.table import LanceTable
from mm_assets.formats.lance.writer import InterleavedLanceWriter
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


def test_a_commit_reads_no_records_of_other_partitions(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit([write(table.uri, "a"), write(table.uri, "b")])
    opened: list[str] = []
    read = Location.read

    def noted(self: Location, path: str) -> bytes | None:
        opened.append(path.rpartition("/")[2].partition("@")[0])
        return read(self, path)

    monkeypatch.setattr(Location, "read", noted)
    writer = InterleavedLanceWriter(table.uri)
    for mark in ("new", "newer"):
        fragments = write(table.uri, "b", rows(names("b"), mark=mark), digest=mark)
        table.commit([fragments])
        assert table.repeated_ids([write(table.uri, "c")]) == {}
    assert set(writer.partition_stats(["b"]) or {}) == {"b"}
    assert set(opened) == {"b"}
