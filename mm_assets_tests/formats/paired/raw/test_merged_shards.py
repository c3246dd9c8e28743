"""Raw shards of several modalities as merged tars: what their members become, and how they are found."""

from __future__ import annotations

import gzip
import json
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from mm_assets.formats.materialize import materialize_table
from mm_assets.formats.paired import PairedAddress, modality_of
from mm_assets.formats.partitions import relative_root
from mm_assets.formats.raw_shards import RawLocations, originals_of
from mm_assets.formats.registry import reader_for
from mm_assets.formats.webdataset import SampleError
from mm_assets.formats.webdataset.samples import survey_tar
from mm_assets.model.json_codec import is_json
from mm_assets.model.losses import Loss
from mm_assets_tests.formats.datasets import raw_streams
from mm_assets_tests.formats.paired.raw.modalities import make_modalities, npy, png
from mm_assets_tests.formats.raw_tars import make_tar

PNG = png(1, 2, 3)
HEADER = b"\x93NUMPY\x01\x00\x76\x00"
JSON = "JSON text"


Merged = tuple[list[dict[str, Any]], pa.Schema, list[Loss]]


def merged(folder: Path, parts: dict[str, list[tuple[str, Any]]], policy: str = "skip") -> Merged:
    """Rows, schema and losses of one paired shard ``x`` of these parts."""
    ((_, stream),) = raw_streams(make_modalities(folder, {"x": parts}), policy)
    table = pa.concat_tables([batch.data for batch in stream]) if stream.items else None
    return ([] if table is None else table.to_pylist()), stream.schema, list(stream.losses)


def test_positions_are_those_stated_and_others_follow_in_the_order_of_the_parts(tmp_path: Path) -> None:
    parts: dict[str, list[tuple[str, Any]]] = {
        "images": [
            ("a.3.png", PNG),
            ("a.0.png", PNG),
            ("b.one.png", PNG),
            ("b.two.png", PNG),
            ("c.0.png", PNG),
        ],
        "texts": [
            ("c.0.txt", b"same place"),
            ("b.txt", b"behind"),
            ("a.7.txt", b"last"),
            ("d.txt", b"behind 9"),
        ],
        "more": [("d.9.png", PNG), ("d.x.png", PNG)],
    }
    rows, _, losses = merged(tmp_path, parts, "partial")
    assert losses == []
    assert [
        (row["sample_id"], row["position"], row["text_content"])
        for row in rows
        if row["modality"] != "metadata"
    ] == [
        *(("a", 0, None), ("a", 3, None), ("a", 7, "last")),
        *(("b", 0, None), ("b", 1, None), ("b", 2, "behind")),
        *(("c", 0, "same place"), ("c", 0, None)),
        *(("d", 9, None), ("d", 10, "behind 9"), ("d", 11, None)),
    ]


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (np.array([1.1, -2.2], np.float32), pa.list_(pa.float32())),
        (np.array([0.1, 65504], np.float16), pa.list_(pa.float32())),
        (np.array([[1, 2], [3, 4], [5, 6]], np.int16), pa.list_(pa.list_(pa.int16()))),
        (np.array([1, 2**63], ">u8"), pa.list_(pa.uint64())),
        (np.array(7.5), pa.float64()),
        (np.array([True, False]), pa.list_(pa.bool_())),
        (np.zeros((2, 0), np.int8), pa.list_(pa.list_(pa.int8()))),
        (np.array([np.nan, np.inf, -0.0]), pa.list_(pa.float64())),
    ],
    ids=["float32", "float16", "matrix", "big-endian", "number", "bool", "empty rows", "nan"],
)
def test_arrays_are_columns_of_their_own_type(
    tmp_path: Path, array: np.ndarray[Any, Any], type_: pa.DataType
) -> None:
    rows, schema, losses = merged(tmp_path, {"images": [("a.png", PNG)], "emb": [("a.npy", npy(array))]})
    assert (losses, schema.field("emb").type) == ([], type_)
    assert repr(rows[0]["emb"]) == repr(array.tolist())


def test_other_members_are_columns(tmp_path: Path) -> None:
    parts: dict[str, list[tuple[str, Any]]] = {
        "images": [("a.png", PNG)],
        "more": [
            *(("a.cls", b"12"), ("a.mp3", b"\x00sound")),
            ("a.json", {"x": [1, {"y": None}], "z": 1.5, "sample_id": "other", "position": 7}),
        ],
    }
    rows, schema, losses = merged(tmp_path, parts)
    assert losses == []
    row = rows[0]
    assert (row["cls"], row["mp3"], json.loads(row["x"]), row["z"]) == (
        12,
        b"\x00sound",
        [1, {"y": None}],
        1.5,
    )
    assert (schema.field("cls").type, schema.field("mp3").type) == (pa.int64(), pa.large_binary())
    assert (row["sample_id"], json.loads(row["_source"])["fields"]) == ("other", {"position": 7})


def test_of_every_column_it_is_kept_where_it_comes_from(tmp_path: Path) -> None:
    """The metadata row names the json, else the first such member; ``_source`` has the others, by column."""
    parts: dict[str, list[tuple[str, Any]]] = {
        "images": [("a.png", PNG), ("b.png", PNG), ("c.png", PNG)],
        "more": [
            ("a.cls", b"12"),
            ("a.json", {"x": 1, "sample_id": "A"}),
            ("a.meta.json", {"y": 2}),
            ("b.cls", b"3"),
            ("c.cls", b"4"),
        ],
        "emb": [("a.npy", npy([1.5])), ("b.npy", npy([2.5])), ("b.mp3", b"sound"), ("c.txt", b"no column")],
    }
    rows, _, losses = merged(tmp_path, parts)
    assert losses == []

    def bytes_at(ref: dict[str, Any]) -> bytes:
        with open(tmp_path / ref["path"], "rb") as file:
            file.seek(ref["byte_offset"])
            return file.read(ref["byte_size"])

    found = {}
    for row in rows:
        if row["modality"] == "metadata":
            own, others = (
                json.loads(row["source_ref"]),
                (json.loads(row["_source"]) if row["_source"] else {}).get("members", {}),
            )
            found[row["sample_id"]] = (
                own["member"],
                {column: (ref["path"], ref["member"]) for column, ref in others.items()},
            )
            assert [bytes_at(ref) for column, ref in others.items() if column == "mp3"] == [b"sound"] * (
                "mp3" in others
            )
    assert found == {
        "A": (
            "a.meta.json",
            {"cls": ("more/x.tar", "a.cls"), "x": ("more/x.tar", "a.json"), "emb": ("emb/x.tar", "a.npy")},
        ),
        "b": ("b.cls", {"emb": ("emb/x.tar", "b.npy"), "mp3": ("emb/x.tar", "b.mp3")}),
        "c": ("c.cls", {}),
    }


@pytest.mark.parametrize(
    ("images", "more", "kind", "says"),
    [
        ([("a.png", PNG)], [("b.txt", b"x")], "missing_modality", "no member of key 'a' in more/x.tar"),
        ([("a.png", PNG)], [("a.json", b"[]")], "not_an_object", "more/x.tar: a.json"),
        ([("a.png", PNG)], [("a.cls", b"twelve")], "bad_layout", "no class number"),
        (
            [("a.png", PNG), ("a.json", {"n": 1})],
            [("a.json", {"n": 2})],
            "bad_layout",
            "has the field 'n', too",
        ),
        ([("a.png", PNG), ("a.png", PNG)], [("a.txt", b"x")], "dangling_reference", "twice"),
        (
            [("a.png", PNG)],
            [("a.npy", npy(np.array([{}], object), allow_pickle=True))],
            "bad_layout",
            "no array that can be read",
        ),
        ([("a.png", PNG)], [("a.npy", npy(np.zeros(3))[:-4])], "bad_layout", "no array that can be read"),
        ([("a.png", PNG)], [("a.npy", npy(np.array([1j])))], "bad_layout", "no array that can be read"),
        ([("a.png", PNG)], [("a.npy", npy(np.zeros(3)) + b"more")], "bad_layout", "4 bytes behind the array"),
        ([("a.png", PNG)], [("a.npy", npy(np.zeros((1,) * 9)))], "bad_layout", "an array of 9 axes"),
        (
            [("a.png", PNG)],
            [("a.npy", HEADER + b"{'descr': '<f8', 'shape': (3,\n")],
            "bad_layout",
            "no array that can be read",
        ),
        ([("a.png", PNG)], [("a.npy", npy(np.zeros(600_000)))], "oversized_member", "bytes, at most 4194304"),
        ([("a.png", PNG)], [("a.sample_id.npy", npy(np.zeros(1)))], "bad_layout", "a column of its own"),
        ([("a.png", PNG)], [("a.source_ref", b"x")], "bad_layout", "a column of its own"),
        (
            [("a.3.png", PNG), ("a.3.jpg", PNG)],
            [("a.txt", b"x")],
            "bad_layout",
            "a second image at position 3",
        ),
        ([("a.0.png", PNG)], [("a.1000000.txt", b"x")], "bad_layout", "position 1000000, of at most 999999"),
        (
            [("a.png", PNG)],
            [("a.json", {"sample_id": "1"}), ("a.b.json", {"sample_id": "2"})],
            "bad_layout",
            "the field 'sample_id', too",
        ),
    ],
)
def test_what_contradicts_itself_is_accounted_for(
    tmp_path: Path, images: Any, more: Any, kind: str, says: str
) -> None:
    fine = [("ok.json", {"n": 1}), ("ok.png", PNG)]
    rows, _, losses = merged(tmp_path, {"images": [*fine, *images], "more": [("ok.txt", b"x"), *more]})
    assert {row["sample_id"] for row in rows} == {"ok"}
    (loss,) = [loss for loss in losses if loss.sample_id == "a"]
    assert (loss.outcome, loss.kind) == ("quarantined", kind)
    assert says in loss.reason
    assert "images/x.tar: a." in loss.reason


@pytest.mark.parametrize(
    ("arrays", "type_"),
    [
        ([np.zeros(2), np.ones(2, np.float32)], pa.list_(pa.float64())),
        ([np.zeros(2, np.int32), np.ones(2, np.uint8)], pa.list_(pa.int64())),
        ([np.zeros(2), np.ones((1, 2))], JSON),
        ([np.zeros(2, np.int64), np.ones(2)], JSON),
        ([np.zeros(2, np.uint64), np.ones(2, np.int8)], JSON),
    ],
    ids=["floats", "integers", "ranks", "kinds", "beyond int64"],
)
def test_arrays_of_several_types_share_a_column_that_holds_all(
    tmp_path: Path, arrays: list[np.ndarray[Any, Any]], type_: Any
) -> None:
    keys = [f"k{number}" for number in range(len(arrays))]
    parts = {
        "images": [(f"{key}.png", PNG) for key in keys],
        "emb": [(f"{key}.npy", npy(a)) for key, a in zip(keys, arrays, strict=True)],
    }
    rows, schema, losses = merged(tmp_path, parts)
    values = [row["emb"] for row in rows if row["modality"] == "metadata"]
    assert losses == []
    assert is_json(schema.field("emb")) if type_ is JSON else schema.field("emb").type == type_
    assert [json.loads(value) if type_ is JSON else value for value in values] == [
        array.tolist() for array in arrays
    ]


def test_a_sample_that_is_refused_has_no_say_in_types(tmp_path: Path) -> None:
    parts = {
        "images": [("a.png", PNG)],
        "emb": [("lone.npy", npy(np.zeros((2, 2)))), ("a.npy", npy(np.zeros(2)))],
    }
    rows, schema, (loss,) = merged(tmp_path, parts)
    assert (loss.sample_id, loss.kind, schema.field("emb").type) == (
        "lone",
        "missing_modality",
        pa.list_(pa.float64()),
    )
    assert rows[0]["emb"] == [0, 0]


def test_null_beside_an_array(tmp_path: Path) -> None:
    parts = {
        "images": [("a.png", PNG), ("b.png", PNG)],
        "more": [("a.json", {"e": None}), ("b.e.npy", npy(np.zeros(1)))],
    }
    rows, schema, losses = merged(tmp_path, parts)
    assert (losses, schema.field("e").type) == ([], pa.list_(pa.float64()))
    assert [row["e"] for row in rows if row["modality"] == "metadata"] == [None, [0]]


def test_large_members_without_a_place_take_no_memory(tmp_path: Path) -> None:
    """They are named in the merged tar, and images go from file to file."""
    parts = {"images": [("a.png", PNG), ("README", bytes(50_000_000))], "texts": [("a.txt", b"x")]}
    (shard,) = RawLocations(make_modalities(tmp_path, {"x": parts})).shards().values()
    tracemalloc.start()
    with fsspec.open(shard.uri, "rb") as file:
        size = file.seek(0, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < 20_000
    assert peak < 5_000_000


def test_strictly_read_a_refused_sample_is_an_error(tmp_path: Path) -> None:
    locations = RawLocations(make_modalities(tmp_path, {"x": {"a": [("k.png", PNG)], "b": []}}))
    (shard,) = locations.shards().values()
    with pytest.raises(SampleError, match="no member of key 'k' in b/x.tar"):
        list(reader_for("webdataset", [shard.uri]))


def test_members_without_a_key_are_told(tmp_path: Path) -> None:
    """By the tar of their modality and their own names, as the bytes of that tar; devices, too."""
    parts = {
        "images": [("a.png", PNG), ("README", b"hello"), (".hidden", b"x"), ("n" * 200, b"long")],
        "texts": [("a.txt", b"x")],
    }
    locations = RawLocations(make_modalities(tmp_path, {"x": parts}))
    with tarfile.open(tmp_path / "texts" / "x.tar", "a") as tar:
        device = tarfile.TarInfo("a.device")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
    (shard,) = locations.shards().values()
    reader = reader_for("webdataset", [shard.uri], quarantine_errors=True, roots=locations.roots())
    stream = reader.open(reader.partitions()[0])
    assert [batch.data.num_rows for batch in stream] == [3]
    told = stream.notes[shard.uri]["unreferenced_members"]
    assert sorted(told) == [
        "images/x.tar: .hidden",
        "images/x.tar: README",
        f"images/x.tar: {'n' * 200}",
        "texts/x.tar: a.device",
    ]
    survey = survey_tar(shard.uri, reader.layout, "x.tar", max_member_bytes=1 << 20)
    assert sorted(survey.unreferenced) == sorted(told)

    unreferenced = {
        ref["member"]: (ref, loss.reason)
        for loss in stream.notes[shard.uri]["unreferenced_losses"]
        if (ref := json.loads(loss.source_ref))
    }
    assert {ref["path"] for ref, _ in unreferenced.values()} == {"images/x.tar", "texts/x.tar"}
    for name, data in parts["images"][1:]:
        ref, reason = unreferenced[name]
        assert (tmp_path / ref["path"]).read_bytes()[ref["byte_offset"] :][: ref["byte_size"]] == data
        assert reason == "it is no part of any sample that was read"
    assert "a.device" in unreferenced and "device" in unreferenced["a.device"][1]


def test_a_raw_tar_with_such_a_member_leads_nowhere_else(tmp_path: Path) -> None:
    """What a tar of the user's says in a member of this name is no locator."""
    lie = {"where": "/etc/passwd", "ref": '{"path": "/etc/passwd"}', "reason": None}
    tar = make_tar(tmp_path / "x.tar", [("a.json", {"texts": ["x"]}), ("b.unpaired", lie)])
    reader = reader_for("webdataset", str(tar), quarantine_errors=True)
    stream = reader.open(reader.partitions()[0])
    assert len(list(stream)) == 1
    assert stream.notes[str(tar)]["unreferenced_members"] == ["b.unpaired"]
    (loss,) = stream.notes[str(tar)]["unreferenced_losses"]
    assert json.loads(loss.source_ref)["path"] == str(tar)


def test_locators_lead_to_the_tars_themselves(tmp_path: Path) -> None:
    parts = {"images": [("a.0.png", PNG), ("a.1.png", png(9, 9, 9))], "texts": [("a.txt", "ä".encode())]}
    locations = RawLocations(make_modalities(tmp_path, {"x": parts}))
    (shard,) = locations.shards().values()
    reader = reader_for("webdataset", [shard.uri], relative_to=relative_root(locations.roots()))
    table = pa.concat_tables([batch.data for batch in reader])
    at = table.schema.get_field_index("binary_content")
    bare = table.set_column(at, table.schema.field(at), pa.nulls(table.num_rows, pa.large_binary()))
    assert materialize_table(bare, locations.roots()).equals(table)
    for row in table.filter(
        pa.array([m != "metadata" for m in table.column("modality").to_pylist()])
    ).to_pylist():
        ref = json.loads(row["source_ref"])
        with open(tmp_path / ref["path"], "rb") as file:
            file.seek(ref["byte_offset"])
            data = file.read(ref["byte_size"])
        assert data == (row["binary_content"] if row["modality"] == "image" else row["text_content"].encode())
    assert originals_of(shard.uri).keys() == {"images/x.tar", "texts/x.tar"}


def test_parts_may_be_packed_or_remote(tmp_path: Path) -> None:
    make_tar(tmp_path / "t" / "x.tar", [("a.txt", b"text")])
    (tmp_path / "t" / "x.tar.gz").write_bytes(gzip.compress((tmp_path / "t" / "x.tar").read_bytes()))
    (tmp_path / "t" / "x.tar").unlink()
    fs = fsspec.filesystem("memory")
    fs.pipe("/paired-parts/x.tar", make_tar(tmp_path / "x.tar", [("a.png", PNG)]).read_bytes())
    try:
        locations = RawLocations(f"images=memory://paired-parts texts={tmp_path / 't'}")
        (shard,) = locations.shards().values()
        rows = [row for batch in reader_for("webdataset", [shard.uri]) for row in batch.data.to_pylist()]
        assert [row["binary_content"] or row["text_content"] for row in rows] == [None, PNG, "text"]
        before = shard.version
        fs.pipe(
            "/paired-parts/x.tar", make_tar(tmp_path / "x.tar", [("a.png", PNG + bytes(20_000))]).read_bytes()
        )
        assert (
            RawLocations(f"images=memory://paired-parts texts={tmp_path / 't'}").shards()["x"].version
            != before
        )
    finally:
        fs.rm("/paired-parts", recursive=True)


def test_the_merged_tar_is_one_that_every_client_reads(tmp_path: Path) -> None:
    parts = {"images": [("a/b.png", PNG)], "texts": [("a/b.txt", b"x")]}
    (shard,) = RawLocations(make_modalities(tmp_path, {"x": parts})).shards().values()
    with fsspec.open(shard.uri, "rb") as file, tarfile.open(fileobj=file) as tar:
        names = tar.getnames()
    assert names == ["a%2Fb.0.png", "a%2Fb.json"]


def test_names_are_paired_and_patterns_choose(tmp_path: Path) -> None:
    shards = {
        name: {"images": [("k.png", PNG)], "texts": [("k.txt", b"x")]}
        for name in ("s_0", "s_1", "s_2", "other")
    }
    make_modalities(tmp_path, shards)
    (tmp_path / "texts" / "notes.md").write_text("no tar")
    assert set(RawLocations(f"images={tmp_path}/images texts={tmp_path}/texts").shards()) == set(shards)
    chosen = RawLocations(
        f"'images={tmp_path}/images/s_*.tar' 'texts={tmp_path}/texts/s_{{0..1}}.tar'"
    ).shards()
    assert sorted(chosen) == ["s_0", "s_1", "s_2"]
    with (
        pytest.raises(FileNotFoundError, match="no tar 's_2' of modality 'texts'"),
        fsspec.open(chosen["s_2"].uri, "rb"),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("images=/a /b/x.tar", "cannot be mixed"),
        ("images=/a", "at least two modalities"),
        ("images=/a images=/b", "'images' is named twice"),
        ("images=/a/*/x.tar texts=/b", "only the file's name can be a pattern"),
    ],
)
def test_what_names_no_pairs_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RawLocations(text)


def test_a_tar_that_is_named_is_a_partition_whether_it_is_there_or_not(tmp_path: Path) -> None:
    make_modalities(tmp_path, {"s_0": {"images": [("k.png", PNG)], "texts": [("k.txt", b"x")]}})
    shards = RawLocations(f"'images={tmp_path}/images/s_{{0..1}}.tar' texts={tmp_path}/texts").shards()
    assert sorted(shards) == ["s_0", "s_1"]
    with pytest.raises(FileNotFoundError, match="no tar 's_1' of modality 'images'"):
        fsspec.open(shards["s_1"].uri, "rb").open()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    make_modalities(tmp_path, {"s_0": {"images": [("k.png", PNG)]}})
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/text: no such folder"):
        RawLocations(f"images={tmp_path}/images texts={tmp_path}/text").shards()


def test_folders_below_that_of_a_modality_are_named(tmp_path: Path) -> None:
    make_modalities(tmp_path, {"s_0": {"images": [("k.png", PNG)], "texts": [("k.txt", b"x")]}})
    for below in ("images/train/s_1.tar", "texts/odd.tar/s_1.tar", "texts/.cache/s_1.tar"):
        make_tar(tmp_path / below, [])
    listing = RawLocations(f"images={tmp_path}/images texts={tmp_path}/texts").shards()
    assert list(listing) == ["s_0"]
    hint = "not read: below the folder of modality {!r}; move its tars up into that"
    told = [
        f"{tmp_path}/{name}: {hint.format(name.partition('/')[0])}"
        for name in ("images/train", "texts/odd.tar")
    ]
    assert list(listing.unmatched) == told
    assert (
        RawLocations(f"images={tmp_path}/images/s_*.tar texts={tmp_path}/texts/s_0.tar").shards().unmatched
        == ()
    )


def test_names_of_a_long_list_are_found_among_many_files(tmp_path: Path) -> None:
    """Each name is looked up, not compared with all others: those would be ten milliard comparisons."""
    for number in range(0, 100_000, 1000):
        make_modalities(tmp_path, {f"s_{number:05d}": {"images": [], "texts": []}})
    address = PairedAddress(
        {"images": f"{tmp_path}/images/s_{{00000..99999}}.tar", "texts": str(tmp_path / "texts")}
    )
    names = address.names()
    assert len(names) == 100_000
    assert [name for name, parts in names.items() if len(parts) == 2] == [
        f"s_{number:05d}" for number in range(0, 100_000, 1000)
    ]
    assert address.parts("s_01000").keys() == {"images", "texts"}


def test_two_tars_of_one_name_are_refused(tmp_path: Path) -> None:
    make_modalities(tmp_path, {"x": {"images": [("k.png", PNG)], "texts": [("k.txt", b"x")]}})
    (tmp_path / "texts" / "x.tgz").write_bytes(b"")
    (shard,) = RawLocations(f"images={tmp_path}/images texts={tmp_path}/texts").shards().values()
    with pytest.raises(
        ValueError,
        match=r"several tars of modality 'texts' are called 'x', rename all but one: x\.tar, x\.tgz",
    ):
        fsspec.open(shard.uri, "rb").open()


def test_a_link_that_leads_nowhere_costs_its_own_name(tmp_path: Path) -> None:
    make_modalities(tmp_path, {"x": {"images": [("k.png", PNG)], "texts": [("k.txt", b"x")]}})
    (tmp_path / "texts" / "z.tar").symlink_to("gone")
    shards = RawLocations(f"images={tmp_path}/images texts={tmp_path}/texts").shards()
    assert sorted(shards) == ["x", "z"]
    assert [
        row["modality"]
        for batch in reader_for("webdataset", [shards["x"].uri])
        for row in batch.data.to_pylist()
    ] == [*("metadata", "image", "text")]


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path) -> None:
    assert modality_of(str(tmp_path / "date=2020")) is None
    assert modality_of("./date=2020/x.tar") is None
    assert modality_of("s3://bucket/date=2020") is None
    assert modality_of("images=s3://bucket/a") == ("images", "s3://bucket/a")


def test_addresses_survive_any_path() -> None:
    address = PairedAddress({"a": "/d/ü %&=#", "b": "s3://x/y"}, "partial")
    token = address.url.removeprefix("paired://")
    assert PairedAddress.parse(token) == address
    assert not set("/*?[]{}: ") & set(token)
