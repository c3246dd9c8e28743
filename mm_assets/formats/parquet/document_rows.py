"""Conversion of Parquet documents to interleaved rows.

* `DocumentScan`: the scan, without image bytes. It finds the id, items and faults of each row.
* `build_rows`: rows in canonical order: metadata first, then by position, text before image.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.batching import SampleIds, row_bytes
from mm_assets.formats.document_layouts import LAYOUT
from mm_assets.formats.image_places import ImagesElsewhere, unfetched_url
from mm_assets.formats.images import CONTENT_TYPES, sniff
from mm_assets.formats.parquet import ColumnIntegers, row_name
from mm_assets.formats.parquet.document_file import DocumentFile
from mm_assets.formats.parquet.document_layout import (
    DocumentLayout,
    Items,
    Numbers,
    UnfoldedItems,
    items_in,
    lengths_beyond,
    spread_blobs,
)
from mm_assets.formats.webdataset import MAX_POSITION, METADATA_TYPE, SOURCE, TEXT_TYPE, SampleError
from mm_assets.formats.webdataset.rows import Row, Sample, build_table, row_order, width
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
from mm_assets.model.json_codec import FieldTally, json_field
from mm_assets.model.losses import Loss
from mm_assets.model.nested_types import binary_views, broken_rows
from mm_assets.model.samples import build_source_ref
from mm_assets.model.schema import METADATA_POSITION, SchemaMismatch, loose_columns, refuse_misfits

# Memory that the rows of one document may take with all columns: this much, or in proportion to its size.
_MAX_ROOM = 64 << 20
_ROOM_PER_BYTE = 8
_READ_AT_ONCE = 4 << 20  # bytes


def no_bytes(name: str | None) -> Fault:
    """Return the error of an image that has at most a name.

    Names in files of others are not read as files, and nothing is downloaded: `ImagesElsewhere` finds what
    lies in the places that a user names.
    """
    if name is None:
        return Fault(DANGLING_REFERENCE, "dangling reference: neither bytes nor a name")
    if name.startswith(("http://", "https://")) and (fault := unfetched_url(name)) is not None:
        return fault
    words = f"dangling reference {name!r:.200}: a name without bytes, and names are not fetched"
    return Fault(DANGLING_REFERENCE, words)


class DocumentScan:
    """The rows of a file, in order.

    By row: ``ids``, the number of ``items`` it becomes (metadata included), the number of ``images``, and
    ``is_sound``, True if it can be used. ``losses`` are the items of the others. ``unresolved`` has (sample
    id, position, message) of images that are only names. ``has_source`` is True if any row has content that
    its items and columns cannot express. ``integers`` tallies the integers of passthrough columns. Of
    documents that a layout unfolds, ``tallies`` has the kinds of values in the columns of items, ``unread``
    the types of parts that are neither text nor image.
    """

    def __init__(
        self,
        file: DocumentFile,
        path: str,
        ids: SampleIds | None,
        id_prefix: str,
        row_prefix: str,
        elsewhere: ImagesElsewhere | None = None,
    ) -> None:
        """Scan a file.

        Args:
            file: The file.
            path: Its path in locators.
            ids: Ids in use; a repeated id, or a row that cannot be used, becomes losses. None: the first row
                that cannot be used raises.
            id_prefix: Put before ids that rows state.
            row_prefix: Put before the row number, for rows that state no id.
            elsewhere: Where images that are only names lie.

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
        unfolds = file.layout.unfolds
        self.tallies = {name: FieldTally() for name in (() if unfolds is None else unfolds.item_columns)}
        self.unread: dict[str, None] = {}
        self.integers = ColumnIntegers(file.layout.passthrough)
        self._file, self._layout, self._path, self._elsewhere = file, file.layout, path, elsewhere
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
        unfolds = self._layout.unfolds is not None
        # A text that is not UTF-8 cannot be unfolded: such a row counts as one item.
        items = items_in(self._layout, readable if unfolds else batch)
        if unfolds and broken:
            items = {name: replace(found, rows=at[found.rows]) for name, found in items.items()}
        for found in items.values():
            if isinstance(found, UnfoldedItems):
                faults |= {int(at[row]): (BAD_LAYOUT, reason) for row, reason in found.refused.items()}
                self._tally(found)
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
        self._update_totals(first, at, readable, items_in(self._layout, readable) if broken else items)

    def _tally(self, items: UnfoldedItems) -> None:
        self.unread |= items.unread
        for item in items.found:
            for name, value in item.columns.items():
                if name in self.tallies:
                    self.tallies[name].observe(value)

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
        item = sample_id, METADATA_POSITION, "metadata"
        self.losses.append(Loss.quarantined(*item, kind, reason, self._ref(row)))
        for name, column_items in items.items():
            modality = "text" if column_items.column == self._layout.texts else "image"
            why = reason if kinds[name] == kind else f"its sample has an error: {reason}"
            for position in column_items.positions[column_items.rows == index].tolist():
                item = sample_id, position, modality
                ref = self._ref(row, column_items.column.place(position))
                self.losses.append(Loss.quarantined(*item, kinds[name], why, ref, is_cause=False))

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
            needs = needs or any(name is not None for name in column_items.names())
            lacking = column_items.lacks_bytes()
            if not any(lacking):
                continue
            for row, position, name, fault, lacks in zip(
                (first + at[column_items.rows]).tolist(),
                column_items.positions.tolist(),
                column_items.names(),
                column_items.faults(),
                lacking,
                strict=True,
            ):
                image = Row(position, "image", error=fault)
                if lacks:
                    _name_only(image, name, self._elsewhere)
                if self.is_sound[row] and image.error is not None:
                    self.unresolved.append((self.ids[row], position, image.error.message))
        self.has_source = self.has_source or needs or self._layout.unfolds is not None


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


_SNIFFED = 64  # bytes


def build_rows(
    documents: pa.RecordBatch,
    layout: DocumentLayout,
    schema: pa.Schema,
    ids: Sequence[str],
    first: int,
    path: str,
    max_image_bytes: int | None,
    elsewhere: ImagesElsewhere | None = None,
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
        elsewhere: Where images that are only names lie.
    """

    requested = set(schema.names)

    samples = [Sample(id_, [Row(METADATA_POSITION, "metadata", METADATA_TYPE)]) for id_ in ids]
    found = items_in(layout, documents)
    rows_of: dict[str, list[Row]] = {}
    for name, items in found.items():
        modality, type_ = ("text", TEXT_TYPE) if items.column == layout.texts else ("image", None)
        rows_of[name] = [Row(position, modality, type_) for position in items.positions.tolist()]
        for document, row in zip(items.rows.tolist(), rows_of[name], strict=True):
            samples[document].rows.append(row)
    for sample in samples:
        sample.rows.sort(key=row_order)
    rows = [row for sample in samples for row in sample.rows]
    if "source_ref" in requested:
        columns = {"text": layout.texts, "image": layout.images}
        for number, sample in enumerate(samples, first):
            for row in sample.rows:
                column = columns.get(row.modality)
                name = row_name(number, None if column is None else column.place(row.position))
                row.source_ref = build_source_ref(path, name)
    blobs = pa.nulls(len(rows), pa.large_binary())
    for name, items in found.items():
        if items.column == layout.texts:
            texts = items.texts().to_pylist() if "text_content" in requested else []
            for item, text in zip(rows_of[name], texts, strict=False):
                item.text = text
        elif max_image_bytes is not None:
            places = np.array([at for at, row in enumerate(rows) if row.modality == "image"], np.int64)
            images = _inspected(items, rows_of[name], max_image_bytes, elsewhere)
            blobs = spread_blobs(images, items.at, places, len(rows))
        else:
            known = zip(rows_of[name], items.names(), items.faults(), items.lacks_bytes(), strict=True)
            for item, token, item.error, lacks in known:
                if lacks:
                    _name_only(item, token, elsewhere)
        if isinstance(items, UnfoldedItems):
            for row, unfolded in zip(rows_of[name], items.found, strict=True):
                row.extras |= unfolded.columns
    if SOURCE in requested:
        _keep_residues(documents, layout, samples, found, rows_of)
    extras = [json_field(SOURCE)]
    if layout.unfolds is not None:
        extras += [field for field in schema if field.name in layout.unfolds.item_columns]
    built = build_table(samples, blobs, pa.schema(extras), requested)
    is_metadata = np.array([row.modality == "metadata" for row in rows], bool)
    at = pa.array(np.cumsum(is_metadata) - 1, mask=~is_metadata)
    arrays = [
        built.column(f.name)
        if f.name in built.column_names
        else documents.column(f.name).cast(f.type).take(at)
        for f in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _name_only(row: Row, name: str | None, elsewhere: ImagesElsewhere | None) -> None:
    """Give a row of an image without bytes its place elsewhere, or its fault, if it has none yet."""
    if row.error is not None:
        return
    if name is None or elsewhere is None:
        row.error = no_bytes(name)
    else:
        elsewhere.fill(row, name)


def _inspected(
    images: Items, rows: Sequence[Row], max_bytes: int, elsewhere: ImagesElsewhere | None
) -> pa.Array:
    """Give rows the types and faults of their images; return the bytes, without those of too large ones."""
    blobs = images.blobs()
    views = binary_views(blobs)
    is_oversized = np.zeros(len(blobs), bool)
    known = zip(rows, images.at.tolist(), images.names(), images.faults(), strict=True)
    for row, at, token, fault in known:
        view = views[at]
        if view is None:
            row.error = fault
            _name_only(row, token, elsewhere)
        elif len(view) > max_bytes:
            row.error = oversized_member(images.column.place(row.position), len(view), max_bytes)
            is_oversized[at] = True
        elif kind := sniff(view[:_SNIFFED]):
            row.content_type = CONTENT_TYPES.get(kind)
    if not is_oversized.any():
        return blobs
    return pc.if_else(pa.array(is_oversized), pa.scalar(None, blobs.type), blobs)


def _keep_residues(
    documents: pa.RecordBatch,
    layout: DocumentLayout,
    samples: Sequence[Sample],
    found: Mapping[str, Items],
    rows_of: Mapping[str, Sequence[Row]],
) -> None:
    """Keep in ``_source`` what other columns cannot express.

    These are lengths of lists, fields without a column, and names of images.
    """
    for document, lengths in lengths_beyond(found, len(samples)).items():
        samples[document].rows[0].extras[SOURCE] = {"lengths": lengths}
    for field in layout.kept:
        values = json_codec.encode(documents.column(field.name), field)
        for sample, value in zip(samples, values, strict=True):
            if value is not None:
                residue = sample.rows[0].extras.setdefault(SOURCE, {})
                residue.setdefault("fields", {})[field.name] = value
    for items in found.values():
        for document, source in items.sources.items() if isinstance(items, UnfoldedItems) else ():
            stated = {} if layout.sample_id is None else {"id": layout.sample_id}
            samples[document].rows[0].extras.setdefault(SOURCE, {})[LAYOUT] = {**source, **stated}
    for name, items in found.items():
        tokens = items.names() if items.column == layout.images else [None] * len(items)
        for row, token, fields in zip(rows_of[name], tokens, items.others(), strict=True):
            if token is not None or fields:
                row.extras[SOURCE] = ({"token": token} if token is not None else {}) | (
                    {"fields": fields} if fields else {}
                )
