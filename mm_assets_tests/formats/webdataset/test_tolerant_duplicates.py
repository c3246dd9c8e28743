"""A sample id stands for one sample: the first that can be used; each later one is lost whole, with what it
collides with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mm_assets.interleaved import InterleavedWebdatasetReader
from mm_assets.model.errors import BAD_JSON, DUPLICATE_ID, ShardError
from mm_assets.model.losses import Loss
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.webdataset.tolerant_reading import (
    Reading,
    located_bytes,
    own_members,
    read_tolerantly,
)

FIRST = [("a.json", {"sample_id": "x", "texts": ["first"], "n": 1})]
SECOND: list[tuple[str, Any]] = [
    (
        "b.json",
        {
            "sample_id": "x",
            "texts": ["second", None, "t"],
            "images": [None, "b.png", "gone.png"],
            "n": "other",
        },
    ),
    ("b.png", picture(0)[1]),
]
OTHER: list[tuple[str, Any]] = [("c.json", {"texts": ["third"], "n": 2})]
BOTH = "sample id 'x' occurs twice in this shard, first in member 'a.json'"


def facts(losses: list[Loss]) -> list[tuple[Any, ...]]:
    return [(loss.sample_id, loss.position, loss.modality, loss.kind, loss.is_cause) for loss in losses]


ITEMS_OF_SECOND = [
    ("x", -1, "metadata", DUPLICATE_ID, True),
    ("x", 0, "text", DUPLICATE_ID, False),
    ("x", 1, "image", DUPLICATE_ID, False),
    ("x", 2, "text", DUPLICATE_ID, False),
    ("x", 2, "image", DUPLICATE_ID, False),
]


def without_places(reading: Reading) -> list[dict[str, Any]]:
    return [{**row, "source_ref": None} for row in reading.rows]


@pytest.mark.parametrize("options", [{}, {"max_batch_bytes": 1}], ids=str)
def test_the_first_stays_and_the_second_is_lost_item_by_item(tmp_path: Path, options: dict[str, Any]) -> None:
    shard = make_tar(tmp_path / "x.tar", [*FIRST, *SECOND, *OTHER])
    reading = read_tolerantly(shard, **options)
    sound = read_tolerantly(make_tar(tmp_path / "sound" / "x.tar", [*FIRST, *OTHER]))
    assert without_places(reading) == without_places(sound)
    assert reading.table.schema.equals(sound.table.schema), "the type of n is that of the samples that stay"
    assert facts(reading.losses) == ITEMS_OF_SECOND
    assert {loss.reason for loss in reading.losses} == {BOTH}
    assert {loss.outcome for loss in reading.losses} == {"quarantined"}
    metadata, text, image, _, missing = reading.losses
    assert located_bytes(shard, metadata) == located_bytes(shard, text) == json.dumps(SECOND[0][1]).encode()
    assert located_bytes(shard, image) == picture(0)[1]
    assert json.loads(missing.source_ref or "")["member"] == "gone.png"
    assert reading.survey.unreferenced == (), "b.png belongs to a sample, if to one that is set aside"
    with pytest.raises(ShardError, match="sample id 'x' occurs twice"):
        list(InterleavedWebdatasetReader(str(make_tar(tmp_path / "y.tar", [*FIRST, *SECOND]))))


def test_every_later_one_is_told_of_the_first(tmp_path: Path) -> None:
    reading = read_tolerantly(
        make_tar(
            tmp_path / "x.tar", [*FIRST, *OTHER, *SECOND, ("z/x.json", {"sample_id": "x"}), ("x.json", {})]
        )
    )
    assert reading.ids == ["x", "c"]
    assert facts(reading.losses) == [*ITEMS_OF_SECOND, *[("x", -1, "metadata", DUPLICATE_ID, True)] * 2]
    assert {loss.reason for loss in reading.losses} == {BOTH}


def test_one_that_cannot_be_used_claims_no_id(tmp_path: Path) -> None:
    members = [("x.json", b"{"), *FIRST]
    reading = read_tolerantly(make_tar(tmp_path / "x.tar", members))
    assert (reading.ids, facts(reading.losses)) == (["x"], [("x", -1, "metadata", BAD_JSON, True)])
    misfit = own_members(
        tmp_path, lambda p: (p["_row_extra"]["metadata"].update(extra=[1]), p.update(sample_id="last"))
    )  # type: ignore[func-returns-value]
    reading = read_tolerantly(make_tar(tmp_path / "own" / "x.tar", misfit))
    assert reading.ids == ["first", "last"]
    assert [(loss.sample_id, loss.kind) for loss in reading.losses] == [("last", "bad_layout")] * 3


def test_ids_of_other_shards_are_duplicates_here(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", [*SECOND, *OTHER, *FIRST])
    reading = read_tolerantly(shard, taken_ids=["x", "elsewhere"])
    assert reading.ids == ["c"]
    assert facts(reading.losses) == [*ITEMS_OF_SECOND, *ITEMS_OF_SECOND[:2]]
    assert {loss.reason for loss in reading.losses} == {"sample id 'x' is already in another shard"}
    strict = InterleavedWebdatasetReader(str(shard), taken_ids=["c"], max_batch_bytes=1)
    assert [batch.data["sample_id"][0].as_py() for batch in strict] == ["x", "c", "x"], (
        "strict reading takes no notice"
    )


def test_files_of_one_partition_share_their_ids(tmp_path: Path) -> None:
    make_tar(tmp_path / "1.tar", [*FIRST, *OTHER])
    make_tar(tmp_path / "2.tar", [*SECOND, ("d.json", {})])
    reader = InterleavedWebdatasetReader(
        str(tmp_path),
        quarantine_errors=True,
        files_per_partition=2,
        relative_to=str(tmp_path),
        max_batch_bytes=1 << 20,
    )
    (partition,) = reader.partitions()
    stream = reader.open(partition)
    for _ in range(2):
        rows = [row for batch in stream for row in batch.data.to_pylist()]
        assert [row["sample_id"] for row in rows] == ["x", "x", "c", "c", "d"]
        assert facts(stream.losses) == ITEMS_OF_SECOND
        assert {loss.reason for loss in stream.losses} == {f"{BOTH} of 1.tar"}
        assert stream.items == len(rows) + len(stream.losses) == 10
    _, tables = reader.project(partition, ["sample_id"])
    assert [text for table in tables for text in table["sample_id"].to_pylist()] == ["x", "x", "c", "c", "d"]
