"""Parquet with a row a document: which columns are texts and images, and what becomes of each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_assets.formats.webdataset import SampleError
from mm_assets.interleaved import InterleavedParquetReader, materialize
from mm_assets.model.errors import ShardError, fault_of
from mm_assets.model.samples import parse_source_ref
from mm_assets_tests.formats.datasets import read
from mm_assets_tests.formats.document_parquet.reading import Reading, read_tolerantly
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.odd_samples import through_all
from mm_assets_tests.formats.parquet_of_others import IMAGE, PICTURES, documents, image, interleaved

P0, P1 = PICTURES[:2]
TEXTS = (pa.list_(pa.string()), [["t"]])


def found(
    folder: Path,
    columns: dict[str, Any],
    name: str = "f.parquet",
    writing: dict[str, Any] | None = None,
    **options: Any,
) -> Reading:
    return read_tolerantly(documents(folder / name, columns, **(writing or {})), **options)


def test_positions_are_indices_and_nulls_are_gaps(tmp_path: Path) -> None:
    texts = [["a", None, "b", None], [], None, ["", None]]
    images = [[None, image(0), image(1), None], [image(1)], None, [None]]
    reading = found(tmp_path, interleaved(texts, images))
    assert reading.items("f/0") == [
        (0, "text", "a", None),
        (1, "image", P0, None),
        (2, "text", "b", None),
        (2, "image", P1, None),
    ]
    assert reading.items("f/1") == [(0, "image", P1, None)]
    assert reading.items("f/2") == []
    assert reading.items("f/3") == [(0, "text", "", None)]
    assert reading.metadata("_source") == [
        ({"lengths": {"texts": 4, "images": 4}},),
        ({"lengths": {"texts": 0}},),
        ({"lengths": {"texts": None, "images": None}},),
        ({"lengths": {"texts": 2}},),
    ]
    assert reading.survey.members == 4


COLUMNS_OF_IMAGES: dict[str, tuple[str, pa.DataType, Any]] = {
    "structs": ("images", pa.list_(IMAGE), [{"bytes": P0, "path": None}]),
    "large lists": (
        "images",
        pa.large_list(pa.struct([("path", pa.large_string()), ("bytes", pa.large_binary())])),
        [{"bytes": P0}],
    ),
    "structs and names that are all null": (
        "images",
        pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.null())])),
        [{"bytes": P0, "path": None}],
    ),
    "one struct and a null name": (
        "image",
        pa.struct([("bytes", pa.binary()), ("path", pa.null())]),
        {"bytes": P0, "path": None},
    ),
    "structs of bytes": ("images", pa.list_(pa.struct([("bytes", pa.binary())])), [{"bytes": P0}]),
    "bytes": ("images", pa.list_(pa.binary()), [P0]),
    "large bytes": ("images", pa.list_(pa.large_binary()), [P0]),
    "one struct": ("image", IMAGE, {"bytes": P0, "path": None}),
    "one value": ("image", pa.binary(), P0),
    "one value called images": ("images", pa.large_binary(), P0),
}


@pytest.mark.parametrize(("name", "type_", "value"), COLUMNS_OF_IMAGES.values(), ids=COLUMNS_OF_IMAGES)
def test_columns_that_are_images(tmp_path: Path, name: str, type_: pa.DataType, value: Any) -> None:
    none: Any = [None] if pa.types.is_list(type_) or pa.types.is_large_list(type_) else None
    reading = found(
        tmp_path, {name: (type_, [value, none, value]), "texts": (pa.list_(pa.string()), [["t"], [None], []])}
    )
    assert [reading.items(f"f/{row}") for row in range(3)] == [
        [(0, "text", "t", None), (0, "image", P0, None)], [], [(0, "image", P0, None)],
    ]  # fmt: skip
    assert [row["content_type"] for row in reading.rows if row["modality"] == "image"] == [
        "image/png",
        "image/png",
    ]
    place = f"{name}[0]" if none else name
    assert [json.loads(row["source_ref"]) for row in reading.rows if row["modality"] == "image"] == [
        {"path": "f.parquet", "member": f"row {row}, {place}", "byte_offset": None, "byte_size": None}
        for row in (0, 2)
    ]


COLUMNS_OF_TEXTS: dict[str, tuple[pa.DataType, Any]] = {
    "strings": (pa.list_(pa.string()), ["t", None, "u"]),
    "large": (pa.large_list(pa.large_string()), ["t", None, "u"]),
    "structs": (pa.list_(pa.struct([("text", pa.string())])), [{"text": "t"}, {"text": None}, {"text": "u"}]),
    "structs and nulls": (
        pa.list_(pa.struct([("text", pa.large_string())])),
        [{"text": "t"}, None, {"text": "u"}],
    ),
    "dictionaries": (pa.list_(pa.dictionary(pa.int8(), pa.string())), ["t", None, "u"]),
}


@pytest.mark.parametrize(("type_", "value"), COLUMNS_OF_TEXTS.values(), ids=COLUMNS_OF_TEXTS)
def test_columns_that_are_texts(tmp_path: Path, type_: pa.DataType, value: Any) -> None:
    reading = found(
        tmp_path, {"texts": (type_, [value, None]), "images": (pa.list_(pa.null()), [[None], None])}
    )
    assert reading.items("f/0") == [(0, "text", "t", None), (2, "text", "u", None)]
    assert reading.items("f/1") == []


def test_texts_that_are_all_null(tmp_path: Path) -> None:
    """`pa.Table.from_pylist` makes such structs."""
    columns = {"texts": (pa.list_(pa.struct([("text", pa.null())])), [[{"text": None}]])}
    reading = found(tmp_path, {**columns, "images": (pa.list_(IMAGE), [[image(0)]])})
    assert reading.items("f/0") == [(0, "image", P0, None)]


def test_one_text_a_row_where_it_is_named(tmp_path: Path) -> None:
    columns = {"caption": (pa.string(), ["t", None]), "image": (IMAGE, [image(0), image(1)])}
    reading = found(tmp_path, columns, texts_field="caption")
    assert reading.items("f/0") == [(0, "text", "t", None), (1, "image", P0, None)]
    assert reading.items("f/1") == [(1, "image", P1, None)], "as a pair in a tar whose text is missing"
    for name in ("text", "caption"):  # as datasets of captions have it, found by looking
        captions = {name: columns["caption"], "image": columns["image"], "other": (pa.string(), ["o", "p"])}
        reading = found(tmp_path, captions)
        assert reading.items("f/0") == [(0, "text", "t", None), (1, "image", P0, None)]
        assert reading.metadata("other") == [("o",), ("p",)]
    lists = {"images": (pa.list_(IMAGE), [[image(0)], [image(1)]]), "caption": columns["caption"]}
    assert found(tmp_path, lists).metadata("caption") == [("t",), (None,)], (
        "a column like any other beside lists"
    )


def test_images_that_are_not_read_as_such_are_told(tmp_path: Path) -> None:
    columns = {"texts": (pa.list_(pa.string()), [["t"]]), "image_list": (pa.list_(IMAGE), [[image(0)]])}
    with pytest.warns(
        UserWarning,
        match="f.parquet: column 'image_list' looks like images, and is passed through as a field",
    ):
        reading = found(tmp_path, columns)
    assert reading.items("f/0") == [(0, "text", "t", None)]
    columns["images"] = (pa.list_(IMAGE), [[image(1)]])
    with pytest.warns(UserWarning, match="'image_list' looks like images.*MM_IMAGES_FIELD names the column"):
        reading = found(tmp_path, columns)
    assert [item[1] for item in reading.items("f/0")] == ["text", "image"]


def test_names_of_fields(tmp_path: Path) -> None:
    columns = {
        "text_list": (pa.list_(pa.string()), [["t"]]),
        "image_list": (pa.list_(IMAGE), [[image(0)]]),
        "images": (pa.int8(), [3]),
    }
    reading = found(tmp_path, columns, texts_field="text_list", images_field="image_list")
    assert reading.items("f/0") == [(0, "text", "t", None), (0, "image", P0, None)]
    assert reading.metadata("images") == [(3,)]
    with pytest.raises(ShardError, match="column 'image_list' cannot be both the texts and the images"):
        found(tmp_path, columns, texts_field="image_list", images_field="image_list")


NOT_FETCHED = "a name without bytes, and names are not fetched"
URL = "a URL, and nothing is fetched: download the images first, see docs/raw_shards.md"
NAMES = pa.struct([("path", pa.string())])
NO_BYTES = pa.struct([("bytes", pa.null()), ("path", pa.string())])


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (IMAGE, {"bytes": None, "path": "x.png"}, f"dangling reference 'x.png': {NOT_FETCHED}"),
        (IMAGE, {"bytes": None, "path": None}, "dangling reference: neither bytes nor a name"),
        (pa.string(), "https://x/y.jpg", f"dangling reference 'https://x/y.jpg': {URL}"),
        (NAMES, {"path": "/etc/passwd"}, f"dangling reference '/etc/passwd': {NOT_FETCHED}"),
        (NO_BYTES, {"path": "p"}, f"dangling reference 'p': {NOT_FETCHED}"),
    ],
)
def test_an_item_without_bytes_is_an_error_row(
    tmp_path: Path, type_: pa.DataType, value: Any, message: str
) -> None:
    (tmp_path / "x.png").write_bytes(P0)
    reading = found(tmp_path, {"images": (pa.list_(type_), [[value]]), "texts": TEXTS})
    assert reading.items("f/0") == [(0, "text", "t", None), (0, "image", None, message)]
    assert fault_of(message) == "dangling_reference"
    name = value if isinstance(value, str) else value["path"]
    if name is not None:
        assert json.loads(reading.rows[2]["_source"]) == {"token": name}
    # Whether a struct has bytes is known once they are read.
    assert reading.survey.unresolved == (() if type_ == IMAGE else (("f/0", 0, message),))


def test_all_else_is_kept(tmp_path: Path) -> None:
    """Other columns typed on the metadata row; names of images, other fields of items and columns of taken
    names in ``_source``.
    """
    picture_type = pa.struct(
        [("path", pa.string()), ("bytes", pa.binary()), ("alt", pa.string()), ("size", pa.list_(pa.int32()))]
    )
    text_type = pa.struct([("text", pa.string()), ("lang", pa.string())])
    columns = {
        "images": (
            pa.list_(picture_type),
            [[{"path": "a.png", "bytes": P0, "alt": "x", "size": [1, 2]}, {"bytes": P1}]],
        ),
        "texts": (pa.list_(text_type), [[{"text": "t", "lang": "en"}, {"lang": "fr"}]]),
        "when": (pa.timestamp("us", "UTC"), [1_600_000_000_000_000]),
        "tags": (pa.list_(pa.struct([("a", pa.int8())])), [[{"a": 1}, None]]),
        "small": (pa.int8(), [5]),
        "blob": (pa.binary(), [b"\0\xff"]),
        "kind": (pa.dictionary(pa.int8(), pa.string()), ["k"]),
        "position": (pa.int64(), [7]),
        "_source": (pa.string(), ["theirs"]),
    }
    reading = found(tmp_path, columns)
    schema = reading.table.schema
    types = {name: str(schema.field(name).type) for name in ("when", "small", "blob", "kind")}
    assert types == {"when": "timestamp[us, tz=UTC]", "small": "int8", "blob": "binary", "kind": "string"}
    ((tags, small, blob, kind, said),) = reading.metadata("tags", "small", "blob", "kind", "_source")
    assert (tags, small, blob, kind, said) == (
        [{"a": 1}, None],
        5,
        b"\0\xff",
        "k",
        {"fields": {"position": 7, "_source": "theirs"}},
    )
    rows = {(row["position"], row["modality"]): row for row in reading.rows}
    assert json.loads(rows[0, "image"]["_source"]) == {
        "token": "a.png",
        "fields": {"alt": "x", "size": [1, 2]},
    }
    assert rows[1, "image"]["_source"] is None
    assert json.loads(rows[0, "text"]["_source"]) == {"fields": {"lang": "en"}}
    assert (rows[1, "text"]["text_content"], json.loads(rows[1, "text"]["_source"])) == (
        None,
        {"fields": {"lang": "fr"}},
    )


def test_documents_go_through_all_formats_unchanged(tmp_path: Path) -> None:
    texts = [["a", None, "b"], ["ü\n", "x"], None, [None]]
    images = [[None, image(0, "a.png"), None], [image(1), None], [], None]
    more = {
        "n": (pa.int64(), [1, None, 2**60, -1]),
        "score": (pa.float32(), [0.5, None, 1.5, float("nan")]),
        "tags": (pa.list_(pa.string()), [["x"], [], None, [None]]),
        "exif": (
            pa.struct([("make", pa.string()), ("iso", pa.int16())]),
            [{"make": "m", "iso": 100}, None, {"iso": 2}, None],
        ),
        "when": (pa.timestamp("ms"), [1, 2, None, 4]),
        "source_ref": (pa.string(), ["theirs", None, None, None]),
    }
    documents(tmp_path / "f.parquet", interleaved(texts, images, **more), row_group_size=2)
    table = read("parquet", tmp_path / "f.parquet")
    through_all(tmp_path, table)


def test_ids(tmp_path: Path) -> None:
    """A text column sample_id, else the partition and the row; another column where it is asked for, of any
    type.
    """
    texts = [["a"], ["b"], ["c"]]
    ids = {"sample_id": (pa.string(), ["x", None, "z"]), "uid": (pa.int64(), [5, 6, None])}
    file = documents(tmp_path / "raw" / "sub" / "f.parquet", interleaved(texts, [None] * 3, **ids))
    (partition,) = InterleavedParquetReader(str(tmp_path / "raw")).partitions()
    assert partition.name == "sub/f"
    for options, expected in (
        ({}, ["x", "sub/f/1", "z"]),
        ({"sample_id_prefix": "shard"}, ["sub/f/x", "sub/f/1", "sub/f/z"]),
    ):
        assert read("parquet", tmp_path / "raw", **options)["sample_id"].unique().to_pylist() == expected
    by_field = read_tolerantly(file, sample_id_field="uid")
    assert (by_field.ids, [(loss.sample_id, loss.kind) for loss in by_field.losses]) == (
        ["5", "6"],
        [("f/2", "bad_sample_id"), ("f/2", "incomplete_sample")],
    )
    assert by_field.metadata("_source") == [
        ({"fields": {"sample_id": "x", "uid": 5}, "lengths": {"images": None}},),
        ({"fields": {"uid": 6}, "lengths": {"images": None}},),
    ]
    with pytest.raises(SampleError, match=r"f\.parquet: row 2: column 'uid' \(sample_id_field\) is null"):
        read("parquet", file, sample_id_field="uid")
    with pytest.raises(
        ShardError, match=r"f\.parquet: it has no column 'nope' \(sample_id_field\), but columns texts: list"
    ):
        read("parquet", file, sample_id_field="nope")


def test_rows_without_ids_are_told_apart_over_all_files(tmp_path: Path) -> None:
    for name in ("a/x", "b/x", "c"):
        documents(tmp_path / f"{name}.parquet", interleaved([["t"], ["u"]], [None, None]))
    for options in ({}, {"files_per_partition": 3}, {"files_per_partition": 3, "sample_id_prefix": "shard"}):
        ids = [
            i
            for b in InterleavedParquetReader(str(tmp_path), **options)
            for i in b.data["sample_id"].unique().to_pylist()
        ]
        assert len(set(ids)) == len(ids) == 6, options


def test_a_repeated_id_is_set_aside_with_all_its_items(tmp_path: Path) -> None:
    columns = interleaved(
        [["a"], ["b", "c"], ["d"]],
        [[image(0)], [None, image(1)], None],
        sample_id=(pa.string(), ["x", "x", "y"]),
    )
    reading = found(tmp_path, columns)
    assert reading.ids == ["x", "y"]
    assert [(loss.position, loss.modality, loss.is_cause) for loss in reading.losses] == [
        (-1, "metadata", True), (0, "text", False), (1, "text", False), (1, "image", False),
    ]  # fmt: skip
    assert {loss.reason for loss in reading.losses} == {
        "sample id 'x' occurs twice in this shard, first in member 'row 0'"
    }
    assert [json.loads(loss.source_ref or "")["member"] for loss in reading.losses] == [
        "row 1", "row 1, texts[0]", "row 1, texts[1]", "row 1, images[1]",
    ]  # fmt: skip
    taken = found(tmp_path, columns, taken_ids=["y"])
    assert taken.ids == ["x"] and len(taken.losses) == 6


NOT_UTF8 = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())


def test_text_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    good = pa.array(["good"])
    listed = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), pa.concat_arrays([good, NOT_UTF8, good])
    )
    plain = pa.concat_arrays([good, good, NOT_UTF8])
    table = pa.table({"texts": listed, "images": pa.nulls(3, pa.list_(IMAGE)), "url": plain})
    pq.write_table(table, tmp_path / "f.parquet")
    reading = read_tolerantly(tmp_path / "f.parquet")
    assert reading.ids == ["f/0"]
    texts = "f.parquet: row 1: column 'texts': not UTF-8"
    url = "f.parquet: row 2: column 'url': not UTF-8"
    assert [(loss.sample_id, loss.position, loss.kind, loss.reason) for loss in reading.losses] == [
        ("f/1", -1, "not_utf8", texts),
        ("f/1", 0, "not_utf8", texts),
        ("f/2", -1, "not_utf8", url),
        ("f/2", 0, "incomplete_sample", f"its sample has an error: {url}"),
    ]
    with pytest.raises(SampleError, match=r"f\.parquet: row 1: column 'texts': not UTF-8"):
        read("parquet", tmp_path / "f.parquet")


def test_items_of_a_row_that_is_not_utf8_are_all_listed(tmp_path: Path) -> None:
    captions = pa.concat_arrays([pa.array(["good"]), NOT_UTF8])
    table = pa.table({"image": pa.array([image(0), image(1)], IMAGE), "caption": captions})
    pq.write_table(table, tmp_path / "f.parquet")
    reading = read_tolerantly(tmp_path / "f.parquet")
    assert reading.items("f/0") == [(0, "text", "good", None), (1, "image", P0, None)]
    listed = [(loss.position, loss.modality, loss.kind, loss.is_cause) for loss in reading.losses]
    assert listed == [
        (-1, "metadata", "not_utf8", True),
        (0, "text", "not_utf8", False),
        (1, "image", "incomplete_sample", False),
    ]
    assert [parse_source_ref(loss.source_ref)["member"] for loss in reading.losses] == [
        "row 1",
        "row 1, caption",
        "row 1, image",
    ]


def test_an_image_beyond_the_limit_is_an_error_row(tmp_path: Path) -> None:
    images = [[{"bytes": P0 + bytes(5000), "path": None}, image(1)], [image(2)]]
    reading = found(tmp_path, interleaved([None, None], images), max_member_bytes=5000)
    assert reading.items("f/0") == [
        (0, "image", None, f"oversized member 'images[0]': {len(P0) + 5000} bytes, at most 5000"),
        (1, "image", P1, None),
    ]
    assert reading.items("f/1") == [(0, "image", PICTURES[2], None)]


def test_a_survey_reads_no_bytes_of_images(tmp_path: Path) -> None:
    """They may be damaged: all else is told as it is."""
    file = documents(
        tmp_path / "f.parquet",
        interleaved([["t"], ["u"]], [[image(0, "a")], [None, image(1, "b")]]),
        use_dictionary=False,
    )
    before = read_tolerantly(file)
    data = bytearray(file.read_bytes())
    column = pq.read_metadata(file).row_group(0).column(1)
    assert column.path_in_schema == "images.list.element.bytes"
    data[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = (
        b"\xff" * column.total_compressed_size
    )
    file.write_bytes(data)
    reader = InterleavedParquetReader(str(file), quarantine_errors=True, relative_to=str(tmp_path))
    (partition,) = reader.partitions()
    schema, tables = reader.project(partition, ["sample_id", "position", "modality", "text_content"])
    places = [
        tuple(row[name] for name in ("sample_id", "position", "modality", "text_content"))
        for t in tables
        for row in t.to_pylist()
    ]
    assert places == [
        tuple(row[name] for name in ("sample_id", "position", "modality", "text_content"))
        for row in before.rows
    ]
    assert schema == before.table.schema
    with pytest.raises(ShardError, match=r"f\.parquet: damaged Parquet data: "):
        list(reader.open(partition))


def test_no_locator_of_a_row_is_ever_followed(tmp_path: Path) -> None:
    """A file that looks like an image, and is named as if its rows were in it."""
    reading = found(tmp_path, interleaved([["t"]], [[image(0)]]))
    row = reading.table.schema.get_field_index("binary_content")
    stripped = reading.table.set_column(row, reading.table.schema.field(row), pa.nulls(3, pa.large_binary()))
    ref = {"path": "f.parquet", "member": "row 0, images[0]", "byte_offset": 0, "byte_size": 100}
    tampered = stripped.set_column(6, "source_ref", pa.array([None, None, json.dumps(ref)]))
    (tmp_path / "f.parquet").write_bytes(P0)
    for table in (stripped, tampered):
        for options in ({"roots": [str(tmp_path)]}, {"roots": [f"file://{tmp_path}"]}):
            fetched = materialize(table, **options)
            assert fetched["binary_content"].null_count == 3
            (error,) = [text for text in fetched["materialize_error"].to_pylist() if text is not None]
            assert (
                error == "f.parquet: row 0, images[0]: what is in a row of a Parquet file has no place in "
                "bytes: read the file again"
            )


def test_batches_are_bounded_and_hold_whole_documents(tmp_path: Path) -> None:
    images = [[{"bytes": picture(row % 8)[1] + bytes(20_000), "path": None}] * 3 for row in range(30)]
    file = documents(tmp_path / "f.parquet", interleaved([["t"]] * 30, images), row_group_size=8)
    limit = 200_000
    batches = list(InterleavedParquetReader(str(file), max_batch_bytes=limit))
    assert all(batch.nbytes <= limit for batch in batches) and len(batches) > 5
    assert [n for b in batches for n in b.data["sample_id"].unique().to_pylist()] == [
        f"f/{row}" for row in range(30)
    ]
    whole = pa.concat_tables([batch.data for batch in batches])
    assert whole["binary_content"].drop_null().to_pylist() == [one["bytes"] for row in images for one in row]


def test_a_document_of_many_items_is_cut_from_its_neighbours(tmp_path: Path) -> None:
    """Every item has every column: a few kilobytes of text must not become hundreds of megabytes at once."""
    columns = {f"c{n}": (pa.int64(), [n] * 4) for n in range(200)}
    file = documents(
        tmp_path / "f.parquet", interleaved([["t"], ["t"] * 2000, ["t"], ["t"] * 2000], [None] * 4, **columns)
    )
    batches = list(InterleavedParquetReader(str(file), max_batch_bytes=8 << 20))
    assert [batch.num_samples for batch in batches] == [1, 1, 1, 1] or all(
        batch.nbytes <= 8 << 20 for batch in batches
    )
    assert sum(batch.num_rows for batch in batches) == 4006


def test_columns_with_dots_are_not_parts_of_others(tmp_path: Path) -> None:
    more = {
        "images.list.element.path": (pa.string(), ["flat"]),
        "a": (pa.struct([("b", pa.int8())]), [{"b": 1}]),
        "a.b": (pa.int8(), [2]),
    }
    columns = interleaved([["t"]], [[image(0)]], **more)
    reading = found(tmp_path, columns)
    assert reading.metadata("images.list.element.path", "a", "a.b") == [("flat", {"b": 1}, 2)]
    assert reading.items("f/0") == [(0, "text", "t", None), (0, "image", P0, None)]


def test_fields_and_types_can_be_chosen(tmp_path: Path) -> None:
    file = documents(
        tmp_path / "f.parquet", interleaved([["t"]], [[image(0)]], n=(pa.int8(), [1]), m=(pa.string(), ["x"]))
    )
    assert read("parquet", file, fields=["n"]).column_names[8:] == ["n"]
    assert read("parquet", file, schema_overrides={"n": pa.int64()}).schema.field("n").type == pa.int64()
    with pytest.raises(
        ValueError, match=r"f\.parquet: read_kwargs: filters are for files with a row an item"
    ):
        read("parquet", file, read_kwargs={"filters": [("n", "=", 1)]})


def test_remote_files(tmp_path: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    file = documents(tmp_path / "f.parquet", interleaved([["t"]], [[image(0, "a.png")]]))
    MemoryFileSystem().pipe({"/bucket/f.parquet": file.read_bytes()})
    remote = read("parquet", "memory://bucket/f.parquet", relative_to="memory://bucket")
    assert remote.equals(read("parquet", file, relative_to=str(tmp_path)))
    MemoryFileSystem().rm("/bucket", recursive=True)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


PICTURE = maybe(
    st.fixed_dictionaries({"bytes": maybe(st.binary(max_size=30)), "path": maybe(st.text(max_size=3))})
)
ROW = st.fixed_dictionaries(
    {
        "texts": maybe(st.lists(maybe(st.text(max_size=5)), max_size=5)),
        "images": maybe(st.lists(PICTURE, max_size=5)),
        "sample_id": maybe(st.sampled_from(["a", "b", "ü"])),
        "n": maybe(st.integers(-(2**63), 2**63 - 1)),
    }
)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(ROW, max_size=12), group=st.integers(1, 5), limit=st.sampled_from([None, 1, 2000]))
def test_any_documents_are_told_item_by_item(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], group: int, limit: int | None
) -> None:
    file = tmp_path_factory.mktemp("any") / "f.parquet"
    schema = pa.schema(
        [
            ("texts", pa.list_(pa.string())),
            ("images", pa.list_(IMAGE)),
            ("sample_id", pa.string()),
            ("n", pa.int64()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, row_group_size=group)
    reading = read_tolerantly(file, max_batch_bytes=limit)
    expected: list[tuple[Any, ...]] = []
    seen: set[str] = set()
    for number, row in enumerate(rows):
        sample_id = f"f/{number}" if row["sample_id"] is None else row["sample_id"]
        if sample_id in seen:
            continue
        seen.add(sample_id)
        expected.append((sample_id, -1, "metadata", row["n"], None))
        texts, images = row["texts"] or [], row["images"] or []
        for position in range(max(len(texts), len(images))):
            if position < len(texts) and texts[position] is not None:
                expected.append((sample_id, position, "text", None, texts[position]))
            if position < len(images) and images[position] is not None:
                expected.append((sample_id, position, "image", None, images[position]["bytes"]))
    told = [
        (
            r["sample_id"],
            r["position"],
            r["modality"],
            r["n"],
            r["text_content"] if r["modality"] == "text" else r["binary_content"],
        )
        for r in reading.rows
    ]
    assert told == expected
    bare = [place[:3] for place in expected if place[2] == "image" and place[4] is None]
    assert [
        (r["sample_id"], r["position"], r["modality"])
        for r in reading.rows
        if r["materialize_error"] is not None
    ] == bare
