"""Documents that code gives: each item and value, bad ones, and how much memory they take."""

from __future__ import annotations

import datetime
import gc
import io
import os
import pickle
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from mm_assets import Document, ShardError, documents
from mm_assets.cli import main
from mm_assets.formats.names import FORMATS
from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.model.digest import ContentDigest


def png(color: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (color, 0, 0)).save(file, "PNG")
    return file.getvalue()


def table_of(given: Any, **options: Any) -> pa.Table:
    return pa.concat_tables([batch.data for batch in documents(given, **options)])


def image_of(item: Any) -> bytes:
    (data,) = table_of([("a", [item])]).column("binary_content").to_pylist()[1:]
    return data


def test_each_item_is_a_row_at_its_position(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(7))
    items = ["one", png(1), None, tmp_path / "x.png", Image.new("L", (2, 2), 9), "", None]
    rows = table_of([Document("d/1", items, {"url": "u", "sample_id": "other"})]).to_pylist()
    assert [(row["position"], row["modality"], row["text_content"]) for row in rows] == [
        (-1, "metadata", None),
        (0, "text", "one"),
        (1, "image", None),
        (3, "image", None),
        (4, "image", None),
        (5, "text", ""),
    ]
    assert [row["binary_content"] for row in rows[2:4]] == [png(1), png(7)]
    with Image.open(io.BytesIO(rows[4]["binary_content"])) as picture:
        assert (picture.format, picture.mode, picture.tobytes()) == ("PNG", "L", b"\x09" * 4)
    assert {row["sample_id"] for row in rows} == {"d/1"}
    assert rows[0]["url"] == "u"
    # What the columns cannot say comes back: a reserved name, and the gap at the end.
    assert rows[0]["_source"] == '{"fields":{"sample_id":"other"},"lengths":{"texts":7,"images":7}}'
    assert [row["content_type"] for row in rows] == [
        "application/json",
        "text/plain",
        *["image/png"] * 3,
        "text/plain",
    ]
    assert {row["source_ref"] for row in rows} == {None}
    reader = documents([("a", ["x", png()])])
    (partition,) = reader.partitions()
    for table in reader.project(partition, ["source_ref"])[1]:  # nothing names the spool
        assert table.column("source_ref").null_count == 3


def test_tuples_and_mappings_are_documents() -> None:
    given = [("a", ["x"]), ("b", ("y",), {"n": 1}), {"id": "c", "items": ["z"], "metadata": {"n": 2}}]
    found = table_of([*given, Document("d", ["w"])]).to_pylist()
    assert [(row["sample_id"], row["text_content"], row["n"]) for row in found if row["position"] <= 0] == [
        *[("a", None, None), ("a", "x", None), ("b", None, 1), ("b", "y", None)],
        *[("c", None, 2), ("c", "z", None), ("d", None, None), ("d", "w", None)],
    ]


VALUES: list[tuple[list[Any], pa.DataType, list[Any]]] = [
    ([1, None], pa.int64(), [1, None]),
    ([1, 2.5], pa.float64(), [1.0, 2.5]),
    ([True, False], pa.bool_(), [True, False]),
    ([2**53 + 1, 0.5], pa.string(), ["9007199254740993", "0.5"]),
    ([2**70, 1], pa.string(), ["1180591620717411303424", "1"]),
    ([[1, "a"], {"k": [None]}], pa.string(), ['[1,"a"]', '{"k":[null]}']),
    ([(1, 2), []], pa.string(), ["[1,2]", "[]"]),
    ([datetime.date(2024, 2, 29), None], pa.date32(), [datetime.date(2024, 2, 29), None]),
    ([datetime.datetime(1, 1, 1, 2)] * 2, pa.timestamp("us"), [datetime.datetime(1, 1, 1, 2)] * 2),
    ([Decimal("1.50"), Decimal("-2.25")], pa.decimal128(3, 2), [Decimal("1.50"), Decimal("-2.25")]),
    ([b"\x00\xff", b""], pa.binary(), [b"\x00\xff", b""]),
    ([pa.scalar(3, pa.int8()), pa.scalar(None, pa.int8())], pa.int8(), [3, None]),
    ([np.float32(0.1), np.float32(2)], pa.float32(), [np.float32(0.1).item(), 2.0]),
    ([np.arange(2), np.arange(0)], pa.list_(pa.int64()), [[0, 1], []]),
    ([datetime.date(2024, 2, 29), "text"], pa.string(), ['"2024-02-29"', '"text"']),
]


@pytest.mark.parametrize(("values", "kind", "expected"), VALUES)
def test_values_keep_their_type(values: list[Any], kind: pa.DataType, expected: list[Any]) -> None:
    table = table_of([(str(number), ["x"], {"v": value}) for number, value in enumerate(values)])
    assert table.schema.field("v").type == kind
    found = [row["v"] for row in table.to_pylist() if row["modality"] == "metadata"]
    assert found == expected
    with_typed_other = [
        (str(number), ["x", None], {"v": value, "day": datetime.date(2000, 1, 1)})
        for number, value in enumerate(values)
    ]
    again = table_of(with_typed_other)
    assert again.column("v").combine_chunks() == table.column("v").combine_chunks()
    assert again.column("_source").to_pylist()[0] == '{"lengths":{"texts":2,"images":2}}'


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_holds_them(kind: str, tmp_path: Path) -> None:
    given = [
        (f"d{number}", ["text", png(number), None], {"n": number, "day": datetime.date(2000, 1, 1 + number)})
        for number in range(5)
    ]
    reader = documents(given)
    report = writer_for(kind, str(tmp_path / "out")).write(reader)
    assert (report.samples, report.images, report.texts) == (5, 5, 5)
    assert report.partitions[0].source_files == ()
    digests = []
    for source in (reader, reader_for(kind, str(tmp_path / "out"))):
        digest = ContentDigest()
        for batch in source:
            digest.observe(batch.data)
        digests.append(digest.hexdigest())
    assert digests[0] == digests[1]


def test_round_trip_through_two_formats(tmp_path: Path) -> None:
    given = (
        (f"d{n}", [f"text {n}", png(n % 9), None, "end"], {"n": n, "tags": ["a", n]}) for n in range(300)
    )
    writer_for("parquet", str(tmp_path / "parquet")).write(documents(given, blocksize="200KB"))
    assert len(list((tmp_path / "parquet").glob("*.parquet"))) > 2
    assert main(["convert", f"{tmp_path}/parquet", f"{tmp_path}/tars", "--to", "webdataset"]) == 0
    assert main(["verify", f"{tmp_path}/parquet", f"{tmp_path}/tars"]) == 0


# Pictures.


@pytest.mark.parametrize("is_loaded", [False, True])
def test_an_unchanged_picture_is_its_file(tmp_path: Path, is_loaded: bool) -> None:
    path = tmp_path / "x.jpg"
    Image.effect_noise((20, 20), 50).convert("RGB").save(path, quality=60)
    by_path, in_memory = Image.open(path), Image.open(io.BytesIO(path.read_bytes()))
    if is_loaded:
        by_path.load()
    assert image_of(by_path) == path.read_bytes()
    assert image_of(in_memory) == path.read_bytes()


def test_a_changed_picture_is_a_new_file_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    Image.new("RGB", (8, 8), (9, 9, 9)).save(path)
    picture = Image.open(path)
    picture.putpixel((0, 0), (255, 0, 0))
    with Image.open(io.BytesIO(image_of(picture))) as found:
        assert found.format == "PNG"
        assert found.tobytes() == picture.tobytes()
    rewritten = Image.open(path)
    rewritten.load()
    Image.new("RGB", (8, 8)).save(path)  # the file has changed, not the picture
    with Image.open(io.BytesIO(image_of(rewritten))) as found:
        assert found.tobytes() == rewritten.tobytes()


MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK", "YCbCr", "LAB", "RGBX")


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_comes_back(mode: str) -> None:
    noise = Image.effect_noise((9, 7), 80)
    if mode in ("I", "F"):
        picture = noise.convert(mode).point(lambda value: value * 1000 + 0.5)
    elif mode == "LAB":
        picture = Image.frombytes(mode, (9, 7), os.urandom(9 * 7 * 3))
    elif mode == "I;16":
        picture = Image.frombytes(mode, (9, 7), os.urandom(9 * 7 * 2))
    else:
        picture = noise.convert("RGB").convert(mode)
    data = image_of(picture)
    assert image_of(picture.copy()) == data
    with Image.open(io.BytesIO(data)) as found:
        assert found.convert(mode).tobytes() == picture.tobytes()


# Bad documents.

BAD = [
    (("x", ["t", 3]), "document 'x': item 1: of type int", "x", "bad_layout"),
    (("x", [np.zeros((2, 2, 3), np.uint8)]), "document 'x': item 0: of type ndarray", "x", "bad_layout"),
    (("x", "text"), "document 'x': items must be a list, not str", "x", "bad_layout"),
    (("x", None), "document 'x': items must be a list, not NoneType", "x", "bad_layout"),
    (("x", ["t"], ["m"]), "document 'x': metadata must be a mapping, not list", "x", "bad_layout"),
    (("x", ["t"], {1: 2}), "document 'x': a name in metadata is no text: 1", "x", "bad_layout"),
    (("x", ["t"], {"o": object()}), "document 'x': metadata 'o': ", "x", "bad_layout"),
    (("x", ["t"], {"o": {1: 2}}), "document 'x': metadata 'o': ", "x", "bad_layout"),
    (
        (7, ["t"]),
        "document 2: its id is no text, or empty: 7: write str(7)",
        "refused document 2",
        "bad_sample_id",
    ),
    (
        {"items": ["t"]},
        "document 2: its id is no text, or empty: None",
        "refused document 2",
        "bad_sample_id",
    ),
    (("", ["t"]), "document 2: its id is no text, or empty: ''", "refused document 2", "bad_sample_id"),
    (("\ud800", ["t"]), "document 2: its id has lone surrogates", "refused document 2", "lone_surrogate"),
    (("good", ["t"]), "document 'good': its id is that of an earlier one", "good", "duplicate_id"),
    (("x", ["\udc00"]), "document 'x': a text of it has lone surrogates", "x", "lone_surrogate"),
    (
        {"id": "x", "item": []},
        "document 2: no field of a document: 'item'",
        "refused document 2",
        "bad_layout",
    ),
    ("text", "document 2: a str: a document is", "refused document 2", "bad_layout"),
    (("x",), "document 2: a tuple: a document is", "refused document 2", "bad_layout"),
    (None, "document 2: a NoneType: a document is", "refused document 2", "bad_layout"),
    (("x", [Image.new("HSV", (2, 2))]), "document 'x': item 0: a picture of mode HSV", "x", None),
    (("x", [Path("absent.png")]), "document 'x': item 0: absent.png: no such file", "x", None),
    (("x", [Path(__file__).parent]), "document 'x': item 0: ", "x", None),
    ([7], "document 2: a list: a document is", "refused document 2", "bad_layout"),
    (
        ([object()], ["t"]),
        "document 2: its id is no text, or empty: a value of type list",
        "refused document 2",
        "bad_sample_id",
    ),
    (
        {"items": [], object(): 1},
        "document 2: no field of a document: a value of type object; ",
        "refused document 2",
        "bad_layout",
    ),
    (
        ("x", ["t"], {object(): 2}),
        "document 'x': a name in metadata is no text: a value of",
        "x",
        "bad_layout",
    ),
    (
        ("x", ["t"], {"o": [object()]}),
        "document 'x': metadata 'o': Could not convert <object object> with",
        "x",
        "bad_layout",
    ),
]


@pytest.mark.parametrize(("bad", "line", "sample_id", "kind"), BAD)
def test_a_bad_document(bad: Any, line: str, sample_id: str, kind: str | None) -> None:
    given = [("good", ["first"]), bad, ("last", ["third"])]
    with pytest.raises(ShardError) as raised:
        list(documents(given))
    assert str(raised.value).startswith(line), raised.value
    reader = documents(given, quarantine_errors=True)
    (stream,) = map(reader.open, reader.partitions())
    rows = [row for batch in stream for row in batch.data.to_pylist()]
    texts = [row["text_content"] for row in rows if row["modality"] == "text"]
    assert texts == ["first", "third"]
    assert stream.items == len(rows) + len(stream.losses)
    if kind is None:  # one image cannot be had: an error row, for the policy
        (row,) = [row for row in rows if row["materialize_error"] is not None]
        assert (row["sample_id"], row["position"], row["modality"]) == (sample_id, 0, "image")
        assert row["materialize_error"].startswith("unreadable image: ")
        assert not stream.losses
        return
    (loss,) = stream.losses
    assert (loss.sample_id, loss.kind, loss.source_ref) == (sample_id, kind, None)
    assert loss.reason == str(raised.value)


def test_the_id_of_a_document_without_one_is_of_no_other_before_it() -> None:
    given: list[Any] = [("document 2", ["real"]), None, ("refused document 4", ["too"]), None]
    reader = documents(given, quarantine_errors=True)
    (stream,) = map(reader.open, reader.partitions())
    real = {row["sample_id"] for batch in stream for row in batch.data.to_pylist()}
    assert real == {"document 2", "refused document 4"}
    assert [loss.sample_id for loss in stream.losses] == ["refused document 2", "refused refused document 4"]


def test_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ShardError, match="^document 'x': it is nested too deeply"):
        list(documents([("x", ["t"], {"deep": deep})]))
    while deep:  # freed level by level: the interpreter would do it in one go
        deep = deep.pop()


def test_too_many_fields_name_the_document() -> None:
    given = [("x", ["t"], {f"f{number}": number for number in range(10_001)})]
    with pytest.raises(ShardError, match="^document 'x': 10001 fields of metadata, at most 10000"):
        list(documents(given))


def test_an_error_of_the_users_code_is_never_a_shorter_dataset() -> None:
    def failing() -> Iterator[Any]:
        yield "a", ["x"]
        raise RuntimeError("the database is gone")

    reader = documents(failing())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the database is gone"):
            list(reader)


@pytest.mark.parametrize("given", ["text", {"id": "a", "items": []}, 7])
def test_what_is_no_iterable_of_documents(given: Any) -> None:
    with pytest.raises(TypeError, match="takes an iterable of documents"):
        documents(given)


# Streams.


def test_nothing_is_asked_for_before_it_is_read() -> None:
    asked: list[int] = []

    def given() -> Iterator[Any]:
        asked.append(1)
        yield "a", ["x"]

    reader = documents(given())
    assert not asked
    assert [len(list(reader)) for _ in range(2)] == [1, 1]
    assert asked == [1]
    assert list(documents([])) == []


def test_a_stream_is_never_held_in_memory() -> None:
    """20 MB of documents: what Python and Arrow hold at the peak is a few batches, and the ids' digests."""
    payload = "x" * 4000

    def given() -> Iterator[Any]:
        for number in range(5_000):
            yield f"document {number}", [payload, png(number % 7)], {"n": number}

    reader = documents(given(), blocksize="4MB", max_batch_bytes=512 << 10)
    tracemalloc.start()
    partitions = reader.partitions()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(partitions) > 4
    assert peak < 3 << 20  # 5,000 digests of ids, and the buffers of one document
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for batch in reader:
        most = max(most, pa.total_allocated_bytes() - before)
        rows += batch.num_rows
    assert rows == 15_000
    assert most < 6 << 20


def test_the_spool_goes_with_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reader = documents([("a", ["x"])])
    (partition,) = reader.partitions()
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301
    assert [batch.data.to_pylist() for batch in copy] == [batch.data.to_pylist() for batch in reader]
    del copy
    gc.collect()
    assert os.path.exists(partition.files[0])
    del reader
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_importing_it_loads_no_pillow() -> None:
    code = "import sys; from mm_assets import documents; list(documents([('a', ['x'])])); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "PIL" not in done.stdout.split()
