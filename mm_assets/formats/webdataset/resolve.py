"""From an image reference in the json to the member, or frame of a member, that it names: exactly, or not at
all.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mm_assets.formats.tar.scan import Member, TarIndex
from mm_assets.formats.webdataset.layout import TIFF_EXTENSIONS, RawLayout, extension
from mm_assets.interleaved.faults import DANGLING_REFERENCE, Fault, missing_member


@dataclass(frozen=True, slots=True)
class ResolvedContent:
    """Where an image's bytes are: a whole member, or one of ``frames`` frames of a TIFF member."""

    member: Member
    frame: int | None = None
    frames: int = 1


Resolved = ResolvedContent | Fault

_TIFF_SPELLINGS = tuple(s for e in TIFF_EXTENSIONS for s in (e, e.upper(), e.capitalize()))


def resolve_keys(references: Sequence[object], key: str, index: TarIndex) -> list[Resolved | None]:
    """References that are WebDataset keys (``"3.png"`` is member ``<key>.3.png``); null gives None."""
    return [None if token is None else _by_key(token, key, index) for token in references]


def resolve_raw(
    references: Sequence[object], key: str, layout: RawLayout, index: TarIndex, default_member: object
) -> list[Resolved | None]:
    """References of a raw sample: member names, names beside the json, WebDataset keys, or frames of the
    sample's TIFF.

    When no reference names a member, the k-th one is frame k of ``default_member`` or of ``<key>.tiff``. A
    reference that looks like a file name is never taken for a frame: a lost member would come back as another
    image.
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
                found[opaque[0]] = ResolvedContent(tiff)  # `image_member_field` named the one image there is
                return found
            for frame, i in enumerate(opaque):
                found[i] = ResolvedContent(tiff, frame, len(opaque)) if isinstance(tiff, Member) else tiff
            return found
    return _number_frames(found)


def _number_frames(found: list[Resolved | None]) -> list[Resolved | None]:
    """A TIFF that several references name is one frame for each, in their order."""
    times = Counter(item.member.name for item in found if isinstance(item, ResolvedContent))
    seen: Counter[str] = Counter()
    numbered: list[Resolved | None] = []
    for item in found:
        if isinstance(item, ResolvedContent):
            name = item.member.name
            if times[name] > 1 and extension(name) in TIFF_EXTENSIONS:
                item = ResolvedContent(item.member, seen[name], times[name])
                seen[name] += 1
        numbered.append(item)
    return numbered


def frame_member(key: str, index: TarIndex, default_member: object) -> Member | Fault | None:
    """The member that a json names as the image of its sample, else the TIFF of the key; a fault when there
    is not just one.
    """
    if default_member is not None:
        named = index.find(str(default_member)) or index.find(_beside(str(default_member), key))
        return named or missing_member(default_member)
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
        return missing_member(token)
    if not matches:
        words = f"dangling reference {token!r}: no member, and no frame of a TIFF"
        return Fault(DANGLING_REFERENCE, words)
    found = next(iter(matches.values()))
    return ResolvedContent(found) if isinstance(found, Member) else found


def _by_key(token: object, key: str, index: TarIndex) -> Resolved:
    if not isinstance(token, str) or not token:
        return _no_name(token)
    # A full member name is taken only when it is one of the sample's own: another's "3.png" must not stand in
    # for ours.
    names = [f"{key}.{token}", *([token] if token.startswith(f"{key}.") else [])]
    for name in names:
        found = index.find(name)
        if found is not None:
            return ResolvedContent(found) if isinstance(found, Member) else found
    return missing_member(names[0])


def _no_name(token: object) -> Fault:
    return Fault(DANGLING_REFERENCE, f"dangling reference: no member name: {token!r:.100}")


def _beside(token: str, key: str) -> str:
    return posixpath.join(posixpath.dirname(key), token)
