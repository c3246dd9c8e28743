"""Passthrough columns of paired shards: one type per column for all samples of a shard."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa

from mm_assets.formats.paired.raw.content import KeyContent
from mm_assets.formats.webdataset.layout import SOURCE
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.faults import BAD_LAYOUT
from mm_assets.interleaved.json_values import FieldTally, build_column, is_json, json_field
from mm_assets.interleaved.schema_text import schema_to_text


class Columns:
    """Type inference for the columns of one shard.

    JSON fields get the type that holds the values of all samples. Arrays keep their own type; arrays of
    several types of one kind get the widest type that holds all. Otherwise the column is JSON text.
    """

    def __init__(self) -> None:
        self._tallies: dict[str, FieldTally] = {}
        self._typed: dict[str, list[pa.DataType]] = {}
        self._declared: tuple[pa.Schema, str] | None = None

    def observe(self, content: KeyContent) -> None:
        """Add the columns of one sample."""
        for name, value in content.fields.items():
            self._tallies.setdefault(name, FieldTally()).observe(value)
        for name, value in content.typed.items():
            types = self._typed.setdefault(name, [])
            if value.type not in types:
                types.append(value.type)

    def declared(self) -> tuple[pa.Schema, str]:
        """Return the schema, and the same as text. It is fixed by the first call."""
        if self._declared is None:
            fields = [
                json_field(name) if name == SOURCE else tally.field(name)
                for name, tally in self._tallies.items()
            ]
            fields = [field for field in fields if field.name not in self._typed]
            fields += [self._field(name, types) for name, types in self._typed.items()]
            schema = pa.schema(fields)
            self._declared = schema, schema_to_text(schema)
        return self._declared

    def _field(self, name: str, types: list[pa.DataType]) -> pa.Field:
        json_type = self._tallies[name].field(name).type if name in self._tallies else pa.null()
        widest = functools.reduce(_widest, types)
        return (
            json_field(name) if widest is None or not pa.types.is_null(json_type) else pa.field(name, widest)
        )

    def encoded(self, content: KeyContent, key: str) -> dict[str, Any]:
        """Return the values of a sample as its json has them.

        Raises:
            SampleError: A value is bytes where other samples have other values.
        """
        schema, _ = self.declared()
        values: dict[str, Any] = {}
        for name, value in content.fields.items():
            column = schema.field(name)
            values[name] = json_codec.encode(build_column([value], column), column)[0]
        for name, array in content.typed.items():
            column = schema.field(name)
            if is_json(column) and pa.types.is_large_binary(array.type):
                raise SampleError(
                    BAD_LAYOUT, f"sample {key!r}: column {name!r} is bytes, in others of the shard it is not"
                )
            if is_json(column):
                array = build_column(json_codec.encode(array, pa.field(name, array.type)), column)
            else:
                array = array.cast(column.type)
            values[name] = json_codec.encode(array, column)[0]
        return values


def _widest(one: pa.DataType | None, other: pa.DataType) -> pa.DataType | None:
    """Return the type of nested lists that holds the numbers of both exactly; None if there is none."""
    if one is None or one == other:
        return one
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _widest(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return pa.float64()
    if pa.types.is_integer(one) and pa.types.is_integer(other) and pa.uint64() not in (one, other):
        return pa.int64()
    return None
