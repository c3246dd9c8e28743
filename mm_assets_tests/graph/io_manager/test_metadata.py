"""Plain values of workers become the metadata that Dagster shows."""

import dagster as dg
import pytest

from mm_assets.graph.planned_jobs import metadata_values


def test_every_kind_of_plain_value() -> None:
    schema = dg.TableSchema([dg.TableColumn("sample_id", "string"), dg.TableColumn("position", "int32")])
    assert metadata_values(
        {
            "rows": 2**40,
            "share": 0.5,
            "ok": True,
            "text": "x",
            "strip": {"md": "![](data:)"},
            "counts": {"json": {"a": [1]}},
            "list": {"json": [1, 2]},
            "where": {"path": "/out/a"},
            "page": {"url": "https://example.org"},
            "dagster/column_schema": {"table_schema": [["sample_id", "string"], ("position", "int32")]},
        }
    ) == {
        "rows": dg.MetadataValue.int(2**40),
        "share": dg.MetadataValue.float(0.5),
        "ok": dg.MetadataValue.bool(True),
        "text": dg.MetadataValue.text("x"),
        "strip": dg.MetadataValue.md("![](data:)"),
        "counts": dg.MetadataValue.json({"a": [1]}),
        "list": dg.MetadataValue.json([1, 2]),
        "where": dg.MetadataValue.path("/out/a"),
        "page": dg.MetadataValue.url("https://example.org"),
        "dagster/column_schema": dg.MetadataValue.table_schema(schema),
    }


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, {"md": 5}, {"md": "x", "json": 1}, object(), b"x"])
def test_other_values_are_refused_by_name(value: object) -> None:
    with pytest.raises(ValueError, match="metadata 'strange' has a value no rule covers"):
        metadata_values({"strange": value})
