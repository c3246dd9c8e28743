"""Statistics of tars, and the index files and the card that follow from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.formats.webdataset.client_files import (
    TarPartitionStats,
    declares,
    energon_dataset,
    energon_info,
    energon_split,
    front_matter,
    hf_type,
    parse_pairs,
    parse_wids_index,
    readme,
    union_columns,
    wids_index,
)
from mm_assets_tests.formats.webdataset.card_features import features, parsed

A = TarPartitionStats(
    "a.tar", 3, 9000, {"jpg": [0, 1, 2, 7], "png": [3]}, {"score": "float64", "tag": "null"}
)
B = TarPartitionStats("b.tar", 2, 7000, {"webp": [0]}, {"tag": "list:string", "score": "string"})

HOSTILE_COLUMNS = [
    *[
        "yes",
        "null",
        "1",
        "1.5",
        "~",
        "",
        " ",
        "a: b",
        "# no",
        "-",
        "- x",
        "?",
        "&id001",
        "*id001",
        "!!str",
        "{a}",
        "[b",
        "%TAG",
    ],
    *[
        "'",
        '"',
        'q"\\',
        "\\n",
        "new\nline",
        "\r",
        "\t",
        "\0",
        "\x7f",
        "\x85",
        "\u2028",
        "\ufeff",
        "é",
        "漢",
        "😀",
        "---",
        "\n---\n",
    ],
    *[
        "name",
        "dtype",
        "list",
        "struct",
        "0.jpg",
        "=",
        "<<",
        "|",
        ">",
        "`",
        "@",
        "2020-01-01",
        "0x10",
        "}, {",
        "x" * 300,
    ],
]


# Statistics


def test_stats_come_back_from_json() -> None:
    assert TarPartitionStats.from_json(A.to_json()) == A
    assert list(TarPartitionStats.from_json(B.to_json()).columns) == ["tag", "score"]
    assert json.loads(A.to_json())["pairs"] == {"jpg": "0-2,7", "png": "3"}
    assert A.pairs == parse_pairs(["7.jpg", "3.png", "0.jpg", "2.jpg", "1.jpg", "1.jpg"])


@given(
    st.dictionaries(
        st.sampled_from(["jpg", "png", "tiff"]), st.sets(st.integers(0, 60), min_size=1).map(sorted)
    )
)
def test_any_pairs_come_back(pairs: dict[str, list[int]]) -> None:
    stats = TarPartitionStats("x.tar", 1, 1, pairs, dict.fromkeys(HOSTILE_COLUMNS, "json"))
    assert TarPartitionStats.from_json(stats.to_json()) == stats
    assert {ext: list(positions) for ext, positions in stats.pairs.items()} == pairs


@pytest.mark.parametrize(
    "bad",
    [
        lambda: TarPartitionStats("../a.tar", 1, 1),
        lambda: TarPartitionStats(".a.tar", 1, 1),
        lambda: TarPartitionStats("a.txt", 1, 1),
        lambda: TarPartitionStats("a.tar", -1, 1),
        lambda: TarPartitionStats("a.tar", 1, 1, {"jpg": [2, 1]}),
        lambda: TarPartitionStats("a.tar", 1, 1, {"jpg": [-1]}),
        lambda: TarPartitionStats("a.tar", 1, 1, {"j.g": [1]}),
        lambda: TarPartitionStats("a.tar", 1, 1, {}, {"c": "int32"}),
        lambda: TarPartitionStats("a.tar", 1, 1, {}, {"c": "list:json"}),
        lambda: TarPartitionStats.from_json("[]"),
        lambda: TarPartitionStats.from_json('{"file": "a.tar"}'),
        lambda: TarPartitionStats.from_json("{"),
        lambda: parse_pairs(["01.jpg"]),
        lambda: parse_pairs(["json"]),
        lambda: parse_pairs(["1.JPG"]),
    ],
)
def test_impossible_stats_are_refused(bad: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        bad()


TYPES: list[tuple[pa.DataType, str]] = [
    *[
        (t, "int64")
        for t in (pa.int8(), pa.int64(), pa.uint32(), pa.duration("s"), pa.time32("s"), pa.time64("us"))
    ],
    *[(t, "float64") for t in (pa.float16(), pa.float32(), pa.float64())],
    *[
        (t, "string")
        for t in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())
    ],
    *[
        (t, "string")
        for t in (pa.binary(4), pa.timestamp("us", "UTC"), pa.date32(), pa.date64(), pa.decimal128(9, 2))
    ],
    *[
        (t, "json")
        for t in (pa.uint64(), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8()), pa.json_())
    ],
    (pa.bool_(), "bool"),
    (pa.null(), "null"),
    (pa.dictionary(pa.int8(), pa.string()), "string"),
    (pa.list_(pa.float32()), "list:float64"),
    (pa.large_list(pa.list_(pa.bool_(), 3)), "list:list:bool"),
    (pa.list_(pa.null()), "list:null"),
    (pa.list_(pa.struct([("a", pa.int8())])), "json"),
    (pa.list_(pa.field("item", pa.string(), metadata={b"mm_assets:encoding": b"json"})), "json"),
]


@pytest.mark.parametrize(("type_", "feature"), TYPES, ids=lambda t: str(t))
def test_features_of_arrow_types(type_: pa.DataType, feature: str) -> None:
    assert hf_type(pa.field("c", type_)) == feature
    TarPartitionStats("a.tar", 1, 1, {}, {"c": feature})


def test_a_json_column_is_json() -> None:
    assert hf_type(pa.field("c", pa.string(), metadata={b"mm_assets:encoding": b"json"})) == "json"


UNIONS = [
    ("int64", "int64", "int64"),
    ("null", "bool", "bool"),
    ("int64", "float64", "float64"),
    ("int64", "string", "json"),
    ("list:null", "list:int64", "list:int64"),
    ("list:int64", "list:float64", "list:float64"),
    ("list:int64", "list:string", "json"),
    ("list:int64", "int64", "json"),
    ("list:list:null", "list:null", "list:list:null"),
    ("json", "null", "json"),
    ("json", "list:int64", "json"),
]


@pytest.mark.parametrize(("one", "other", "both"), UNIONS)
def test_features_of_partitions_unite(one: str, other: str, both: str) -> None:
    for first, second in ((one, other), (other, one)):
        stats = [
            TarPartitionStats(f"{i}.tar", 1, 1, {}, {"c": feature})
            for i, feature in enumerate((first, second))
        ]
        assert union_columns(stats) == {"c": both}
        assert all(declares(readme(stats), part) for part in stats)


# The card


def test_the_card_declares_the_union() -> None:
    card = readme([B, A])
    assert parsed(card)["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "*.tar"}]}
    ]
    found = features(card)
    assert list(found) == [
        "__key__",
        "__url__",
        "json",
        "0.jpg",
        "0.webp",
        "1.jpg",
        "2.jpg",
        "3.png",
        "7.jpg",
    ]
    assert found["7.jpg"] == {"dtype": "image"}
    columns = [{"name": "score", "dtype": "json"}, {"name": "tag", "list": "string"}]
    assert found["json"]["struct"] == [
        {"name": "sample_id", "dtype": "string"},
        *[{"name": n, "list": "string"} for n in ("texts", "images", "image_members")],
        {
            "name": "_row_extra",
            "struct": [
                {"name": "text", "list": columns},
                {"name": "image", "list": columns},
                {"name": "metadata", "struct": columns},
            ],
        },
        {
            "name": "_row_errors",
            "list": [
                {"name": "position", "dtype": "int32"},
                *[{"name": n, "dtype": "string"} for n in ("modality", "content_type", "materialize_error")],
                {"name": "extra", "struct": columns},
            ],
        },
    ]
    assert "| `a.tar` | 3 | 9,000 |" in card and "5 samples in 2 WebDataset tars, 16,000 bytes" in card
    assert readme([A, B]) == card


def test_without_extra_columns_there_is_no_empty_struct() -> None:
    card = readme([TarPartitionStats("a.tar", 1, 1, {"jpg": [0]})])
    fields = {field["name"]: field for field in features(card)["json"]["struct"]}
    assert list(fields) == ["sample_id", "texts", "images", "image_members", "_row_errors"]
    assert [f["name"] for f in fields["_row_errors"]["list"]] == [
        *["position", "modality", "content_type", "materialize_error"],
    ]


def metadata_columns(card: str) -> list[dict[str, Any]]:
    struct = {field["name"]: field for field in features(card)["json"]["struct"]}
    return list(struct["_row_extra"]["struct"][2]["struct"])


def test_hostile_column_names_are_only_names() -> None:
    stats = TarPartitionStats("a.tar", 1, 1, {"jpg": [0]}, dict.fromkeys(HOSTILE_COLUMNS, "int64"))
    card = readme([stats])
    assert metadata_columns(card) == [{"name": name, "dtype": "int64"} for name in HOSTILE_COLUMNS]
    assert front_matter([stats]).isascii() and declares(card, stats)


@given(
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs"]), max_size=20), unique=True, min_size=1, max_size=5
    )
)
def test_any_column_name_comes_back(names: list[str]) -> None:
    stats = TarPartitionStats("a.tar", 1, 1, {}, dict.fromkeys(names, "list:list:string"))
    columns = metadata_columns(readme([stats]))
    assert columns == [{"name": name, "list": {"list": "string"}} for name in names]


def test_declares_tells_what_a_card_lacks() -> None:
    card = readme([A, B])
    assert declares(card, A) and declares(card, B) and declares(card, TarPartitionStats("c.tar", 0, 0))
    for pairs, columns in (
        ({"jpg": [3]}, {}),
        ({}, {"other": "int64"}),
        ({}, {"other": "null"}),
        ({}, {"tag": "string"}),
        ({}, {"0.jpg": "null"}),
        ({}, {"sample_id": "string"}),
    ):
        assert not declares(card, TarPartitionStats("c.tar", 1, 1, pairs, columns)), (pairs, columns)
    assert declares(card, TarPartitionStats("c.tar", 1, 1, {}, {"tag": "list:null", "score": "bool"}))
    assert declares(card, TarPartitionStats("c.tar", 1, 1, {}, {"tag": "null"}))


def test_a_card_of_many_tars_stays_short() -> None:
    stats = [TarPartitionStats(f"{i:05d}.tar", 1, 10) for i in range(5000)]
    card = readme(stats)
    assert len(card) < 5000 and "… and 4,990 more" in card


# Index files


@pytest.mark.parametrize(
    "stats", [[], [A], [TarPartitionStats('é "x".tar', 3, 20_000), A]], ids=["none", "one", "odd name"]
)
def test_index_files_are_the_text_that_json_makes_of_them(stats: list[TarPartitionStats]) -> None:
    for text in (wids_index(stats), energon_info(stats)):
        assert text == json.dumps(json.loads(text), indent=1) + "\n"


@pytest.mark.parametrize("size", ["true", "NaN", "Infinity", "1e400", "7.0"])
def test_what_is_made_of_an_edited_index_is_json(size: str) -> None:
    edited = wids_index([A, B]).replace("7000", size)
    assert json.loads(wids_index(parse_wids_index(edited)))["name"] == "webdataset"


def test_index_files() -> None:
    index = wids_index([B, A])
    assert json.loads(index) == {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "name": "webdataset",
        "shardlist": [
            {"url": "a.tar", "nsamples": 3, "filesize": 9000},
            {"url": "b.tar", "nsamples": 2, "filesize": 7000},
        ],
    }
    assert parse_wids_index(index) == [
        TarPartitionStats("a.tar", 3, 9000),
        TarPartitionStats("b.tar", 2, 7000),
    ]
    assert json.loads(energon_info([B, A])) == {
        "energon_version": "7.4.1",
        "shard_counts": {"a.tar": 3, "b.tar": 2},
    }
    parts = {"split_parts": {"train": ["a.tar", "b.tar"], "val": [], "test": []}, "exclude": []}
    assert yaml.safe_load(energon_split([B, A])) == parts
    assert yaml.safe_load(energon_split([]))["split_parts"]["train"] == []
    odd = TarPartitionStats("%2Fyes: é.tar", 1, 1)
    assert yaml.safe_load(energon_split([odd]))["split_parts"]["train"] == [odd.file]
    assert yaml.safe_load(energon_dataset()) == {
        "__module__": "megatron.energon",
        "__class__": "CrudeWebdataset",
    }
