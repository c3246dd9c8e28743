"""Merge of tars of one modality each into one tar of interleaved samples, in the native layout."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from mm_assets.formats.keys import sample_key
from mm_assets.formats.paired.raw.columns import Columns
from mm_assets.formats.paired.raw.content import KeyContent, content_of
from mm_assets.formats.paired.raw.parts import ModalityTar, SampleMember, members_by_key, members_without_key
from mm_assets.formats.tar.writer import FileRange, TarWriter
from mm_assets.formats.webdataset.layout import (
    BOOKKEEPING,
    IMAGE_MEMBERS,
    IMAGES,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    TEXTS,
)
from mm_assets.formats.webdataset.merged_tar import refusal, write_unpaired, write_unread
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved.errors import DataError
from mm_assets.interleaved.faults import MISSING_MODALITY
from mm_assets.interleaved.json_values import dumps


def merge(parts: Sequence[ModalityTar], target: str | os.PathLike[str], missing_key_policy: str) -> None:
    """Write one sample for each key of any part, in the order of the first part.

    Image members become image items, ``.txt`` members text items. Their positions are those in their
    extensions (``0.jpg``), else they follow in the order of the parts. The fields of ``.json`` and the values
    of ``.npy``, ``.cls`` and all other members become columns of the metadata row. A damaged range of a part,
    and a sample that cannot be read, each give a sample that readers refuse and account for. Members without
    a key become unreferenced members.

    Memory: the json and arrays of one sample. Images are copied from file to file.

    Args:
        parts: The tars, one per modality.
        target: Path of the merged tar.
        missing_key_policy: What to do with a key that a part lacks. ``skip`` gives a sample that readers
            refuse and account for, ``partial`` gives what there is, ``error`` raises.

    Raises:
        DataError: The policy is ``error`` and a part lacks a key.
    """
    keys = members_by_key(parts)
    if missing_key_policy == "error":
        _refuse_mismatch(parts, keys)
    columns = Columns()
    for key, found in keys.items():
        with suppress(SampleError):  # reported below
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
                payload = refusal(key, error.kind, reason, error.source_ref or found[0].ref)
            tar.write_group([*members, (f"{stem}.json", dumps(payload).encode())])
        for part in parts:
            write_unread(tar, part.name, part.index)
            for member in members_without_key(part):
                where = f"{part.name}: {member.name}"
                write_unpaired(tar, f"{part.modality}/{member.name}", where, member.ref, member.reason)


def _content(
    key: str, parts: Sequence[ModalityTar], found: Sequence[SampleMember], missing_key_policy: str
) -> KeyContent:
    if missing_key_policy == "skip":
        _refuse_missing(key, parts, found)
    return content_of(found)


def _missing(parts: Sequence[ModalityTar], found: Sequence[SampleMember]) -> list[ModalityTar]:
    present = {member.part.modality for member in found}
    return [part for part in parts if part.modality not in present]


def _refuse_mismatch(parts: Sequence[ModalityTar], keys: Mapping[str, Sequence[SampleMember]]) -> None:
    for key, found in keys.items():
        if missing := _missing(parts, found):
            raise DataError(
                f"key mismatch across modalities: {key!r} is in {found[0].part.name}, "
                f"not in {missing[0].name}"
            )


def _refuse_missing(key: str, parts: Sequence[ModalityTar], found: Sequence[SampleMember]) -> None:
    if missing := _missing(parts, found):
        names = ", ".join(part.name for part in missing)
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
