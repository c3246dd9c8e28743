"""A sample that cannot be read is one loss with its class; the samples around it are as if it had never been
there.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.interleaved import InterleavedWebdatasetReader
from mm_assets.model.errors import (
    BAD_JSON,
    BAD_LAYOUT,
    BAD_SAMPLE_ID,
    DANGLING_REFERENCE,
    NOT_AN_OBJECT,
    NOT_UTF8,
    OVERSIZED_MEMBER,
    ShardError,
)
from mm_assets.model.losses import Loss
from mm_assets.model.schema import schema_to_text
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.webdataset.tolerant_reading import (
    BAD_TEXTS,
    located_bytes,
    own_members,
    read_tolerantly,
)

GOOD: list[tuple[str, Any]] = [
    ("g/one.json", {"texts": ["t", None], "images": [None, "one.png"], "n": 1}),
    ("g/one.png", picture(0)[1]),
    ("two.json", {"sample_id": "2", "texts": ["u"], "images": [], "n": 2.5}),
]


@pytest.mark.parametrize("place", [0, 2, 3])
@pytest.mark.parametrize(("data", "kind", "said"), BAD_TEXTS, ids=lambda v: str(v)[:25])
def test_a_bad_json_is_one_loss_and_the_others_go_on(
    tmp_path: Path, place: int, data: bytes, kind: str, said: str
) -> None:
    shard = make_tar(tmp_path / "with" / "x.tar", [*GOOD[:place], ("d/bad.json", data), *GOOD[place:]])
    sound = make_tar(tmp_path / "without" / "x.tar", GOOD)
    reading = read_tolerantly(shard)
    assert reading.rows == read_tolerantly(sound).rows
    assert reading.table.schema.equals(read_tolerantly(sound).table.schema, check_metadata=True)
    (loss,) = reading.losses
    assert (loss.sample_id, loss.position, loss.modality, loss.outcome) == (
        "d/bad",
        -1,
        "metadata",
        "quarantined",
    )
    assert (loss.kind, loss.is_cause, loss.score, loss.threshold) == (kind, True, None, None)
    assert loss.reason.startswith("x.tar: d/bad.json: ") and said in loss.reason
    assert json.loads(loss.source_ref or "")["member"] == "d/bad.json"
    assert located_bytes(shard, loss) == data
    with pytest.raises(ShardError, match=said):
        list(InterleavedWebdatasetReader(str(shard)))


LAYOUT_EDITS: list[tuple[Callable[[dict[str, Any]], None], str, str, str]] = [
    (lambda p: p.update(sample_id=5), BAD_SAMPLE_ID, "edited", "'sample_id' is no string"),
    (lambda p: p.update(sample_id="real", texts="t"), BAD_LAYOUT, "real", "'texts' is no list"),
    (lambda p: p.update(images={"a": 1}), BAD_LAYOUT, "edited", "'images' is no list"),
    (lambda p: p["_row_extra"].update(text=[]), BAD_LAYOUT, "edited", "does not align"),
    (
        lambda p: p["_row_extra"]["text"].__setitem__(1, {"extra": "?"}),
        BAD_LAYOUT,
        "edited",
        "where there is no item",
    ),
    (lambda p: p["_row_extra"].update(metadata=[1]), BAD_LAYOUT, "edited", "no object"),
    (lambda p: p.update(new=1), BAD_LAYOUT, "edited", "'new' is in no column"),
    (lambda p: p.update(_row_errors=[{}]), BAD_LAYOUT, "edited", "no item has this modality"),
    (
        lambda p: p.update(_row_errors=[{"modality": "text", "position": -5}]),
        BAD_LAYOUT,
        "edited",
        "no item has this",
    ),
    (
        lambda p: p.update(_row_errors=[{"modality": "text", "position": 2**40}]),
        BAD_LAYOUT,
        "edited",
        "no item has this",
    ),
    (
        lambda p: p.update(_row_errors=[{"modality": "text", "position": 1, "content_type": 5}]),
        BAD_LAYOUT,
        "edited",
        "are texts",
    ),
    (
        lambda p: p.update(_row_errors=[{"modality": "text", "position": 1, "materialize_error": 5}]),
        *(BAD_LAYOUT, "edited", "are texts"),
    ),
    (lambda p: p.update(_mm_assets={}), BAD_LAYOUT, "edited", "'_mm_assets' does not fit"),
    (
        lambda p: p["_mm_assets"]["rows"]["text"].update({"0": {"content_type": 5}}),
        BAD_LAYOUT,
        "edited",
        "are texts",
    ),
    (
        lambda p: p["_mm_assets"]["rows"]["text"].update({"0": {"text_content": [1]}}),
        BAD_LAYOUT,
        "edited",
        "are texts",
    ),
    (lambda p: p["_mm_assets"].update(schema="AAAA"), BAD_LAYOUT, "edited", "'_mm_assets' does not fit"),
    (
        lambda p: p["_mm_assets"]["rows"]["image"].update({"3": {"binary_content": "%"}}),
        BAD_LAYOUT,
        "edited",
        "does not fit",
    ),
]


@pytest.mark.parametrize(("edit", "kind", "sample_id", "said"), LAYOUT_EDITS)
def test_a_json_of_ours_that_contradicts_itself(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], kind: str, sample_id: str, said: str
) -> None:
    members = own_members(tmp_path, edit)
    reading = read_tolerantly(make_tar(tmp_path / "x.tar", members))
    assert reading.ids == ["first", "last"]
    (loss,) = reading.losses
    assert (loss.kind, loss.sample_id, loss.position, loss.modality) == (kind, sample_id, -1, "metadata")
    assert loss.reason.startswith("x.tar: edited.json: ") and said in loss.reason
    sound = [member for member in members if not member[0].startswith("edited")]
    assert reading.rows == read_tolerantly(make_tar(tmp_path / "sound" / "x.tar", sound)).rows


def test_a_json_that_leaves_no_row_is_no_silent_loss(tmp_path: Path) -> None:
    def edit(payload: dict[str, Any]) -> None:
        payload.update(texts=[], images=[])
        payload["_row_extra"].update(text=[], image=[])
        payload["_mm_assets"]["rows"] = {"text": {}, "image": {}}

    (loss,) = read_tolerantly(make_tar(tmp_path / "x.tar", own_members(tmp_path, edit))).losses
    assert (loss.kind, loss.sample_id) == (BAD_LAYOUT, "edited")


def test_values_that_do_not_fit_their_types_cost_the_rows_of_that_sample(tmp_path: Path) -> None:
    members = own_members(tmp_path, lambda p: p["_row_extra"]["metadata"].update(extra=[1]))
    shard = make_tar(tmp_path / "x.tar", members)
    reading = read_tolerantly(shard)
    assert reading.ids == ["first", "last"]
    assert [(loss.sample_id, loss.position, loss.modality, loss.is_cause) for loss in reading.losses] == [
        ("edited", -1, "metadata", True),
        ("edited", 0, "text", False),
        ("edited", 3, "image", False),
    ]
    assert {loss.kind for loss in reading.losses} == {BAD_LAYOUT}
    assert {loss.reason[: len("x.tar: sample 'edited': ")] for loss in reading.losses} == {
        "x.tar: sample 'edited': "
    }
    assert located_bytes(shard, reading.losses[0]) == json.dumps(dict(members)["edited.json"]).encode()
    sound = [member for member in members if not member[0].startswith("edited")]
    assert reading.rows == read_tolerantly(make_tar(tmp_path / "sound" / "x.tar", sound)).rows
    with pytest.raises(ShardError, match="sample 'edited'"):
        list(InterleavedWebdatasetReader(str(shard)))


@pytest.mark.parametrize("is_raw", [False, True])
def test_an_integer_that_is_no_float_where_the_others_are(tmp_path: Path, is_raw: bool) -> None:
    """Each fits the types of its own json; together they are JSON text: in float64 2^53 + 1 would become
    another number.
    """
    members: list[tuple[str, Any]] = []
    for name, data in own_members(tmp_path):
        if name.endswith(".json"):
            payload = data if isinstance(data, dict) else json.loads(data)
            is_int = name == "edited.json"
            schema = schema_to_text(pa.schema([("extra", pa.int64() if is_int else pa.float64())]))
            payload["_mm_assets"]["schema"] = schema
            payload["_row_extra"]["metadata"]["extra"] = 2**53 + 1 if is_int else 1.5
            data = {"sample_id": "edited", "extra": 2**53 + 1} if is_int and is_raw else payload
        members.append((name, data))
    shard = make_tar(tmp_path / "x.tar", members)
    for rows in (
        read_tolerantly(shard).rows,
        [row for batch in InterleavedWebdatasetReader(str(shard)) for row in batch.data.to_pylist()],
    ):
        found = [(row["sample_id"], row["extra"]) for row in rows if row["position"] < 0]
        assert found == [("first", "1.5"), ("edited", "9007199254740993"), ("last", "1.5")]


def test_reserved_names_among_declared_columns_are_refused(tmp_path: Path) -> None:
    schema = schema_to_text(pa.schema([("extra", pa.string()), ("position", pa.int64())]))
    members = own_members(tmp_path, lambda p: p["_mm_assets"].update(schema=schema))
    reading = read_tolerantly(make_tar(tmp_path / "x.tar", members))
    assert reading.ids == ["first", "last"]
    assert [loss.kind for loss in reading.losses] == [BAD_LAYOUT]
    assert "column names are not unique" in reading.losses[0].reason


def test_a_reason_does_not_repeat_all_of_the_data(tmp_path: Path) -> None:
    huge = "k" * 100_000
    members = own_members(tmp_path, lambda p: p.update({huge: 1}))
    misfit = own_members(tmp_path, lambda p: p["_row_extra"]["metadata"].update(extra=[huge]))
    for number, edited in enumerate([members, misfit]):
        reading = read_tolerantly(make_tar(tmp_path / str(number) / "x.tar", edited))
        assert reading.ids == ["first", "last"]
        assert max(len(loss.reason) for loss in reading.losses) <= 2001


def test_a_per_item_field_that_is_no_list(tmp_path: Path) -> None:
    members = [
        *GOOD,
        ("k.json", {"sample_id": "real", "texts": ["a"], "lang": 5}),
        ("l.json", {"texts": ["a"], "lang": ["de"]}),
    ]
    reading = read_tolerantly(make_tar(tmp_path / "x.tar", members), per_text_fields=["lang"])
    assert reading.ids == ["g/one", "2", "l"]
    (loss,) = reading.losses
    assert (loss.kind, loss.sample_id, loss.reason) == (
        BAD_LAYOUT,
        "real",
        "x.tar: k.json: per-item field 'lang' is no list",
    )


def test_a_missing_id_field(tmp_path: Path) -> None:
    reading = read_tolerantly(
        make_tar(tmp_path / "x.tar", [("a.json", {"doc": "d"}), ("b.json", {})]), sample_id_field="doc"
    )
    assert reading.ids == ["d"]
    (loss,) = reading.losses
    assert (loss.kind, loss.sample_id) == (BAD_SAMPLE_ID, "b")


def test_an_oversized_json_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_assets.formats.webdataset.samples.MAX_JSON_BYTES", 200)
    data = b'{"texts": ["' + b"x" * 200 + b'"]}'
    reading = read_tolerantly(make_tar(tmp_path / "x.tar", [*GOOD, ("big.json", data)]))
    assert reading.ids == ["g/one", "2"]
    (loss,) = reading.losses
    assert (loss.kind, loss.sample_id) == (OVERSIZED_MEMBER, "big")
    assert loss.reason == "x.tar: big.json: json member of 215 bytes, more than 200"


def raw_tar(path: Path, infos: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        for info, data in infos:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_a_json_that_is_a_broken_link(tmp_path: Path) -> None:
    link = tarfile.TarInfo("b.json")
    link.type, link.linkname = tarfile.SYMTYPE, "../x.json"
    reading = read_tolerantly(raw_tar(tmp_path / "x.tar", [(link, b""), (tarfile.TarInfo("a.json"), b"{}")]))
    assert reading.ids == ["a"]
    ref = '{"path": "x.tar", "member": "b.json", "byte_offset": 0, "byte_size": null}'  # of its header
    reason = "x.tar: b.json: links to '../x.json', outside the tar"
    assert reading.losses == [
        Loss("b", -1, "metadata", "quarantined", DANGLING_REFERENCE, reason, source_ref=ref)
    ]


def test_a_json_whose_name_is_not_utf8(tmp_path: Path) -> None:
    shard = raw_tar(
        tmp_path / "x.tar",
        [(tarfile.TarInfo("caf\xe9.json"), b'{"n": 1}'), (tarfile.TarInfo("a.json"), b"{}")],
    )
    reading = read_tolerantly(shard)
    assert reading.ids == ["a"]
    (loss,) = reading.losses
    assert (loss.kind, loss.sample_id) == (NOT_UTF8, "caf\\xe9")
    assert located_bytes(shard, loss) == b'{"n": 1}'


def test_images_of_a_lost_sample_are_unreferenced_and_a_tar_of_bad_ones_is_empty(tmp_path: Path) -> None:
    reading = read_tolerantly(
        make_tar(tmp_path / "x.tar", [("a.json", b"{"), ("a.png", b"image"), ("b.json", b"[]")])
    )
    assert reading.rows == []
    assert [loss.kind for loss in reading.losses] == [BAD_JSON, NOT_AN_OBJECT]
    assert reading.survey.unreferenced == ("a.png",)
