"""Parts of a paired shard: the tars of one name, one per modality, and their members by key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mm_assets.formats.tar.scan import Member, TarIndex, read_members
from mm_assets.formats.tar.writer import FileRange
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved.faults import OVERSIZED_MEMBER
from mm_assets.interleaved.source_ref import build_source_ref

# webdataset's rule: the key ends at the first dot of the file name. Unlike there, a hidden file has no key
# (webdataset gives "a/.b" the key "a/").
_KEY = re.compile(r"((?:.*/|)[^./]+)\.([^/]+)", re.DOTALL)


@dataclass(frozen=True)
class ModalityTar:
    """The open tar of one modality; ``name`` is its name in locators."""

    modality: str
    name: str
    descriptor: int
    index: TarIndex


@dataclass(frozen=True, slots=True)
class SampleMember:
    """A member of a sample: its part, and its extension (lower case, all that follows the key's dot)."""

    part: ModalityTar
    extension: str
    member: Member

    @property
    def suffix(self) -> str:
        """The extension after its last dot."""
        return self.extension.rpartition(".")[2]

    @property
    def where(self) -> str:
        """Tar and member, for messages."""
        return f"{self.part.name}: {self.member.name}"

    @property
    def ref(self) -> str:
        """The member's locator."""
        return build_source_ref(self.part.name, self.member.name, self.member.offset, self.member.size)

    @property
    def range(self) -> FileRange:
        """Place of the payload."""
        return FileRange(self.part.descriptor, self.member.offset, self.member.size)

    def read(self, limit: int) -> bytes:
        """Return the payload.

        Raises:
            SampleError: It has more than ``limit`` bytes.
        """
        if self.member.size > limit:
            raise SampleError(OVERSIZED_MEMBER, f"{self.where}: {self.member.size} bytes, at most {limit}")
        data = bytearray(self.member.size)
        read_members(self.part.descriptor, [self.member], memoryview(data), self.part.name)
        return bytes(data)


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and extension of a member; None for one that has no key."""
    match = _KEY.fullmatch(name)
    return (match[1], match[2].lower()) if match else None


def members_by_key(parts: Sequence[ModalityTar]) -> dict[str, list[SampleMember]]:
    """Return the members of each key, keys in the order of the first part, then of the others."""
    keys: dict[str, list[SampleMember]] = {}
    for part in parts:
        for member in part.index.members:
            key_and_extension = split_name(member.name)
            if key_and_extension is not None:
                keys.setdefault(key_and_extension[0], []).append(
                    SampleMember(part, key_and_extension[1], member)
                )
    return keys


@dataclass(frozen=True, slots=True)
class UnkeyedMember:
    """A member that belongs to no sample: its name, its locator, and the reason (None: it has no key)."""

    name: str
    ref: str
    reason: str | None = None


def members_without_key(part: ModalityTar) -> list[UnkeyedMember]:
    """Return the members that belong to no sample, including those that are no files."""
    unnamed = [
        SampleMember(part, "", member) for member in part.index.members if split_name(member.name) is None
    ]
    special_members = [skipped for skipped in part.index.skipped if not skipped.has_lost_bytes]
    return [
        *(UnkeyedMember(entry.member.name, entry.ref) for entry in unnamed),
        *(
            UnkeyedMember(
                special.name, build_source_ref(part.name, special.name, special.header_offset), special.reason
            )
            for special in special_members
        ),
    ]
