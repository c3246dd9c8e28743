"""Read a Parquet file of documents with what is bad set aside; what must hold for every such reading is
asserted here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.formats.parquet.reader_writer import survey_parquet
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import FileSurvey
from mm_assets.formats.webdataset import MAX_MEMBER_BYTES, RawLayout
from mm_assets.interleaved import InterleavedParquetReader
from mm_assets.model.losses import Loss


@dataclass(frozen=True)
class Reading:
    table: pa.Table
    losses: list[Loss]
    survey: FileSurvey

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.table.to_pylist()

    @property
    def ids(self) -> list[str]:
        return list(dict.fromkeys(self.table["sample_id"].to_pylist()))

    def items(self, sample_id: str) -> list[tuple[int, str, Any, str | None]]:
        """(position, modality, content, error) of the items of a sample."""
        rows = [row for row in self.rows if row["sample_id"] == sample_id and row["position"] >= 0]
        return [(r["position"], r["modality"], _content(r), r["materialize_error"]) for r in rows]

    def metadata(self, *columns: str) -> list[tuple[Any, ...]]:
        """These columns of the metadata rows; JSON text as the value it holds."""
        encoded = {
            f.name for f in self.table.schema if (f.metadata or {}).get(b"mm_assets:encoding") == b"json"
        }
        rows = [row for row in self.rows if row["position"] < 0]
        return [
            tuple(json.loads(row[c]) if c in encoded and row[c] is not None else row[c] for c in columns)
            for row in rows
        ]


def _content(row: dict[str, Any]) -> Any:
    return row["text_content"] if row["modality"] == "text" else row["binary_content"]


def read_tolerantly(file: Path, max_batch_bytes: int | None = None, **options: Any) -> Reading:
    """One file, whose locators are relative to its folder."""
    reader = InterleavedParquetReader(
        str(file),
        quarantine_errors=True,
        relative_to=str(file.parent),
        max_batch_bytes=max_batch_bytes,
        **options,
    )
    (partition,) = reader.partitions()
    stream = reader.open(partition)
    opened = list(stream.losses)
    batches = list(stream)
    table = (
        pa.concat_tables([b.data for b in batches]) if batches else pa.Table.from_batches([], stream.schema)
    )
    assert table.schema.equals(stream.schema, check_metadata=True)
    assert stream.losses == opened, "known before the first batch"
    assert stream.items == table.num_rows + sum(loss.is_item for loss in stream.losses)
    layout_names = ("sample_id_field", "sample_id_prefix", "texts_field", "images_field")
    layout = RawLayout(**{name: value for name, value in options.items() if name in layout_names})
    limit = options.get("max_member_bytes", MAX_MEMBER_BYTES)
    survey = survey_parquet(
        str(file), layout, file.name, Partition(partition.name, (str(file),)), max_member_bytes=limit
    )
    if "taken_ids" not in options:
        assert list(survey.losses) == stream.losses
        assert sum(facts.items for facts in survey.samples) == table.num_rows
        assert sum(facts.images for facts in survey.samples) == table["modality"].to_pylist().count("image")
        assert [facts.sample_id for facts in survey.samples] == list(
            dict.fromkeys(table["sample_id"].to_pylist())
        )
    (declared,) = survey.declared
    assert list(declared) == list(table.schema)[8:]
    errors = {
        (r["sample_id"], r["position"], r["materialize_error"])
        for r in table.to_pylist()
        if r["materialize_error"] is not None
    }
    assert set(survey.unresolved) <= errors
    for loss in stream.losses:
        assert str(file.parent) not in f"{loss.reason}{loss.source_ref}", "no path of this machine"
    return Reading(table, stream.losses, survey)
