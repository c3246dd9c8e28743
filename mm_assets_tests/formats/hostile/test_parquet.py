"""Hostile Parquet: each file is refused in one line, or read with its bad rows set aside; no more memory is
taken than it warrants.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.model.errors import ShardError
from mm_assets_tests.forks import Forks, forks
from mm_assets_tests.formats.document_parquet.reading import Reading, read_tolerantly
from mm_assets_tests.formats.parquet_of_others import IMAGE, PICTURES, documents, image, interleaved

MEMORY = 300 << 20  # of which a bomb may take nothing
_CODE = """
import pyarrow.parquet
from pathlib import Path
from mm_assets.model.errors import ShardError
from mm_assets.interleaved import InterleavedParquetReader
def peak():
    return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]) << 10
def of(file):
    root, limit = str(Path(file).parent), {'max_batch_bytes': 16 << 20}
    reader = InterleavedParquetReader(file, quarantine_errors=True, relative_to=root, **limit)
    (partition,) = reader.partitions()
    base = peak()
    try:
        stream = reader.open(partition)
        told = f'{sum(batch.num_rows for batch in stream)} rows, {len(stream.losses)} losses'
    except ShardError as error:
        told = str(error)
    return [peak() - base, told]
"""


@pytest.fixture(scope="module")
def apart() -> Iterator[Forks]:
    """Processes of their own: the memory that one takes to read a file, and what came of it."""
    with forks(_CODE) as started:
        yield started


def repeated(value: Any, type_: pa.DataType, times: int) -> pa.DictionaryArray:
    """A value any number of times, once in memory and in the file."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([value], type_))


def one_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def table_of(file: Path, columns: dict[str, pa.Array], **options: Any) -> Path:
    pq.write_table(pa.table(columns), file, **options)
    return file


def many_columns(file: Path) -> Path:
    return table_of(
        file,
        {f"c{n}": pa.array([1], pa.int8()) for n in range(110_000)},
        compression="none",
        write_statistics=False,
    )


def too_many_columns(file: Path) -> Path:
    return table_of(
        file, {"texts": pa.array([["t"]]), **{f"c{n}": pa.array([1], pa.int8()) for n in range(10_001)}}
    )


def too_many_inside(file: Path) -> Path:
    inner = pa.StructArray.from_arrays([pa.array([1], pa.int8())] * 10_001, [f"c{n}" for n in range(10_001)])
    return table_of(file, {"texts": pa.array([["t"]]), "s": inner})


def packed_zeros(file: Path) -> Path:
    return table_of(
        file, {"image": pa.array([bytes(120 << 20)]), "texts": pa.array([["t"]])}, compression="zstd"
    )


def text_again_and_again(file: Path) -> Path:
    texts = one_list(repeated("x" * (1 << 20), pa.string(), 3000))
    return table_of(file, {"texts": texts, "images": pa.nulls(1, pa.list_(IMAGE))}, store_schema=False)


def long_text_again_and_again(file: Path) -> Path:
    texts = one_list(repeated("x" * (1 << 20), pa.large_string(), 3000))
    return table_of(file, {"texts": texts, "images": pa.nulls(1, pa.list_(IMAGE))})


def image_again_and_again(file: Path) -> Path:
    contents = repeated(bytes(range(256)) * 4096, pa.binary(), 3000)
    pictures = pa.StructArray.from_arrays([contents, pa.nulls(3000, pa.string())], ["bytes", "path"])
    return table_of(file, {"images": one_list(pictures), "texts": pa.array([["t"]])}, store_schema=False)


def numbers(data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.int8(), len(data), [None, pa.py_buffer(data)])


def zeros(file: Path) -> Path:
    return table_of(file, {"texts": pa.array([["t"]]), "zeros": one_list(numbers(bytes(20_000_000)))})


BOMBS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "columns without end": (
        many_columns,
        "f.parquet: not a readable Parquet file: its footer lists more than 100000 columns",
    ),
    "too many columns": (too_many_columns, "f.parquet: 10002 columns, at most 10000"),
    "too many columns inside one": (
        too_many_inside,
        "f.parquet: 10002 columns, those inside others included, at most 10000",
    ),
    "packed zeros": (packed_zeros, "f.parquet: it unpacks to 12"),
    "zeros of a column": (zeros, "f.parquet: it unpacks to "),
    "one text again and again": (text_again_and_again, "f.parquet: row 0, column 'texts.list.element': 31"),
    "one large text again and again": (
        long_text_again_and_again,
        "f.parquet: row 0, column 'texts.list.element': 31",
    ),
    "one image again and again": (
        image_again_and_again,
        "f.parquet: row 0, column 'images.list.element.bytes': 31",
    ),
}


@pytest.mark.parametrize(("make", "words"), BOMBS.values(), ids=BOMBS)
def test_a_small_file_takes_little_memory(
    tmp_path: Path, apart: Forks, make: Callable[[Path], Path], words: str
) -> None:
    file = make(tmp_path / "f.parquet")
    grown, told = apart.call(str(file))
    assert told.startswith(words) and "\n" not in told
    assert grown < MEMORY, grown >> 20


GOOD = interleaved([["a"], ["b"], ["c"]], [[image(0)], [image(1)], [image(2)]])


def with_row(file: Path, **columns: pa.Array) -> Path:
    """Good rows around a bad one, in columns of this type."""
    good = pa.table({name: pa.array(values, type_) for name, (type_, values) in GOOD.items()})
    bad = pa.table({"texts": pa.array([["x"]]), "images": pa.nulls(1, pa.list_(IMAGE)), **columns})
    pq.write_table(pa.concat_tables([good.slice(0, 1), bad, good.slice(1)], promote_options="default"), file)
    return file


def neighbours_are_whole(reading: Reading) -> None:
    assert reading.ids == ["f/0", "f/2", "f/3"]
    for row, sample_id in enumerate(reading.ids):
        assert reading.items(sample_id) == [(0, "text", "abc"[row], None), (0, "image", PICTURES[row], None)]


def test_a_list_beyond_any_tar_costs_its_row(tmp_path: Path) -> None:
    reading = read_tolerantly(
        with_row(tmp_path / "f.parquet", texts=pa.array([[None] * 1_000_001], pa.list_(pa.string())))
    )
    neighbours_are_whole(reading)
    (loss,) = reading.losses
    assert (loss.kind, loss.reason) == (
        "bad_layout",
        "f.parquet: row 1: column 'texts' has 1000001 entries, at most 1000000",
    )


def test_items_that_are_many_times_many_columns_cost_their_row(tmp_path: Path) -> None:
    extras = {f"c{n}": pa.array([n], pa.int64()) for n in range(3000)}
    file = with_row(tmp_path / "f.parquet", texts=pa.array([["x"] * 2000]), **extras)
    reading = read_tolerantly(file, max_batch_bytes=8 << 20)
    neighbours_are_whole(reading)
    (loss,) = reading.losses
    assert (
        loss.kind == "bad_layout"
        and "row 1: its 2001 items take 96048000 bytes with all columns" in loss.reason
    )


class _Touch:
    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    """Types of others came pickled once."""
    told = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(_Touch(tmp_path / "pwned")),
    }
    schema = pa.schema([pa.field("texts", pa.list_(pa.string())), pa.field("n", pa.int8(), metadata=told)])
    pq.write_table(
        pa.table({"texts": [["t"]], "n": pa.array([1], pa.int8())}, schema=schema), tmp_path / "f.parquet"
    )
    assert read_tolerantly(tmp_path / "f.parquet").metadata("n") == [(1,)]
    assert not (tmp_path / "pwned").exists()


def test_names_are_no_paths(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(PICTURES[0])
    names = [str(secret), f"file://{secret}", "secret.png", "http://127.0.0.1:9/x.png", "row 0", "f.parquet"]
    reading = read_tolerantly(
        documents(
            tmp_path / "f.parquet", interleaved([None], [[{"bytes": None, "path": name} for name in names]])
        )
    )
    assert [row["binary_content"] for row in reading.rows] == [None] * 7
    assert all(
        error is not None and error.startswith("dangling reference ") for *_, error in reading.items("f/0")
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no items": (
        {"a": (pa.int8(), [1])},
        "not interleaved data: it has columns a: int8; expected a row an item",
    ),
    "no columns": ({}, "not interleaved data: it has columns (none); expected"),
    "lists of numbers": (
        {"texts": (pa.list_(pa.int8()), [[1]])},
        "column 'texts' is of a kind that is not read, list<element: int8>: texts are lists of strings",
    ),
    "images that are none": (
        {**GOOD, "images": (pa.list_(pa.float32()), [[1.0]] * 3)},
        "column 'images' is of a kind that is not read, list<element: float>: images are lists of",
    ),
    "structs without content": (
        {"images": (pa.list_(pa.struct([("sha", pa.string())])), [[None]])},
        "column 'images' is of a kind that is not read, list<element: struct<sha",
    ),
    "a text alone": ({"text": (pa.string(), ["t"])}, "not interleaved data: it has columns text: string"),
    "columns without end": (
        {f"c{n}": (pa.int8(), [1]) for n in range(30)},
        "c19: int8 and 10 more columns; expected",
    ),
}


@pytest.mark.parametrize(("columns", "words"), REFUSED.values(), ids=REFUSED)
def test_files_of_another_layout(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    file = documents(tmp_path / "f.parquet", columns)
    with pytest.raises(ShardError) as caught:
        read_tolerantly(file)
    assert str(caught.value).startswith(("f.parquet: not interleaved data", "f.parquet: column "))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_and_fields_of_one_name(tmp_path: Path) -> None:
    twice = pa.table([pa.array([["t"]]), pa.array([1]), pa.array([2])], names=["texts", "n", "n"])
    pq.write_table(twice, tmp_path / "f.parquet")
    with pytest.raises(ShardError) as refusal:
        read_tolerantly(tmp_path / "f.parquet")
    assert str(refusal.value) == "f.parquet: column 'n' occurs twice"


def small(folder: Path) -> list[Path]:
    """A file of each kind, whose footer is short."""
    items = [
        {"sample_id": i, "position": p, "modality": m}
        for i, p, m in (("a", -1, "metadata"), ("a", 0, "text"), ("b", 0, "image"))
    ]
    pq.write_table(pa.Table.from_pylist(items), folder / "items.parquet")
    return [documents(folder / "documents.parquet", GOOD), folder / "items.parquet"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("number", [0, 1], ids=["documents", "items"])
def test_a_damaged_file_is_read_or_refused_and_never_raises_anything_else(
    tmp_path: Path, number: int
) -> None:
    """Cut anywhere, with a bit flipped in every other byte of the footer, and anywhere else.

    `read_tolerantly` asserts that all is accounted for. Some of these footers end a process that asks pyarrow
    what they say of a column.
    """
    file = small(tmp_path)[number]
    data = file.read_bytes()
    pick = random.Random(7)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    damaged = [data[: len(data) * part // 20] for part in range(20)]
    for at in [*range(footer, len(data), 2), *(pick.randrange(footer) for _ in range(50))]:
        damaged.append(data[:at] + bytes([data[at] ^ (1 << pick.randrange(8))]) + data[at + 1 :])
    refused = 0
    for content in damaged:
        file.write_bytes(content)
        try:
            read_tolerantly(file)
        except ShardError as error:
            refused += 1
            assert str(error).startswith(f"{file.name}: ")
    assert refused >= 100


@pytest.mark.parametrize("number", [0, 1], ids=["documents", "items"])
def test_a_footer_that_counts_other_rows_is_refused(tmp_path: Path, number: int) -> None:
    """Else the rows beyond would be missed by nobody."""
    file = small(tmp_path)[number]
    data = file.read_bytes()
    rows = pq.read_metadata(file).num_rows
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    counts = [at for at in range(footer, len(data)) if data[at] == 2 * rows]  # zigzag, as Thrift writes it
    refused = []
    for at in counts:
        file.write_bytes(data[:at] + bytes([2 * rows + 2]) + data[at + 1 :])
        try:
            read_tolerantly(file)
        except ShardError as error:
            refused.append(str(error))
    assert any(f"its row groups have {rows} rows, and it {rows + 1}" in text for text in refused)
    assert any(f"its row groups have {rows + 1} rows, and it {rows}" in text for text in refused)
