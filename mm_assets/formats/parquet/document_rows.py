"""Conversion of Parquet documents to interleaved rows.

* `DocumentScan`: the scan, without image bytes. It finds the id, items and faults of each row.
* `build_rows`: rows in canonical order: metadata first, then by position, text before image.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.batching import SampleIds, row_bytes
from mm_assets.formats.images.headers import CONTENT_TYPES, sniff
from mm_assets.formats.parquet.document_file import DocumentFile
from mm_assets.formats.parquet.document_layout import (
    DocumentLayout,
    ItemColumn,
    Items,
    Numbers,
    items_of,
    lengths_beyond,
    spread_blobs,
)
from mm_assets.formats.parquet.files import ColumnIntegers, row_name
from mm_assets.formats.webdataset.layout import MAX_POSITION, METADATA_TYPE, SOURCE, TEXT_TYPE, SampleError
from mm_assets.formats.webdataset.rows import width
from mm_assets.model import json_codec
from mm_assets.model.errors import (
    BAD_LAYOUT,
    BAD_SAMPLE_ID,
    DANGLING_REFERENCE,
    DUPLICATE_ID,
    INCOMPLETE_SAMPLE,
    NOT_UTF8,
    Fault,
    oversized_member,
)
from mm_assets.model.json_codec import dumps
from mm_assets.model.losses import Loss
from mm_assets.model.nested_types import binary_views, broken_rows
from mm_assets.model.samples import build_source_ref
from mm_assets.model.schema import (
    METADATA_POSITION,
    MODALITIES,
    SchemaMismatch,
    loose_columns,
    refuse_misfits,
)

# Memory that the rows of one document may take with all columns: this much, or in proportion to its size.
_MAX_ROOM = 64 << 20
_ROOM_PER_BYTE = 8
_READ_AT_ONCE = 4 << 20  # bytes


def no_bytes(name: str | None) -> Fault:
    """Return the error of an image that has at most a name.

    Names in files of others are not read as files, and nothing is downloaded.
    """
    if name is None:
        return Fault(DANGLING_REFERENCE, "dangling reference: neither bytes nor a name")
    hint = "a name without bytes, and names are not fetched"
    if name.startswith(("http://", "https://")):
        hint = "a URL, and nothing is fetched: download the images first, see docs/raw_shards.md"
    words = f"dangling reference {name!r:.200}: {hint}"
    return Fault(DANGLING_REFERENCE, words)


class DocumentScan:
    """The rows of a file, in order.

    By row: ``ids``, the number of ``items`` it becomes (metadata included), the number of ``images``, and
    ``is_sound``, True if it can be used. ``losses`` are the items of the others. ``unresolved`` has (sample
    id, position, message) of images that are only names. ``has_source`` is True if any row has content that
    its items and columns cannot express. ``integers`` tallies the integers of passthrough columns.
    """

    def __init__(
        self, file: DocumentFile, path: str, ids: SampleIds | None, id_prefix: str, row_prefix: str
    ) -> None:
        """Scan a file.

        Args:
            file: The file.
            path: Its path in locators.
            ids: Ids in use; a repeated id, or a row that cannot be used, becomes losses. None: the first row
                that cannot be used raises.
            id_prefix: Put before ids that rows state.
            row_prefix: Put before the row number, for rows that state no id.

        Raises:
            SampleError: A row cannot be used, and ``ids`` is None.
        """
        self.ids: list[str] = []
        self.items: list[int] = []
        self.images: list[int] = []
        self.is_sound: list[bool] = []
        self.losses: list[Loss] = []
        self.unresolved: list[tuple[str, int, str]] = []
        self.has_source = False
        self.integers = ColumnIntegers(file.layout.passthrough)
        self._file, self._layout, self._path = file, file.layout, path
        self._registry, self._id_prefix, self._row_prefix = ids, id_prefix, row_prefix
        self._row_bytes = sum(width(field.type) for field in file.layout.passthrough)
        for first, batch in file.read(file.names, _READ_AT_ONCE):
            self._scan_batch(first, batch)

    def _scan_batch(self, first: int, batch: pa.RecordBatch) -> None:
        self.integers.observe(batch)
        broken = broken_rows(batch)
        faults = {row: (NOT_UTF8, f"column {name!r}: not UTF-8") for row, name in broken.items()}
        at = np.array([row for row in range(batch.num_rows) if row not in broken], np.int64)
        readable = batch if not broken else _without(batch, broken)
        stated = dict(zip(at.tolist(), self._stated_ids(readable), strict=True))
        items = self._items_of(batch)
        counts = {
            name: np.bincount(column_items.rows, minlength=batch.num_rows)
            for name, column_items in items.items()
        }
        totals = 1 + sum(counts.values(), np.zeros(batch.num_rows, np.int64))
        too_large = self._too_large(items, batch, totals)
        faults |= {row: (BAD_LAYOUT, reason) for row, reason in too_large.items()}
        loose = batch.select(loose_columns(batch.schema))
        faults |= {row: (BAD_LAYOUT, reason) for row, reason in _misfits(loose, 0).items()}
        images = counts.get(self._layout.images.name) if self._layout.images is not None else None
        for row in range(batch.num_rows):
            sample_id, fault = self._id_of(stated.get(row), first + row, row in broken)
            fault = faults.get(row, fault)
            self.ids.append(sample_id)
            self.items.append(int(totals[row]))
            self.images.append(0 if images is None else int(images[row]))
            self.is_sound.append(fault is None and self._register_id(sample_id, first + row, items, row))
            if fault is not None:
                # Items of a row that is too large may be millions: it is listed as one.
                listed = {} if row in too_large else items
                self._refuse(sample_id, first + row, *fault, listed, row, broken.get(row))
        self._update_totals(first, at, readable, self._items_of(readable) if broken else items)

    def _items_of(self, batch: pa.RecordBatch) -> dict[str, Items]:
        return {
            column.name: items_of(column, batch.column(column.name))
            for column in self._layout.items
            if not column.is_empty
        }

    def _stated_ids(self, batch: pa.RecordBatch) -> list[str | None]:
        name = self._layout.sample_id
        if name is None:
            return [None] * batch.num_rows
        values = json_codec.encode(batch.column(name), batch.schema.field(name))
        return [
            value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for value in values
        ]

    def _id_of(self, stated: str | None, row: int, is_broken: bool) -> tuple[str, tuple[str, str] | None]:
        """Return the id of a row, and its fault, if any."""
        if stated is not None:
            return self._id_prefix + stated, None
        is_missing = self._layout.needs_id and not is_broken
        fault = (
            (BAD_SAMPLE_ID, f"column {self._layout.sample_id!r} (sample_id_field) is null")
            if is_missing
            else None
        )
        return f"{self._row_prefix}{row}", fault

    def _register_id(self, sample_id: str, row: int, items: Mapping[str, Items], index: int) -> bool:
        reason = (
            None if self._registry is None else self._registry.register(sample_id, row_name(row), self._path)
        )
        if reason is None:
            return True
        self._add_losses(
            sample_id, row, dict.fromkeys(items, DUPLICATE_ID), DUPLICATE_ID, reason, items, index
        )
        return False

    def _refuse(
        self,
        sample_id: str,
        row: int,
        kind: str,
        reason: str,
        items: Mapping[str, Items],
        index: int,
        broken: str | None,
    ) -> None:
        """Add the losses of a document with a fault; items outside the ``broken`` column are sound."""
        if self._registry is None:
            raise SampleError(kind, f"{self._file.name}: {row_name(row)}: {reason}")
        kinds = {name: kind if name == broken else INCOMPLETE_SAMPLE for name in items}
        place = f"{self._path}: {row_name(row)}: {reason}"
        self._add_losses(sample_id, row, kinds, kind, place, items, index)

    def _add_losses(
        self,
        sample_id: str,
        row: int,
        kinds: Mapping[str, str],
        kind: str,
        reason: str,
        items: Mapping[str, Items],
        index: int,
    ) -> None:
        """Add a loss for the metadata of a document, and for each item, whose kinds are by column.

        ``index`` is the row's in its batch.
        """
        self._add_loss(sample_id, METADATA_POSITION, "metadata", kind, reason, self._ref(row))
        for name, column_items in items.items():
            modality = "text" if column_items.column == self._layout.texts else "image"
            for position in column_items.positions[column_items.rows == index].tolist():
                self._add_loss(
                    sample_id,
                    position,
                    modality,
                    kinds[name],
                    reason if kinds[name] == kind else f"its sample has an error: {reason}",
                    self._ref(row, column_items.column.place(position)),
                    is_cause=False,
                )

    def _add_loss(
        self,
        sample_id: str,
        position: int,
        modality: str,
        kind: str,
        reason: str,
        ref: str,
        is_cause: bool = True,
    ) -> None:
        self.losses.append(
            Loss(
                sample_id, position, modality, "quarantined", kind, reason, source_ref=ref, is_cause=is_cause
            )
        )

    def _ref(self, row: int, item: str | None = None) -> str:
        return build_source_ref(self._path, row_name(row, item))

    def _too_large(
        self, items: Mapping[str, Items], batch: pa.RecordBatch, totals: Numbers
    ) -> dict[int, str]:
        """Return rows with lists too long for our tars, or too large in memory with all columns."""
        found: dict[int, str] = {}
        room = totals * self._row_bytes
        if (room > _MAX_ROOM).any():
            sizes = row_bytes(pa.Table.from_batches([batch]))
            for row in np.flatnonzero(room > np.maximum(_MAX_ROOM, sizes * _ROOM_PER_BYTE)).tolist():
                found[row] = (
                    f"its {totals[row]} items take {room[row]} bytes with all columns, "
                    f"the document {sizes[row]}"
                )
        for name, column_items in items.items():
            if column_items.lengths is not None:
                for row in np.flatnonzero(column_items.lengths > MAX_POSITION).tolist():
                    found[row] = (
                        f"column {name!r} has {column_items.lengths[row]} entries, at most {MAX_POSITION}"
                    )
        return found

    def _update_totals(
        self, first: int, at: Numbers, batch: pa.RecordBatch, items: Mapping[str, Items]
    ) -> None:
        """Update ``unresolved`` and ``has_source`` from the readable rows of a batch."""
        kept = [batch.column(field.name) for field in self._layout.kept]
        needs = any(column.null_count < len(column) for column in kept) or bool(
            lengths_beyond(items, len(at))
        )
        for column_items in items.values():
            needs = needs or (bool(column_items.column.others) and any(column_items.others()))
            if column_items.column != self._layout.images:
                continue
            names = column_items.names()
            needs = needs or any(name is not None for name in names)
            if column_items.column.is_name:
                for row, position, name in zip(
                    (first + at[column_items.rows]).tolist(),
                    column_items.positions.tolist(),
                    names,
                    strict=True,
                ):
                    if self.is_sound[row]:
                        self.unresolved.append((self.ids[row], position, no_bytes(name).message))
        self.has_source = self.has_source or needs


def _without(batch: pa.RecordBatch, rows: Collection[int]) -> pa.RecordBatch:
    """Return the other rows; Arrow's ``take`` has no views."""
    edges = [-1, *sorted(rows), batch.num_rows]
    return pa.concat_batches([batch.slice(low + 1, high - low - 1) for low, high in pairwise(edges)])


def _misfits(batch: pa.RecordBatch, first: int) -> dict[int, str]:
    """Return the rows with values that their column's type does not hold, and the reason of each."""
    try:
        refuse_misfits(batch)
    except SchemaMismatch as error:
        if batch.num_rows == 1:
            return {first: str(error)}
        half = batch.num_rows // 2
        # Taken, not sliced: Arrow looks at all that a list's buffers hold.
        halves = (batch.take(pa.array(range(half))), batch.take(pa.array(range(half, batch.num_rows))))
        return _misfits(halves[0], first) | _misfits(halves[1], first + half)
    return {}


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
