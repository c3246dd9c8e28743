"""Whatever types a json declares, and whatever values it has: the sample comes out exactly in every format,
or is set aside.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from mm_assets.accounting.contract import SchemaContract
from mm_assets.accounting.survey import ShardSurvey, is_same_type, merge_files, passthrough
from mm_assets.formats.registry import FORMATS, plan_conversions, writer_for
from mm_assets.formats.webdataset.rows import MISFITS
from mm_assets.formats.webdataset.samples import survey_tar
from mm_assets.interleaved import InterleavedBatch, InterleavedWebdatasetReader
from mm_assets.model import json_codec
from mm_assets.model.json_codec import JSON_ENCODING, is_json
from mm_assets_tests.formats.any_tables import same, tables
from mm_assets_tests.formats.datasets import read, write
from mm_assets_tests.formats.hostile.cases_layout import own
from mm_assets_tests.formats.hostile.outcomes import neighbour
from mm_assets_tests.formats.hostile.shards import Entry, document, tar
from mm_assets_tests.interleaved.arrow_values import arrow_types, json_values, values_of

TYPES = arrow_types | st.sampled_from(
    [
        pa.struct([]),
        pa.list_(pa.int8(), 0),
        pa.binary(0),
        pa.decimal128(5, -2),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int8(), pa.int64()),
        pa.list_(pa.dictionary(pa.int8(), pa.int64())),
        pa.string_view(),
        pa.uuid(),
        pa.json_(),
        pa.fixed_shape_tensor(pa.int8(), [2]),
        pa.struct([pa.field("a", pa.int8())] * 2),
        pa.float16(),
        pa.timestamp("s"),
        pa.struct([pa.field("f0", pa.int8(), nullable=False)]),
        pa.list_(pa.field("item", pa.timestamp("s"), nullable=False)),
    ]
)
METADATA = st.sampled_from(
    [None, None, None, JSON_ENCODING, {b"lance-encoding:blob": b"true"}, {b"k": b"\xff"}, {b"k": b"v"}]
)
NAN = float("nan")
STRANGE = json_values | st.sampled_from(
    [
        {"__arrow__": 2**62},
        {"__arrow__": "{}"},
        "1e-999999999",
        "2020-01-01",
        "YQ==",
        [["k", 1]],
        [None] * 3,
        {"f0": None},
        5.5,
        NAN,
    ]
)
THOROUGH = settings(suppress_health_check=list(HealthCheck))


@st.composite
def declared(draw: Any, key: str) -> Entry:
    """A sample with columns of any types, and values of these types or any others."""
    fields, extras = [], {}
    for name in draw(st.lists(st.sampled_from(["x", "y", "_source", "a.b", "é"]), max_size=3, unique=True)):
        type_ = draw(TYPES)
        is_nullable = pa.types.is_null(type_) or draw(st.integers(0, 9)) > 0
        fields.append(pa.field(name, type_, is_nullable, draw(METADATA)))
        extras[name] = draw(STRANGE if draw(st.booleans()) else _fitting(fields[-1]))
    alone = {"texts": [None], "_row_extra": {"text": [None], "image": [None], "metadata": extras}}
    return own(fields, extras, key, **(alone if draw(st.booleans()) else {}))


def _fitting(field: pa.Field) -> st.SearchStrategy[Any]:
    def as_json(value: Any) -> Any:
        try:
            return json_codec.encode(pa.array([value], field.type), field)[0]
        except MISFITS:
            return None

    try:
        return values_of(field.type).map(as_json)
    except MISFITS:  # no strategy for such a type
        return st.none()


def surveyed(shard: Path, reader: InterleavedWebdatasetReader) -> ShardSurvey:
    tar_survey = survey_tar(str(shard), reader.layout, shard.name, max_member_bytes=reader.max_member_bytes)
    return merge_files([(shard.name, tar_survey)], "v", "layout")


@pytest.mark.filterwarnings("ignore::UserWarning")
@THOROUGH
@given(entries=st.tuples(declared("a"), declared("b"), st.booleans()))
def test_anything_declared(
    tmp_path_factory: pytest.TempPathFactory, entries: tuple[Entry, Entry, bool]
) -> None:
    first, second, has_raw = entries
    raw = [document("raw", x=2**53 + 1, y="t")] if has_raw else []
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        shard = Path(folder, "shard.tar")
        shard.write_bytes(tar([*neighbour("before"), first, *raw, second]))
        reader = InterleavedWebdatasetReader(
            str(shard), quarantine_errors=True, relative_to=folder, max_batch_bytes=1
        )
        survey = surveyed(shard, reader)
        contract = SchemaContract.derive({"shard": survey.columns}, {}).admit("shard", survey.columns).fields
        for kind in FORMATS:
            note(f"to {kind}")
            writer = writer_for(kind, str(Path(folder, kind)), on_materialize_error="warn", roots=[folder])
            (conversion,) = plan_conversions(reader, writer)
            report = conversion.run()
            conversion.writer.finish([report])

            lost = {loss.sample_id for loss in report.losses}
            assert {loss.kind for loss in report.losses} <= {"bad_layout"}
            assert lost <= {"a", "b"}
            assert report.items == report.rows + len(report.losses)
            ids = ["before", "a", *(["raw"] if has_raw else []), "b"]
            assert survey.sample_ids.to_pylist() == [name for name in ids if name not in lost]
            found = passthrough(report.schema)
            assert contract.names == [field.name for field in found]
            assert all(
                is_same_type(one, other) and one.nullable is other.nullable
                for one, other in zip(contract, found, strict=True)
            )
            assert read(kind, Path(folder, kind)).num_rows == report.rows


@THOROUGH
@given(table=tables())
def test_what_our_writer_wrote_is_never_set_aside(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(
            "webdataset",
            folder,
            InterleavedBatch(table, (), "part"),
            on_materialize_error="warn",
            materialize=False,
        )
        same(read("webdataset", folder, quarantine_errors=True), table)


@pytest.mark.parametrize("is_everywhere", [True, False])
def test_a_declared_column_that_some_samples_lack_can_be_null(tmp_path: Path, is_everywhere: bool) -> None:
    field = pa.field("n", pa.int64(), nullable=False)
    extra = {"text": [None], "image": [None], "metadata": {"n": 2**53 + 1}}
    shard = tmp_path / "shard.tar"
    shard.write_bytes(
        tar([own([field], texts=[None], _row_extra=extra), *([] if is_everywhere else [document("raw")])])
    )
    reader = InterleavedWebdatasetReader(str(shard), quarantine_errors=True)
    columns = surveyed(shard, reader).columns
    assert (
        columns.required_types()["n"].field
        == field.with_nullable(not is_everywhere)
        == reader.open(reader.partitions()[0]).schema.field("n")
    )
    assert not columns.required_types()["n"].is_exact
    assert not is_json(columns.required_types()["n"].field)
