"""A purge: of rows that the newest version has not, no file of the table has any byte left."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from mm_assets.formats.lance.table import LanceTable, PinnedTable, maintain, purge
from mm_assets_tests.formats.lance.tables import content, expected, names, rows, write

SECRET = "secret-of-nobody-else"


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    return LanceTable(tmp_path / "items.lance")


def _traces(table: LanceTable) -> list[str]:
    """The files that have the secret, as it is or as a part of a Lance data file."""
    found = [str(path) for path in Path(table.uri).rglob("*") if path.is_file()]
    with_it = [path for path in found if SECRET.encode() in Path(path).read_bytes()]
    versions = [version["version"] for version in table.dataset().versions()]
    for version in versions:
        ids = lance.dataset(table.uri, version=version).to_table(["sample_id"])["sample_id"].to_pylist()
        with_it += [f"version {version}"] if any(SECRET in sample for sample in ids) else []
    return with_it


def _secret_and_others(table: LanceTable) -> None:
    table.commit([write(table.uri, "a", rows([*names("a"), SECRET])), write(table.uri, "b")])
    table.ensure_indexes()


@pytest.mark.parametrize("is_compacted", [False, True])
def test_nothing_is_left_of_a_row(table: LanceTable, is_compacted: bool) -> None:
    """Of a table whose shards have fragments of their own, and of one where they share one."""
    _secret_and_others(table)
    if is_compacted:
        maintain(table.uri)
    table.commit([write(table.uri, "a")])
    assert _traces(table)
    report = purge(table.uri, ["a"])
    assert report.versions_removed > 0
    assert _traces(table) == []
    assert content(table) == expected(rows(names("a")), rows(names("b")))
    assert set(table.partitions()) == {"a", "b"} and table.orphan_rows() == []
    assert purge(table.uri, ["a"]).versions_removed <= 3  # its own, of the indexes
    assert _traces(table) == []


def test_a_tagged_version_stays_until_its_tag_is_dropped(table: LanceTable) -> None:
    _secret_and_others(table)
    PinnedTable(table.uri).tag("kept")
    table.commit([write(table.uri, "a")])
    purge(table.uri, ["a"])
    assert any(SECRET in sample for sample in _ids(table, "kept"))
    PinnedTable(table.uri).untag("kept")
    PinnedTable(table.uri).untag("kept")  # gone already
    purge(table.uri, ["a"])
    assert _traces(table) == []


def _ids(table: LanceTable, version: str) -> list[str]:
    found = lance.dataset(table.uri, version=version).to_table(["sample_id"])["sample_id"].to_pylist()
    return [str(sample_id) for sample_id in found]


def test_what_a_killed_writer_left_goes_too(table: LanceTable) -> None:
    table.commit([write(table.uri, "a"), write(table.uri, "b")])
    write(table.uri, "a", rows([*names("a"), SECRET]))  # never committed
    before = _traces(table)
    purge(table.uri, ["a"])
    assert len(before) == 1 and _traces(table) == []
    assert content(table) == expected(rows(names("a")), rows(names("b")))


def test_a_table_without_rows_and_none(table: LanceTable) -> None:
    assert purge(table.uri, ["a"]).versions_removed == 0
    _secret_and_others(table)
    table.commit([write(table.uri, "a", rows([])), write(table.uri, "b", rows([]))])
    purge(table.uri, ["a"])
    assert _traces(table) == []
