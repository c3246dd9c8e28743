"""Columns of the outputs as the UI shows them: their meaning, and the columns that they are made from."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from mm_assets.filters.image_scores import SCORES_SCHEMA
from mm_assets.filters.measured_columns import column_of, with_columns
from mm_assets.filters.measures.image_measure import ImageMeasure
from mm_assets.filters.measures.registry import MEASURES as IMAGE_MEASURES
from mm_assets.filters.sample_measures.registry import MEASURES as SAMPLE_MEASURES
from mm_assets.filters.sample_measures.sample_measure import SampleMeasure
from mm_assets.filters.sample_scores import SAMPLE_SCORES_SCHEMA
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
_SAMPLE_SCORE_MEANINGS = {
    "sample_id": _MEANINGS["sample_id"],
    "images": "images without an error, as curated",
    "texts": "texts",
    "words": "words of all texts, separated by white space",
    "text_digest": "of all texts: equal for samples with equal texts",
}
# Columns of curated rows that a score is made from, where they are not the one of the same name.
_MEASURED_FROM = {
    "error": ("binary_content", "materialize_error"),
    "images": ("modality", "materialize_error"),
    "texts": ("text_content",),
    "words": ("text_content",),
    "text_digest": ("text_content",),
}


def row_columns(source: str | None = None) -> dict[str, Any]:
    """Return the metadata of an asset of interleaved rows: schema, and lineage where rows are its source.

    Args:
        source: the asset whose rows it takes over.
    """
    lineage = {name: (name,) for name in INTERLEAVED_SCHEMA.names}
    return _columns(INTERLEAVED_SCHEMA, _MEANINGS, lineage, source)


def score_columns(source: str) -> dict[str, Any]:
    """Return the metadata of image scores, which are made from the rows of an asset."""
    return _score_columns(SCORES_SCHEMA, _SCORE_MEANINGS, IMAGE_MEASURES, "binary_content", source)


def sample_score_columns(source: str) -> dict[str, Any]:
    """Return the metadata of sample scores, which are made from the rows of an asset."""
    return _score_columns(
        SAMPLE_SCORES_SCHEMA, _SAMPLE_SCORE_MEANINGS, SAMPLE_MEASURES, "text_content", source
    )


def _score_columns(
    base: pa.Schema,
    meanings: Mapping[str, str],
    measures: Sequence[ImageMeasure] | Sequence[SampleMeasure],
    measured: str,
    source: str,
) -> dict[str, Any]:
    """Return the metadata of scores; the columns of measures are there where something asks for them."""
    schema = with_columns(base, map(column_of, measures))
    told = dict(meanings) | {m.name: f"{m.meaning} (if a filter or `scores` asks for it)" for m in measures}
    lineage = {
        name: _MEASURED_FROM.get(name, (name,) if name in _MEANINGS else (measured,)) for name in schema.names
    }
    return _columns(schema, told, lineage, source)


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
