"""Conversion of documents to interleaved rows: metadata first, then by position, text before image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.document_parquet.items import Items, Numbers, items_of, lengths_beyond, spread_blobs
from mm_assets.formats.document_parquet.layout import DocumentLayout, ItemColumn
from mm_assets.formats.document_parquet.scan import no_bytes
from mm_assets.formats.images.probe import CONTENT_TYPES, sniff
from mm_assets.formats.parquet_rows import row_name
from mm_assets.formats.webdataset.layout import METADATA_TYPE, SOURCE, TEXT_TYPE
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.buffers import binary_views
from mm_assets.interleaved.faults import Fault, oversized_member
from mm_assets.interleaved.json_values import dumps
from mm_assets.interleaved.schema import METADATA_POSITION, MODALITIES
from mm_assets.interleaved.source_ref import build_source_ref

_METADATA, _TEXT, _IMAGE = range(len(MODALITIES))
_NONE: Numbers = np.zeros(0, np.int64)
_SNIFFED = 64  # bytes


def build_rows(
    documents: pa.RecordBatch,
    layout: DocumentLayout,
    schema: pa.Schema,
    ids: Sequence[str],
    first: int,
    path: str,
    max_image_bytes: int | None,
) -> pa.Table:
    """Return the rows of some documents, in the columns of ``schema``.

    Args:
        documents: The documents, one per row.
        layout: Their layout.
        schema: Columns of the result.
        ids: Sample ids of the documents.
        first: Row number of the first document in the file.
        path: Path of the file in locators.
        max_image_bytes: A larger image becomes an error row. None: the documents come without image bytes, so
            their types and errors are not known.
    """
    rows = _Rows(layout, documents, first, path)
    columns: dict[str, Any] = {
        "sample_id": lambda: pa.array(ids, pa.string()).take(pa.array(rows.documents)),
        "position": lambda: pa.array(rows.positions, pa.int32()),
        "modality": lambda: pa.array(MODALITIES, pa.string()).take(pa.array(rows.modalities)),
        "text_content": rows.text_content,
        "source_ref": rows.source_refs,
        SOURCE: rows.residues,
    }
    images = _Images(rows, max_image_bytes)
    columns |= {
        "content_type": images.content_types,
        "binary_content": images.blobs,
        "materialize_error": images.errors,
    }
    arrays = [
        columns[f.name]()
        if f.name in columns
        else rows.spread(documents.column(f.name).cast(f.type), _METADATA)
        for f in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


class _Rows:
    """Order of the rows of some documents.

    ``documents``, ``positions`` and ``modalities`` are by row; ``places`` has the rows of each modality's
    items.
    """

    def __init__(self, layout: DocumentLayout, batch: pa.RecordBatch, first: int, path: str) -> None:
        self._layout, self._batch, self._first, self._path = layout, batch, first, path
        self.texts, self.images = (self._items(column) for column in (layout.texts, layout.images))
        count = batch.num_rows
        parts = [(np.arange(count, dtype=np.int64), np.full(count, METADATA_POSITION, np.int64))]
        parts += [
            (column_items.rows, column_items.positions) if column_items is not None else (_NONE, _NONE)
            for column_items in (self.texts, self.images)
        ]
        documents, positions = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        modalities = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        order = np.lexsort((modalities, positions, documents))
        self.documents, self.positions, self.modalities = (
            documents[order],
            positions[order],
            modalities[order],
        )
        self.places = [np.flatnonzero(self.modalities == modality) for modality in range(len(parts))]

    def __len__(self) -> int:
        return len(self.documents)

    def spread(self, values: pa.Array, modality: int) -> pa.Array:
        """Return a column with one value for each item of a modality, null on all other rows."""
        at = np.full(len(self), -1, np.int64)
        at[self.places[modality]] = np.arange(len(values))
        return values.take(pa.array(at, mask=at < 0))

    def text_content(self) -> pa.Array:
        return (
            pa.nulls(len(self), pa.string()) if self.texts is None else self.spread(self.texts.texts(), _TEXT)
        )

    def source_refs(self) -> pa.Array:
        columns = {_TEXT: self._layout.texts, _IMAGE: self._layout.images}
        refs = []
        for row, position, modality in zip(
            (self.documents + self._first).tolist(),
            self.positions.tolist(),
            self.modalities.tolist(),
            strict=True,
        ):
            column = columns.get(modality)
            refs.append(
                build_source_ref(
                    self._path, row_name(row, None if column is None else column.place(position))
                )
            )
        return pa.array(refs, pa.string())

    def residues(self) -> pa.Array:
        """Return the ``_source`` column: what other columns cannot express.

        These are lengths of lists, fields without a column, and names of images.
        """
        residues: list[dict[str, Any]] = [{} for _ in range(len(self))]
        metadata = self.places[_METADATA].tolist()
        present = {
            column_items.column.name: column_items
            for column_items in (self.texts, self.images)
            if column_items is not None
        }
        for document, lengths in lengths_beyond(present, self._batch.num_rows).items():
            residues[metadata[document]]["lengths"] = lengths
        for field in self._layout.kept:
            for place, value in zip(
                metadata, json_codec.encode(self._batch.column(field.name), field), strict=True
            ):
                if value is not None:
                    residues[place].setdefault("fields", {})[field.name] = value
        if self.images is not None:
            for place, name in zip(self.places[_IMAGE].tolist(), self.images.names(), strict=True):
                if name is not None:
                    residues[place]["token"] = name
        for modality, column_items in ((_TEXT, self.texts), (_IMAGE, self.images)):
            if column_items is not None:
                for place, fields in zip(self.places[modality].tolist(), column_items.others(), strict=True):
                    if fields:
                        residues[place]["fields"] = fields
        return pa.array([dumps(residue) if residue else None for residue in residues], pa.string())

    def _items(self, column: ItemColumn | None) -> Items | None:
        return (
            None if column is None or column.is_empty else items_of(column, self._batch.column(column.name))
        )


class _Images:
    """Bytes of the images, with the types and errors found in them."""

    def __init__(self, rows: _Rows, max_bytes: int | None) -> None:
        self._rows = rows
        count = 0 if rows.images is None else len(rows.images)
        self._types: list[str | None] = [None] * count
        self._errors: list[Fault | None] = [None] * count
        self._blobs: pa.Array | None = None
        if rows.images is None:
            return
        if max_bytes is not None:
            self._blobs = rows.images.blobs()
            self._inspect(rows.images, self._blobs, max_bytes)
        elif rows.images.column.is_name:
            self._errors = [no_bytes(name) for name in rows.images.names()]

    def content_types(self) -> pa.Array:
        types = np.array([METADATA_TYPE, TEXT_TYPE, None], np.object_)[self._rows.modalities]
        types[self._rows.places[_IMAGE]] = self._types
        return pa.array(types, pa.string())

    def errors(self) -> pa.Array:
        return self._rows.spread(
            pa.array([error and error.message for error in self._errors], pa.string()), _IMAGE
        )

    def blobs(self) -> pa.Array:
        images = self._rows.images
        if images is None or self._blobs is None:
            return pa.nulls(len(self._rows), pa.large_binary())
        return spread_blobs(self._blobs, images.at, self._rows.places[_IMAGE], len(self._rows))

    def _inspect(self, images: Items, blobs: pa.Array, max_bytes: int) -> None:
        views = binary_views(blobs)
        oversized = []
        for number, (at, position, name) in enumerate(
            zip(images.at.tolist(), images.positions.tolist(), images.names(), strict=True)
        ):
            view = views[at]
            if view is None:
                self._errors[number] = no_bytes(name)
            elif len(view) > max_bytes:
                self._errors[number] = oversized_member(images.column.place(position), len(view), max_bytes)
                oversized.append(at)
            elif kind := sniff(view[:_SNIFFED]):
                self._types[number] = CONTENT_TYPES.get(kind)
        if oversized:
            mask = np.zeros(len(blobs), bool)
            mask[oversized] = True
            self._blobs = pc.if_else(pa.array(mask), pa.scalar(None, blobs.type), blobs)
