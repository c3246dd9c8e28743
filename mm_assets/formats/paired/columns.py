"""The passthrough columns of paired shards: one type each for all samples of a shard."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mm_assets.formats.paired.content import Content
from mm_assets.formats.webdataset.layout import SOURCE
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.faults import BAD_LAYOUT
from mm_assets.interleaved.json_values import FieldTally, build_column, json_field
from mm_assets.interleaved.schema_text import schema_to_text


class Columns:
    """JSON fields get the type that holds the values of all samples; arrays have their own, which must be the same in all."""

    def __init__(self) -> None:
        self._tallies: dict[str, FieldTally] = {}
        self._typed: dict[str, pa.DataType] = {}
        self._declared: tuple[pa.Schema, str] | None = None

    def observe(self, content: Content) -> None:
        """Take in the columns of one sample."""
        for name, value in content.fields.items():
            self._tallies.setdefault(name, FieldTally()).observe(value)
        for name, value in content.typed.items():
            self._typed.setdefault(name, value.type)

    def declared(self) -> tuple[pa.Schema, str]:
        """The schema, and as text; it is settled when first asked for."""
        if self._declared is None:
            fields = [json_field(name) if name == SOURCE else tally.field(name) for name, tally in self._tallies.items()]
            fields += [pa.field(name, type_) for name, type_ in self._typed.items() if name not in self._tallies]
            schema = pa.schema(fields)
            self._declared = schema, schema_to_text(schema)
        return self._declared

    def encoded(self, content: Content, key: str) -> dict[str, Any]:
        """The values of a sample as its json has them. Raises `SampleError` for a value of another type than other samples have."""
        schema, _ = self.declared()
        values: dict[str, Any] = {}
        for name, value in content.fields.items():
            column = schema.field(name)
            values[name] = json_codec.encode(build_column([value], column), column)[0]
        for name, array in content.typed.items():
            if array.type != schema.field(name).type:
                what = f"{array.type}, in others of the shard {schema.field(name).type}"
                raise SampleError(BAD_LAYOUT, f"sample {key!r}: column {name!r} is {what}")
            values[name] = json_codec.encode(array, schema.field(name))[0]
        return values
