"""What a raw shard holds is kept whole, found again only for the version it is of, and told in few words."""

from __future__ import annotations

import logging
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mm_assets.accounting import survey as shard_survey
from mm_assets.accounting.contract import Published
from mm_assets.accounting.survey import (
    Excerpt,
    ShardColumns,
    ShardSurvey,
    findings,
    layout_digest,
    merge_files,
    survey_shard,
)
from mm_assets.accounting.survey_store import SURVEY_KEY, SurveyStore
from mm_assets.formats.partitions import Partition
from mm_assets.formats.raw_shards import RawReader
from mm_assets.formats.reader import FileSurvey, SurveyedSample
from mm_assets.formats.webdataset import RawLayout
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader
from mm_assets.model.errors import BAD_JSON, DUPLICATE_ID, NOT_UTF8, TRUNCATED_TAR
from mm_assets.model.json_codec import FieldTally, json_field
from mm_assets.model.losses import Loss
from mm_assets.model.samples import build_source_ref, parse_source_ref
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets_tests.accounting.stores import publish
from mm_assets_tests.formats.parquet_of_others import (
    PICTURES,
    curator,
    curator_rows,
    documents,
    image,
    interleaved,
)
from mm_assets_tests.formats.raw_tars import make_tar


@pytest.fixture(params=["local", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://surveys-{uuid.uuid4().hex}[1]*"


def fact(sample_id: str, offset: int = 512, items: int = 3, images: int = 1) -> SurveyedSample:
    return SurveyedSample(sample_id, f"{sample_id}.json", offset, 100, items, images)


def tally(*values: Any) -> FieldTally:
    found = FieldTally()
    for value in values:
        found.observe(value)
    return found


def bad(kind: str, sample_id: str | None, offset: int, position: int | None = -1) -> Loss:
    modality = None if position is None else "metadata"
    member = None if sample_id is None else f"{sample_id}.json"
    ref = build_source_ref("a.tar", member, offset, 10)
    return Loss(sample_id, position, modality, "quarantined", kind, f"a.tar: {kind} here", source_ref=ref)


DECLARED = pa.schema([json_field("tags"), pa.field("when", pa.timestamp("us"), nullable=False)])
TAR = FileSurvey(
    samples=(fact("a", 512), fact("ü/b.c", 9216, items=7, images=4)),
    losses=(bad(BAD_JSON, "x", 2048), bad(BAD_JSON, "y\udc80", 4096), bad(TRUNCATED_TAR, None, 20480, None)),
    unresolved=(("a", 2, "missing member 'a.2.jpg'"),),
    frame_counts=(("a.tiff", 3, 2),),
    unreferenced=("stray.jpg", "README"),
    skipped=("pipe",),
    tallies={"score": tally(1, None, 2.5), "n": tally(2**53 + 1)},
    declared=(DECLARED,),
    declared_ints={"big": tally(None, 2**53 + 1)},
    members=9,
)
SURVEY = merge_files([("a.tar", TAR)], "v1", "layout")


def test_one_tar_is_told_as_it_is() -> None:
    assert SURVEY.samples.to_pylist() == [
        {
            "sample_id": "a",
            "member": "a.json",
            "source": "a.tar",
            "byte_offset": 512,
            "byte_size": 100,
            "items": 3,
            "images": 1,
        },
        {
            "sample_id": "ü/b.c",
            "member": "ü/b.c.json",
            "source": "a.tar",
            "byte_offset": 9216,
            "byte_size": 100,
            "items": 7,
            "images": 4,
        },
    ]
    assert SURVEY.losses == {BAD_JSON: Excerpt(TAR.losses[:2], 2), TRUNCATED_TAR: Excerpt(TAR.losses[2:], 1)}
    assert SURVEY.unresolved == Excerpt(TAR.unresolved, 1)
    assert SURVEY.frame_counts == Excerpt(TAR.frame_counts, 1)
    assert SURVEY.unreferenced == Excerpt(TAR.unreferenced, 2)
    assert SURVEY.skipped == Excerpt(TAR.skipped, 1)
    assert SURVEY.columns == ShardColumns(TAR.tallies, DECLARED, TAR.declared_ints)
    assert SURVEY.members == 9


def test_files_of_a_shard_are_one_survey_and_the_first_keeps_an_id() -> None:
    other = FileSurvey(
        samples=(fact("c"), fact("a", 1024)),
        frame_counts=(("c.tiff", 1, 2),),
        unreferenced=("stray.jpg",),
        tallies={"n": tally("text"), "new": tally(True)},
        declared=(pa.schema([("when", pa.timestamp("us"))]),),
        declared_ints={"big": tally(5), "n": tally(6)},
        members=4,
    )
    merged = merge_files([("a.tar", TAR), ("b.tar", other)], "v1", "layout")
    assert list(zip(merged.sample_ids.to_pylist(), merged.samples["source"].to_pylist(), strict=True)) == [
        ("a", "a.tar"),
        ("ü/b.c", "a.tar"),
        ("c", "b.tar"),
    ]
    (loss,) = merged.losses[DUPLICATE_ID].first
    assert (loss.sample_id, loss.position, loss.modality, loss.outcome) == (
        "a",
        -1,
        "metadata",
        "quarantined",
    )
    assert loss.reason == "sample id 'a' occurs twice in this shard, first in member 'a.json' of a.tar"
    assert parse_source_ref(loss.source_ref) == {
        "path": "b.tar", "member": "a.json", "byte_offset": 1024, "byte_size": 100, "frame_index": None,
    }  # fmt: skip
    assert merged.members == 13
    assert merged.frame_counts.first == (("a.tar: a.tiff", 3, 2), ("b.tar: c.tiff", 1, 2))
    assert merged.unreferenced.first == ("a.tar: stray.jpg", "a.tar: README", "b.tar: stray.jpg")
    assert merged.columns.tallies == {
        "score": tally(1, None, 2.5),
        "n": tally(2**53 + 1, "text"),
        "new": tally(True),
    }
    assert TAR.tallies["n"] == tally(2**53 + 1)  # not changed by merging
    assert merged.columns.declared == pa.schema([json_field("tags"), ("when", pa.timestamp("us"))])
    assert merged.columns.declared_ints == {"big": tally(None, 2**53 + 1), "n": tally(6)}


def test_a_shard_is_surveyed_file_by_file_with_the_ref_paths_of_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def survey_tar(
        uri: str,
        layout: RawLayout,
        ref_path: str,
        *,
        max_member_bytes: int,
        id_prefix: str,
        samples: object,
    ) -> FileSurvey:
        asked.append((uri, ref_path, max_member_bytes, id_prefix))
        return FileSurvey(samples=(fact(ref_path),))

    monkeypatch.setattr(shard_survey, "survey_tar", survey_tar)
    layout = RawLayout(sample_id_field="id", sample_id_prefix="shard")
    files = ["/data/x/a.tar", "s3://bucket/b.tar"]
    survey = survey_shard("a", files, "v7", layout, "/data/", max_member_bytes=99)
    assert asked == [
        ("/data/x/a.tar", "x/a.tar", 99, "a/a/"),
        ("s3://bucket/b.tar", "s3://bucket/b.tar", 99, "a/b/"),
    ]
    assert survey.sample_ids.to_pylist() == ["x/a.tar", "s3://bucket/b.tar"]
    assert (survey.version, survey.layout) == ("v7", layout_digest(layout, 99))


def test_the_survey_of_real_tars_agrees_with_the_reader(tmp_path: Path) -> None:
    one = make_tar(
        tmp_path / "in" / "one.tar",
        [
            ("a.json", {"texts": ["x", "y"], "images": [None, "gone.jpg"], "n": 1, "mixed": 1}),
            ("again/a.json", {"sample_id": "a", "texts": ["x", "y"], "n": "not looked at"}),
            ("bad.json", b"{"),
            ("stray.jpg", b"no image"),
        ],
    )
    two = make_tar(
        tmp_path / "in" / "two.tar",
        [("b.json", {"texts": ["x"], "n": 0.5, "mixed": "a"}), ("a.json", {"texts": []})],
    )
    files = [str(one), str(two)]
    survey = survey_shard("a", files, "v1", RawLayout(), str(tmp_path), max_member_bytes=1 << 20)
    assert survey.samples.select(["sample_id", "source", "items", "images"]).to_pylist() == [
        {"sample_id": "a", "source": "in/one.tar", "items": 4, "images": 1},
        {"sample_id": "b", "source": "in/two.tar", "items": 2, "images": 0},
    ]
    assert {kind: losses.count for kind, losses in survey.losses.items()} == {DUPLICATE_ID: 2, BAD_JSON: 1}
    assert [loss.sample_id for loss in survey.losses[DUPLICATE_ID].first] == ["a", "a"]
    assert [entry[:2] for entry in survey.unresolved.first] == [("a", 1)]
    assert survey.unreferenced.first == ("in/one.tar: stray.jpg",)
    reader = InterleavedWebdatasetReader(
        files, files_per_partition=2, relative_to=str(tmp_path), quarantine_errors=True
    )
    (partition,) = reader.partitions()
    stream = reader.open(partition)
    own = pa.schema([need.field for need in survey.columns.required_types().values()])
    assert own.equals(pa.schema(list(stream.schema)[len(INTERLEAVED_SCHEMA) :]), check_metadata=True)
    table = pa.concat_tables([batch.data for batch in stream])
    counts = {
        row["sample_id"]: row["count_all"]
        for row in table.group_by("sample_id").aggregate([([], "count_all")]).to_pylist()
    }
    assert counts == {row["sample_id"]: row["items"] for row in survey.samples.to_pylist()}


def test_tars_and_parquet_of_one_shard_are_surveyed_as_they_are_read(tmp_path: Path) -> None:
    more = {"sample_id": (pa.string(), ["a", None, "b"]), "n": (pa.int64(), [1, 2, 3])}
    columns = interleaved([["x"], None, ["y", "z"]], [[image(0, "p")], [image(1)], None], **more)
    files = [
        str(
            make_tar(
                tmp_path / "in" / "one.tar", [("a.json", {"texts": ["x"], "n": 0.5}), ("a.png", b"stray")]
            )
        ),
        str(documents(tmp_path / "in" / "two.parquet", columns)),
        str(
            curator(
                tmp_path / "in" / "three.parquet",
                [*curator_rows("c", "t", PICTURES[0]), *curator_rows("b", "again")],
            )
        ),
    ]
    survey = survey_shard("p", files, "v1", RawLayout(), str(tmp_path), max_member_bytes=1 << 20)
    assert survey.samples.select(
        ["sample_id", "member", "source", "byte_offset", "items", "images"]
    ).to_pylist() == [
        {
            "sample_id": "a",
            "member": "a.json",
            "source": "in/one.tar",
            "byte_offset": 512,
            "items": 2,
            "images": 0,
        },
        {
            "sample_id": "p/two/1",
            "member": "row 1",
            "source": "in/two.parquet",
            "byte_offset": None,
            "items": 2,
            "images": 1,
        },
        {
            "sample_id": "b",
            "member": "row 2",
            "source": "in/two.parquet",
            "byte_offset": None,
            "items": 3,
            "images": 0,
        },
        {
            "sample_id": "c",
            "member": "row 0",
            "source": "in/three.parquet",
            "byte_offset": None,
            "items": 3,
            "images": 1,
        },
    ]
    assert [(loss.sample_id, loss.reason) for loss in survey.losses[DUPLICATE_ID].first] == [
        ("a", "sample id 'a' occurs twice in this shard, first in member 'a.json' of in/one.tar"),
        ("b", "sample id 'b' occurs twice in this shard, first in member 'row 2' of in/two.parquet"),
    ]
    assert survey.members == 2 + 3 + 5
    reader = RawReader((), relative_to=str(tmp_path), quarantine_errors=True)
    stream = reader.open(Partition("p", tuple(files)))
    own = pa.schema([need.field.with_nullable(True) for need in survey.columns.required_types().values()])
    assert own.equals(pa.schema(list(stream.schema)[len(INTERLEAVED_SCHEMA) :]), check_metadata=True)
    table = pa.concat_tables([batch.data for batch in stream])
    counts = {
        row["sample_id"]: row["count_all"]
        for row in table.group_by("sample_id").aggregate([([], "count_all")]).to_pylist()
    }
    assert counts == {row["sample_id"]: row["items"] for row in survey.samples.to_pylist()}
    assert stream.items == table.num_rows + sum(loss.is_item for loss in stream.losses)


def test_the_layout_digest_knows_every_setting() -> None:
    digests = {
        layout_digest(RawLayout(), 99),
        layout_digest(RawLayout(), 98),
        layout_digest(RawLayout(texts_field="t"), 99),
    }
    assert len(digests) == 3
    assert layout_digest(RawLayout(), 99) in digests


@pytest.mark.parametrize("key", ["train/a.b", "ü", "_hidden", "x" * 300])
@pytest.mark.parametrize("survey", [SURVEY, ShardSurvey("v1", "layout")], ids=["full", "empty"])
def test_what_was_written_is_read(root: str, key: str, survey: ShardSurvey) -> None:
    store = SurveyStore(root)
    store.write(key, survey)
    assert SurveyStore(root).read(key) == survey
    ((name, (columns, sample_ids)),) = store.columns_and_ids([key, "other"])
    assert (name, columns, sample_ids.to_pylist()) == (key, survey.columns, survey.sample_ids.to_pylist())
    assert columns.declared.equals(survey.columns.declared, check_metadata=True)
    assert [(name, ids.to_pylist()) for name, ids in store.sample_ids([key])] == [
        (key, survey.sample_ids.to_pylist())
    ]
    assert store.partitions() == [key]


def test_nothing_written_yet(root: str) -> None:
    store = SurveyStore(root)
    assert (store.read("a"), store.partitions()) == (None, [])
    for read in (store.columns_and_ids, store.published, store.published_ids):
        assert list(read(["a"])) == []
    assert (store.survey_stamps(), store.published_stamps()) == ({}, {})


@pytest.mark.parametrize(
    ("wanted", "is_found"),
    [
        ({}, True),
        ({"version": "v1"}, True),
        ({"version": "v2"}, False),
    ],
    ids=str,
)
def test_another_version_is_none(root: str, wanted: dict[str, str], is_found: bool) -> None:
    store = SurveyStore(root)
    store.write("a", SURVEY)
    assert (store.read("a", **wanted) is not None) is is_found


def test_a_new_survey_replaces_the_old_and_the_same_one_is_left_alone(tmp_path: Path) -> None:
    store = SurveyStore(str(tmp_path))
    store.write("a", SURVEY)
    path = tmp_path / "ledger" / "raw_shards" / "a.parquet"
    os.utime(path, ns=(1, 1))
    store.write("a", SURVEY)
    assert path.stat().st_mtime_ns == 1
    store.write("a", replace(SURVEY, version="v2"))
    assert store.read("a") == replace(SURVEY, version="v2")
    assert [p.name for p in path.parent.iterdir()] == ["a.parquet"]


def test_a_survey_that_is_written_again_keeps_nothing_of_what_was_read(tmp_path: Path) -> None:
    store = SurveyStore(str(tmp_path))
    store.write("a", SURVEY)
    read = store.read("a")
    assert read is not None
    store.write("a", replace(read, unreferenced=Excerpt(("something else",), 1)))
    assert pq.read_schema(store.uri("a")).metadata is None
    assert b"something else" in pq.read_metadata(store.uri("a")).metadata[SURVEY_KEY]


def test_a_survey_is_of_its_version_and_layout_alone() -> None:
    wanted = [("v1", "layout"), ("v2", "layout"), ("v1", "other")]
    assert [SURVEY.is_of(*of) for of in wanted] == [True, False, False]


def test_surveys_of_several_shards_are_those_that_there_are(root: str) -> None:
    store = SurveyStore(root)
    store.write("a", SURVEY)
    store.write("x" * 100, replace(SURVEY, version="v2"))
    found = dict(store.surveys(["a", "b", "x" * 100]))
    assert found == {"a": SURVEY, "x" * 100: replace(SURVEY, version="v2")}
    assert dict(store.surveys(["b"])) == dict(store.surveys([])) == {}


def test_surveys_of_a_store_that_refuses_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("access denied")

    store = SurveyStore(f"memory://surveys-{uuid.uuid4().hex}")
    store.write("a", SURVEY)
    monkeypatch.setattr(MemoryFileSystem, "ls", refused)
    assert dict(store.surveys(["a", "b"])) == {"a": SURVEY}


def test_surveys_that_are_published_meanwhile_are_listed(tmp_path: Path) -> None:
    """A temporary name that is gone when it is looked at takes no other with it."""
    store = SurveyStore(str(tmp_path))
    store.write("a", SURVEY)
    folder = tmp_path / "ledger" / "raw_shards"
    (folder / "b.parquet.tmp").symlink_to(folder / "gone")
    with ThreadPoolExecutor(1) as writing:
        done = writing.submit(
            lambda: [store.write("c", replace(SURVEY, version=f"v{n}")) for n in range(300)]
        )
        while not done.done():
            assert store.partitions() in (["a"], ["a", "c"])
        assert len(done.result()) == 300


def test_the_file_is_a_table_that_anyone_can_query(tmp_path: Path) -> None:
    store = SurveyStore(str(tmp_path))
    store.write("train/a", SURVEY)
    store.write("train/b", merge_files([("b.tar", FileSurvey(samples=(fact("c"),)))], "v1", "layout"))
    publish(str(tmp_path), "train/a", ["a"])
    table = pa.concat_tables(
        [pq.read_table(p) for p in sorted((tmp_path / "ledger" / "raw_shards").glob("*.parquet"))]
    )
    assert table.schema.names == [
        "partition",
        "sample_id",
        "member",
        "source",
        "byte_offset",
        "byte_size",
        "items",
        "images",
    ]
    assert table.schema.types == [*[pa.string()] * 4, pa.int64(), pa.int64(), pa.int32(), pa.int32()]
    assert table.select(["partition", "sample_id"]).to_pylist() == [
        {"partition": "train/a", "sample_id": "a"},
        {"partition": "train/a", "sample_id": "ü/b.c"},
        {"partition": "train/b", "sample_id": "c"},
    ]


def test_the_kept_entries_are_bounded_and_all_are_counted(tmp_path: Path) -> None:
    losses = (*(bad(BAD_JSON, f"s{n}", n) for n in range(1500)), bad(TRUNCATED_TAR, None, 7, None))
    unresolved = tuple((f"s{n}", n, "missing") for n in range(2000))
    survey = merge_files([("a.tar", FileSurvey(losses=losses, unresolved=unresolved))], "v1", "layout")
    SurveyStore(str(tmp_path)).write("a", survey)
    found = SurveyStore(str(tmp_path)).read("a")
    assert found == survey
    assert (survey.losses[BAD_JSON].count, len(survey.losses[BAD_JSON].first)) == (1500, 1000)
    assert (survey.unresolved.count, survey.unresolved.first) == (2000, unresolved[:1000])
    assert survey.losses[TRUNCATED_TAR] == Excerpt(losses[-1:], 1)


def _damages(good: bytes) -> list[bytes]:
    other = good.replace(rb"\"format\": 1", rb"\"format\": 9")
    assert other != good
    return [b"", b"PAR1", good[:-9], good[: len(good) // 2], other, b"\xff" * 100]


@pytest.mark.parametrize("which", range(6))
def test_a_damaged_survey_counts_as_absent_and_is_told(
    root: str, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = SurveyStore(root)
    store.write("a", SURVEY)
    store.write("b", SURVEY)
    fs, path = fsspec.core.url_to_fs(f"{root}/ledger/raw_shards/a.parquet")
    fs.pipe_file(path, _damages(fs.cat_file(path))[which])
    with caplog.at_level(logging.WARNING):
        assert store.read("a") is None
        assert [partition for partition, _ in store.columns_and_ids(["a", "b"])] == ["b"]
        assert [partition for partition, _ in store.sample_ids(["a", "b"])] == ["b"]
    assert caplog.text.count("a.parquet is unreadable") == 3


def test_a_survey_of_another_shard_is_not_believed(tmp_path: Path) -> None:
    store = SurveyStore(str(tmp_path))
    store.write("a", SURVEY)
    folder = tmp_path / "ledger" / "raw_shards"
    (folder / "a.parquet").rename(folder / "b.parquet")
    assert store.read("b") is None


def test_a_store_that_cannot_be_reached_is_no_empty_store(tmp_path: Path) -> None:
    store = SurveyStore(str(tmp_path))
    (tmp_path / "ledger" / "raw_shards" / "a.parquet").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        store.read("a")


def test_what_is_published_is_told_by_account_and_output(root: str) -> None:
    store = SurveyStore(root)
    schema = pa.schema([*INTERLEAVED_SCHEMA, json_field("tags"), ("n", pa.int64())])
    published = Published(schema, SURVEY.columns)
    publish(root, "train/a", ["a", "a", "ü"], published)
    publish(root, "b", [], published)
    found = dict(store.published(["train/a", "b", "c"]))
    assert found.keys() == {"train/a", "b"}
    assert found["train/a"].schema.equals(
        pa.schema([json_field("tags"), ("n", pa.int64())]), check_metadata=True
    )
    assert found["train/a"].columns == SURVEY.columns
    assert {key: ids.to_pylist() for key, ids in store.published_ids(["train/a", "b", "c"])} == {
        "train/a": ["a", "ü"],
        "b": [],
    }
    assert store.partitions() == []


def test_findings_name_and_count_what_is_wrong() -> None:
    losses = tuple(bad(NOT_UTF8, f"n{n}", n) for n in range(30))
    tar = replace(TAR, losses=(*TAR.losses, *losses))
    found = findings(
        merge_files([("a.tar", tar), ("b.tar", FileSurvey(samples=(fact("a", 1024),)))], "v1", "layout")
    )
    assert len(found["not_utf8_first"]) == 20
    assert found["not_utf8_first"][1] == {
        "sample_id": "n1",
        "member": "n1.json",
        "offset": 1,
        "message": "a.tar: not_utf8 here",
    }
    assert {
        name: value for name, value in found.items() if not name.startswith(("not_utf8", "bad_json_first"))
    } == {
        "samples": 2,
        "damage": 1,
        "damage_first": [{"kind": "truncated_tar", "offset": 20480, "message": "a.tar: truncated_tar here"}],
        "unreadable": 32,
        "bad_json": 2,
        "repeated_ids": 1,
        "repeated_ids_first": [
            {
                "sample_id": "a",
                "member": "a.json",
                "offset": 1024,
                "message": "sample id 'a' occurs twice in this shard, first in member 'a.json' of a.tar",
            }
        ],
        "unresolved": 1,
        "unresolved_first": [{"sample_id": "a", "position": 2, "message": "missing member 'a.2.jpg'"}],
        "frame_counts": 1,
        "frame_counts_first": [{"member": "a.tar: a.tiff", "frames": 3, "references": 2}],
        "unreferenced": 2,
        "unreferenced_first": ["a.tar: stray.jpg", "a.tar: README"],
        "skipped": 1,
        "skipped_first": ["a.tar: pipe"],
    }


def test_findings_of_a_sound_shard_are_zeros() -> None:
    sound = merge_files([("a.tar", FileSurvey(samples=(fact("a"),)))], "v1", "layout")
    names = ("damage", "unreadable", "repeated_ids", "unresolved", "frame_counts", "unreferenced", "skipped")
    assert findings(sound) == {"samples": 1, **dict.fromkeys(names, 0)}
    assert sound.is_sound


@pytest.mark.parametrize(
    ("change", "is_sound"),
    [
        ({"losses": (bad(BAD_JSON, "x", 1),)}, False),
        ({"losses": (bad(TRUNCATED_TAR, None, 1, None),)}, False),
        ({"unresolved": TAR.unresolved}, False),
        ({"frame_counts": TAR.frame_counts}, False),
        ({"unreferenced": ("LICENSE",)}, True),
        ({"skipped": ("pipe",)}, False),
    ],
    ids=str,
)
def test_what_makes_a_shard_unsound(change: dict[str, Any], is_sound: bool) -> None:
    assert (
        merge_files([("a.tar", FileSurvey(samples=(fact("a"),), **change))], "v1", "layout").is_sound
        is is_sound
    )


def test_no_flipped_byte_is_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else one byte decides which shard keeps an id, or which type a column has."""
    store = SurveyStore(str(tmp_path))
    store.write("p", SURVEY)
    path = tmp_path / "ledger" / "raw_shards" / "p.parquet"
    whole, expected = path.read_bytes(), store.read("p")
    left_out = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        found = store.read("p")
        left_out += found is None
        assert found is None or found == expected, at
    assert left_out > len(whole) / 3
    assert str(path) in caplog.text
