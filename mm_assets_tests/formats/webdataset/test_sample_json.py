"""What a json of our tars states: all that exact reading needs, in a size linear in what its sample holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_assets.accounting.canonical import derive
from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.formats.webdataset import native
from mm_assets.formats.webdataset import samples as tar_samples
from mm_assets.formats.webdataset.native import SampleEncoder
from mm_assets.model.json_codec import json_field
from mm_assets.model.schema import INTERLEAVED_SCHEMA, schema_from_text, schema_to_text
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import batch_of, item, read, write
from mm_assets_tests.formats.raw_tars import make_tar, tar_members

COLUMNS = [
    pa.field("n", pa.int32()),
    pa.field("when", pa.timestamp("us")),
    json_field("tags"),
    pa.field("never", pa.decimal128(9, 2)),
    pa.field("always", pa.bool_(), nullable=False),
    pa.field("width", pa.int16()),
]
BATCH = batch_of(
    [
        item("a", n=1, always=True),
        item("a", 0, text_content="t", always=True),
        item("a", 1, "image", binary_content=b"no image", width=3, always=False),
        item("b", tags="null", always=True),
        item("b", 0, text_content="u", tags='{"k":[1]}', always=True),
        item("c", when=5, always=True),
        item("c", 0, text_content="v", always=True),
    ],
    COLUMNS,
    partition="p",
)


@pytest.fixture
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tars of any number of columns are written as those of many are."""
    monkeypatch.setattr(native, "MAX_NAMED", 0)


wide = pytest.mark.usefixtures("_wide")


def payloads(tar: Path) -> dict[str, Any]:
    return {name: json.loads(data) for name, data in tar_members(tar).items() if name.endswith(".json")}


def stated(payload: dict[str, Any]) -> list[str]:
    return schema_from_text(payload["_mm_assets"]["schema"]).names


def of_earlier_code(payload: dict[str, Any], columns: pa.Schema) -> dict[str, Any]:
    """The json with all columns of the tar, named by each entry."""
    extra = payload["_row_extra"]
    errors = [error["extra"] for error in payload["_row_errors"]]
    for entry in [extra["metadata"], *extra["text"], *extra["image"], *errors]:
        if entry is not None:
            values = {name: entry.get(name) for name in columns.names}
            entry.clear()
            entry.update(values)
    payload["_mm_assets"]["schema"] = schema_to_text(columns)
    return payload


@pytest.mark.parametrize("columns", [32, 33])
def test_entries_name_all_of_a_few_columns(tmp_path: Path, columns: int) -> None:
    """With more, an entry names what it has, and a json states the types of what its sample has."""
    names = [f"f{n}" for n in range(columns)]
    rows = [item("a", f0=1), item("b", f1=2), item("b", 0, text_content="t", f2=3)]
    write("webdataset", tmp_path, batch_of(rows, [pa.field(n, pa.int64()) for n in names], partition="p"))
    a, b = payloads(tmp_path / "p.tar").values()
    assert stated(a) == names
    assert stated(b) == (names if columns == 32 else ["f1", "f2"])
    nulls = dict.fromkeys(names) if columns == 32 else {}
    assert a["_row_extra"]["metadata"] == {**nulls, "f0": 1}
    assert b["_row_extra"] == {"text": [{**nulls, "f2": 3}], "image": [None], "metadata": {**nulls, "f1": 2}}
    assert list(a["_row_extra"]["metadata"]) == (names if columns == 32 else ["f0"])


@wide
def test_a_json_states_the_columns_that_its_sample_has_and_the_first_all(tmp_path: Path) -> None:
    (report,) = write("webdataset", tmp_path, BATCH).partitions
    found = payloads(tmp_path / "p.tar")
    assert {name: stated(payload) for name, payload in found.items()} == {
        "a.json": [column.name for column in COLUMNS],
        "b.json": ["tags", "always"],
        "c.json": ["when", "always"],
    }
    b = found["b.json"]["_row_extra"]
    assert b["metadata"].keys() == b["text"][0].keys() == {"tags", "always"}
    assert found["c.json"]["_row_extra"]["text"] == [{"always": True}]
    same(read("webdataset", tmp_path), BATCH.data)
    assert derive("webdataset", report.uri, "p").digest == report.digest


@wide
def test_tars_of_earlier_code_read_equal(tmp_path: Path) -> None:
    (report,) = write("webdataset", tmp_path / "new", BATCH).partitions
    columns = pa.schema(COLUMNS)
    members = [
        (name, of_earlier_code(json.loads(data), columns) if name.endswith(".json") else data)
        for name, data in tar_members(tmp_path / "new" / "p.tar").items()
    ]
    tar = make_tar(tmp_path / "old" / "p.tar", members)
    assert all(stated(payload) == columns.names for payload in payloads(tar).values())
    same(read("webdataset", tmp_path / "old"), BATCH.data)
    assert derive("webdataset", str(tar), "p").digest == report.digest


@wide
def test_samples_without_the_first_keep_their_types(tmp_path: Path) -> None:
    """As someone packs them who takes some samples of a tar."""
    write("webdataset", tmp_path / "all", BATCH)
    members = [(n, d) for n, d in tar_members(tmp_path / "all" / "p.tar").items() if not n.startswith("a.")]
    make_tar(tmp_path / "some" / "p.tar", members)
    kept = BATCH.data.slice(3)
    expected = kept.drop_columns(["n", "never", "width"])
    found = read("webdataset", tmp_path / "some")
    same(found.select(expected.column_names), expected)
    assert found.num_columns == expected.num_columns


def test_a_tar_without_fields_of_its_own_is_as_it_was(tmp_path: Path) -> None:
    of_json = {"content_type": "application/json"}
    text = item("a", 0, text_content="t", content_type="text/plain")
    batch = batch_of([item("a", **of_json), text, item("b", **of_json)], partition="p")
    write("webdataset", tmp_path, batch)
    empty = schema_to_text(pa.schema([]))
    rows = {"text": {}, "image": {}, "metadata": {}}
    assert {name: data.decode() for name, data in tar_members(tmp_path / "p.tar").items()} == {
        f"{name}.json": json.dumps(
            {
                "sample_id": name,
                "texts": texts,
                "images": [None] * len(texts),
                "image_members": [None] * len(texts),
                "_row_extra": {"text": [{} for _ in texts], "image": [None] * len(texts), "metadata": {}},
                "_row_errors": [],
                "_mm_assets": {"schema": empty, "refs": [], "rows": rows},
            },
            separators=(",", ":"),
        )
        for name, texts in (("a", ["t"]), ("b", []))
    }


FIELDS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(0, 9), max_size=8)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(FIELDS, st.integers(0, 6)), min_size=1, max_size=20))
def test_the_size_is_linear_in_what_a_sample_holds(samples: list[tuple[dict[str, int], int]]) -> None:
    others = {f"other{n}" for n in range(native.MAX_NAMED + 1)}
    names = sorted({name for fields, _ in samples for name in fields} | others)
    rows = []
    for number, (fields, texts) in enumerate(samples):
        rows.append(item(f"{number:02d}", **fields))
        rows += [item(f"{number:02d}", position, text_content="t") for position in range(texts)]
    table = batch_of(rows, [pa.field(name, pa.int64()) for name in names]).data
    encoder = SampleEncoder(table.schema)
    sizes = [len(sample.members[-1][1]) for sample in encoder.encode(table)]
    assert len(sizes) == len(samples)
    for size, (fields, texts) in zip(sizes[1:], samples[1:], strict=True):
        assert size <= 500 + 300 * len(fields) + 60 * texts
    assert sizes[0] <= 500 + 300 * len(names) + 60 * samples[0][1]


@pytest.mark.parametrize("documents", [20, 40])
def test_documents_with_fields_of_their_own(tmp_path: Path, documents: int) -> None:
    """Each with 30 that no other has: a tar of the last size had 471 MB for 400 of them."""
    members = [
        (f"{n}.json", {"texts": ["t"], "images": [], **{f"f{n}_{k}": k if k % 2 else "v" for k in range(30)}})
        for n in range(documents)
    ]
    raw = make_tar(tmp_path / "raw.tar", members)
    (report,) = (
        writer_for("webdataset", str(tmp_path / "out")).write(reader_for("webdataset", str(raw))).partitions
    )
    assert report.nbytes < 12_000 * documents
    same(read("webdataset", tmp_path / "out"), read("webdataset", raw))
    assert derive("webdataset", report.uri, report.partition).digest == report.digest


@wide
@pytest.mark.parametrize("columns", [9, 60])
def test_what_is_written_can_be_read_however_many_rows_and_columns_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """A reader gives a sample room in proportion to its json: nulls are named where it would refuse them."""
    for module in (native, tar_samples):
        monkeypatch.setattr(module, "MAX_ROOM", 2000)
    monkeypatch.setattr("mm_assets.formats.webdataset.rows.MAX_ROOM", 2000)
    fields = [pa.field(f"f{n}", pa.int64()) for n in range(columns)]
    rows = [item("a", **{field.name: 1 for field in fields})]
    rows += [item("a", position, text_content="t") for position in range(200)]
    batch = batch_of([*rows, item("b", f0=1), item("b", 0, text_content="t")], fields, partition="p")
    write("webdataset", tmp_path, batch)
    same(read("webdataset", tmp_path), batch.data)


@wide
def test_more_columns_than_a_json_may_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the first json states its own alone, and a column without values is no column."""
    monkeypatch.setattr("mm_assets.formats.webdataset.rows.MAX_FIELDS", 5)
    fields = [pa.field(f"f{n}", pa.int64()) for n in range(7)]
    rows = [item(str(number), **{field.name: number}) for number, field in enumerate(fields[:6])]
    batch = batch_of(rows, fields, partition="p")
    write("webdataset", tmp_path, batch)
    same(read("webdataset", tmp_path), batch.data.drop_columns(["f6"]))


def test_contradicting_declarations_are_read_as_before(tmp_path: Path) -> None:
    """Samples of several tars of ours, put into one by someone else."""
    members: list[tuple[str, Any]] = []
    for name, type_ in {"a": pa.int64(), "b": pa.int32(), "c": pa.string()}.items():
        value = "x" if name == "c" else 7
        batch = batch_of([item(name, x=value)], [pa.field("x", type_)], partition=name)
        write("webdataset", tmp_path / "in", batch)
        members += list(tar_members(tmp_path / "in" / f"{name}.tar").items())
    two = make_tar(tmp_path / "two.tar", members[:2])
    assert read("webdataset", two).column("x").to_pylist() == [7, 7]
    assert read("webdataset", two).schema.field("x").type == pa.int64()
    three = read("webdataset", make_tar(tmp_path / "three.tar", members))
    assert three.column("x").to_pylist() == ["7", "7", '"x"']
    assert set(three.column_names) == {*INTERLEAVED_SCHEMA.names, "x"}
