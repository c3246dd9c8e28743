"""Meaning of the reserved columns, shown in the UI beside the columns that a shard has."""

import dagster as dg

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

ROW_COLUMNS = {
    "dagster/column_schema": dg.TableSchema(
        [dg.TableColumn(field.name, str(field.type), _MEANINGS[field.name]) for field in INTERLEAVED_SCHEMA]
    )
}
