"""File formats of surveys and of notes on published outputs.

Each file names its shard and has a digest, so moved or torn files are detected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.accounting.contract import Published
from mm_assets.accounting.sealed_json import seal, unseal
from mm_assets.accounting.shard_columns import ShardColumns, passthrough
from mm_assets.accounting.shard_survey import SAMPLES_SCHEMA, Excerpt, ShardSurvey
from mm_assets.formats.content_columns import ContentColumns
from mm_assets.interleaved.json_values import FieldTally
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.schema_text import schema_from_text, schema_to_text

FORMAT = 1
SURVEY_KEY = b"mm_assets:survey"  # key in the Parquet metadata: everything but the sample rows, as JSON

_IDS_SCHEMA = pa.schema([("partition", pa.string()), ("sample_id", pa.string())])
# Pages have checksums, verified on reading: a changed value would affect decisions about other shards.
_WRITTEN = {"compression": "zstd", "write_page_checksum": True}


def write_survey(path: str, partition: str, survey: ShardSurvey) -> None:
    """Write a local Parquet file with a row per sample: the survey of a raw shard."""
    names = pa.array([partition] * survey.samples.num_rows, pa.string())
    table = survey.samples.add_column(0, pa.field("partition", pa.string(), nullable=False), names)
    rest = {
        "format": FORMAT,
        "partition": partition,
        "version": survey.version,
        "layout": survey.layout,
        "members": survey.members,
        "nbytes": survey.nbytes,
        "losses": {kind: _excerpt_to_json(losses, asdict) for kind, losses in survey.losses.items()},
        "unresolved": _excerpt_to_json(survey.unresolved, list),
        "frame_counts": _excerpt_to_json(survey.frame_counts, list),
        "unreferenced": _excerpt_to_json(survey.unreferenced, str),
        "skipped": _excerpt_to_json(survey.skipped, str),
        **({} if survey.left_out is None else {"left_out": _excerpt_to_json(survey.left_out, str)}),
        **({} if survey.content is None else {"content": survey.content, "has_pairs": survey.has_pairs}),
        **_columns_to_json(survey.columns),
    }
    with pq.ParquetWriter(path, table.schema, **_WRITTEN) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({SURVEY_KEY.decode(): _sealed(rest)})


def read_survey(partition: str, data: bytes) -> ShardSurvey:
    """Read the survey of this partition.

    Raises:
        UNREADABLE: (one of these classes) the data is anything else.
    """
    file, rest = _open(partition, data)
    return ShardSurvey(
        rest["version"],
        rest["layout"],
        _read(file, SAMPLES_SCHEMA),
        {
            kind: _excerpt_from_json(losses, lambda values: Loss(**values))
            for kind, losses in rest["losses"].items()
        },
        _excerpt_from_json(rest["unresolved"], tuple),
        _excerpt_from_json(rest["frame_counts"], tuple),
        _excerpt_from_json(rest["unreferenced"], str),
        _excerpt_from_json(rest.get("skipped", {"count": 0, "first": []}), str),
        _columns_from_json(rest),
        rest["members"],
        rest["nbytes"],
        _content_from_json(rest.get("content")),
        rest.get("has_pairs"),
        _excerpt_from_json(rest["left_out"], str) if "left_out" in rest else None,
    )


def columns_to_text(columns: ShardColumns) -> str:
    """Return columns as text; it is the same for shards that require the same types in the same order."""
    return json.dumps(_columns_to_json(columns.rounded()))


def columns_from_text(text: str) -> ShardColumns:
    """Return columns that require the same types as those that `columns_to_text` was given."""
    return _columns_from_json(json.loads(text))


def published_to_text(published: Published) -> str:
    """Return what an output was made with as text, as `columns_to_text`."""
    schema = schema_to_text(pa.schema(passthrough(published.schema)))
    return json.dumps({"schema": schema, "columns": columns_to_text(published.columns)})


def published_from_text(text: str) -> Published:
    """Return what `published_to_text` was given, with columns as of `columns_from_text`."""
    values = json.loads(text)
    return Published(schema_from_text(values["schema"]), columns_from_text(values["columns"]))


def read_sample_ids(partition: str, data: bytes) -> pa.ChunkedArray:
    """Read only the sample ids of a survey. Raises as `read_survey`."""
    return _sample_ids(_open(partition, data)[0])


def read_columns_and_ids(partition: str, data: bytes) -> tuple[ShardColumns, pa.ChunkedArray]:
    """Read columns and sample ids of a survey. Raises as `read_survey`."""
    file, rest = _open(partition, data)
    return _columns_from_json(rest), _sample_ids(file)


def stated_partition(data: bytes) -> str:
    """Return the partition that a survey names as its own. Raises as `read_survey`."""
    return str(_open(None, data)[1]["partition"])


def write_published(path: str, partition: str, published: Published) -> None:
    """Write a local JSON file with the schema that an output was made with."""
    values = {
        "format": FORMAT,
        "partition": partition,
        "schema": schema_to_text(pa.schema(passthrough(published.schema))),
        **_columns_to_json(published.columns),
    }
    Path(path).write_text(_sealed(values), encoding="utf-8")


def read_published(partition: str, data: bytes) -> Published:
    """Read what `write_published` wrote for this partition.

    Raises:
        UNREADABLE: (one of these classes) the data is anything else.
    """
    values = _checked(partition, data)
    return Published(schema_from_text(values["schema"]), _columns_from_json(values))


def write_published_ids(path: str, partition: str, sample_ids: Iterable[str]) -> None:
    """Write a local Parquet file with a row for each sample of an output."""
    ids = pa.array(sample_ids, pa.string())
    pq.write_table(
        pa.table([pa.array([partition] * len(ids), pa.string()), ids], schema=_IDS_SCHEMA), path, **_WRITTEN
    )


def read_published_ids(partition: str, data: bytes) -> pa.ChunkedArray:
    """Read the ids that `write_published_ids` wrote.

    Raises:
        UNREADABLE: (one of these classes) the data is anything else.
    """
    table = _read(pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True), _IDS_SCHEMA)
    if set(table.column("partition").unique().to_pylist()) - {partition}:
        raise ValueError(f"belongs to shard {table.column('partition')[0].as_py()!r}")
    return table.column("sample_id")


def _open(partition: str | None, data: bytes) -> tuple[pq.ParquetFile, dict[str, Any]]:
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    return file, _checked(partition, file.metadata.metadata[SURVEY_KEY])


def _sample_ids(file: pq.ParquetFile) -> pa.ChunkedArray:
    return _read(file, pa.schema([SAMPLES_SCHEMA.field("sample_id")])).column("sample_id")


def _read(file: pq.ParquetFile, schema: pa.Schema) -> pa.Table:
    """Return these columns, if they have these types and as many rows as the file states.

    Raises:
        UNREADABLE: (one of these classes) they do not.
    """
    table = file.read(columns=schema.names, use_threads=False).select(schema.names)
    groups = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    if table.schema != schema or not table.num_rows == sum(groups) == file.metadata.num_rows:
        raise ValueError("its footer contradicts itself")
    table.validate(full=True)
    return table


def _sealed(values: Mapping[str, Any]) -> str:
    """Return sealed JSON, ASCII inside: text from bad data may hold lone surrogates."""
    return seal({"content": json.dumps(values)}).decode()


def _checked(partition: str | None, data: bytes) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(unseal(data)["content"])
    if values["format"] != FORMAT:
        raise ValueError(f"not of format {FORMAT}")
    if partition not in (None, values["partition"]):
        raise ValueError(f"belongs to shard {values['partition']!r}")
    return values


def _excerpt_to_json(excerpt: Excerpt[Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    return {"count": excerpt.count, "first": [form(entry) for entry in excerpt.first]}


def _excerpt_from_json(values: Mapping[str, Any], form: Callable[[Any], Any]) -> Excerpt[Any]:
    return Excerpt(tuple(form(entry) for entry in values["first"]), values["count"])


def _content_from_json(values: Mapping[str, Any] | None) -> ContentColumns | None:
    """Return the columns that look like content; None for a survey by earlier code, which does not tell."""
    return None if values is None else {modality: tuple(names) for modality, names in values.items()}


def _columns_to_json(columns: ShardColumns) -> dict[str, Any]:
    return {
        "tallies": _tallies_to_json(columns.tallies),
        "declared": schema_to_text(columns.declared),
        "declared_ints": _tallies_to_json(columns.declared_ints),
    }


def _columns_from_json(values: Mapping[str, Any]) -> ShardColumns:
    # Missing in files of older versions, which are still read: published types must not be forgotten.
    ints = values.get("declared_ints", {})
    return ShardColumns(
        _tallies_from_json(values["tallies"]), schema_from_text(values["declared"]), _tallies_from_json(ints)
    )


def _tallies_to_json(tallies: Mapping[str, FieldTally]) -> dict[str, Any]:
    return {name: tally.to_json() for name, tally in tallies.items()}


def _tallies_from_json(values: Mapping[str, Any]) -> dict[str, FieldTally]:
    return {name: FieldTally.from_json(tally) for name, tally in values.items()}
