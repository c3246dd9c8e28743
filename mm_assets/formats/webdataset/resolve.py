"""Resolution of image references: from a reference in the json to a member, or a frame of a member.

A reference resolves exactly or not at all.
"""

from __future__ import annotations

import posixpath
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mm_assets.formats.tar.scan import Member, TarIndex
from mm_assets.formats.webdataset.layout import TIFF_EXTENSIONS, RawLayout, extension
from mm_assets.interleaved.faults import DANGLING_REFERENCE, Fault, missing_member


@dataclass(frozen=True, slots=True)
class ResolvedContent:
    """Place of an image's bytes: a whole member, or one of ``frames`` frames of a TIFF member."""

    member: Member
    frame: int | None = None
    frames: int = 1


Resolved = ResolvedContent | Fault

_TIFF_SPELLINGS = tuple(s for e in TIFF_EXTENSIONS for s in (e, e.upper(), e.capitalize()))


def resolve_keys(references: Sequence[object], key: str, index: TarIndex) -> list[Resolved | None]:
    """Resolve WebDataset keys as references (``"3.png"`` is member ``<key>.3.png``); null gives None."""
    return [None if token is None else _by_key(token, key, index) for token in references]


def resolve_raw(
    references: Sequence[object], key: str, layout: RawLayout, index: TarIndex, default_member: object
) -> list[Resolved | None]:
    """Resolve the references of a raw sample.

    A reference is a member name, a name relative to the json's folder, a WebDataset key, or a frame of the
    sample's TIFF. If no reference names a member, the k-th one is frame k of ``default_member`` or of
    ``<key>.tiff``. A reference that looks like a file name is never taken for a frame: a missing member would
    come back as another image.
    """
    found = [None if token is None else _by_name(token, key, layout, index) for token in references]
    opaque = [
        i
        for i, token in enumerate(references)
        if token is not None and not isinstance(found[i], ResolvedContent)
    ]
    if opaque and len(opaque) == sum(token is not None for token in references):
        tiff = frame_member(key, index, default_member)
        if tiff is not None and not any(layout.is_image(str(references[i])) for i in opaque):
            if isinstance(tiff, Member) and len(opaque) == 1 and extension(tiff.name) not in TIFF_EXTENSIONS:
                found[opaque[0]] = ResolvedContent(tiff)  # `image_member_field` names the only image
                return found
            for frame, i in enumerate(opaque):
                found[i] = ResolvedContent(tiff, frame, len(opaque)) if isinstance(tiff, Member) else tiff
            return found
    return _number_frames(found)


def _number_frames(found: list[Resolved | None]) -> list[Resolved | None]:
    """Give each reference to the same TIFF one of its frames, in order."""
    reference_counts = Counter(item.member.name for item in found if isinstance(item, ResolvedContent))
    seen: Counter[str] = Counter()
    numbered: list[Resolved | None] = []
    for item in found:
        if isinstance(item, ResolvedContent):
            name = item.member.name
            if reference_counts[name] > 1 and extension(name) in TIFF_EXTENSIONS:
                item = ResolvedContent(item.member, seen[name], reference_counts[name])
                seen[name] += 1
        numbered.append(item)
    return numbered


def frame_member(key: str, index: TarIndex, default_member: object) -> Member | Fault | None:
    """Return the member that a json names as the image of its sample, else the TIFF of the key.

    Returns None if there is none, and a fault if there is not exactly one.
    """
    if default_member is not None:
        named = index.find(str(default_member)) or index.find(_beside(str(default_member), key))
        return named or _missing(str(default_member), index)
    candidates = [found for s in _TIFF_SPELLINGS if (found := index.find(f"{key}.{s}")) is not None]
    if len(candidates) > 1:
        return Fault(DANGLING_REFERENCE, f"ambiguous: {key!r} has more than one TIFF member")
    return candidates[0] if candidates else None


def _by_name(token: object, key: str, layout: RawLayout, index: TarIndex) -> Resolved:
    if not isinstance(token, str) or not token:
        return _no_name(token)
    bare = token.removeprefix("./")
    names = dict.fromkeys([bare, _beside(bare, key), f"{key}.{token}"])
    matches = {name: found for name in names if (found := index.find(name)) is not None}
    if len(matches) > 1:
        members = ", ".join(map(repr, matches))
        return Fault(DANGLING_REFERENCE, f"ambiguous reference {token!r}: members {members}")
    if not matches and layout.is_image(token):
        return _missing(token, index)
    if not matches:
        words = f"dangling reference {token!r}: no member, and no frame of a TIFF"
        return Fault(DANGLING_REFERENCE, words)
    found = next(iter(matches.values()))
    return ResolvedContent(found) if isinstance(found, Member) else found


def _by_key(token: object, key: str, index: TarIndex) -> Resolved:
    if not isinstance(token, str) or not token:
        return _no_name(token)
    # A full member name counts only if it belongs to this sample: another sample's "3.png" must not be used.
    names = [f"{key}.{token}", *([token] if token.startswith(f"{key}.") else [])]
    for name in names:
        found = index.find(name)
        if found is not None:
            return ResolvedContent(found) if isinstance(found, Member) else found
    return _missing(names[0], index)


def _missing(name: str, index: TarIndex) -> Fault:
    """Return the fault of a reference without a member, with the member that only looks as if it were it."""
    others = (unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name))
    return missing_member(name, next((other for other in others if other in index.by_name), None))


def _no_name(token: object) -> Fault:
    return Fault(DANGLING_REFERENCE, f"dangling reference: no member name: {token!r:.100}")


def _beside(token: str, key: str) -> str:
    return posixpath.join(posixpath.dirname(key), token)
