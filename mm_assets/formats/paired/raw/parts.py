"""The tars of one name, one of each modality, and their members by key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mm_assets.formats.tar.scan import Member, TarIndex, read_members
from mm_assets.formats.tar.writer import FileRange
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved.faults import OVERSIZED_MEMBER
from mm_assets.interleaved.source_ref import build_source_ref

# webdataset's rule, up to the first dot of the file's name; but a hidden file has no key (there "a/.b" is of
# key "a/").
_KEY = re.compile(r"((?:.*/|)[^./]+)\.([^/]+)", re.DOTALL)


@dataclass(frozen=True)
class ModalityTar:
    """One modality's tar, opened: ``name`` is what locators call it."""

    modality: str
    name: str
    descriptor: int
    index: TarIndex


@dataclass(frozen=True, slots=True)
class Found:
    """A member of a sample: of which part, and its extension (lower case, all that follows the key's dot)."""

    part: ModalityTar
    extension: str
    member: Member

    @property
    def suffix(self) -> str:
        """What follows the extension's last dot."""
        return self.extension.rpartition(".")[2]

    @property
    def where(self) -> str:
        """Tar and member, for messages."""
        return f"{self.part.name}: {self.member.name}"

    @property
    def ref(self) -> str:
        """Its locator."""
        return build_source_ref(self.part.name, self.member.name, self.member.offset, self.member.size)

    @property
    def range(self) -> FileRange:
        """Where its payload lies."""
        return FileRange(self.part.descriptor, self.member.offset, self.member.size)

    def read(self, limit: int) -> bytes:
        """Its payload. Raises `SampleError` for one of more than ``limit`` bytes."""
        if self.member.size > limit:
            raise SampleError(OVERSIZED_MEMBER, f"{self.where}: {self.member.size} bytes, at most {limit}")
        data = bytearray(self.member.size)
        read_members(self.part.descriptor, [self.member], memoryview(data), self.part.name)
        return bytes(data)


def split_name(name: str) -> tuple[str, str] | None:
    """Key and extension of a member; None for one that has no key."""
    match = _KEY.fullmatch(name)
    return (match[1], match[2].lower()) if match else None


def members_by_key(parts: Sequence[ModalityTar]) -> dict[str, list[Found]]:
    """The members of each key, keys in the order of the first part, then of the others."""
    keys: dict[str, list[Found]] = {}
    for part in parts:
        for member in part.index.members:
            named = split_name(member.name)
            if named is not None:
                keys.setdefault(named[0], []).append(Found(part, named[1], member))
    return keys


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A member of no sample: its name, its locator, and why it is none (None: it has no key)."""

    name: str
    ref: str
    reason: str | None = None


def members_without_key(part: ModalityTar) -> list[Unpaired]:
    """The members of no sample, those that are no files among them."""
    unnamed = [Found(part, "", member) for member in part.index.members if split_name(member.name) is None]
    no_files = [skipped for skipped in part.index.skipped if not skipped.has_lost_bytes]
    return [
        *(Unpaired(found.member.name, found.ref) for found in unnamed),
        *(Unpaired(s.name, build_source_ref(part.name, s.name, s.header_offset), s.reason) for s in no_files),
    ]
