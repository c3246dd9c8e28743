"""Decoder of samples in the native tar layout (and that of the three-format notebook)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from mm_assets.formats.tar.scan import Member
from mm_assets.formats.webdataset.declared_types import read_declared
from mm_assets.formats.webdataset.layout import (
    BOOKKEEPING,
    IMAGES,
    MAX_POSITION,
    METADATA_TYPE,
    OWN_KEYS,
    REFUSED,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    SOURCE,
    TEXTS,
    sample_stem,
)
from mm_assets.formats.webdataset.mint1t_sample import Mint1tDecoder, checked_length, member_ref
from mm_assets.formats.webdataset.payload import SampleError, naming_sample
from mm_assets.formats.webdataset.resolve import resolve_keys
from mm_assets.formats.webdataset.rows import Row, Sample
from mm_assets.interleaved.faults import BAD_LAYOUT, BAD_SAMPLE_ID, FAULTS, Fault
from mm_assets.interleaved.schema import METADATA_POSITION, MODALITIES, RESERVED_COLUMNS


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
    sample.rows.sort(key=lambda row: (row.position, row.modality == "image"))
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


def iter_patches(rows: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield (modality, position, patch) of every row.

    ``rows`` is ``{"metadata": {…}, "text": {"0": {…}}, "image": {…}}``.
    """
    if "metadata" in rows:
        yield "metadata", METADATA_POSITION, rows["metadata"]
    for modality in ("text", "image"):
        for position, patch in rows[modality].items():
            yield modality, int(position), patch
