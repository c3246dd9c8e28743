"""Read a tar with what is bad set aside; what must hold for every such reading is asserted here."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.formats.reader import FileSurvey
from mm_assets.formats.webdataset import MAX_MEMBER_BYTES, RawLayout
from mm_assets.formats.webdataset.samples import survey_tar
from mm_assets.interleaved import InterleavedWebdatasetReader
from mm_assets.model.errors import BAD_JSON, BAD_SAMPLE_ID, LONE_SURROGATE, NOT_AN_OBJECT, NOT_UTF8
from mm_assets.model.losses import Loss
from mm_assets_tests.formats.datasets import batch_of, item, write
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import tar_members


@dataclass(frozen=True)
class Reading:
    table: pa.Table
    losses: list[Loss]
    survey: FileSurvey

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows without the place that their bytes had in the tar."""
        rows = self.table.to_pylist()
        for row in rows:
            if row["source_ref"] is not None:
                ref = json.loads(row["source_ref"])
                row["source_ref"] = (ref["path"], ref["member"], ref["byte_size"], ref.get("frame_index"))
        return rows

    @property
    def ids(self) -> list[str]:
        return list(dict.fromkeys(self.table["sample_id"].to_pylist()))


def read_tolerantly(shard: Path, **options: Any) -> Reading:
    """One tar, whose locators are relative to its folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return _read(shard, options)


def _read(shard: Path, options: dict[str, Any]) -> Reading:
    reader = InterleavedWebdatasetReader(
        str(shard), quarantine_errors=True, relative_to=str(shard.parent), **options
    )
    (partition,) = reader.partitions()
    stream = reader.open(partition)
    opened = list(stream.losses)
    tables = [batch.data for batch in stream]
    table = pa.concat_tables(tables) if tables else stream.schema.empty_table()
    assert table.schema.equals(stream.schema, check_metadata=True)
    assert stream.losses == opened, "known before the first batch"
    assert stream.items == table.num_rows + sum(loss.is_item for loss in stream.losses)
    layout = reader.layout if options else RawLayout()
    survey = survey_tar(
        str(shard), layout, shard.name, max_member_bytes=options.get("max_member_bytes", MAX_MEMBER_BYTES)
    )
    if "taken_ids" not in options:
        assert list(survey.losses) == stream.losses
        assert sum(facts.items for facts in survey.samples) == table.num_rows
        assert [facts.sample_id for facts in survey.samples] == list(
            dict.fromkeys(table["sample_id"].to_pylist())
        )
    for loss in stream.losses:
        assert str(shard.parent) not in f"{loss.reason}{loss.source_ref}", "no path of this machine"
    return Reading(table, stream.losses, survey)


def located_bytes(shard: Path, loss: Loss) -> bytes:
    """What the locator of a loss points at, in a tar that is not packed."""
    ref = json.loads(loss.source_ref or "null")
    assert ref["path"] == shard.name
    return shard.read_bytes()[ref["byte_offset"] : ref["byte_offset"] + ref["byte_size"]]


BAD_TEXTS = [
    (b'{"texts": [', BAD_JSON, "not JSON"),
    (b"", BAD_JSON, "not JSON"),
    (b'{"a": 1, "a": 2}', BAD_JSON, "'a' occurs twice"),
    (b'{"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", BAD_JSON, "nested too deeply"),
    (b'{"texts": ["\xff\xfe"]}', NOT_UTF8, "not UTF-8"),
    (b'{"texts": ["\\ud800"]}', LONE_SURROGATE, "lone surrogate"),
    (b'["two"]', NOT_AN_OBJECT, "no object but list"),
    (b"null", NOT_AN_OBJECT, "no object but NoneType"),
    (b'{"sample_id": 5, "_row_extra": {}}', BAD_SAMPLE_ID, "'sample_id' is no string"),
]


def own_members(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None] | None = None
) -> list[tuple[str, Any]]:
    """The members of a tar of our writer with samples ``first``, ``edited``, ``last``; the middle one changed
    afterwards.
    """
    rows = []
    for number, sample_id in enumerate(["first", "edited", "last"]):
        image = picture(number)[1]
        rows += [
            item(sample_id, extra="x"),
            item(sample_id, 0, text_content="t", content_type="text/plain"),
            item(sample_id, 3, "image", binary_content=image, content_type="image/png"),
        ]
    write("webdataset", tmp_path / "own.tar", batch_of(rows, [pa.field("extra", pa.string())]))
    members: list[tuple[str, Any]] = []
    for name, data in tar_members(tmp_path / "own.tar").items():
        if name == "edited.json":
            payload = json.loads(data)
            if edit is not None:
                edit(payload)
            members.append((name, payload))
        else:
            members.append((name, data))
    return members
