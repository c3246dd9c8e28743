"""Digests made straight from the jsons of a tar are those of the tables that the tar holds."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from mm_assets.accounting.canonical import CanonicalSource, Derived, DigestTally, derive
from mm_assets.accounting.canonical.tar import derive_tar
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import json_field
from mm_assets.model.schema import schema_to_text
from mm_assets_tests.accounting.mutations import PNG, rewrite, write_tar
from mm_assets_tests.formats.any_tables import tables
from mm_assets_tests.formats.datasets import item, table_of
from mm_assets_tests.formats.raw_tars import make_tar

EXTRAS = [
    pa.field("n", pa.int64()),
    pa.field("f", pa.float64()),
    pa.field("b", pa.bool_()),
    pa.field("s", pa.string()),
    json_field("j"),
    pa.field("nothing", pa.null()),
    pa.field("zz", pa.string()),
]
ROWS = [
    item(
        "a",
        n=-(2**63),
        f=1e300,
        b=True,
        s="ä\0",
        j='{"k":[1,null]}',
        content_type="application/json",
        source_ref='{"path":"x"}',
    ),
    item("a", 0, text_content="ü", content_type="text/plain", f=float("nan"), b=False),
    item("a", 0, "image", binary_content=PNG, content_type="image/png", n=2**63 - 1, f=-0.0, zz=""),
    item("a", 2, "image", binary_content=b"no image", content_type="image/odd", materialize_error="broken"),
    item("b.c/d", 1, "image", materialize_error="gone", j="null"),
    item("b.c/d", 2, text_content="", binary_content=b"both", j='{ "a":1}'),
    item("c", j='{"__arrow__":1}', s="\U0001f600"),
]


def from_tables(tar: Path) -> Derived:
    tally = DigestTally()
    for table in CanonicalSource("webdataset", str(tar)).tables():
        tally.observe(table)
    return tally.derived()


def test_plain_values_need_no_tables(tmp_path: Path) -> None:
    tar = write_tar(tmp_path, table_of(ROWS, EXTRAS))
    found = derive_tar(str(tar))
    assert found is not None
    assert (found.rows, found.samples, found.images, found.texts) == (7, 3, 3, 2)
    assert found == from_tables(tar) == derive("webdataset", str(tar))
    assert found.schema.equals(pa.schema([*table_of(ROWS, EXTRAS).schema]), check_metadata=True)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(table=tables())
def test_any_table(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tar = write_tar(folder, table)
        if table.num_rows:
            assert derive_tar(str(tar)) in (None, from_tables(tar))


@pytest.mark.parametrize(
    "field",
    [pa.field("x", pa.int32()), pa.field("x", pa.timestamp("s")), pa.field("x", pa.list_(pa.int64()))],
    ids=str,
)
def test_other_types_are_left_to_tables(field: pa.Field, tmp_path: Path) -> None:
    tar = write_tar(tmp_path, table_of([item("a", x=[7] if pa.types.is_list(field.type) else 7)], [field]))
    assert derive_tar(str(tar)) is None
    assert derive("webdataset", str(tar)) == from_tables(tar)


def test_tars_of_others_are_left_to_tables(tmp_path: Path) -> None:
    assert (
        derive_tar(str(make_tar(tmp_path / "r.tar", [("k.json", {"texts": ["t"], "images": [None]})])))
        is None
    )
    assert derive_tar(str(make_tar(tmp_path / "empty.tar", []))) is None


def members(tar: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    rewrite(tar, lambda name, data: [found.__setitem__(name, data) or (name, data)])
    return found


def replaced(tar: Path, old: str, new: str) -> None:
    done: list[int] = []

    def change(name: str, data: bytes) -> list[tuple[str, bytes]]:
        done.append(data.count(old.encode()))
        return [(name, data.replace(old.encode(), new.encode()))]

    rewrite(tar, change)
    assert sum(done)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"n":9223372036854775807', '"n":9223372036854775808'),
        ('"n":9223372036854775807', '"n":1.0'),
        ('"n":9223372036854775807', '"n":true'),
        ('"b":false', '"b":0'),
        ('"f":-0.0', '"f":0'),
        ('"nothing":null', '"nothing":1'),
        ('"nothing":null', '"nothing":null,"added":null'),
        ('"nothing":null', '"nothing":null,"added":[1]'),
        ('"materialize_error":"gone"', '"materialize_error":["gone"]'),
    ],
)
def test_values_that_are_not_as_stated_are_left_to_tables(old: str, new: str, tmp_path: Path) -> None:
    tar = write_tar(tmp_path, table_of(ROWS, EXTRAS))
    before = derive_tar(str(tar))
    replaced(tar, old, new)
    assert derive_tar(str(tar)) is None
    outcomes: list[Any] = []
    for find in (lambda: derive("webdataset", str(tar)), lambda: from_tables(tar)):
        try:
            outcomes.append(find())
        except ShardError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1] != before


def test_samples_are_runs_of_one_id(tmp_path: Path) -> None:
    tar = write_tar(tmp_path, table_of(ROWS, EXTRAS))
    replaced(tar, '"sample_id":"c"', '"sample_id":"b.c/d"')
    found = derive_tar(str(tar))
    assert found is not None
    assert found == from_tables(tar)
    assert found.samples == 2


def test_stated_columns_that_are_reserved_ones(tmp_path: Path) -> None:
    tar = write_tar(tmp_path, table_of([item("a", n=1)], [pa.field("n", pa.int64())]))
    stated = json.loads(members(tar)["a.json"])["_mm_assets"]["schema"]
    replaced(
        tar, stated, schema_to_text(pa.schema([pa.field("position", pa.int64()), pa.field("n", pa.int64())]))
    )
    with pytest.raises(ShardError, match="'position' occurs twice"):
        derive("webdataset", str(tar))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"zz":""', '"zz":"\\ud800"', "surrogates not allowed"),
        ('"zz":""', '"zz":"","position":5', "'position' occurs twice"),
    ],
)
def test_values_that_no_table_has(old: str, new: str, message: str, tmp_path: Path) -> None:
    tar = write_tar(tmp_path, table_of(ROWS, EXTRAS))
    replaced(tar, old, new)
    with pytest.raises(ShardError, match=f"part.tar: .*{message}"):
        derive("webdataset", str(tar))
