"""Parquet files as others write them, made with pyarrow alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets_tests.formats.images.pictures import picture

IMAGE = pa.struct(
    [("bytes", pa.binary()), ("path", pa.string())]
)  # what Hugging Face `datasets` stores for its feature Image
PICTURES = [picture(number)[1] for number in range(8)]

# The eight columns of NeMo Curator's interleaved Parquet, in the types in which it writes them.
CURATOR = pa.schema(
    [
        pa.field("sample_id", pa.large_string()),
        pa.field("position", pa.int32()),
        pa.field("modality", pa.large_string()),
        pa.field("content_type", pa.large_string()),
        pa.field("text_content", pa.large_string()),
        pa.field("binary_content", pa.large_binary()),
        pa.field("source_ref", pa.large_string()),
        pa.field("materialize_error", pa.large_string()),
    ]
)


def image(number: int, path: str | None = None) -> dict[str, Any]:
    return {"bytes": PICTURES[number], "path": path}


def documents(path: Path, columns: dict[str, tuple[pa.DataType, Sequence[Any]]], **options: Any) -> Path:
    """A file of these columns: type and values of each."""
    table = pa.table({name: pa.array(values, type_) for name, (type_, values) in columns.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def interleaved(
    texts: Sequence[Any], images: Sequence[Any], **more: tuple[pa.DataType, Sequence[Any]]
) -> dict[str, Any]:
    """Columns as Hugging Face has them: lists of texts and of images."""
    return {"texts": (pa.list_(pa.string()), texts), "images": (pa.list_(IMAGE), images), **more}


def curator_rows(sample_id: str, *items: str | bytes | None, **extras: Any) -> list[dict[str, Any]]:
    """The rows of one sample as NeMo Curator has them: metadata, then text or image bytes at each position,
    null for none.
    """
    first = {
        "sample_id": sample_id,
        "position": -1,
        "modality": "metadata",
        "content_type": "application/json",
    }
    rows: list[dict[str, Any]] = [{**first, **extras}]
    for position, content in enumerate(items):
        place = {"sample_id": sample_id, "position": position}
        if isinstance(content, bytes):
            rows.append(
                {**place, "modality": "image", "content_type": "image/png", "binary_content": content}
            )
        elif content is not None:
            rows.append({**place, "modality": "text", "content_type": "text/plain", "text_content": content})
    return rows


def curator(path: Path, rows: Sequence[dict[str, Any]], extras: Sequence[pa.Field] = ()) -> Path:
    """A file of NeMo Curator's."""
    schema = pa.schema([*CURATOR, *extras])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema),
        path,
    )
    return path
