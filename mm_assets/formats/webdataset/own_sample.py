"""Decode a sample of our own tar layout (and the three-format notebook's): references are WebDataset keys."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from mm_assets.formats.webdataset.layout import (
    BOOKKEEPING,
    IMAGES,
    METADATA_TYPE,
    OWN_KEYS,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    SOURCE,
    TEXTS,
)
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.formats.webdataset.raw_sample import RawDecoder, member_ref, sample_stem
from mm_assets.formats.webdataset.resolve import resolve_keys
from mm_assets.formats.webdataset.rows import Row, Sample
from mm_assets.formats.webdataset.tar_scan import Member
from mm_assets.interleaved.schema import METADATA_POSITION, MODALITIES, RESERVED_COLUMNS


def decode_own(payload: dict[str, Any], member: Member, raw: RawDecoder) -> Sample:
    """The rows of one json. Raises `SampleError` naming the field that is not as the layout says."""
    where = f"{raw.path}: {member.name}"
    key = sample_stem(member.name)
    sample_id = payload.get(SAMPLE_ID, key)
    if not isinstance(sample_id, str):
        raise SampleError("id", f"{where}: field {SAMPLE_ID!r} is no string: {sample_id!r:.100}")
    texts, images = _list(payload, TEXTS, where), _list(payload, IMAGES, where)
    json_ref = member_ref(raw.path, member)
    metadata = Row(METADATA_POSITION, "metadata", METADATA_TYPE, source_ref=json_ref)
    text_rows = raw.text_rows(texts, json_ref)
    image_rows = raw.image_rows(images, resolve_keys(images, key, raw.index))
    for row in image_rows:
        row.extras.pop(SOURCE, None)  # "<position>.<ext>" is what the layout implies
    extra = payload[ROW_EXTRA]
    _attach(text_rows, extra.get("text"), len(texts), f"{where}: {ROW_EXTRA}.text")
    _attach(image_rows, extra.get("image"), len(images), f"{where}: {ROW_EXTRA}.image")
    metadata.extras = dict(_object(extra.get("metadata"), f"{where}: {ROW_EXTRA}.metadata"))
    sample = Sample(sample_id, [metadata, *text_rows, *image_rows])
    _add_error_rows(sample, payload.get(ROW_ERRORS), where)
    bookkeeping = payload.get(BOOKKEEPING)
    if bookkeeping is None:
        _keep_foreign(sample, payload, texts, images)
    else:
        _apply(bookkeeping, sample, where)
        _refuse_undeclared(sample, payload, where)
    sample.rows.sort(key=lambda row: (row.position, row.modality == "image"))
    return sample


def _list(payload: dict[str, Any], name: str, where: str) -> list[Any]:
    value = payload.get(name) or []
    if not isinstance(value, list):
        raise SampleError("layout", f"{where}: field {name!r} is no list")
    return value


def _attach(rows: list[Row], entries: Any, length: int, where: str) -> None:
    if entries is None:
        return
    if not isinstance(entries, list) or len(entries) != length:
        raise SampleError("layout", f"{where} does not align with the {length} items")
    by_position = {row.position: row for row in rows}
    for position, entry in enumerate(entries):
        if entry is None:
            continue
        if position not in by_position:
            raise SampleError("layout", f"{where}: an entry at position {position}, where there is no item")
        by_position[position].extras.update(_object(entry, where))


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise SampleError("layout", f"{where}: no object: {value!r:.100}")
    return value or {}


def _add_error_rows(sample: Sample, errors: Any, where: str) -> None:
    where = f"{where}: {ROW_ERRORS}"
    if not isinstance(errors, list | None):
        raise SampleError("layout", f"{where} is no list")
    by_place = {(row.modality, row.position): row for row in sample.rows}
    for entry in errors or []:
        entry = _object(entry, where)
        modality, position, error = (entry.get(name) for name in ("modality", "position", "materialize_error"))
        if modality not in MODALITIES or type(position) is not int or (modality == "metadata") != (position == METADATA_POSITION):
            raise SampleError("layout", f"{where}: no item has this modality and position: {entry!r:.200}")
        known = by_place.get((modality, position))
        if known is None:
            known = Row(position, modality, entry.get("content_type"))
            known.extras = dict(_object(entry.get("extra"), where))
            sample.rows.append(known)
            by_place[modality, position] = known
        if error is not None:
            known.error = error


def _keep_foreign(sample: Sample, payload: dict[str, Any], texts: list[Any], images: list[Any]) -> None:
    """A tar of this layout that others wrote: further fields are the metadata row's, trailing nulls are kept."""
    metadata = sample.rows[0]
    metadata.extras.update({name: value for name, value in payload.items() if name not in OWN_KEYS})
    for row in sample.rows:
        clash = {name: row.extras.pop(name) for name in RESERVED_COLUMNS if name in row.extras}
        if not isinstance(row.extras.get(SOURCE, {}), dict):
            clash[SOURCE] = row.extras.pop(SOURCE)
        if clash:
            row.extras[SOURCE] = {**row.extras.get(SOURCE, {}), "fields": clash}
    implied = max((row.position + 1 for row in sample.rows), default=0)
    lengths = {name: len(items) for name, items in ((TEXTS, texts), (IMAGES, images)) if len(items) != implied}
    if lengths:
        metadata.extras[SOURCE] = {**metadata.extras.get(SOURCE, {}), "lengths": lengths}


def _refuse_undeclared(sample: Sample, payload: dict[str, Any], where: str) -> None:
    """Someone added fields to a json of ours: its column types do not know them, and leaving them out would lose them."""
    declared = set(sample.declared.names if sample.declared is not None else ())
    added = [name for name in payload if name not in OWN_KEYS]
    added += [name for row in sample.rows for name in row.extras if name not in declared]
    if added:
        raise SampleError(
            "layout", f"{where}: field {added[0]!r} is in no column of {BOOKKEEPING!r}: remove that to have types inferred"
        )


def _apply(bookkeeping: dict[str, Any], sample: Sample, where: str) -> None:
    """Restore what the layout only implies: column types, locators, content types, a missing metadata row."""
    try:
        sample.declared = read_schema(bookkeeping["schema"])
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
            if "binary_content" in patch:
                row.binary = base64.b64decode(patch["binary_content"], validate=True)
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        raise SampleError("layout", f"{where}: field {BOOKKEEPING!r} does not fit the sample: {error!r}") from error


def iter_patches(rows: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(modality, position, patch) of every row, from ``{"metadata": {…}, "text": {"0": {…}}, "image": {…}}``."""
    if "metadata" in rows:
        yield "metadata", METADATA_POSITION, rows["metadata"]
    for modality in ("text", "image"):
        for position, patch in rows[modality].items():
            yield modality, int(position), patch


@lru_cache(maxsize=64)
def read_schema(text: str) -> pa.Schema:
    """The passthrough schema a json states; one object per distinct text, so that samples can be grouped by identity."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def write_schema(schema: pa.Schema) -> str:
    """A passthrough schema as text: Arrow IPC in base64, exact for every type and field metadata.

    Not cached by schema: two that differ in metadata alone, text and JSON text, are equal as keys.
    """
    return base64.b64encode(schema.serialize()).decode()
