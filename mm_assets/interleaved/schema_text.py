"""Arrow schemas as text, for JSON, records and jobs: exact for every type and all metadata."""

from __future__ import annotations

import base64

import pyarrow as pa


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as Arrow IPC in base64.

    Results are not cached by schema: two schemas that differ only in metadata, such as text and JSON text,
    are equal as keys.
    """
    return base64.b64encode(schema.serialize()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Return the schema that ``text`` was made from.

    Raises:
        ValueError: `schema_to_text` did not make ``text``.
    """
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
