"""Column names that Lance refuses, spelled so that it takes them."""

from __future__ import annotations

import re

import pyarrow as pa

# Lance's own columns: a table with one of these panics when it is read.
_TAKEN = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
_REFUSED = re.compile(r"[.`*\0]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


def stored_name(name: str) -> str:
    """The name of a column in a Lance table: itself, or percent-escaped where Lance would refuse or misread
    it. Injective.
    """
    if not name:
        return "%"
    if name not in _TAKEN and name != "%" and not _REFUSED.search(name) and not _ESCAPE.search(name):
        return name
    text = re.sub(r"[%.`*\0]", lambda found: f"%{ord(found[0]):02X}", name)
    return f"%5F{text[1:]}" if text in _TAKEN else text


def original_name(stored: str) -> str:
    """The name again; one that `stored_name` does not make (a table of others) is taken as it is."""
    if stored == "%":
        return ""
    name = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), stored)
    return name if stored_name(name) == stored else stored


def with_stored_names(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_name(stored_name(field.name)) for field in schema], metadata=schema.metadata)


def with_original_names(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [field.with_name(original_name(field.name)) for field in schema], metadata=schema.metadata
    )
