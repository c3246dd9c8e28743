"""Documents as rows: decoder of our tar samples and JSON lines, and the canonical reader of files of others.

* The decoder of a sample (`decode_sample`, `decode_payload`) is written from docs/tar_layout.md and not from
  the writer, so that a fault of the writer does not hide itself.
* `order_fault` checks the order of JSON lists and members, as documented there. Clients rely on it, but the
  rows do not show it.
* `document_parts` makes tables of decoded samples, in the column types that these declare.
* `raw_parts` reads files of others, whose rows or members are documents. It uses our own reader, as no other
  library reads them as samples.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical import CanonicalLocation, RowPart
from mm_assets.formats.partitions import Partition, common_root, partition_name
from mm_assets.formats.registry import reader_for
from mm_assets.model import json_codec
from mm_assets.model.digest import BLOBS
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import FieldTally, build_column, is_json
from mm_assets.model.schema import INTERLEAVED_SCHEMA

_BYTES_AT_ONCE = 8 << 20


def raw_parts(source: CanonicalLocation) -> Iterator[RowPart]:
    """Yield the rows of one file, in the types that it states, or else those inferred from its values."""
    uri = str(source.uri)
    reader = reader_for(
        source.kind,
        [],
        max_batch_bytes=_BYTES_AT_ONCE,
        relative_to=source.relative_to,
        storage_options=source.options,
        **source.layout,
    )
    name = partition_name(uri, common_root([uri])) if source.partition is None else source.partition
    stream = reader.open(Partition(name, (uri,)))
    yield RowPart(pa.Table.from_batches([], stream.schema))
    for batch in stream:
        yield RowPart(batch.data)


def order_fault(payload: Mapping[str, Any], sample: Mapping[str, Any], length: int) -> str | None:
    """Return the first deviation from the layout in a WebDataset sample, as ``position 3: …``; None without.

    An image without a member is no fault of order. JSON of another kind raises whatever its types cause.

    Args:
        payload: the JSON of the sample.
        sample: the sample as webdataset gives it.
        length: the length of its lists.
    """
    texts, images, members = payload["texts"], payload["images"], payload["image_members"]
    extra = payload["_row_extra"]
    aligned = {"texts": texts, "images": images, "image_members": members}
    for name, entries in (
        *aligned.items(),
        *((f"_row_extra.{modality}", extra[modality]) for modality in ("text", "image")),
    ):
        if len(entries) != length:
            return (
                f"position {min(len(entries), length)}: {name!r} has {len(entries)} entries, "
                f"where the lists have {length}"
            )
    expected = [None if name is None else f"{sample['__key__']}.{name}" for name in images]
    if members != expected:
        index = next(
            index for index, pair in enumerate(zip(members, expected, strict=True)) if pair[0] != pair[1]
        )
        return (
            f"position {index}: 'image_members' has {members[index]!r}, where 'images' has {images[index]!r}"
        )
    for modality, entries in (("text", texts), ("image", images)):
        empty = [entry is None for entry in entries]
        if [entry is None for entry in extra[modality]] != empty:
            index = next(
                index for index, entry in enumerate(extra[modality]) if (entry is None) != empty[index]
            )
            fault = "an entry without" if empty[index] else "no entry for"
            return f"position {index}: '_row_extra.{modality}' has {fault} the {modality}"
    for index, name in enumerate(images):
        if name is not None and not name.startswith(f"{index}."):
            return f"position {index}: 'images' has {name!r}"
    found = [name for name in sample if name != "__key__"]
    ordered = [*(name for name in images if name in sample), "json"]  # one at most for each position
    if found == ordered:
        return None
    if added := [name for name in found if name not in ordered]:
        position, _, extension = added[0].partition(".")
        place = f"position {position}: " if extension and position.isdecimal() else ""
        return f"{place}member {sample['__key__']}.{added[0]} is not in 'images'"
    unexpected = next(name for name, due in zip(found, ordered, strict=True) if name != due)
    return (
        f"member {sample['__key__']}.{unexpected} is not in its place: "
        "images come first, by position, then the json"
    )


_TYPES = {
    "jpg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "gif": "image/gif",
    "tiff": "image/tiff",
    "bmp": "image/bmp",
}
_FIELDS = {"sample_id", "texts", "images", "image_members", "_row_extra", "_row_errors", "_mm_assets"}
_LARGEST_POSITION = 2**31 - 1
_NOT_AS_DOCUMENTED = (LookupError, TypeError, AttributeError, ValueError)

ItemKey = tuple[str, int]  # modality and position


@dataclass(slots=True)
class Item:
    """One row: reserved columns (except the sample id; absent is null), and all others as JSON values."""

    values: dict[str, Any]
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(slots=True)
class Document:
    """One sample of a tar.

    ``schema`` is the text with the types of the other columns, empty if the JSON declares none.
    """

    sample_id: str
    schema: str
    items: list[Item]
    nbytes: int  # of its members
    span: tuple[int, int] = (0, 0)  # bytes of the tar from its first header to the end of its last member


def has_bookkeeping(payload: Any) -> bool:
    """Return whether the JSON is one of our own tars: others of this layout lack the exact types."""
    return (
        isinstance(payload, dict)
        and isinstance(payload.get("_row_extra"), dict)
        and isinstance(payload.get("_mm_assets"), dict)
    )


def decode_sample(sample: Mapping[str, Any], location: str) -> Document:
    """Return the rows of a WebDataset sample (bytes by key).

    Raises:
        ShardError: the sample is not as documented; the message names file, sample and fault.
    """
    if "json" not in sample:
        raise ShardError(f"{location}: sample with key {sample['__key__']!r} has no json")
    try:
        payload = json.loads(sample["json"])
        check_sample_id(payload)
    except (*_NOT_AS_DOCUMENTED, RecursionError) as error:
        raise ShardError(
            f"{location}: json of the sample with key {sample['__key__']!r}: {error!r:.300}"
        ) from error
    return decode_payload(payload, sample, location)


def check_sample_id(payload: dict[str, Any]) -> None:
    """Raise ``LookupError`` or ``TypeError`` for a json without the id of its sample."""
    if not isinstance(payload["sample_id"], str):
        raise TypeError(f"sample_id is {payload['sample_id']!r:.100}")


def decode_payload(payload: dict[str, Any], sample: Mapping[str, Any], location: str) -> Document:
    """Return the rows of a sample whose json is parsed, and known to have a sample id.

    Raises:
        ShardError: as `decode_sample` does.
    """
    sample_id: str = payload["sample_id"]
    if added := [name for name in payload if name not in _FIELDS]:
        raise ShardError(f"{location}: sample {sample_id!r}: field {added[0]!r} is not of the layout")
    try:
        items = _items(payload, sample)
        schema = payload.get("_mm_assets", {}).get("schema", "")
        fault = order_fault(payload, sample, _length(payload, items))
    except _NOT_AS_DOCUMENTED as error:
        raise ShardError(
            f"{location}: sample {sample_id!r}: its json is not as the layout says: {error!r:.300}"
        ) from error
    if fault is not None:
        raise ShardError(f"{location}: sample {sample_id!r}, {fault}")
    ordered = sorted(items, key=lambda key: (key[1], key[0] == "image"))
    return Document(sample_id, schema, [items[key] for key in ordered], sum(map(len, sample.values())))


def _items(payload: dict[str, Any], sample: Mapping[str, Any]) -> dict[ItemKey, Item]:
    extra, book = (
        payload["_row_extra"],
        payload.get("_mm_assets", {"refs": [], "rows": {"metadata": {}, "text": {}, "image": {}}}),
    )
    items: dict[ItemKey, Item] = {}
    if "metadata" in book["rows"]:
        items["metadata", -1] = _item("metadata", -1, "application/json", extra["metadata"])
    for position, text in enumerate(payload["texts"]):
        if text is not None:
            items["text", position] = _item("text", position, "text/plain", extra["text"][position])
            items["text", position].values["text_content"] = text
    for position, name in enumerate(payload["images"]):
        if name is not None:
            if name.startswith("__"):  # keys that webdataset itself adds to a sample
                raise ValueError(f"{name!r} is no image")
            items["image", position] = _item(
                "image", position, _TYPES.get(name.rpartition(".")[2]), extra["image"][position]
            )
            items["image", position].values["binary_content"] = sample.get(name)
    for entry in payload["_row_errors"]:
        key = _item_key(entry["modality"], entry["position"])
        if key not in items:
            items[key] = _item(*key, entry["content_type"], entry["extra"])
        items[key].values["materialize_error"] = entry["materialize_error"]
    for modality, patches in book["rows"].items():
        for position, patch in [(-1, patches)] if modality == "metadata" else patches.items():
            key = _item_key(modality, int(position))
            # An item that was removed from the lists is reported as missing by the comparison.
            if key in items:
                _patch(items[key].values, patch, book["refs"])
    return items


def _length(payload: dict[str, Any], items: Iterable[ItemKey]) -> int:
    """Return the length of the lists: up to the last item, or as many entries as the source had."""
    rows = payload.get("_mm_assets", {}).get("rows", {})
    lengths = [position + 1 for _, position in items]
    # An item that was removed from the lists still has its bookkeeping; the comparison reports it as missing.
    lengths += [int(position) + 1 for modality in ("text", "image") for position in rows.get(modality, ())]
    if "metadata" in rows:
        source = payload["_row_extra"]["metadata"].get("_source")
        known = source.get("lengths") if isinstance(source, dict) else None
        lengths += (
            [number for number in known.values() if isinstance(number, int)]
            if isinstance(known, dict)
            else []
        )
    return max(lengths, default=0)


def _item(modality: str, position: int, content_type: str | None, extras: Any) -> Item:
    return Item(
        {"position": position, "modality": modality, "content_type": content_type}, dict(extras or {})
    )


def _item_key(modality: Any, position: Any) -> ItemKey:
    is_known = (
        position == -1
        if modality == "metadata"
        else modality in ("text", "image") and 0 <= position <= _LARGEST_POSITION
    )
    if not is_known or type(position) is not int:
        raise ValueError(f"no item has modality {modality!r} and position {position!r}")
    return modality, position


def _patch(values: dict[str, Any], patch: dict[str, Any], refs: list[str]) -> None:
    if "ref" in patch:
        values["source_ref"] = refs[patch["ref"]]
    for name in ("content_type", "text_content"):
        if name in patch:
            values[name] = patch[name]
    if "binary_content" in patch:
        values["binary_content"] = base64.b64decode(patch["binary_content"], validate=True)


_RESERVED = [field for field in INTERLEAVED_SCHEMA if field.name != BLOBS]
# Errors of values that do not have their column's type, when they are converted to Arrow.
_MISFITS = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, pa.ArrowException)


def document_parts(documents: Iterable[Document], where: str) -> Iterator[RowPart]:
    """Yield the rows of documents, some megabytes at a time; no document of a table contradicts its types.

    A value that does not have its declared type keeps its own, in a table of its row.
    """
    group: list[Document] = []
    columns: dict[str, pa.Field] = {}
    filled = 0
    for document in documents:
        if not group or document.schema != group[-1].schema:
            own = _declared(document, where)
            if group and not all(
                own[name].equals(columns[name], True) for name in own.keys() & columns.keys()
            ):
                yield from _parts(group, columns, where)
                group, columns, filled = [], {}, 0
            columns = {**columns, **own} if own.keys() - columns.keys() else columns
        if filled > _BYTES_AT_ONCE:
            yield from _parts(group, columns, where)
            group, columns, filled = [], _declared(document, where), 0
        group.append(document)
        filled += document.nbytes
    if group:
        yield from _parts(group, columns, where)


def _declared(document: Document, where: str) -> dict[str, pa.Field]:
    try:
        return {column.name: column for column in declared_columns(document.schema)}
    except (ValueError, TypeError, OSError) as error:
        raise ShardError(
            f"{where}: sample {document.sample_id!r}: its json states no column types: {error}"
        ) from error


def _parts(group: list[Document], columns: dict[str, pa.Field], where: str) -> Iterator[RowPart]:
    rows = [(document.sample_id, item) for document in group for item in document.items]
    is_same = len({document.schema for document in group}) == 1
    fields = [column if is_same else column.with_nullable(True) for column in columns.values()]
    yield from _fitting(rows, pa.schema(fields), where)


def _fitting(rows: list[tuple[str, Item]], declared: pa.Schema, where: str) -> Iterator[RowPart]:
    """Yield the rows as one table if all values have their types, else as several."""
    try:
        table = _table(rows, declared, is_strict=len(rows) > 1)
    except _MISFITS as error:
        if len(rows) < 2:
            raise ShardError(f"{where}: sample {rows[0][0]!r}: {error}") from error
        middle = len(rows) // 2
        yield from _fitting(rows[:middle], declared, where)
        yield from _fitting(rows[middle:], declared, where)
        return
    yield RowPart(table, iter([[item.values.get(BLOBS) for _, item in rows]]))


def _table(rows: list[tuple[str, Item]], declared: pa.Schema, is_strict: bool) -> pa.Table:
    """Return the columns in their types, all but `BLOBS`.

    Where not ``is_strict``, a column whose values do not fit gets the type of these.
    """
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for field in [*_RESERVED, *declared, *_undeclared(rows, declared)]:
        values: list[Any]
        if field.name == "sample_id":
            values = [sample_id for sample_id, _ in rows]
        elif field.name in INTERLEAVED_SCHEMA.names:
            values = [item.values.get(field.name) for _, item in rows]
        else:
            values = [item.extras.get(field.name) for _, item in rows]
        try:
            array = _array(values, field)
        except _MISFITS:
            if is_strict:
                raise
            field = _own_type(values, field.name)
            array = build_column(values, field)
        fields.append(field)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    expected = None if is_json(field) else _python_type(field.type)
    if expected is not None and not all(value is None or type(value) is expected for value in values):
        raise TypeError(
            f"column {field.name!r}: not all values are {expected.__name__}"
        )  # Arrow takes 5.0 for 5, true for 1.0
    if field.name in INTERLEAVED_SCHEMA.names:
        return pa.array(values, field.type)
    return json_codec.decode(values, field)


def _python_type(type_: pa.DataType) -> type | None:
    if pa.types.is_boolean(type_):
        return bool
    if pa.types.is_integer(type_):
        return int
    if pa.types.is_floating(type_):
        return float
    return str if pa.types.is_string(type_) or pa.types.is_large_string(type_) else None


def _undeclared(rows: list[tuple[str, Item]], declared: pa.Schema) -> list[pa.Field]:
    known = set(declared.names)
    names = dict.fromkeys(name for _, item in rows for name in item.extras if name not in known)
    return [_own_type([item.extras.get(name) for _, item in rows], name) for name in names]


def _own_type(values: list[Any], name: str) -> pa.Field:
    tally = FieldTally()
    for value in values:
        tally.observe(value)
    return tally.field(name)


@lru_cache(maxsize=64)
def declared_columns(text: str) -> pa.Schema:
    """Return the columns beyond the reserved ones, as a JSON document declares them.

    Raises:
        ValueError, TypeError or OSError: for a damaged declaration.
    """
    if not text:
        return pa.schema([])
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
