"""Columns of the outputs as the UI shows them: their meaning, and the columns that they are made from."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import pyarrow as pa

from mm_assets.filters.image_scores import SCORES_SCHEMA
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA

_MEANINGS = {
    "sample_id": "id of the document; unique over all shards",
    "position": "place of the item in its document, from 0; -1: the document's metadata",
    "modality": "metadata, text or image",
    "content_type": "media type of the item, such as image/jpeg",
    "text_content": "the text, of a text item",
    "binary_content": "the bytes of the image file, of an image item",
    "source_ref": "where the item was first read: file, member, offset and size, as JSON",
    "materialize_error": "why the item could not be had, where it could not",
}
_SCORE_MEANINGS = {
    "sample_id": _MEANINGS["sample_id"],
    "position": _MEANINGS["position"],
    "width": "pixels, as displayed",
    "height": "pixels, as displayed",
    "format": "jpg, png, webp, gif, tiff or bmp, from the bytes",
    "orientation": "EXIF orientation, 1 to 8",
    "byte_size": "bytes of the image file",
    "error": "why it could not be measured, where it could not",
}
# Columns of curated rows that a score is made from, where it is not the one of the same name.
_MEASURED_FROM = {"error": ("binary_content", "materialize_error")}


def row_columns(source: str | None = None) -> dict[str, Any]:
    """Return the metadata of an asset of interleaved rows: schema, and lineage where rows are its source.

    Args:
        source: the asset whose rows it takes over.
    """
    lineage = {name: (name,) for name in INTERLEAVED_SCHEMA.names}
    return _columns(INTERLEAVED_SCHEMA, _MEANINGS, lineage, source)


def score_columns(source: str) -> dict[str, Any]:
    """Return the metadata of image scores, which are made from the rows of an asset."""
    lineage = {
        name: _MEASURED_FROM.get(name, (name if name in _MEANINGS else "binary_content",))
        for name in SCORES_SCHEMA.names
    }
    return _columns(SCORES_SCHEMA, _SCORE_MEANINGS, lineage, source)


def _columns(
    schema: pa.Schema, meanings: Mapping[str, str], lineage: Mapping[str, tuple[str, ...]], source: str | None
) -> dict[str, Any]:
    columns = [dg.TableColumn(field.name, str(field.type), meanings[field.name]) for field in schema]
    metadata: dict[str, Any] = {"dagster/column_schema": dg.TableSchema(columns)}
    if source is not None:
        key = dg.AssetKey(source)
        metadata["dagster/column_lineage"] = dg.TableColumnLineage(
            {name: [dg.TableColumnDep(key, column) for column in made] for name, made in lineage.items()}
        )
    return metadata
