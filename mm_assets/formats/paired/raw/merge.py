"""Tars of one modality each, merged into one tar of interleaved samples, in the project's own layout."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from mm_assets.formats.keys import sample_key
from mm_assets.formats.paired.raw.columns import Columns
from mm_assets.formats.paired.raw.content import KeyContent, content_of
from mm_assets.formats.paired.raw.parts import Found, ModalityTar, members_by_key, members_without_key
from mm_assets.formats.tar.writer import FileRange, TarWriter
from mm_assets.formats.webdataset.layout import (
    BOOKKEEPING,
    IMAGE_MEMBERS,
    IMAGES,
    REFUSED,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    TEXTS,
    UNPAIRED,
)
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved.faults import MISSING_MODALITY
from mm_assets.interleaved.json_values import dumps
from mm_assets.interleaved.source_ref import build_source_ref


def merge(parts: Sequence[ModalityTar], target: str | os.PathLike[str], missing_key_policy: str) -> None:
    """Write one sample for each key of any part, in the order of the first part.

    Image members become image items, ``.txt`` text items, at the positions that their extensions state
    (``0.jpg``), or in the order of the parts. The fields of ``.json`` and the values of ``.npy``, ``.cls``
    and all other members become columns of the metadata row. A key that a part lacks: ``skip`` gives a sample
    that readers refuse and account for (as does what cannot be read), ``partial`` gives what there is,
    ``error`` raises ``ValueError``. A stretch of a part that is damaged gives such a sample, too. Members
    without a key are told by members of no sample. Memory: one sample's json and arrays; images go from file
    to file.
    """
    keys = members_by_key(parts)
    if missing_key_policy == "error":
        _refuse_mismatch(parts, keys)
    columns = Columns()
    for key, found in keys.items():
        with suppress(SampleError):  # told below
            columns.observe(_content(key, parts, found, missing_key_policy))
    with TarWriter(target) as tar:
        for key, found in keys.items():
            stem = sample_key(key)
            members: list[tuple[str, FileRange]] = []
            try:
                content = _content(key, parts, found, missing_key_policy)
                payload = _payload(key, stem, content, columns)
                members = [
                    (f"{stem}.{at}.{image.suffix}", image.range)
                    for at, image in sorted(content.images.items())
                ]
            except SampleError as error:
                reason = f"{error} (its members: {', '.join(one.where for one in found)})"
                payload = _refusal(key, error.kind, reason, error.source_ref or found[0].ref)
            tar.write_sample([*members, (f"{stem}.json", dumps(payload).encode())])
        for part in parts:
            for damaged_range in part.index.damaged_ranges:
                damage = damaged_range.damage
                place = f"{part.name}: bytes {damaged_range.start} to {damaged_range.end}"
                ref = build_source_ref(
                    part.name, None, damaged_range.start, damaged_range.end - damaged_range.start
                )
                payload = _refusal(place, damage.kind, str(damage), ref)
                tar.write_sample([(f"{sample_key(place)}.json", dumps(payload).encode())])
            for unpaired in members_without_key(part):
                told = {
                    "where": f"{part.name}: {unpaired.name}",
                    "ref": unpaired.ref,
                    "reason": unpaired.reason,
                }
                tar.write_sample(
                    [(f"{sample_key(f'{part.modality}/{unpaired.name}')}.{UNPAIRED}", dumps(told).encode())]
                )


def _content(
    key: str, parts: Sequence[ModalityTar], found: Sequence[Found], missing_key_policy: str
) -> KeyContent:
    if missing_key_policy == "skip":
        _refuse_missing(key, parts, found)
    return content_of(found)


def _refusal(sample_id: str, kind: str, reason: str, ref: str) -> dict[str, Any]:
    return {SAMPLE_ID: sample_id, ROW_EXTRA: {}, BOOKKEEPING: {REFUSED: [kind, reason, ref]}}


def _missing(parts: Sequence[ModalityTar], found: Sequence[Found]) -> list[ModalityTar]:
    there = {some.part.modality for some in found}
    return [part for part in parts if part.modality not in there]


def _refuse_mismatch(parts: Sequence[ModalityTar], keys: Mapping[str, Sequence[Found]]) -> None:
    for key, found in keys.items():
        if lacking := _missing(parts, found):
            raise ValueError(
                f"key mismatch across modalities: {key!r} is in {found[0].part.name}, not in {lacking[0].name}"
            )


def _refuse_missing(key: str, parts: Sequence[ModalityTar], found: Sequence[Found]) -> None:
    if lacking := _missing(parts, found):
        names = ", ".join(part.name for part in lacking)
        raise SampleError(MISSING_MODALITY, f"{found[0].where}: no member of key {key!r} in {names}")


def _payload(key: str, stem: str, content: KeyContent, columns: Columns) -> dict[str, Any]:
    length = max([*content.texts, *content.images], default=-1) + 1
    texts: list[str | None] = [None] * length
    images: list[str | None] = [None] * length
    rows: dict[str, Any] = {"metadata": {}, "text": {}, "image": {}}
    refs: list[str] = []
    if content.ref is not None:
        refs.append(content.ref)
        rows["metadata"] = {"ref": 0}
    for position, (text, found) in sorted(content.texts.items()):
        texts[position] = text
        rows["text"][str(position)] = {"ref": len(refs)}
        refs.append(found.ref)
    for position, found in sorted(content.images.items()):
        images[position] = f"{position}.{found.suffix}"
        rows["image"][str(position)] = {"ref": len(refs)}
        refs.append(found.ref)
    return {
        SAMPLE_ID: key if content.sample_id is None else content.sample_id,
        TEXTS: texts,
        IMAGES: images,
        IMAGE_MEMBERS: [None if image is None else f"{stem}.{image}" for image in images],
        ROW_EXTRA: {"metadata": columns.encoded(content, key)},
        ROW_ERRORS: [],
        BOOKKEEPING: {"schema": columns.declared()[1], "refs": refs, "rows": rows},
    }
