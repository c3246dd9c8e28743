"""Raw shards through all formats and back: equal tables, and every json told again from the table."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_assets.interleaved import RESERVED_COLUMNS, InterleavedWebdatasetReader
from mm_assets_tests.formats.datasets import read
from mm_assets_tests.formats.images.tiff_tools import assert_same, read_tiff, tiff_of
from mm_assets_tests.formats.odd_samples import hostile, through_all
from mm_assets_tests.formats.raw_tars import equal, make_tar, payloads, tar_members
from mm_assets_tests.interleaved.arrow_values import json_values


def test_hostile_set_survives_all_formats_and_tells_every_json(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "raw" / "hostile.tar", hostile())
    table = read("webdataset", shard)
    last = through_all(tmp_path, table)
    truth = {n: json.loads(data) for n, data in tar_members(shard).items() if n.lower().endswith(".json")}
    told = payloads(last)
    assert told.keys() == truth.keys()
    for name in truth:
        assert equal(told[name], truth[name]), name


def test_every_image_of_the_hostile_set_is_its_own(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "hostile.tar", hostile())
    members = tar_members(shard)
    pages = read_tiff(members["deep/er/pdf.tiff"])
    seen: dict[str, int] = {}
    for row in read("webdataset", shard).to_pylist():
        if row["modality"] != "image":
            assert row["binary_content"] is None
            continue
        ref = json.loads(row["source_ref"])
        place = f"{row['sample_id']}:{row['position']}"
        if row["materialize_error"] is not None:
            assert row["sample_id"] == "e", place
            assert row["binary_content"] is None
            seen["errors"] = seen.get("errors", 0) + 1
        elif row["sample_id"] == "deep/er/pdf":
            assert ref["frame_index"] == {0: 0, 2: 1, 3: 2}[row["position"]]
            assert_same(pages[ref["frame_index"]], read_tiff(row["binary_content"])[0])
            seen["frames"] = seen.get("frames", 0) + 1
        else:
            assert row["binary_content"] == members[ref["member"]], place
            assert row["content_type"] is not None
            seen["members"] = seen.get("members", 0) + 1
    assert seen == {"errors": 6, "frames": 3, "members": 46}


def test_types_of_columns(tmp_path: Path) -> None:
    schema = read("webdataset", make_tar(tmp_path / "hostile.tar", hostile())).schema
    types = {field.name: str(field.type) + ("*" if field.metadata else "") for field in schema}
    assert types["n"] == "double"
    assert types["big"] == "int64"
    assert (
        types["huge"]
        == types["nested"]
        == types["mixed"]
        == types["_source"]
        == types["first seen"]
        == "string*"
    )
    assert types["when"] == "string"
    assert types["null"] == "null"


FIELDS = st.sampled_from(
    [
        "a",
        "b",
        "ü",
        "x.y",
        "position",
        "modality",
        "sample_id",
        "_source",
        "_row_extra",
        "_mm_assets",
        "_row_errors",
        "image_members",
        "pi",
        "pt",
        "id",
    ]
)
TOKENS = st.sampled_from([None, "0.png", "s.png", "s0.0.png", "s1.0.png", "missing.png", "", 5, "page_1"])
LISTS = (
    st.lists(json_values, max_size=4) | json_values | st.lists(st.none() | st.text(max_size=3), max_size=4)
)
SAMPLE = st.fixed_dictionaries(
    {},
    optional={"texts": LISTS, "images": st.lists(TOKENS, max_size=4) | json_values},
).flatmap(lambda fixed: st.dictionaries(FIELDS, json_values, max_size=5).map(lambda more: {**more, **fixed}))
PER_ITEM = st.none() | st.lists(st.none() | json_values, max_size=4)


def _is_own(payload: dict[str, Any]) -> bool:
    extra = payload.get("_row_extra")
    return isinstance(extra, dict) and extra.keys() <= {"text", "image", "metadata"}


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.lists(SAMPLE.filter(lambda p: not _is_own(p)), min_size=1, max_size=4),
    st.lists(st.tuples(PER_ITEM, PER_ITEM), min_size=4, max_size=4),
    st.booleans(),
)
def test_any_json_is_told_again(
    samples: list[dict[str, Any]], per_item: list[tuple[Any, Any]], spread: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        members: list[tuple[str, Any]] = []
        for number, sample in enumerate(samples):
            payload = {key: value for key, value in sample.items() if key not in ("pi", "pt")}
            if isinstance(payload.get("sample_id"), str):
                payload["sample_id"] += str(number)
            payload |= {
                key: value for key, value in zip(("pi", "pt"), per_item[number], strict=True) if value != []
            }
            members += [
                (f"s{number}.json", payload),
                (f"s{number}.0.png", b"\x89PNG\r\n\x1a\n" + bytes([number])),
            ]
        shard = make_tar(folder / "raw.tar", [*members, ("s.png", b"GIF89a")])
        options: dict[str, Any] = {"document_layout": "interleaved"}
        options |= {"per_image_fields": ["pi"], "per_text_fields": ["pt"]} if spread else {}
        table = through_all(folder, read("webdataset", shard, **options))
        names = {"per_image": ("pi",), "per_text": ("pt",)} if spread else {}
        told = payloads(table, **names)
        for member, payload in members:
            if member.endswith(".json"):
                assert equal(told[member], json.loads(json.dumps(payload))), member


def test_per_item_lists_of_every_length(tmp_path: Path) -> None:
    lists = {
        "rows": [1, 2],
        "positions": [1, None, 2],
        "nulls": [None, None],
        "null-positions": [None, None, None],
        "null": None,
        "long": [1, 2, 3, 4],
        "short": [1],
        "value-at-a-gap": [1, 2, 3],
        "empty": [],
    }
    members: list[tuple[str, Any]] = [("missing.json", {"texts": ["a", None, "b"], "images": []})]
    members += [
        (f"{name}.json", {"texts": ["a", None, "b"], "images": [], "lang": values})
        for name, values in lists.items()
    ]
    members += [
        ("no-items.json", {"texts": [], "images": [], "lang": []}),
        ("all-null.json", {"texts": [None], "images": [None], "lang": [None]}),
    ]
    shard = make_tar(tmp_path / "lists.tar", members)
    with pytest.warns(UserWarning, match="long.json: 'lang' has 4 values for 2 items"):
        from mm_assets.interleaved import InterleavedWebdatasetReader

        list(InterleavedWebdatasetReader(str(shard), per_text_fields=["lang"]))
    table = through_all(tmp_path, read("webdataset", shard, per_text_fields=["lang"]))
    told = payloads(table, per_text=["lang"])
    for name, payload in members:
        assert equal(told[name], payload), name
    spread = {(r["sample_id"], r["position"]): r["lang"] for r in table.to_pylist()}
    assert [spread["rows", n] for n in (-1, 0, 2)] == [None, "1", "2"]
    assert [spread["positions", n] for n in (-1, 0, 2)] == [None, "1", "2"]
    assert [json.loads(spread["long", -1]), spread["long", 0]] == [[1, 2, 3, 4], None]


def test_own_names_for_lists_ids_and_members(tmp_path: Path) -> None:
    payload = {
        "doc": "d/1",
        "body": ["t", None],
        "pics": [None, "page_0"],
        "pdf": "scan.tiff",
        "sample_id": "other",
        "texts": ["kept"],
    }
    shard = make_tar(
        tmp_path / "own.tar",
        [("k.meta", payload), ("k2.meta", {**payload, "doc": 7, "pdf": None}), ("scan.tiff", tiff_of(1))],
    )
    options = {
        "sample_id_field": "doc",
        "texts_field": "body",
        "images_field": "pics",
        "image_member_field": "pdf",
        "json_extensions": [".META"],
    }
    table = through_all(tmp_path, read("webdataset", shard, **options))
    assert table["sample_id"].unique().to_pylist() == ["d/1", "7"]
    told = payloads(table, texts="body", images="pics", id_field="doc")
    assert equal(told["k.meta"], payload)
    assert equal(told["k2.meta"], {**payload, "doc": 7, "pdf": None})
    first = next(row for row in table.to_pylist() if row["modality"] == "image")
    assert first["binary_content"] == tar_members(shard)["scan.tiff"]


def test_ids_that_start_anew_in_each_file_get_the_partition_in_front(tmp_path: Path) -> None:
    for name in ("a", "sub/b"):
        make_tar(
            tmp_path / f"{name}.tar",
            [("00000.json", {"texts": [name]}), ("00001.json", {"texts": [name], "sample_id": "own"})],
        )
    alone = InterleavedWebdatasetReader(str(tmp_path), sample_id_prefix="shard")
    assert [batch.data.column("sample_id").unique().to_pylist() for batch in alone] == [
        ["a/00000", "a/own"],
        ["sub/b/00000", "sub/b/own"],
    ]
    together = InterleavedWebdatasetReader(str(tmp_path), sample_id_prefix="shard", files_per_partition=2)
    (batch,) = together
    assert batch.data.column("sample_id").unique().to_pylist() == [
        "a+1/a/00000",
        "a+1/a/own",
        "a+1/sub/b/00000",
        "a+1/sub/b/own",
    ]
    with pytest.raises(ValueError, match="sample_id_prefix must be one of shard, not 'file'"):
        InterleavedWebdatasetReader(str(tmp_path), sample_id_prefix="file")


def test_a_stated_id_that_is_the_key_needs_no_bookkeeping(tmp_path: Path) -> None:
    shard = make_tar(
        tmp_path / "ids.tar", [("k.json", {"sample_id": "k", "texts": ["t"], "images": [None], "url": "u"})]
    )
    (batch,) = InterleavedWebdatasetReader(str(shard))
    assert batch.data.column_names == [*RESERVED_COLUMNS, "url"]
    assert batch.data["sample_id"].to_pylist() == ["k", "k"]
