"""Codec of the native tar layout: samples decoded from their json, and encoded as tar members.

* `decode_native` also reads the layout of the three-format notebook.
* `SampleEncoder` writes a sample's images first, then its json (see docs/tar_layout.md).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from mm_assets.formats.document_layouts import LAYOUT, Layout, fold
from mm_assets.formats.images import CONTENT_TYPES, sniff
from mm_assets.formats.names import sample_key
from mm_assets.formats.tar.scan import Member
from mm_assets.formats.unfolding import FoldError
from mm_assets.formats.unfolding import Row as FoldedRow
from mm_assets.formats.webdataset import (
    BOOKKEEPING,
    IMAGE_MEMBERS,
    IMAGES,
    MAX_NAMED,
    MAX_POSITION,
    MAX_ROOM,
    METADATA_TYPE,
    OWN_KEYS,
    REFUSED,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    SOURCE,
    TEXT_TYPE,
    TEXTS,
    SampleError,
    naming_sample,
    native_payload,
    sample_stem,
)
from mm_assets.formats.webdataset.documents import Mint1tDecoder, checked_length, is_place, member_ref
from mm_assets.formats.webdataset.rows import (
    Row,
    Sample,
    is_readable,
    read_declared,
    resolve_keys,
    row_order,
    width,
)
from mm_assets.model import json_codec
from mm_assets.model.errors import BAD_LAYOUT, BAD_SAMPLE_ID, DENIED, FAULTS, Fault
from mm_assets.model.json_codec import dumps
from mm_assets.model.nested_types import binary_views
from mm_assets.model.samples import parse_source_ref, sample_offsets
from mm_assets.model.schema import METADATA_POSITION, MODALITIES, RESERVED_COLUMNS, schema_to_text


def decode_native(
    payload: dict[str, Any], member: Member, raw: Mint1tDecoder, key: str | None = None
) -> Sample:
    """Return the sample of one json, whose references are WebDataset keys.

    ``key`` is the sample's; by default the member's name tells it.

    Raises:
        SampleError: A field does not follow the layout; the message names it.
    """
    place = f"{raw.path}: {member.name}"
    key = sample_stem(member.name) if key is None else key
    sample_id = payload.get(SAMPLE_ID, key)
    if not isinstance(sample_id, str):
        raise SampleError(BAD_SAMPLE_ID, f"{place}: field {SAMPLE_ID!r} is no string: {sample_id!r:.100}")
    with naming_sample(sample_id):
        _raise_recorded_refusal(payload, place)
        return _decode(payload, member, raw, sample_id, key, place)


def _raise_recorded_refusal(payload: dict[str, Any], place: str) -> None:
    bookkeeping = payload.get(BOOKKEEPING)
    refused = bookkeeping.get(REFUSED) if isinstance(bookkeeping, dict) else None
    if refused is None:
        return
    if (
        not isinstance(refused, list)
        or len(refused) != 3
        or refused[0] not in FAULTS
        or refused[0] in DENIED
        or not isinstance(refused[2], str | None)
    ):
        raise SampleError(
            BAD_LAYOUT,
            f"{place}: field {BOOKKEEPING!r} refuses the sample, and does not say why: {refused!r:.200}",
        )
    error = SampleError(refused[0], str(refused[1]))
    error.source_ref = refused[2]
    raise error


def _decode(
    payload: dict[str, Any], member: Member, raw: Mint1tDecoder, sample_id: str, key: str, place: str
) -> Sample:
    texts, images = _list(payload, TEXTS, place), _list(payload, IMAGES, place)
    json_ref = member_ref(raw.path, member)
    metadata = Row(METADATA_POSITION, "metadata", METADATA_TYPE, source_ref=json_ref)
    text_rows = raw.text_rows(texts, json_ref)
    image_rows = raw.image_rows(images, resolve_keys(images, key, raw.index))
    for row in image_rows:
        row.extras.pop(SOURCE, None)  # the layout implies "<position>.<ext>"
    extra = payload[ROW_EXTRA]
    _attach(text_rows, extra.get("text"), len(texts), f"{place}: {ROW_EXTRA}.text")
    _attach(image_rows, extra.get("image"), len(images), f"{place}: {ROW_EXTRA}.image")
    metadata.extras = dict(_object(extra.get("metadata"), f"{place}: {ROW_EXTRA}.metadata"))
    sample = Sample(sample_id, [metadata, *text_rows, *image_rows])
    _add_error_rows(sample, payload.get(ROW_ERRORS), place)
    bookkeeping = payload.get(BOOKKEEPING)
    if bookkeeping is None:
        _keep_foreign(sample, payload, texts, images)
    else:
        _apply(bookkeeping, sample, place)
        _refuse_undeclared(sample, payload, place)
    _refuse_lengths(metadata, place)
    sample.rows.sort(key=row_order)
    return sample


def _list(payload: dict[str, Any], name: str, place: str) -> list[Any]:
    value = payload.get(name) or []
    if not isinstance(value, list):
        raise SampleError(BAD_LAYOUT, f"{place}: field {name!r} is no list")
    return checked_length(value, name, place)


def _attach(rows: list[Row], entries: Any, length: int, place: str) -> None:
    if entries is None:
        return
    if not isinstance(entries, list) or len(entries) != length:
        raise SampleError(BAD_LAYOUT, f"{place} does not align with the {length} items")
    by_position = {row.position: row for row in rows}
    for position, entry in enumerate(entries):
        if entry is None:
            continue
        if position not in by_position:
            raise SampleError(BAD_LAYOUT, f"{place}: an entry at position {position}, where there is no item")
        by_position[position].extras.update(_object(entry, place))


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise SampleError(BAD_LAYOUT, f"{place}: no object: {value!r:.100}")
    return value or {}


def _add_error_rows(sample: Sample, errors: Any, place: str) -> None:
    place = f"{place}: {ROW_ERRORS}"
    if not isinstance(errors, list | None):
        raise SampleError(BAD_LAYOUT, f"{place} is no list")
    by_place = {(row.modality, row.position): row for row in sample.rows}
    for entry in errors or []:
        entry = _object(entry, place)
        modality, position, error = (
            entry.get(name) for name in ("modality", "position", "materialize_error")
        )
        if (
            modality not in MODALITIES
            or type(position) is not int
            or not METADATA_POSITION <= position < MAX_POSITION
            or (modality == "metadata") != (position == METADATA_POSITION)
        ):
            raise SampleError(BAD_LAYOUT, f"{place}: no item has this modality and position: {entry!r:.200}")
        if not isinstance(error, str | None) or not isinstance(entry.get("content_type"), str | None):
            raise SampleError(BAD_LAYOUT, f"{place}: error and content type are texts: {entry!r:.200}")
        row = by_place.get((modality, position))
        if row is None:
            row = Row(position, modality, entry.get("content_type"))
            row.extras = dict(_object(entry.get("extra"), place))
            sample.rows.append(row)
            by_place[modality, position] = row
        if error is not None:
            row.error = Fault.read(error)


def _keep_foreign(sample: Sample, payload: dict[str, Any], texts: list[Any], images: list[Any]) -> None:
    """Complete a sample of a tar in this layout that others wrote.

    Further fields go to the metadata row, and trailing nulls are kept.
    """
    metadata = sample.rows[0]
    metadata.extras.update({name: value for name, value in payload.items() if name not in OWN_KEYS})
    for row in sample.rows:
        clash = {name: row.extras.pop(name) for name in RESERVED_COLUMNS if name in row.extras}
        if not isinstance(row.extras.get(SOURCE, {}), dict):
            clash[SOURCE] = row.extras.pop(SOURCE)
        if clash:
            row.extras[SOURCE] = {**row.extras.get(SOURCE, {}), "fields": clash}
    implied = max((row.position + 1 for row in sample.rows), default=0)
    lengths = {
        name: len(items) for name, items in ((TEXTS, texts), (IMAGES, images)) if len(items) != implied
    }
    if lengths:
        metadata.extras[SOURCE] = {**metadata.extras.get(SOURCE, {}), "lengths": lengths}


def _refuse_lengths(metadata: Row, place: str) -> None:
    """Refuse lengths in ``_source`` that are too large: writers build lists of these lengths."""
    source = metadata.extras.get(SOURCE)
    lengths = source.get("lengths") if isinstance(source, dict) else None
    for name, length in lengths.items() if isinstance(lengths, dict) else ():
        if isinstance(length, int) and length > MAX_POSITION:
            raise SampleError(
                BAD_LAYOUT, f"{place}: {SOURCE}: field {name!r} had {length} entries, at most {MAX_POSITION}"
            )


def _refuse_undeclared(sample: Sample, payload: dict[str, Any], place: str) -> None:
    """Refuse fields that the declared column types do not contain.

    Someone added them to a json of ours; ignoring them would lose data.
    """
    declared = set(sample.declared.schema.names if sample.declared is not None else ())
    added = [name for name in payload if name not in OWN_KEYS]
    added += [name for row in sample.rows for name in row.extras if name not in declared]
    if added:
        raise SampleError(
            BAD_LAYOUT,
            f"{place}: field {added[0]!r} is in no column of {BOOKKEEPING!r}: "
            "remove that to have types inferred",
        )


def _apply(bookkeeping: dict[str, Any], sample: Sample, place: str) -> None:
    """Restore what the layout only implies: column types, locators, content types, a missing metadata row."""
    try:
        declared = read_declared(bookkeeping["schema"])
        sample.declared = declared
        refs = bookkeeping["refs"]
        if "metadata" not in bookkeeping["rows"]:
            sample.rows = [row for row in sample.rows if row.modality != "metadata"]
        for row in sample.rows:
            row.source_ref, row.is_typed = None, True
        by_place = {(row.modality, row.position): row for row in sample.rows}
        for modality, position, patch in iter_patches(bookkeeping["rows"]):
            row = by_place[(modality, position)]
            row.source_ref = refs[patch["ref"]] if "ref" in patch else None
            row.content_type = patch.get("content_type", row.content_type)
            row.text = patch.get("text_content", row.text)
            if any(
                value is not None and type(value) is not str
                for value in (row.source_ref, row.content_type, row.text)
            ):
                raise TypeError(f"locator, content type and text are texts: {patch!r:.200}")
            if "binary_content" in patch:
                row.binary = base64.b64decode(patch["binary_content"], validate=True)
        if not sample.rows:
            raise ValueError("it leaves no row of the sample")
        sample.room = declared.room([row.extras for row in sample.rows])
    except (LookupError, TypeError, AttributeError, ValueError, OSError, pa.ArrowException) as error:
        raise SampleError(
            BAD_LAYOUT, f"{place}: field {BOOKKEEPING!r} does not fit the sample: {error!r}"
        ) from error


def folded(payload: dict[str, Any], layout: Layout) -> tuple[dict[str, Any], set[str]]:
    """Return the document of a sample as a layout of others has it, and names of images that are not there.

    Images that are not there keep the name that the document gave them. The document has the id in its own
    field; one that had none gets none, and one that did not come from the layout a ``sample_id``.

    Raises:
        ValueError: the layout cannot hold the sample; the message names sample and field.
    """
    extra, rows = payload[ROW_EXTRA], payload[BOOKKEEPING]["rows"]
    found: dict[tuple[int, bool], FoldedRow] = {}
    absent: set[str] = set()
    for position, text in enumerate(payload[TEXTS]):
        if text is not None:
            found[position, False] = FoldedRow(position, text, None, _stated_values(extra["text"][position]))
    for position, name in enumerate(payload[IMAGE_MEMBERS]):
        if name is not None:
            found[position, True] = FoldedRow(position, None, name, _stated_values(extra["image"][position]))
    for entry in payload[ROW_ERRORS]:
        position, is_image = entry["position"], entry["modality"] == "image"
        if is_image and (position, is_image) not in found:
            patch = rows["image"].get(str(position), {})
            ref = payload[BOOKKEEPING]["refs"][patch["ref"]] if "ref" in patch else None
            name, member = (entry["extra"].get(SOURCE) or {}).get("token"), parse_source_ref(ref)["member"]
            if name is None and member is not None and not is_place(member):
                name = member
            found[position, True] = FoldedRow(position, None, name, _stated_values(entry["extra"]))
            if isinstance(name, str):
                absent.add(name)
    fields = {name: value for name, value in extra["metadata"].items() if value is not None}
    source = fields.pop(SOURCE, {})
    try:
        document = fold(layout, fields, source, [found[key] for key in sorted(found)])
    except FoldError as error:
        raise ValueError(
            f"sample {payload[SAMPLE_ID]!r}: a document of layout {layout.name} cannot hold {error}"
        ) from error
    id_field = SAMPLE_ID if source.get(LAYOUT, {}).get("name") != layout.name else source[LAYOUT].get("id")
    return (document if id_field is None else {id_field: payload[SAMPLE_ID], **document}), absent


def _stated_values(extra: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an item's columns, but for the name that its image had."""
    values = {name: value for name, value in extra.items() if value is not None}
    if isinstance(source := values.get(SOURCE), dict) and source.keys() <= {"token"}:
        del values[SOURCE]
    return values


def iter_patches(rows: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield (modality, position, patch) of every row.

    ``rows`` is ``{"metadata": {…}, "text": {"0": {…}}, "image": {…}}``.
    """
    if "metadata" in rows:
        yield "metadata", METADATA_POSITION, rows["metadata"]
    for modality in ("text", "image"):
        for position, patch in rows[modality].items():
            yield modality, int(position), patch


_PLAIN = (
    "sample_id",
    "position",
    "modality",
    "content_type",
    "text_content",
    "source_ref",
    "materialize_error",
)


@dataclass(slots=True)
class EncodedSample:
    """Tar members of one sample, in order, and the ``<position>.<ext>`` of its images."""

    members: list[tuple[str, Any]]
    pairs: list[str]


@dataclass(slots=True)
class _Json:
    """The json of a sample under construction; each list has one entry per position."""

    texts: list[str | None]
    images: list[str | None]
    text_extra: list[dict[str, Any] | None]
    image_extra: list[dict[str, Any] | None]
    metadata_extra: dict[str, Any] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    refs: dict[str, int] = field(default_factory=dict)
    patches: dict[str, Any] = field(default_factory=lambda: {"text": {}, "image": {}})


class SampleEncoder:
    """Encoder of the samples of one tar, from tables of one schema (canonical reserved columns first).

    Each json states the types of all columns, and each entry names all, if there are no more than
    `MAX_NAMED`. Of more, the first json states all types, so that a column without values keeps its own;
    further jsons state those of the columns that their sample has, and entries name those that they have.
    Else the tar would grow with the product of samples and columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.extras = pa.schema([f for f in schema if f.name not in RESERVED_COLUMNS])
        self._named = self.extras.names if len(self.extras) <= MAX_NAMED else []
        self._order = {name: index for index, name in enumerate(self.extras.names)}
        self._widths = {column.name: width(column.type) for column in self.extras}
        self._types_of = lru_cache(maxsize=64)(self._types)
        self._is_first = True

    def encode(self, table: pa.Table) -> Iterator[EncodedSample]:
        """Yield the samples of a table of whole samples. Payload views stay valid as long as the table lives.

        Raises:
            ValueError: A position is beyond `MAX_POSITION`; the message names the sample.
        """
        present = set(table.column_names)  # a strict schema may leave columns out
        columns = {
            n: table.column(n).to_pylist() if n in present else [None] * table.num_rows for n in _PLAIN
        }
        extras: list[dict[str, Any]] = [dict.fromkeys(self._named) for _ in range(table.num_rows)]
        for column in self.extras:
            if table.column(column.name).null_count < table.num_rows:
                values = json_codec.encode(table.column(column.name), column)
                for extra, value in zip(extras, values, strict=True):
                    if value is not None:
                        extra[column.name] = value
        columns["extra"] = extras
        columns["view"] = [None] * table.num_rows
        if "binary_content" in present:
            columns["view"] = [
                v for chunk in table.column("binary_content").chunks for v in binary_views(chunk)
            ]
        offsets = sample_offsets(table).tolist()
        for start, end in zip(offsets, offsets[1:], strict=False):
            yield self._sample({name: values[start:end] for name, values in columns.items()})

    def _sample(self, rows: dict[str, list[Any]]) -> EncodedSample:
        sample_id = rows["sample_id"][0]
        key = sample_key(sample_id)
        length = _length(sample_id, rows)
        json = _Json([None] * length, [None] * length, [None] * length, [None] * length)
        members: list[tuple[str, Any]] = []
        pairs: list[str] = []
        for index, (position, modality) in enumerate(zip(rows["position"], rows["modality"], strict=True)):
            row = {name: values[index] for name, values in rows.items()}
            if modality == "image":
                extension = sniff(row["view"]) if row["view"] else None
                if extension is not None:
                    pair = f"{position}.{extension}"
                    pairs.append(pair)
                    members.append((f"{key}.{pair}", row["view"]))
                    json.images[position] = pair
                    json.image_extra[position] = row["extra"]
                self._add_bookkeeping(
                    json, row, CONTENT_TYPES[extension] if extension else None, extension is not None
                )
            elif modality == "text":
                has_text = row["text_content"] is not None
                if has_text:
                    json.texts[position], json.text_extra[position] = row["text_content"], row["extra"]
                self._add_bookkeeping(json, row, TEXT_TYPE, has_text)
            else:
                json.metadata_extra = row["extra"]
                self._add_bookkeeping(json, row, METADATA_TYPE, True)
        members.append((f"{key}.json", self._json_bytes(sample_id, key, json, self._stated(rows["extra"]))))
        return EncodedSample(members, pairs)

    def _add_bookkeeping(
        self, json: _Json, row: dict[str, Any], implied_type: str | None, is_listed: bool
    ) -> None:
        """Keep the parts of a row that the lists do not express.

        These are its error, the row itself if it has no content, and all values that differ from the implied
        ones.
        """
        modality, position = row["modality"], row["position"]
        if not is_listed or row["materialize_error"] is not None:
            keys = ("position", "modality", "content_type", "materialize_error")
            json.errors.append({**{k: row[k] for k in keys}, "extra": row["extra"]})
        patch: dict[str, Any] = {}
        if row["source_ref"] is not None:
            patch["ref"] = json.refs.setdefault(row["source_ref"], len(json.refs))
        if is_listed and row["content_type"] != implied_type:
            patch["content_type"] = row["content_type"]
        if modality != "text" and row["text_content"] is not None:
            patch["text_content"] = row["text_content"]
        if row["view"] is not None and not (modality == "image" and is_listed):
            patch["binary_content"] = base64.b64encode(row["view"]).decode()
        if modality == "metadata":
            json.patches["metadata"] = patch
        elif patch:
            json.patches[modality][str(position)] = patch

    def _stated(self, extras: Sequence[dict[str, Any]]) -> str:
        """Return the types that a sample's json states, as text."""
        names = sorted({name for extra in extras for name in extra}, key=self._order.__getitem__)
        if self._named:
            return self._types_of(tuple(self._named))
        if self._is_first:
            self._is_first = False
            types = self._types_of(tuple(self._order))
            if is_readable(types, len(extras)):
                return types
        if len(extras) * sum(self._widths[name] for name in names) > MAX_ROOM:
            # Readers take so many values only from a json of that size.
            for extra in extras:
                extra.update({name: extra.get(name) for name in names})
        return self._types_of(tuple(names))

    def _types(self, names: tuple[str, ...]) -> str:
        return schema_to_text(pa.schema([self.extras.field(name) for name in names]))

    def _json_bytes(self, sample_id: str, key: str, json: _Json, types: str) -> bytes:
        extra = {"text": json.text_extra, "image": json.image_extra, "metadata": json.metadata_extra}
        lists = json.texts, json.images, extra, json.errors
        payload = native_payload(sample_id, key, *lists, types, list(json.refs), json.patches)
        return dumps(payload).encode()


def _length(sample_id: str, rows: dict[str, list[Any]]) -> int:
    length = max(rows["position"]) + 1
    if rows["modality"][0] == "metadata":
        source = rows["extra"][0].get(SOURCE)
        lengths = source.get("lengths") if isinstance(source, dict) else None
        if isinstance(lengths, dict):
            length = max([length, *(n for n in lengths.values() if isinstance(n, int))])
    if length > MAX_POSITION:
        raise ValueError(
            f"sample {sample_id!r}: position {length - 1} is beyond {MAX_POSITION}, "
            "the longest list a tar json may have"
        )
    return length
