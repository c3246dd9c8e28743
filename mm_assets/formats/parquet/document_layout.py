"""Layout of Parquet files of others with one document per row.

The columns of texts and images are recognised by their names and types (`document_layout`). `Items` are the
texts or images of a batch of documents: the row, position and content of each. `UnfoldedItems` are those of
chats and the like (`mm_assets.formats.document_layouts`): the values of a row go through Python, image bytes
do not.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.document_layouts import Layout, find_layout, is_list_of_texts, layout_of
from mm_assets.formats.unfolding import (
    Image,
    Item,
    UnfoldError,
    Unfolding,
    example_of,
    image_fields,
    numbered,
    validity,
    value_of,
    with_bytes,
)
from mm_assets.formats.webdataset import (
    IMAGES,
    MAX_FIELDS,
    MAX_POSITION,
    SAMPLE_ID,
    SOURCE,
    TEXTS,
    RawLayout,
)
from mm_assets.model import json_codec
from mm_assets.model.errors import Fault
from mm_assets.model.nested_types import blob_array, is_bytes, is_list, is_text
from mm_assets.model.schema import REQUIRED_COLUMNS, RESERVED_COLUMNS

BYTES, PATH, TEXT = "bytes", "path", "text"  # fields of an image, and of a text
_IMAGE = "image"  # a column of one image per row, if there is no column of lists
_CAPTIONS = ("text", "caption")  # columns of one text per row, for such an image
_TEXTS_READ = "texts are lists of strings, or of structs with a string 'text', or one of these a row"
_IMAGES_READ = "images are lists of struct<bytes, path>, of bytes, or of names, or one of these a row"
_RESERVED = frozenset((*RESERVED_COLUMNS, SOURCE))
_SHOWN = 20  # columns named in an error


@dataclass(frozen=True)
class ItemColumn:
    """A column of texts or of images.

    ``value`` is the type of one item. ``is_list`` is True if a row has a list of items, not just one.
    ``content_fields`` has the fields that hold content and name, if an item is a struct. ``position`` is that
    of an item that is not in a list.
    """

    name: str
    value: pa.DataType
    is_list: bool
    content_fields: tuple[str, ...]
    position: int = 0

    @property
    def is_empty(self) -> bool:
        """True if no row can have an item: all values are null."""
        return bool(pa.types.is_null(self.value))

    @property
    def is_name(self) -> bool:
        """True if images have at most a name, and no bytes."""
        return not _is_blob(_child(self, BYTES) or self.value)

    @property
    def others(self) -> tuple[str, ...]:
        """All other fields of an item."""
        return (
            tuple(f.name for f in self.value if f.name not in self.content_fields)
            if pa.types.is_struct(self.value)
            else ()
        )

    def has(self, field: str) -> bool:
        """Return True if an item has a field of this name."""
        return pa.types.is_struct(self.value) and self.value.get_field_index(field) >= 0

    def place(self, position: int) -> str:
        """Return the name of an item within its row, for locators."""
        return f"{self.name}[{position}]" if self.is_list else self.name


@dataclass(frozen=True)
class UnfoldedColumns:
    """The columns that a layout unfolds.

    ``images`` are those with images and nothing else, ``item_columns`` the names of the columns that items
    get.
    """

    layout: Layout
    raw: RawLayout
    fields: pa.Schema
    images: tuple[ItemColumn, ...]
    item_columns: tuple[str, ...]

    @classmethod
    def of(cls, layout: Layout, schema: pa.Schema, raw: RawLayout) -> UnfoldedColumns:
        """Return the columns of a file that a layout takes from a document with a value in each."""
        example: dict[str, Any] = {column.name: example_of(column.type) for column in schema}
        names = image_fields(example, raw.images_field)
        images = [_items(schema, name, (BYTES, PATH)) for name in names]
        found = Unfolding(example, raw.texts_field, raw.images_field)
        found.finish(layout.unfold(found))
        return cls(
            layout,
            raw,
            pa.schema([pa.field(f.name, f.type) for f in schema if f.name in found.skeleton]),
            tuple(column for column in images if column is not None),
            tuple(
                dict.fromkeys(name for item in found.items for name in item.columns if name not in _RESERVED)
            ),
        )

    def unfold(self, fields: dict[str, Any]) -> Unfolding:
        """Unfold one document.

        Raises:
            UnfoldError: it has too many items.
        """
        found = Unfolding(fields, self.raw.texts_field, self.raw.images_field, (), MAX_POSITION)
        found.finish(self.layout.unfold(found))
        found.skeleton |= fields  # of a kind that this row alone has
        return found


@dataclass(frozen=True)
class DocumentLayout:
    """The columns of a file of documents.

    ``sample_id`` is the column of ids. Each row must have an id if that column was requested (``needs_id``).
    ``passthrough`` has the columns that become those of the metadata rows. ``kept`` has the columns whose
    names are reserved: their values go into ``_source``.

    ``unfolds`` is how `Layout` reads the columns in ``fields``; ``texts`` and ``images`` are no columns then.
    """

    texts: ItemColumn | None
    images: ItemColumn | None
    sample_id: str | None
    needs_id: bool
    passthrough: pa.Schema
    kept: pa.Schema
    unfolds: UnfoldedColumns | None = None

    @property
    def content(self) -> tuple[str, ...]:
        """Names of the columns that hold the items."""
        columns = (column.name for column in self.items)
        return tuple(columns) if self.unfolds is None else tuple(self.unfolds.fields.names)

    @property
    def image_columns(self) -> tuple[ItemColumn, ...]:
        """The columns of images, which may have bytes."""
        if self.unfolds is not None:
            return self.unfolds.images
        return () if self.images is None else (self.images,)

    def unread_images(self) -> list[str]:
        """Return columns that look like images in the form of Hugging Face, and are passed through."""
        columns = [_items(self.passthrough, name, (BYTES, PATH)) for name in self.passthrough.names]
        return [
            column.name
            for column in columns
            if column is not None and column.has(BYTES) and _is_blob(_child(column, BYTES))
        ]

    @property
    def has_pairs(self) -> bool:
        """True if a row is an image-text pair, with the text at position 0 and the image at 1 as in tars."""
        return self.images is not None and self.images.position > 0

    @property
    def items(self) -> tuple[ItemColumn, ...]:
        """The columns of items that exist."""
        return tuple(column for column in (self.texts, self.images) if column is not None)


def is_interleaved(schema: pa.Schema) -> bool:
    """Return True if a file has one row per item, as ours and NeMo Curator's do."""
    return set(REQUIRED_COLUMNS) <= set(schema.names)


def document_layout(schema: pa.Schema, raw: RawLayout) -> DocumentLayout:
    """Return the layout of documents in a file of this schema.

    Raises:
        ValueError: The file has no such layout. The message is one line.
    """
    if len(schema) > MAX_FIELDS:
        raise ValueError(f"{len(schema)} columns, at most {MAX_FIELDS}")
    _refuse_repeated(schema.names)
    if raw.texts_field == raw.images_field:
        raise ValueError(f"column {raw.texts_field!r} cannot be both the texts and the images")
    texts = _items(schema, raw.texts_field, (TEXT,))
    images = _items(schema, raw.images_field, (BYTES, PATH))
    if images is None and raw.images_field == IMAGES:
        images = _items(schema, _IMAGE, (BYTES, PATH))
        if images is not None and texts is None and raw.texts_field == TEXTS:
            caption = next(
                (name for name in _CAPTIONS if name in schema.names and _is_string(schema.field(name).type)),
                None,
            )
            texts = None if caption is None else _items(schema, caption, (TEXT,))
    unfolds = _unfolds(schema, raw, texts, images)
    if unfolds is not None:
        texts = ItemColumn("text", pa.string(), True, ())
        images = ItemColumn("image", pa.large_binary(), True, ())
    is_text = (
        texts is None
        or texts.is_empty
        or _is_string(texts.value)
        or _is_string(_child(texts, TEXT), optional=True)
    )
    is_image = images is None or images.is_empty or _is_image(images)
    for column, is_read, kinds in ((texts, is_text, _TEXTS_READ), (images, is_image, _IMAGES_READ)):
        if column is not None and not is_read:
            raise ValueError(
                f"column {column.name!r} is of a kind that is not read, "
                f"{schema.field(column.name).type!s:.100}: {kinds}; see docs/raw_shards.md"
            )
    if texts is None and images is None:
        raise ValueError(
            f"not interleaved data{_near_miss(schema)}: it has {_described(schema)}; {_expected(raw)}"
        )
    if texts is not None and images is not None and not (texts.is_list or images.is_list):
        images = replace(images, position=1)
    sample_id = _sample_id(schema, raw)
    item_columns = {column.name for column in (texts, images) if column is not None}
    added: tuple[str, ...] = ()
    if unfolds is not None:
        item_columns, added = set(unfolds.fields.names), unfolds.item_columns
    is_id = sample_id is not None and _is_string(schema.field(sample_id).type)
    others = [
        field
        for field in schema
        if field.name not in item_columns and not (is_id and field.name == sample_id)
    ]
    kept = [f for f in others if f.name in (*RESERVED_COLUMNS, SOURCE, sample_id, *added)]
    layout = DocumentLayout(
        texts,
        images,
        sample_id,
        raw.sample_id_field is not None,
        pa.schema([pa.field(f.name, f.type) for f in others if f not in kept]),
        pa.schema([pa.field(f.name, f.type) for f in kept]),
        unfolds,
    )
    for field in [
        *layout.kept,
        *(() if unfolds is None else unfolds.fields),
        *(column.value.field(name) for column in layout.items for name in column.others),
    ]:
        # These columns travel as JSON: `NotEncodable` if their type cannot.
        json_codec.encode(pa.nulls(0, field.type), field)
    return layout


def _unfolds(
    schema: pa.Schema, raw: RawLayout, texts: ItemColumn | None, images: ItemColumn | None
) -> UnfoldedColumns | None:
    """Return the columns of a layout of the table; None if texts are read without it, or none is found."""
    layout = None
    if not raw.looks:
        layout = layout_of(raw.document_layout)
    else:
        example: dict[str, Any] = {column.name: example_of(column.type) for column in schema}
        if texts is not None and (not texts.is_list or is_list_of_texts(example, texts.name)):
            return None
        reads_images = images is not None and _is_image(images)
        layout = find_layout(example, raw.texts_field, raw.images_field, reads_images=reads_images)
    return None if layout is None else UnfoldedColumns.of(layout, schema, raw)


def _refuse_repeated(names: list[str]) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"column {repeated[0]!r:.100} occurs twice")


def _sample_id(schema: pa.Schema, raw: RawLayout) -> str | None:
    if raw.sample_id_field is not None:
        if raw.sample_id_field not in schema.names:
            raise ValueError(
                f"it has no column {raw.sample_id_field!r} (sample_id_field), but {_described(schema)}"
            )
        return raw.sample_id_field
    return SAMPLE_ID if SAMPLE_ID in schema.names and _is_string(schema.field(SAMPLE_ID).type) else None


def _items(schema: pa.Schema, name: str, content_fields: tuple[str, ...]) -> ItemColumn | None:
    if name not in schema.names:
        return None
    type_ = schema.field(name).type
    if pa.types.is_struct(value := type_.value_type if is_list(type_) else type_):
        _refuse_repeated([field.name for field in value])
    return ItemColumn(name, value, is_list(type_), content_fields)


def _child(column: ItemColumn, name: str) -> pa.DataType | None:
    return column.value.field(name).type if column.has(name) else None


def _is_image(column: ItemColumn) -> bool:
    """Return True for a type of images.

    If it is a struct with only a name, or a name, no item has bytes: each becomes an error row.
    """
    if pa.types.is_struct(column.value):
        stored, name = _child(column, BYTES), _child(column, PATH)
        return (
            (stored is not None or name is not None)
            and _is_blob(stored, optional=True)
            and (name is None or _is_string(name, optional=True))
        )
    return _is_blob(column.value) or _is_string(column.value)


def _is_blob(type_: pa.DataType | None, optional: bool = False) -> bool:
    if type_ is None or (optional and pa.types.is_null(type_)):
        return optional
    return is_bytes(type_)


def _is_string(type_: pa.DataType | None, optional: bool = False) -> bool:
    if optional and type_ is not None and pa.types.is_null(type_):
        return True
    if type_ is not None and pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return type_ is not None and is_text(type_)


def _near_miss(schema: pa.Schema) -> str:
    missing = [name for name in REQUIRED_COLUMNS if name not in schema.names]
    return f", column {missing[0]!r} is missing" if len(missing) < len(REQUIRED_COLUMNS) else ""


def _expected(raw: RawLayout) -> str:
    return (
        f"expected a row an item ({', '.join(REQUIRED_COLUMNS)}), or a row a document: {raw.images_field!r}, "
        f"lists of struct<bytes, path>, of bytes or of names, and {raw.texts_field!r}, lists of string or of "
        "struct<text> (MM_IMAGES_FIELD, MM_TEXTS_FIELD name others)"
    )


def _described(schema: pa.Schema) -> str:
    shown = ", ".join(f"{field.name!s:.60}: {field.type!s:.100}" for field in list(schema)[:_SHOWN])
    more = f" and {len(schema) - _SHOWN} more columns" if len(schema) > _SHOWN else ""
    return f"columns {shown or '(none)'}{more}"


Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Items:
    """The texts or the images of a batch, in order.

    ``rows`` and ``positions`` have the row number and the position of each item; ``at`` is its index in
    ``values``. ``lengths`` has the length of each row's list, -1 for a null list. It is None if a row has one
    item and no list.
    """

    column: ItemColumn
    rows: Numbers
    positions: Numbers
    at: Numbers
    values: pa.Array
    lengths: Numbers | None

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self) -> pa.Array:
        """Return the texts; null for an item that only has other fields."""
        return _as(
            self._field_values(TEXT) if self.column.has(TEXT) else self.values.take(pa.array(self.at)),
            pa.string(),
        )

    def names(self) -> list[str | None]:
        """Return the names of the images, None for those without one."""
        if self.column.has(PATH):
            return _as(self._field_values(PATH), pa.string()).to_pylist()
        if self.column.is_name:
            return _as(self.values.take(pa.array(self.at)), pa.string()).to_pylist()
        return [None] * len(self)

    def blobs(self) -> pa.Array:
        """Return the bytes of the images, one value for each of ``values``, without a copy."""
        stored = pc.struct_field(self.values, BYTES) if self.column.has(BYTES) else self.values
        return stored if is_bytes(stored.type) else pa.nulls(len(stored), pa.binary())

    def lacks_bytes(self) -> list[bool]:
        """Return of each image whether its columns have no place for bytes, at most for a name."""
        return [self.column.is_name] * len(self)

    def faults(self) -> list[Fault | None]:
        """Return the faults of images that the document does not even name."""
        return [None] * len(self)

    def others(self) -> list[dict[str, Any]]:
        """Return the other fields of each item that are not null, as JSON values."""
        found: list[dict[str, Any]] = [{} for _ in range(len(self))]
        for name in self.column.others:
            for fields, value in zip(
                found, json_codec.encode(self._field_values(name), self.column.value.field(name)), strict=True
            ):
                if value is not None:
                    fields[name] = value
        return found

    def _field_values(self, name: str) -> pa.Array:
        return pc.struct_field(self.values, name).take(pa.array(self.at))


@dataclass(frozen=True)
class UnfoldedItems(Items):
    """The texts or the images of a batch that a layout unfolded.

    ``found`` has the items, ``sources`` by row what ``_source`` has of its document, ``refused`` by row why
    it cannot be unfolded, ``unread`` the types of parts that are neither text nor image.
    """

    found: Sequence[Item] = ()
    sources: Mapping[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    refused: Mapping[int, str] = dataclasses.field(default_factory=dict)
    unread: Mapping[str, None] = dataclasses.field(default_factory=dict)

    def texts(self) -> pa.Array:
        return pa.array([item.text for item in self.found], pa.string())

    def names(self) -> list[str | None]:
        return [None if item.image is None else item.image.name for item in self.found]

    def blobs(self) -> pa.Array:
        """Return the bytes of the images, one value for each; they are copied if their order is another."""
        numbers = [None if item.image is None else item.image.blob for item in self.found]
        if numbers == list(range(len(self.values))) and self.values.num_chunks == 1:
            return self.values.chunk(0)
        taken = self.values.take(pa.array(numbers, pa.int64()))
        return taken.combine_chunks() if taken.num_chunks != 1 else taken.chunk(0)

    def lacks_bytes(self) -> list[bool]:
        return [item.image is None or not item.image.is_stored for item in self.found]

    def faults(self) -> list[Fault | None]:
        return [item.fault for item in self.found]

    def others(self) -> list[dict[str, Any]]:
        return [{} for _ in self.found]


def _unfolded(
    layout: DocumentLayout, columns: UnfoldedColumns, documents: pa.RecordBatch
) -> dict[str, Items]:
    """Return the items of documents that a layout unfolds."""
    leaves: list[pa.Array] = []
    values = []
    for column in columns.fields:
        array = numbered(documents.column(column.name), leaves)
        encoded = json_codec.encode(array, column.with_type(array.type))
        values.append([value_of(each, column.type) for each in encoded])
    blobs = pa.chunked_array([leaf.cast(pa.large_binary()) for leaf in leaves], pa.large_binary())
    found: dict[str, list[Item]] = {"text": [], "image": []}
    rows: dict[str, list[int]] = {"text": [], "image": []}
    sources: dict[int, dict[str, Any]] = {}
    refused: dict[int, str] = {}
    unread, inline = dict[str, None](), list[bytes]()  # the bytes of base64, behind those of columns
    for row, cells in enumerate(zip(*values, strict=True)):
        fields = {
            name: cell for name, cell in zip(columns.fields.names, cells, strict=True) if cell is not None
        }
        try:
            document = columns.unfold(fields)
        except UnfoldError as error:
            refused[row] = str(error)
            continue
        if leaves:
            document.skeleton = with_bytes(document.skeleton, blobs)
        sources[row] = document.source(columns.layout.name)
        unread |= document.unread
        for item in document.items:
            if item.image and item.image.data is not None:
                inline.append(item.image.data)
                item.image = Image(item.image.name, None, len(blobs) + len(inline) - 1, is_stored=True)
            found[item.modality].append(item)
            rows[item.modality].append(row)
    blobs = pa.chunked_array([*blobs.chunks, pa.array(inline, blobs.type)]) if inline else blobs
    items: dict[str, Items] = {}
    for column in layout.items:
        of = found[column.name]
        positions = np.array([item.position for item in of], np.int64)
        numbers, at = np.array(rows[column.name], np.int64), np.arange(len(of), dtype=np.int64)
        items[column.name] = UnfoldedItems(
            column, numbers, positions, at, blobs, None, of, sources, refused, unread
        )
    return items


def items_of(column: ItemColumn, values: pa.Array) -> Items:
    """Return the items of a column. Nulls are no items, nor are texts of which all fields are null."""
    if column.is_list:
        lengths = (
            pc.fill_null(pc.list_value_length(values), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        counts = np.maximum(lengths, 0)
        rows = np.repeat(np.arange(len(values), dtype=np.int64), counts)
        flat = values.flatten()  # skips values under null lists
        positions = np.arange(len(flat), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    else:
        lengths, flat = None, values
        rows, positions = np.arange(len(values), dtype=np.int64), np.full(len(values), column.position)
    is_item = validity(flat)
    if column.content_fields == (TEXT,) and pa.types.is_struct(column.value):
        is_item &= np.logical_or.reduce([validity(child) for child in flat.flatten()])
    at = np.flatnonzero(is_item)
    return Items(column, rows[at], positions[at], at, flat, lengths)


def items_in(layout: DocumentLayout, documents: pa.RecordBatch) -> dict[str, Items]:
    """Return the items of some documents by the name of their column, texts first."""
    if layout.unfolds is not None:
        return _unfolded(layout, layout.unfolds, documents)
    columns = (column for column in layout.items if not column.is_empty)
    return {column.name: items_of(column, documents.column(column.name)) for column in columns}


def lengths_beyond(items: Mapping[str, Items], rows: int) -> dict[int, dict[str, int | None]]:
    """Return by row the lengths of its lists that its items do not imply.

    These are lists with nulls at their end; None stands for a null list.
    """
    implied = np.zeros(rows, np.int64)
    for column_items in items.values():
        np.maximum.at(implied, column_items.rows, column_items.positions + 1)
    beyond: dict[int, dict[str, int | None]] = {}
    for name, column_items in items.items():
        if column_items.lengths is None:
            continue
        for row in np.flatnonzero(column_items.lengths != implied).tolist():
            length = int(column_items.lengths[row])
            beyond.setdefault(row, {})[name] = None if length < 0 else length
    return beyond


def spread_blobs(blobs: pa.Array, at: Numbers, places: Numbers, rows: int) -> pa.Array:
    """Return a ``large_binary`` column with some values of an array, else nulls, without copying bytes.

    Args:
        blobs: The array. All values but those selected are null.
        at: Indices of the selected values.
        places: Their rows in the result, ascending.
        rows: Rows of the result.
    """
    sizes, data, first = _packed(blobs)
    offsets = np.zeros(rows + 1, np.int64)
    offsets[places + 1] = sizes[at]
    is_present = np.zeros(rows, bool)
    is_present[places] = validity(blobs)[at]
    return blob_array(np.cumsum(offsets) + first, data, is_present.tolist())


def _packed(blobs: pa.Array) -> tuple[Numbers, pa.Buffer, int]:
    """Return the sizes of all values, the buffer with their bytes in sequence, and the first offset.

    Nulls have size 0.
    """
    sizes = pc.fill_null(pc.binary_length(blobs), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not sizes.any():
        return sizes, pa.py_buffer(b""), 0
    width = np.dtype(np.int64 if pa.types.is_large_binary(blobs.type) else np.int32)
    offsets = np.frombuffer(blobs.buffers()[1], width, len(blobs) + 1, blobs.offset * width.itemsize).astype(
        np.int64
    )
    if not np.array_equal(np.diff(offsets), sizes):  # there are bytes under a null
        return _packed(pc.fill_null(blobs, b""))
    return sizes, blobs.buffers()[2], int(offsets[0])


def _as(array: pa.Array, type_: pa.DataType) -> pa.Array:
    return array if array.type == type_ else array.cast(type_)
