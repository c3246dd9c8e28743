"""Rows of decoded samples, and the Arrow tables made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets.formats.webdataset.resolve import Content
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.json_values import FieldTally, build_column
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA


@dataclass(slots=True)
class Row:
    """One item before its bytes are read; ``binary`` is used when they were in the json itself.

    Where ``is_typed``, a missing content type is what the source says, else the bytes tell it.
    """

    position: int
    modality: str
    content_type: str | None = None
    text: str | None = None
    content: Content | None = None
    source_ref: str | None = None
    error: str | None = None
    binary: bytes | None = None
    is_typed: bool = False
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Sample:
    """The rows of one sample; ``declared`` holds the types of its passthrough columns when the json states them."""

    sample_id: str
    rows: list[Row]
    declared: pa.Schema | None = None


class SchemaTally:
    """The passthrough schema of all samples of a shard: declared types where stated, else what the JSON values need."""

    def __init__(self) -> None:
        self._tallies: dict[str, FieldTally] = {}
        self._declared: list[pa.Schema] = []

    def observe(self, sample: Sample) -> None:
        if sample.declared is not None:
            if not any(sample.declared is known for known in self._declared):
                self._declared.append(sample.declared)
            return
        for row in sample.rows:
            for name, value in row.extras.items():
                tally = self._tallies.get(name)
                if tally is None:
                    tally = self._tallies[name] = FieldTally()
                tally.observe(value)

    def raw_schema(self) -> pa.Schema:
        """Types of the columns whose samples state none."""
        return pa.schema([tally.field(name) for name, tally in self._tallies.items()])

    def schemas(self) -> list[pa.Schema]:
        """All passthrough schemas met; their union is the shard's."""
        return [*self._declared, self.raw_schema()]


def build_table(samples: Sequence[Sample], blobs: pa.Array, extras: pa.Schema, columns: Iterable[str]) -> pa.Table:
    """A table of samples that share one passthrough schema. ``blobs`` is ``binary_content``, one value a row.

    Raises ``ValueError`` for a value that its declared type does not hold.
    """
    rows = [row for sample in samples for row in sample.rows]
    is_declared = bool(samples) and samples[0].declared is not None
    wanted = set(columns)
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for column in INTERLEAVED_SCHEMA:
        if column.name in wanted:
            fields.append(column)
            arrays.append(_reserved(column, samples, rows, blobs))
    for column in extras:
        if column.name in wanted:
            values = [row.extras.get(column.name) for row in rows]
            fields.append(column)
            arrays.append(json_codec.decode(values, column) if is_declared else build_column(values, column))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _reserved(column: pa.Field, samples: Sequence[Sample], rows: list[Row], blobs: pa.Array) -> pa.Array:
    values: list[Any]
    match column.name:
        case "binary_content":
            return blobs
        case "sample_id":
            values = [sample.sample_id for sample in samples for _ in sample.rows]
        case "text_content":
            values = [row.text for row in rows]
        case "materialize_error":
            values = [row.error for row in rows]
        case name:
            values = [getattr(row, name) for row in rows]
    return pa.array(values, column.type)
