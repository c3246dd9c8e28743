"""Decoder of raw samples: MINT-1T members, MINT-1T PDF, image-text pairs, and tars like them.

Image-text pairs (`ImageTextPairs`) are an image and its caption under one key, as img2dataset writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mm_assets.formats.document_layouts import (
    LAYOUT,
    Layout,
    described,
    find_layout,
    is_list_of_texts,
    layout_of,
)
from mm_assets.formats.image_places import MIME, ImagesElsewhere, broken_data_url, unfetched_url
from mm_assets.formats.images import CONTENT_TYPES, sniff
from mm_assets.formats.names import is_line
from mm_assets.formats.reports import IMAGE, TEXT
from mm_assets.formats.tar.scan import Member, TarIndex
from mm_assets.formats.unfolding import Image, Item, UnfoldError, Unfolding
from mm_assets.formats.webdataset import (
    MAX_POSITION,
    METADATA_TYPE,
    SAMPLE_ID,
    SOURCE,
    TEXT_TYPE,
    RawLayout,
    SampleError,
    extension,
    is_native_layout,
    naming_sample,
    sample_stem,
)
from mm_assets.formats.webdataset.rows import (
    Resolved,
    ResolvedContent,
    Row,
    Sample,
    frame_member,
    resolve_raw,
    row_order,
)
from mm_assets.model.errors import (
    BAD_LAYOUT,
    BAD_SAMPLE_ID,
    DANGLING_REFERENCE,
    MISSING_MEMBER,
    Fault,
    oversized_member,
    warn_user,
)
from mm_assets.model.samples import build_source_ref
from mm_assets.model.schema import METADATA_POSITION, RESERVED_COLUMNS

CAPTION = "caption"  # json field with the text, if there is no text member
TEXT_EXTENSION = "txt"


@dataclass(frozen=True)
class ImageTextPairs:
    """The members of a tar of pairs by key: a member's path without its last suffix.

    ``read_text`` reads a text member; it raises `SampleError`.
    """

    index: TarIndex
    images: Mapping[str, Sequence[Member]]
    texts: Mapping[str, Sequence[Member]]
    read_text: Callable[[Member], str]

    def documents(self, jsons: Sequence[Member]) -> list[Member]:
        """Return one member per pair, in archive order: its json, or its text if it has none."""
        keys = {sample_stem(member.name) for member in jsons}
        texts_without_json = [texts[0] for key, texts in self.texts.items() if key not in keys]
        return sorted([*jsons, *texts_without_json], key=lambda member: member.header_offset)

    def text_member(self, key: str) -> Member | None:
        """Return the text of a key, None if there is none.

        Raises:
            SampleError: There are several.
        """
        found = self.texts.get(key, ())
        if len(found) > 1:
            raise SampleError(
                DANGLING_REFERENCE,
                f"{self.index.name}: ambiguous: key {key!r} has {len(found)} texts: {_names(found)}",
            )
        return found[0] if found else None

    def image(self, key: str, named: object) -> Resolved:
        """Return the one image of a key, or the member that its json has ``named``; else the fault."""
        found = self.images.get(key, ())
        if named is None and not found:
            return Fault(MISSING_MEMBER, f"missing member: no image of key {key!r}")
        if named is None and len(found) > 1:
            words = f"ambiguous: key {key!r} has {len(found)} images: {_names(found)}"
            return Fault(DANGLING_REFERENCE, words)
        member = self.index.find(found[0].name) if named is None else frame_member(key, self.index, named)
        assert member is not None
        return ResolvedContent(member) if isinstance(member, Member) else member


def find_pairs(
    index: TarIndex,
    layout: RawLayout,
    parse: Callable[[Member], dict[str, Any]],
    read_text: Callable[[Member], str],
) -> ImageTextPairs | Member | None:
    """Return the pairs of a tar; None for a tar of documents.

    If some key has an image and a caption, and yet it is a tar of documents, return the json that makes it
    one.

    A tar has pairs if any key has an image and a caption, and no json of the tar is a document: in the native
    layout, or with the field of the texts or of the images. A json for which ``parse`` raises `SampleError`
    is ignored, and so is its key.
    """
    jsons: list[Member] = []
    images: dict[str, list[Member]] = {}
    texts: dict[str, list[Member]] = {}
    for member in index.members:
        if layout.is_json(member.name):
            jsons.append(member)
        elif layout.is_image(member.name):
            images.setdefault(sample_stem(member.name), []).append(member)
        elif extension(member.name) == TEXT_EXTENSION:
            texts.setdefault(sample_stem(member.name), []).append(member)
    if images.keys().isdisjoint({*texts, *(sample_stem(member.name) for member in jsons)}):
        return None
    captioned = images.keys() & texts.keys()
    for member in jsons:
        key = sample_stem(member.name)
        try:
            payload = parse(member)
        except SampleError:
            captioned.discard(key)
            continue
        if is_document(payload, layout):
            return member if captioned else None
        if key in images and isinstance(payload.get(CAPTION), str):
            captioned.add(key)
    return ImageTextPairs(index, images, texts, read_text) if captioned else None


def is_document(payload: dict[str, Any], layout: RawLayout) -> bool:
    """Return True if a json lists the items of its sample."""
    return layout.texts_field in payload or layout.images_field in payload or is_native_layout(payload)


def _names(members: Sequence[Member]) -> str:
    return ", ".join(member.name for member in members)


_LOOKED_AT = 16  # documents


def find_document_layout(
    members: Sequence[Member], decoder: Mint1tDecoder, parse: Callable[[Member], dict[str, Any]]
) -> Layout | None:
    """Return the layout of a file's documents; None if they are interleaved, native, or of no known layout.

    The first documents decide, and of these the first whose fields are of a layout. A document that is read
    without one ends the search. One for which ``parse`` raises `SampleError` is ignored.
    """
    layout = decoder.layout
    if not layout.looks:
        return layout_of(layout.document_layout)
    for member in members[:_LOOKED_AT]:
        try:
            payload = parse(member)
        except SampleError:
            continue
        if is_native_layout(payload) or is_list_of_texts(payload, layout.texts_field):
            return None
        if (found := decoder.layout_found(payload, sample_stem(member.name))) is not None:
            return found
    return None


_KINDS: dict[type, str] = {str: "a string", dict: "an object", bool: "a boolean"}  # others are numbers
_READ = {TEXT: "a list of strings", IMAGE: "a list of the names of images"}


class Mint1tDecoder:
    """Decoder of the raw samples of one tar.

    ``path`` is the tar's path in ``source_ref``, ``images_path`` that of the tar with the images, if it is
    another; ``pairs`` has the pairs of a tar of image-text pairs. ``spread`` collects the per-item fields
    that any sample had, ``unread`` by modality a line on the first field of texts, or images, that is no
    list. ``referenced`` collects the names of members that are images of any sample, or texts of pairs.
    ``documents`` is the layout of documents that are not interleaved; ``unread_parts`` collects the types of
    parts of chats that are neither text nor image.
    """

    documents: Layout | None = None

    def __init__(
        self,
        path: str,
        index: TarIndex,
        layout: RawLayout,
        max_member_bytes: int,
        pairs: ImageTextPairs | None = None,
        images_path: str | None = None,
        name: str | None = None,
    ) -> None:
        self.path = path
        self.name = index.name if name is None else name  # of the file with the documents, in messages
        self.images_path = path if images_path is None else images_path
        self.index = index
        self.layout = layout
        self.pairs = pairs
        self.max_member_bytes = max_member_bytes  # a larger image is not read
        self.spread: set[str] = set()
        self.unread: dict[str, str] = {}
        self.unread_parts: dict[str, None] = {}
        self.referenced: set[str] = set()
        self.elsewhere: ImagesElsewhere | None = None  # images that only lie in other files
        self.tells_urls = False  # also what else a URL is
        self.hint = ""  # what the message of a missing member ends with
        self._own_images: dict[str, list[str]] | None = None

    @property
    def described(self) -> str:
        """The layout of the documents in words; empty if it is none of the table."""
        return "" if self.documents is None else described(self.documents, self.unread_parts)

    def own_images(self, key: str) -> Sequence[str]:
        """Return the names of the images of a key (``key.jpg``, ``key.0.jpg``), in order of their numbers."""
        if self._own_images is None:
            self._own_images = {}
            for name in {member.name for member in self.index.members if self.layout.is_image(member.name)}:
                for own in _keys_of(name):
                    self._own_images.setdefault(own, []).append(name)
        return sorted(self._own_images.get(key, ()), key=_in_order)

    def decode(self, payload: dict[str, Any], member: Member, key: str | None = None) -> Sample:
        """Return the sample of one json. A pair without a json has an empty payload.

        ``key`` is the sample's; by default the member's name tells it.

        Raises:
            SampleError: There is no usable sample id, a per-item field is no list, or the text of a pair
                cannot be read.
        """
        key = sample_stem(member.name) if key is None else key
        fields = dict(payload)
        residue: dict[str, Any] = {}
        sample_id = self._sample_id(fields, key, member, residue)
        with naming_sample(sample_id):
            return Sample(sample_id, self._rows(payload, fields, key, member, residue))

    def _rows(
        self,
        payload: dict[str, Any],
        fields: dict[str, Any],
        key: str,
        member: Member,
        residue: dict[str, Any],
    ) -> list[Row]:
        layout = self.layout
        place = f"{self.name}: {member.name}"
        json_ref = member_ref(self.path, member)
        if (documents := self._layout_of(payload, sample_stem(member.name))) is not None:
            return self._unfolded(documents, payload, fields, key, member, residue)
        if self.pairs is None:
            texts = self._list(fields, layout.texts_field, TEXT, member, residue)
            images = self._list(fields, layout.images_field, IMAGE, member, residue)
            resolved = resolve_raw(images, key, layout, self.index, self._named_member(fields, residue))
            rows = self.text_rows(texts, json_ref) + self.image_rows(images, resolved)
        else:
            texts, text_ref = self._caption(self.pairs, fields, key, json_ref)
            named = self._named_member(fields, residue)
            image = self.pairs.image(key, named)
            images = [None, image.member.name if isinstance(image, ResolvedContent) else str(named or key)]
            rows = self.text_rows(texts, text_ref) + self.image_rows(images, [None, image])
        text_rows, image_rows = ([row for row in rows if row.modality == kind] for kind in ("text", "image"))
        self._spread(fields, layout.per_text_fields, texts, text_rows, place, residue)
        self._spread(fields, layout.per_image_fields, images, image_rows, place, residue)
        metadata = Row(METADATA_POSITION, "metadata", METADATA_TYPE, source_ref=json_ref)
        metadata.extras = self._passthrough(fields, residue)
        if self.pairs is None:
            self._keep_lengths(payload, rows, residue)
        if residue:
            metadata.extras[SOURCE] = residue
        rows.sort(key=row_order)
        return [metadata, *rows]

    def _layout_of(self, payload: dict[str, Any], key: str) -> Layout | None:
        """Return the layout of one document: that of its file, or the one that it has itself."""
        if self.documents is None or not self.layout.looks:
            return self.documents
        if is_list_of_texts(payload, self.layout.texts_field):
            return None
        return self.layout_found(payload, key) or self.documents

    def layout_found(self, payload: dict[str, Any], key: str) -> Layout | None:
        """Return the layout that the fields of a document are of; None if they are of none in the table."""
        images = payload.get(self.layout.images_field)
        reads_images = isinstance(images, list) and all(type(each) in (str, type(None)) for each in images)
        has_own = bool(self.own_images(key))
        return find_layout(payload, self.layout.texts_field, self.layout.images_field, has_own, reads_images)

    def _unfolded(
        self,
        documents: Layout,
        payload: dict[str, Any],
        fields: dict[str, Any],
        key: str,
        member: Member,
        residue: dict[str, Any],
    ) -> list[Row]:
        """Return the rows of a document of another layout."""
        place, json_ref = f"{self.name}: {member.name}", member_ref(self.path, member)
        named = self._named_member(fields, residue)
        try:
            found = Unfolding(
                fields,
                self.layout.texts_field,
                self.layout.images_field,
                self.own_images(key) if self.layout.is_json(member.name) else (),
                MAX_POSITION,
            )
            found.finish(documents.unfold(found))
        except UnfoldError as error:
            raise SampleError(BAD_LAYOUT, f"{place}: {error}") from error
        self.unread_parts |= found.unread
        residue[LAYOUT] = found.source(documents.name)
        id_field = self.layout.sample_id_field or SAMPLE_ID
        if isinstance(payload.get(id_field), str):
            residue[LAYOUT]["id"] = id_field
        metadata = Row(METADATA_POSITION, "metadata", METADATA_TYPE, source_ref=json_ref)
        metadata.extras = {**self._passthrough(fields, residue), SOURCE: residue}
        names = [
            item.image.name if item.image is not None and item.image.data is None else None
            for item in found.items
        ]
        resolved = resolve_raw(names, key, self.layout, self.index, named)
        by_position = {row.position: row for row in self.image_rows(list(names), resolved)}
        rows = [
            by_position.get(item.position) or self._row_of(item, member, json_ref) for item in found.items
        ]
        for item, row in zip(found.items, rows, strict=True):
            row.extras |= {name: value for name, value in item.columns.items() if name not in _NO_COLUMNS}
        return [metadata, *rows]

    def _row_of(self, item: Item, member: Member, json_ref: str) -> Row:
        """Return the row of a text, of an image in the json, or of one that is not there."""
        if item.modality == "text":
            return Row(item.position, "text", TEXT_TYPE, item.text, source_ref=json_ref)
        ref = build_source_ref(self.path, f"{member.name}: item {item.position}")
        row = Row(item.position, "image", source_ref=ref, error=item.fault)
        image = item.image or Image()
        if image.data is not None:
            row.content_type = CONTENT_TYPES.get(sniff(image.data[:64]) or "")
            if len(image.data) > self.max_member_bytes:
                row.error = oversized_member(member.name, len(image.data), self.max_member_bytes)
            else:
                row.binary = image.data
        if image.name is not None:
            row.extras[SOURCE] = {"token": image.name}
        return row

    def _named_member(self, fields: dict[str, Any], residue: dict[str, Any]) -> object:
        name = self.layout.image_member_field
        if name not in fields:
            return None
        residue.setdefault("fields", {})[name] = fields[name]
        return fields.pop(name)

    def _caption(
        self, pairs: ImageTextPairs, fields: dict[str, Any], key: str, json_ref: str
    ) -> tuple[list[str], str]:
        """Return the text of a pair, if it has one, and its locator.

        If there is a text member, a json field called caption is an ordinary field.
        """
        self.referenced.update(member.name for member in pairs.texts.get(key, ()))
        member = pairs.text_member(key)
        if member is not None:
            return [pairs.read_text(member)], member_ref(self.path, member)
        return ([fields.pop(CAPTION)] if isinstance(fields.get(CAPTION), str) else []), json_ref

    def _sample_id(self, fields: dict[str, Any], key: str, member: Member, residue: dict[str, Any]) -> str:
        name = self.layout.sample_id_field
        if name is None:
            stated = fields.get(SAMPLE_ID)
            if isinstance(stated, str):
                del fields[SAMPLE_ID]
                return stated
            return key
        if fields.get(name) is None:
            raise SampleError(
                BAD_SAMPLE_ID,
                f"{self.name}: {member.name}: field {name!r} (sample_id_field) is missing",
            )
        value = fields.pop(name)
        if isinstance(value, str):
            return value
        residue.setdefault("fields", {})[name] = value
        return json.dumps(value, ensure_ascii=False)

    def _list(
        self, fields: dict[str, Any], name: str, modality: str, member: Member, residue: dict[str, Any]
    ) -> list[Any]:
        if name not in fields:
            return []
        value = fields.pop(name)
        if isinstance(value, list):
            return checked_length(value, name, f"{self.name}: {member.name}")
        residue.setdefault("fields", {})[name] = value  # not a list: kept unchanged, without items
        if value is not None and modality not in self.unread:
            kind = _KINDS.get(type(value), "a number")
            self.unread[modality] = (
                f"field {name!r} is {kind} in {member.name}: {_READ[modality]} is read from it"
            )
        return []

    def text_rows(self, texts: list[Any], json_ref: str) -> list[Row]:
        """Return one row per non-null text.

        A text that is no string is written as JSON, and its value kept in ``_source``.
        """
        rows = []
        for position, text in enumerate(texts):
            if text is None:
                continue
            row = Row(
                position, "text", TEXT_TYPE, text if isinstance(text, str) else None, source_ref=json_ref
            )
            if row.text is None:
                row.text = json.dumps(text, ensure_ascii=False)
                row.extras[SOURCE] = {"value": text}
            rows.append(row)
        return rows

    def image_rows(self, references: list[Any], resolved: list[Resolved | None]) -> list[Row]:
        """Return one row per non-null reference; one that does not resolve is an error row without bytes."""
        rows = []
        for position, (token, found) in enumerate(zip(references, resolved, strict=True)):
            if found is None:
                continue
            row = Row(position, "image")
            if isinstance(found, ResolvedContent):
                size, limit = found.member.size, self.max_member_bytes
                if size > limit:
                    row.error = oversized_member(found.member.name, size, limit)
                else:
                    row.content = found
                self.referenced.add(found.member.name)
                row.content_type = MIME.get(extension(found.member.name))
                row.source_ref = member_ref(self.images_path, found.member, found.frame)
                is_implied = found.frame is None and found.member.name == token
            else:
                found = broken_data_url(token) or (unfetched_url(token) if self.tells_urls else None) or found
                is_hinted = self.hint and found.kind == MISSING_MEMBER
                row.error = Fault(found.kind, f"{found.message}{self.hint}") if is_hinted else found
                row.content_type = MIME.get(extension(str(token)))
                row.source_ref = build_source_ref(self.images_path, token if isinstance(token, str) else None)
                is_implied = isinstance(token, str)
                if self.elsewhere is not None and is_implied and not found.message.startswith("ambiguous"):
                    is_implied = not self.elsewhere.fill(row, token)
                is_implied = is_implied and not is_place(token)
            if not is_implied:
                row.extras[SOURCE] = {"token": token}
            rows.append(row)
        return rows

    def _spread(
        self,
        fields: dict[str, Any],
        names: tuple[str, ...],
        items: list[Any],
        rows: list[Row],
        place: str,
        residue: dict[str, Any],
    ) -> None:
        """Put lists with one value per item on the item rows.

        What rows cannot express of a list goes to ``residue``.
        """
        for name in names:
            values = fields.get(name)
            if values is None:  # missing or null: the metadata row distinguishes these
                continue
            self.spread.add(name)
            if not isinstance(values, list):
                raise SampleError(BAD_LAYOUT, f"{place}: per-item field {name!r} is no list")
            if len(values) == len(rows):
                aligned = values
            elif len(values) == len(items) and all(
                v is None for v, item in zip(values, items, strict=True) if item is None
            ):
                aligned = [v for v, item in zip(values, items, strict=True) if item is not None]
            else:
                warn_user(
                    f"{place}: {name!r} has {len(values)} values for {len(rows)} items; "
                    "kept whole on the metadata row"
                )
                continue
            del fields[name]
            for row, value in zip(rows, aligned, strict=True):
                row.extras[name] = value
            if len(values) != len(rows) or all(value is None for value in values):
                residue.setdefault("per_item", {})[name] = len(values)

    def _passthrough(self, fields: dict[str, Any], residue: dict[str, Any]) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        for name, value in fields.items():
            if name in RESERVED_COLUMNS or name == SOURCE:
                residue.setdefault("fields", {})[name] = value
                continue
            extras[name] = value
            if value is None:
                residue.setdefault("nulls", []).append(name)
        return extras

    def _keep_lengths(self, payload: dict[str, Any], rows: list[Row], residue: dict[str, Any]) -> None:
        implied = max((row.position + 1 for row in rows), default=0)
        lengths: dict[str, int | None] = {}
        for name in (self.layout.texts_field, self.layout.images_field):
            value = payload.get(name)
            if isinstance(value, list) and len(value) != implied:
                lengths[name] = len(value)
            elif name not in payload:
                lengths[name] = None
        if lengths:
            residue["lengths"] = lengths


_DIGITS = re.compile(r"(\d+)", re.ASCII)
_NO_COLUMNS = frozenset((*RESERVED_COLUMNS, SOURCE))


def _keys_of(name: str) -> list[str]:
    """Return the keys that a member may belong to: its name up to one of the last two dots."""
    start = name.rfind("/") + 1
    dots = [at for at, letter in enumerate(name) if letter == "." and at > start]
    return [name[:at] for at in dots[-2:]]


def _in_order(name: str) -> list[tuple[int, str]]:
    """Return the key by which names are sorted: numbers in them by value."""
    parts = _DIGITS.split(name)
    return [(int(part[:18]), part) if at % 2 else (0, part) for at, part in enumerate(parts)]


def checked_length(items: list[Any], name: str, place: str) -> list[Any]:
    """Return a list of texts or images unchanged.

    Raises:
        SampleError: No tar of ours could hold such a long list.
    """
    if len(items) > MAX_POSITION:
        raise SampleError(
            BAD_LAYOUT, f"{place}: field {name!r} has {len(items)} entries, at most {MAX_POSITION}"
        )
    return items


_PLACE = re.compile(r".*: item \d+|row \d+(?:, .*)?", re.ASCII | re.DOTALL)


def is_place(member: str) -> bool:
    """Return whether a locator tells where an image without a name is, in a json or in a row of Parquet.

    An image that is named like that has its name in ``_source`` as well.
    """
    return _PLACE.fullmatch(member) is not None


def member_ref(path: str, member: Member, frame: int | None = None) -> str:
    """Return the locator of a member's payload.

    A path that ends in a slash is that of a folder, whose members are files, or lines of them.
    """
    if path.endswith("/"):
        file, colon, line = member.name.rpartition(": ") if is_line(member.name) else (member.name, "", "")
        return build_source_ref(
            f"{path}{file}", line or None, member.header_offset if colon else 0, member.size, frame
        )
    return build_source_ref(path, member.name, member.offset, member.size, frame)
