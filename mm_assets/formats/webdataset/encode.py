"""Encoding of samples as tar members: images first, then the json (see docs/tar_layout.md)."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from mm_assets.formats.images.probe import CONTENT_TYPES, sniff
from mm_assets.formats.keys import sample_key
from mm_assets.formats.webdataset.declared_types import is_readable, width
from mm_assets.formats.webdataset.layout import (
    BOOKKEEPING,
    IMAGE_MEMBERS,
    IMAGES,
    MAX_NAMED,
    MAX_POSITION,
    MAX_ROOM,
    METADATA_TYPE,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    SOURCE,
    TEXT_TYPE,
    TEXTS,
)
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.buffers import binary_views
from mm_assets.interleaved.json_values import dumps
from mm_assets.interleaved.samples import sample_offsets
from mm_assets.interleaved.schema import RESERVED_COLUMNS
from mm_assets.interleaved.schema_text import schema_to_text

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
    image_members: list[str | None]
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
        json = _Json([None] * length, [None] * length, [None] * length, [None] * length, [None] * length)
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
                    json.images[position], json.image_members[position] = pair, f"{key}.{pair}"
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
        members.append((f"{key}.json", self._json_bytes(sample_id, json, self._stated(rows["extra"]))))
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

    def _json_bytes(self, sample_id: str, json: _Json, types: str) -> bytes:
        payload = {
            SAMPLE_ID: sample_id,
            TEXTS: json.texts,
            IMAGES: json.images,
            IMAGE_MEMBERS: json.image_members,
            ROW_EXTRA: {"text": json.text_extra, "image": json.image_extra, "metadata": json.metadata_extra},
            ROW_ERRORS: json.errors,
            BOOKKEEPING: {"schema": types, "refs": list(json.refs), "rows": json.patches},
        }
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
