"""Image-text pairs in a tar: an image and its caption under one key, as img2dataset writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mm_assets.formats.tar.scan import Member, TarIndex
from mm_assets.formats.webdataset.layout import RawLayout, extension, is_native_layout, sample_stem
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.formats.webdataset.resolve import Resolved, ResolvedContent, frame_member
from mm_assets.interleaved.faults import DANGLING_REFERENCE, MISSING_MEMBER, Fault

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
        if _is_document(payload, layout):
            return member if captioned else None
        if key in images and isinstance(payload.get(CAPTION), str):
            captioned.add(key)
    return ImageTextPairs(index, images, texts, read_text) if captioned else None


def _is_document(payload: dict[str, Any], layout: RawLayout) -> bool:
    """Return True if a json lists the items of its sample."""
    return layout.texts_field in payload or layout.images_field in payload or is_native_layout(payload)


def _names(members: Sequence[Member]) -> str:
    return ", ".join(member.name for member in members)
