"""Files whose Parquet dictionaries unpack to far more bytes than they have: refused, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.parquet import document_file
from mm_assets.formats.parquet.reader_writer import survey_parquet
from mm_assets.formats.partitions import Partition
from mm_assets.formats.webdataset import MAX_MEMBER_BYTES, RawLayout
from mm_assets.model.errors import ShardError
from mm_assets_tests.cli.commands import refused
from mm_assets_tests.formats.datasets import batch_of, item, read, write

ROWS = 300
VALUE = "x" * 1000
LIMIT = 64_000


def repeated(value: pa.Scalar) -> pa.Array:
    return pa.repeat(value, ROWS)


TEXT = repeated(pa.scalar(VALUE))
COLUMNS = {
    "text": TEXT,
    "bytes": repeated(pa.scalar(VALUE.encode())),
    "fixed": repeated(pa.scalar(VALUE.encode(), pa.binary(1000))),
    "list": pa.ListArray.from_arrays(list(range(ROWS + 1)), TEXT),
    "struct": pa.StructArray.from_arrays([TEXT], ["y"]),
    "dictionary": TEXT.dictionary_encode(),
}
IDS = pa.array([f"s{row:03}" for row in range(ROWS)])


def items(**columns: pa.Array) -> pa.Table:
    table = batch_of([item(sample, 0, text_content="t") for sample in IDS.to_pylist()]).data
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.append_column(name, values) if at < 0 else table.set_column(at, name, values)
    return table


def documents(**columns: pa.Array) -> pa.Table:
    return pa.table({"id": IDS, "texts": [["t"]] * ROWS, **columns})


CASES = {
    **{f"items, {name}": (items(x=values), "x") for name, values in COLUMNS.items()},
    **{f"documents, {name}": (documents(x=values), "x") for name, values in COLUMNS.items()},
    "items, text_content": (items(text_content=TEXT), "text_content"),
    "items, sample_id": (items(sample_id=TEXT), "sample_id"),
    "documents, texts": (documents(texts=COLUMNS["list"]), "texts"),
}


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_file, "unpacked_limit", lambda size: LIMIT)
    monkeypatch.setattr(document_file, "_HELD", 10_000)


def stored(folder: Path, table: pa.Table, **options: int) -> Path:
    path = folder / "f.parquet"
    pq.write_table(table, path, **options)
    return path


def is_refused(text: str, path: Path, column: str) -> bool:
    return f"{path}: " in text and f"column '{column}" in text and f"at most {LIMIT}" in text


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("group", [ROWS, 20])
@pytest.mark.parametrize("case", CASES)
def test_a_bomb_is_refused(tmp_path: Path, case: str, group: int) -> None:
    table, column = CASES[case]
    path = stored(tmp_path, table, row_group_size=group)
    for arguments in ({}, {"max_batch_bytes": 1 << 20}, {"quarantine_errors": True}):
        with pytest.raises(ShardError) as error:
            read("parquet", path, **arguments)
        assert is_refused(str(error.value), path, column)
    with pytest.raises(ShardError) as error:
        survey_parquet(
            str(path),
            RawLayout(),
            str(path),
            Partition("f", (str(path),)),
            max_member_bytes=MAX_MEMBER_BYTES,
        )
    assert is_refused(str(error.value), path, column)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("case", CASES)
def test_verify_refuses_it(tmp_path: Path, case: str) -> None:
    table, column = CASES[case]
    path = stored(tmp_path, table)
    assert is_refused(refused("verify", path, path), path, column)


# With one sample id, the items would be at one position.
@pytest.mark.parametrize("case", [case for case in CASES if case != "items, sample_id"])
def test_rows_within_the_limit_are_the_same(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = CASES[case]
    path = stored(tmp_path, table)
    expected = read("parquet", path)
    monkeypatch.setattr(document_file, "_HELD", 10_000)
    assert read("parquet", path).equals(expected)
    assert expected.num_rows == ROWS * (1 if case.startswith("items") else 2)


@pytest.mark.usefixtures("small_limits")
def test_ours_with_many_rows_are_read(tmp_path: Path) -> None:
    """Our own columns with a dictionary hold short words."""
    rows = [item(sample, 0, text_content=VALUE) for sample in IDS.to_pylist()]
    write("parquet", tmp_path / "f.parquet", [batch_of(rows)])
    assert read("parquet", tmp_path / "f.parquet").num_rows == ROWS


BOMB = """
import resource, sys
import pyarrow as pa, pyarrow.parquet as pq
from mm_assets.formats.registry import reader_for
rows, value = 4000, pa.scalar("x" * 1_000_000)
ids = [f"s{row}" for row in range(rows)]
text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value.as_py()]))
columns = {"sample_id": ids, "position": pa.array([0] * rows, pa.int32()), "modality": ["text"] * rows}
columns = columns if sys.argv[2] == "items" else {"id": ids}
pq.write_table(pa.table({**columns, "text_content": text, "texts": [["t"]] * rows}), sys.argv[1],
    store_schema=sys.argv[3] == "typed", compression="zstd",
    dictionary_pagesize_limit=1 << 30)
resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for batch in reader_for("parquet", sys.argv[1], max_batch_bytes=32 << 20):
        pass
except ValueError as error:
    print(error)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("typed", ["typed", "plain"])
@pytest.mark.parametrize("rows", ["items", "documents"])
def test_four_gigabytes_of_a_file_of_some_kilobytes(tmp_path: Path, rows: str, typed: str) -> None:
    path = tmp_path / "f.parquet"
    done = subprocess.run(
        [sys.executable, "-c", BOMB, path, rows, typed], capture_output=True, text=True, check=True
    )
    assert path.stat().st_size < 100_000
    error, kilobytes = done.stdout.splitlines()
    assert error.startswith(f"{path}: column 'text_content' unpacks to ")
    assert int(kilobytes) < 500_000
