"""An Arrow schema as text, for JSON, records and jobs: exact for every type and all metadata."""

from __future__ import annotations

import base64

import pyarrow as pa


def schema_to_text(schema: pa.Schema) -> str:
    """Arrow IPC in base64.

    Not cached by schema: two that differ in metadata alone, text and JSON text, are equal as keys.
    """
    return base64.b64encode(schema.serialize()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """The schema that ``text`` was made from. Raises ``ValueError`` for anything else."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
