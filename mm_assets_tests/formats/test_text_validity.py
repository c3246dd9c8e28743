"""Text that is not UTF-8, in every column of every source: refused in a line, and nothing of it published."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.arrow_cache.reader_writer import ArrowCacheSink
from mm_assets.formats.registry import reader_for
from mm_assets.interleaved import INTERLEAVED_SCHEMA, InterleavedBatch
from mm_assets.model.errors import NOT_UTF8, ShardError
from mm_assets.model.nested_types import broken_rows
from mm_assets_tests.cli.commands import refused
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write

pytestmark = pytest.mark.usefixtures("shared_workers")

BAD = b"\xff\xfe\xfa, which are not UTF-8"
BAD_ID = r"'\\xff\\xfe\\xfa, which are not UTF-8'"


def as_text(*values: bytes | None, view: bool = False) -> pa.Array:
    """These bytes as a column of text, unchecked."""
    stored = pa.array(values, pa.binary_view() if view else pa.binary())
    return pa.Array.from_buffers(pa.string_view() if view else pa.string(), len(stored), stored.buffers())


TEXT = as_text(b"a", BAD, b"c")
STRUCT = pa.StructArray.from_arrays([TEXT], ["x"])
LIST = pa.ListArray.from_arrays([0, 1, 2, 3], TEXT)
DICTIONARY = pa.DictionaryArray.from_arrays([0, 1, 2], TEXT)
COLUMNS: dict[str, pa.Array] = {
    "string": TEXT,
    "large": TEXT.cast(pa.large_string()),
    "list": LIST,
    "struct": STRUCT,
    "list<struct>": pa.ListArray.from_arrays([0, 1, 2, 3], STRUCT),
    "struct<list>": pa.StructArray.from_arrays([LIST], ["x"]),
    "map": pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["k"] * 3), TEXT),
    "keys": pa.MapArray.from_arrays([0, 1, 2, 3], TEXT, pa.array(["v"] * 3)),
    "dictionary": DICTIONARY,
    "list<dictionary>": pa.ListArray.from_arrays([0, 1, 2, 3], DICTIONARY),
    "JSON": pa.ExtensionArray.from_storage(pa.json_(), TEXT),
    "view": as_text(b"a", BAD, b"c", view=True),
}
NOT_IN_LANCE = ("view", "list<dictionary>", "JSON")
RESERVED = [f.name for f in INTERLEAVED_SCHEMA if f.type == pa.string() and f.name != "modality"]


def rows(column: str, values: pa.Array) -> pa.Table:
    """Three samples, of which the second has the bad text."""
    table = batch_of([item(sample, 0, text_content="t") for sample in "abc"]).data
    if column in table.column_names:
        return table.set_column(table.schema.get_field_index(column), table.schema.field(column), values)
    return table.append_column(column, values)


CASES: dict[str, pa.Table] = {
    **{name: rows(name, TEXT) for name in RESERVED},
    **{name: rows("x", values) for name, values in COLUMNS.items()},
}


def parquet(folder: Path, table: pa.Table) -> Path:
    pq.write_table(table, folder / "f.parquet")
    return folder / "f.parquet"


def lance_table(folder: Path, table: pa.Table) -> Path:
    import lance

    lance.write_dataset(table, str(folder / "f.lance"))
    return folder / "f.lance"


def arrow_cache(folder: Path, table: pa.Table) -> Path:
    """A cache that was written without a check of its texts."""
    sink = ArrowCacheSink(str(folder / "f"), table.schema, "f", None)
    sink.write(iter([table]))
    sink.publish()
    return folder / "f"


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def is_named(line: str, source: Path, column: str, place: str = "sample 'b'") -> bool:
    return str(source) in line and f"{place}, column {column!r}: text that is not UTF-8" in line


def place_of(case: str) -> str:
    return f"sample {BAD_ID}" if case == "sample_id" else "sample 'b'"


def check(source: Path, folder: Path, case: str, place: str = "") -> None:
    """`convert` refuses it in a line, and `verify` does, and the first leaves nothing behind."""
    column, place = case if case in RESERVED else "x", place or place_of(case)
    assert is_named(refused("convert", source, folder / "out", "--to", "parquet"), source, column, place)
    assert not files_in(folder / "out")
    assert is_named(refused("verify", source, source), source, column, place)


@pytest.mark.parametrize("case", CASES)
def test_parquet(tmp_path: Path, case: str) -> None:
    # pyarrow itself refuses a dictionary, for all rows of its row group.
    place = "rows 0 to 2" if "dictionary" in case else ""
    check(parquet(tmp_path, CASES[case]), tmp_path, case, place)


# Lance itself has none of these types, or checks them.
@pytest.mark.parametrize("case", [case for case in CASES if case not in NOT_IN_LANCE])
def test_lance(tmp_path: Path, case: str) -> None:
    place = {"dictionary": "rows 0 to 2", "sample_id": "row 1"}.get(case, "")
    check(lance_table(tmp_path, CASES[case]), tmp_path, case, place)


@pytest.mark.parametrize("case", CASES)
def test_arrow_cache(tmp_path: Path, case: str) -> None:
    check(arrow_cache(tmp_path, CASES[case]), tmp_path, case)


@pytest.mark.parametrize("case", CASES)
def test_writers_refuse_batches_of_programs(tmp_path: Path, case: str) -> None:
    column = case if case in RESERVED else "x"
    for kind in FORMATS:
        with pytest.raises(ShardError, match=f"column '{column}': text that is not UTF-8"):
            write(kind, tmp_path / kind, [InterleavedBatch(CASES[case])])
        assert not files_in(tmp_path / kind)


@pytest.mark.parametrize("name", [name for name in RESERVED if name != "sample_id"])
def test_bytes_in_a_column_of_text(tmp_path: Path, name: str) -> None:
    values = TEXT.cast(pa.binary())
    table = rows("x", TEXT).drop(["x"])
    at = table.schema.get_field_index(name)
    check(parquet(tmp_path, table.set_column(at, name, values)), tmp_path, name)


def test_an_existing_table_stays_as_it_is(tmp_path: Path) -> None:
    table = str(tmp_path / "tables" / "t.lance")
    write("lance", table, [batch_of([item("z", 0, text_content="sound")], partition="other")])
    before = read("lance", table)
    source = parquet(tmp_path, CASES["text_content"])
    assert is_named(refused("convert", source, table, "--to", "lance"), source, "text_content")
    assert read("lance", table).equals(before)


def test_verify_of_a_sound_file_and_a_broken_one(tmp_path: Path) -> None:
    sound, broken = tmp_path / "sound.parquet", parquet(tmp_path, CASES["text_content"])
    pq.write_table(rows("text_content", as_text(b"a", b"b", b"c")), sound)
    assert is_named(refused("verify", sound, broken), broken, "text_content")
    assert is_named(refused("verify", broken, sound), broken, "text_content")


READABLE = [case for case in CASES if "dictionary" not in case]


@pytest.mark.parametrize("case", READABLE)
def test_quarantine_of_the_sample(tmp_path: Path, case: str) -> None:
    reader = reader_for("parquet", parquet(tmp_path, CASES[case]), quarantine_errors=True)
    (stream,) = (reader.open(partition) for partition in reader.partitions())
    assert [batch.data.column("sample_id").to_pylist() for batch in stream] == [["a", "c"]]
    (loss,) = stream.losses
    column = case if case in RESERVED else "x"
    assert (loss.kind, loss.reason) == (
        NOT_UTF8,
        f"{tmp_path}/f.parquet: row 1: column {column!r}: not UTF-8",
    )


@pytest.mark.parametrize("case", [case for case in COLUMNS if case in READABLE])
def test_documents(tmp_path: Path, case: str) -> None:
    table = pa.table({"id": ["a", "b", "c"], "texts": [["t"]] * 3, "x": COLUMNS[case]})
    pq.write_table(table, tmp_path / "f.parquet")
    line = refused("convert", tmp_path / "f.parquet", tmp_path / "out", "--to", "parquet")
    assert "f.parquet: row 1: column 'x': not UTF-8" in line
    assert not files_in(tmp_path / "out")


def test_only_text_of_rows_is_looked_at() -> None:
    """Neither bytes of other rows, nor types that hold no text, of which some values are odd."""
    dates = pa.Array.from_buffers(pa.date64(), 3, pa.array([1, 2, 3]).buffers())
    hidden = pa.StructArray.from_arrays([TEXT], ["x"], mask=pa.array([False, True, False]))
    for values in (dates, hidden, pa.array([BAD] * 3)):
        assert broken_rows(pa.table({"x": values})) == {}
    for values in COLUMNS.values():
        assert broken_rows(pa.table({"x": values.slice(0, 1)})).keys() <= {0}
        assert broken_rows(pa.table({"x": values})) == {1: "x"}


def test_a_broken_dictionary_value_that_no_row_has() -> None:
    assert broken_rows(pa.table({"x": pa.DictionaryArray.from_arrays([0, 0, 2], TEXT)})) == {0: "x"}
