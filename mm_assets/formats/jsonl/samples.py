"""Samples of a file of JSON lines: each line is decoded like the JSON member of a tar."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from mm_assets.formats.jsonl.layout import IMAGES_TAR, TARS_OF_OTHERS, is_plain_name, stem_of
from mm_assets.formats.jsonl.lines import local_lines
from mm_assets.formats.keys import sample_key
from mm_assets.formats.storage import StorageOptions, exists
from mm_assets.formats.tar.index import Member, TarIndex
from mm_assets.formats.tar.scan import read_members
from mm_assets.formats.webdataset.layout import SAMPLE_ID, RawLayout, is_native_layout
from mm_assets.formats.webdataset.mint1t_sample import Mint1tDecoder
from mm_assets.formats.webdataset.native_sample import decode_native
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.formats.webdataset.rows import Sample
from mm_assets.formats.webdataset.tar_samples import TarSamples
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.faults import BAD_LAYOUT
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.source_ref import build_source_ref


class JsonlSamples(TarSamples):
    """An opened file of lines, and the tar with its images.

    Args:
        rows_prefix: prefix of the line's number where that is the sample id.
    """

    def __init__(self, *arguments: Any, rows_prefix: str = "") -> None:
        self._rows_prefix = rows_prefix
        self._images: str | None = None  # the tar that the lines name
        super().__init__(*arguments)

    @property
    def nbytes(self) -> int:
        """Bytes of the unpacked lines, and of the tar."""
        images = os.fstat(self.descriptor).st_size if self.descriptor != self._lines.descriptor else 0
        return self._lines.nbytes + images

    def sound(self) -> Iterator[tuple[Member, Sample]]:
        yield from super().sound()
        if (damage := self._lines.damage) is not None:
            size = self._lines.nbytes - self._lines.end
            ref = build_source_ref(self.path, None, self._lines.end, size)
            self.losses.append(
                Loss(None, None, None, "quarantined", damage.kind, str(damage), source_ref=ref)
            )

    def _open(self, uri: str, options: StorageOptions | None, stack: ExitStack) -> tuple[int, TarIndex]:
        self._lines = stack.enter_context(local_lines(uri, self.name, options))
        if (damage := self._lines.damage) is not None and self._ids is None:
            number = len(self._lines.members) + 1
            reason = str(damage).removeprefix(f"{self.name}: ")
            raise ShardError(f"{self.name}: line {number}: {reason}") from damage
        images = self._images_beside(uri, options)
        if images is None:
            return self._lines.descriptor, TarIndex(self.name, [], {}, [], 0)
        name = posixpath.basename(images)
        self.images_path = posixpath.join(posixpath.dirname(self.path), name)
        self.images_name = images if self._ids is None else self.images_path
        return super()._open(images, options, stack)

    def _images_beside(self, uri: str, options: StorageOptions | None) -> str | None:
        """Return the tar with the images; None where there is none. Lines name no file in another folder.

        Raises:
            ShardError: for a named tar that does not exist, unless samples are quarantined.
        """
        for line in self._lines.members:
            try:
                payload = self._payload(line)
            except SampleError:
                continue
            if not is_native_layout(payload) or IMAGES_TAR not in payload:
                break
            if not is_plain_name(name := payload[IMAGES_TAR]):
                continue
            self._images = name
            named = posixpath.join(posixpath.dirname(uri), name)
            if exists(named, options):
                return named
            if self._ids is None:
                raise ShardError(f"{self.name}: {line.name}: its images are in {named}, which is not there")
            return None
        candidates = [stem_of(uri) + suffix for suffix in TARS_OF_OTHERS]
        return next((found for found in candidates if exists(found, options)), None)

    def _documents(self, layout: RawLayout, max_member_bytes: int) -> tuple[Mint1tDecoder, list[Member]]:
        decoder = Mint1tDecoder(
            self.path,
            self.index,
            layout,
            max_member_bytes,
            images_path=self.images_path,
            name=self.name,
        )
        return decoder, self._lines.members

    def _sample(self, member: Member) -> Sample:
        payload = self._payload(member)
        if is_native_layout(payload):
            named = payload.pop(IMAGES_TAR, self._images)
            if named != self._images:
                where = f"{self.name}: {member.name}: field {IMAGES_TAR!r}"
                raise SampleError(
                    BAD_LAYOUT, f"{where}: {named!r:.200}, where other lines have {self._images!r}"
                )
            return decode_native(payload, member, self.decoder, sample_key(str(payload.get(SAMPLE_ID))))
        number = member.name.removeprefix("line ")
        sample = self.decoder.decode(payload, member, number)
        if self._layout.sample_id_field is None and not isinstance(payload.get(SAMPLE_ID), str):
            sample.sample_id = self._rows_prefix + number
        return sample

    def _bytes_of(self, member: Member) -> bytes:
        data = bytearray(member.size)
        read_members(self._lines.descriptor, [member], memoryview(data), self.name)
        return bytes(data)
