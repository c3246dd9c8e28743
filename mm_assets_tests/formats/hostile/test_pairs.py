"""Any table through every ordered pair of formats: equal rows for plain clients, equal digests, and items
that balance.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, note, settings

from mm_assets.formats.registry import plan_conversions, reader_for, writer_for
from mm_assets.formats.reports import PartitionReport
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model import json_codec
from mm_assets.model.digest import ContentDigest
from mm_assets_tests.formats.any_tables import same, tables
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write


def convert(kind: str, source: Path, to: str, target: Path, policy: str) -> PartitionReport:
    """One partition from format to format, in batches of one sample."""
    writer = writer_for(to, str(target), on_materialize_error=policy, materialize=False)
    (conversion,) = plan_conversions(reader_for(kind, str(source), max_batch_bytes=1), writer)
    report = conversion.run()
    conversion.writer.finish([report])
    return report


def plainly(kind: str, folder: Path, expected: pa.Table) -> pa.Table:
    """What a client that knows nothing of us finds; columns in the types ``expected``, where a client shows
    them in others.
    """
    if kind == "parquet":
        (file,) = folder.glob("*.parquet")
        found = pq.ParquetFile(file).read()
    elif kind == "arrow_cache":
        shards = sorted(folder.glob("*/shard-*.arrow"))
        found = pa.concat_tables([pa.ipc.open_file(shard.read_bytes()).read_all() for shard in shards])
    elif kind == "lance":
        import lance

        (name,) = folder.glob("*.lance")
        found = lance.dataset(str(name)).to_table()
        found = found.rename_columns([column.replace("%2E", ".") for column in found.column_names])
    else:  # the layout is for training loops or exchange: as a table our reader alone has it
        return read(kind, folder)
    for index, field in enumerate(expected.schema):
        column = found.column(index)
        if (
            column.type != field.type
            and not _has_nulls_inside(field.type)
            and not (kind == "lance" and _has_lists_of_a_size(field.type))
        ):
            found = found.set_column(
                index, found.schema.field(index).with_type(field.type), column.cast(field.type)
            )
    return found


def _has_nulls_inside(type_: pa.DataType) -> bool:
    return any(
        pa.types.is_null(type_.field(i).type) or _has_nulls_inside(type_.field(i).type)
        for i in range(type_.num_fields)
    )


def _has_lists_of_a_size(type_: pa.DataType) -> bool:
    """Lance has them as lists, and Arrow dies of the cast."""
    return pa.types.is_fixed_size_list(type_) or any(
        _has_lists_of_a_size(type_.field(i).type) for i in range(type_.num_fields)
    )


def equal_rows(found: pa.Table, expected: pa.Table) -> None:
    """Equal names, values and order; NaN is NaN, -0.0 is not 0.0."""
    assert found.column_names == expected.column_names
    assert found.num_rows == expected.num_rows
    for name in expected.column_names:
        left, right = (
            repr(json_codec.encode(table.column(name), table.schema.field(name)))
            for table in (found, expected)
        )
        assert left == right, name


def digest_of(table: pa.Table) -> str:
    digest = ContentDigest()
    digest.observe(table)
    return digest.hexdigest()


@pytest.mark.parametrize("kind", ["parquet", "lance"])
def test_a_struct_in_a_struct_reaches_lance_in_batches(tmp_path: Path, kind: str) -> None:
    """Where a slice of one, that does not begin at its first row, is a panic."""
    type_ = pa.struct([("a", pa.struct([("b", pa.int8())]))])
    rows = [item("a", 0, text_content="t"), item("a", 0, "image", binary_content=b"x"), item("b")]
    table = batch_of(rows).data.append_column("x", pa.array([{"a": {"b": n}} for n in range(3)], type_))
    write(kind, tmp_path / "source", InterleavedBatch(table, (), "part"))
    convert(kind, tmp_path / "source", "lance", tmp_path / "target", "warn")
    same(read("lance", tmp_path / "target"), table)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(table=tables())
def test_any_table_from_format_to_format(
    kind: str, tmp_path_factory: pytest.TempPathFactory, table: pa.Table
) -> None:
    """As it is; and without samples that have errors, which are told item by item."""
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as name:
        source = Path(name) / "source"
        first = write(
            kind, source, InterleavedBatch(table, (), "part"), on_materialize_error="warn", materialize=False
        ).partitions[0]
        assert first.digest == digest_of(table)
        for to in FORMATS:
            note(f"to {to}")
            all_arrives(convert(kind, source, to, Path(name) / to, "warn"), first, table)
            equal_rows(plainly(to, Path(name) / to, table), table)
            same(read(to, Path(name) / to), table)
            if pc.any(pc.is_valid(table["materialize_error"])).as_py():
                target = Path(name) / f"sound {to}"
                sound = sound_arrive(convert(kind, source, to, target, "drop_sample"), table)
                if sound.num_rows:
                    equal_rows(plainly(to, target, sound), sound)


def all_arrives(report: PartitionReport, first: PartitionReport, table: pa.Table) -> None:
    assert report.items == report.rows == table.num_rows
    assert report.losses == ()
    assert report.digest == first.digest
    assert report.lost_digest == digest_of(table.slice(0, 0))
    assert report.errors == first.errors


def sound_arrive(report: PartitionReport, table: pa.Table) -> pa.Table:
    """Return the rows of samples without errors."""
    is_bad = pc.is_in(table["sample_id"], table.filter(pc.is_valid(table["materialize_error"]))["sample_id"])
    sound, bad = table.filter(pc.invert(is_bad)), table.filter(is_bad)
    assert report.items == table.num_rows == report.rows + len(report.losses)
    assert (report.digest, report.lost_digest) == (digest_of(sound), digest_of(bad))
    names = ["sample_id", "position", "modality", "source_ref"]
    assert [(*(getattr(loss, name) for name in names), loss.is_cause) for loss in report.losses] == [
        (*(row[name] for name in names), row["materialize_error"] is not None)
        for row in bad.select([*names, "materialize_error"]).to_pylist()
    ]
    return sound
