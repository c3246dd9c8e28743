"""Samples of an open tar, decoded one at a time; unusable ones raise, or are quarantined as losses.

`survey_tar` surveys a raw tar without reading images: its samples, faults and field types.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import IO, Any

from mm_assets.formats.batching import SampleIds
from mm_assets.formats.image_places import ImagesElsewhere
from mm_assets.formats.images.tiff_directories import count_frames
from mm_assets.formats.reader import FileSurvey, SurveyedSample
from mm_assets.formats.reports import NO_PAIRS, UNREAD, ContentColumns, content_columns
from mm_assets.formats.tar import TarDamage, end_of_headers, padded
from mm_assets.formats.tar.scan import (
    DamagedRange,
    Member,
    Skipped,
    TarIndex,
    read_member,
    scan,
    scan_tolerant,
)
from mm_assets.formats.tar.spool import Download, local_tar, unpacked_limit
from mm_assets.formats.webdataset import (
    LEFT_OUT,
    MADE_SCHEMES,
    MAX_FIELDS,
    MAX_JSON_BYTES,
    MAX_ROOM,
    UNPAIRED,
    RawLayout,
    SampleError,
    extension,
    is_native_layout,
    naming_sample,
    parse_payload,
    sample_stem,
)
from mm_assets.formats.webdataset.documents import (
    Mint1tDecoder,
    find_document_layout,
    find_pairs,
    member_ref,
)
from mm_assets.formats.webdataset.native import decode_native
from mm_assets.formats.webdataset.rows import SLOT, Sample, SchemaTally, misfit
from mm_assets.model.errors import (
    BAD_LAYOUT,
    DANGLING_REFERENCE,
    DUPLICATE_ID,
    NOT_UTF8,
    OVERSIZED_MEMBER,
    UNREADABLE_MEMBER,
    UNREFERENCED_MEMBER,
    Fault,
    ImageError,
    lost_frame,
    surplus_reference,
)
from mm_assets.model.losses import Loss
from mm_assets.model.samples import build_source_ref
from mm_assets.model.schema import METADATA_POSITION
from mm_assets.storage.files import StorageOptions, is_remote, local_path, size_of

_LONGEST_REASON = 2000  # characters
_UNREFERENCED = "it is no part of any sample that was read"

_ROOM_PER_BYTE = 8  # of the json, beyond `MAX_ROOM`


class TarSamples:
    """One open tar. ``name`` is its name in messages, ``path`` its path in locators.

    Without ``ids``, any fault raises `TarDamage` or `SampleError`. With ``ids``, sound samples are used, and
    ``losses`` has the rest. ``id_prefix`` is put before each sample id. ``items`` counts the items of all
    samples seen so far, sound or not: it is complete once `sound` is exhausted.
    """

    def __init__(
        self,
        uri: str,
        path: str,
        layout: RawLayout,
        max_member_bytes: int,
        ids: SampleIds | None,
        options: StorageOptions | None,
        id_prefix: str = "",
    ) -> None:
        self.name = uri if ids is None else path
        self.path = path
        self.items = 0
        self.losses: list[Loss] = []
        self._ids = ids
        self._id_prefix = id_prefix
        self._is_merged = uri.startswith(MADE_SCHEMES)
        self._layout = layout
        self.images_name, self.images_path = self.name, path  # of the file that has the images
        self._download: Download | None = None
        self._document: str | None = None  # why captioned images are no pairs: a json
        elsewhere = ImagesElsewhere.of(layout.images_from, uri, path, max_member_bytes, options)
        with ExitStack() as stack:
            self.descriptor, self.index = self._open(uri, options, stack)
            self.decoder, self.members = self._documents(layout, max_member_bytes)
            self.decoder.elsewhere = elsewhere
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def forget_copy(self) -> None:
        """Remove the local copy of a remote tar, as nobody will read it again."""
        if self._download is not None:
            self._download.forget()

    @property
    def entries(self) -> int:
        """Number of the tar's members."""
        return len(self.index.members) + len(self.index.skipped) + len(self.index.left_out)

    @property
    def nbytes(self) -> int:
        """Bytes of the uncompressed tar."""
        return os.fstat(self.descriptor).st_size

    def sound(self) -> Iterator[tuple[Member, Sample]]:
        """Yield the samples that can be used, in archive order, each with its json member."""
        for member in self.members:
            try:
                sample = self.decode(member)
            except SampleError as error:
                if self._ids is None:
                    raise
                self.items += 1
                self.losses.append(self._undecodable(member, error))
                continue
            self.items += len(sample.rows)
            if self._ids is None or self._is_usable(sample, member, self._ids):
                yield member, sample
        for skipped in self.index.skipped:
            if self._layout.is_json(skipped.name):
                no_file = SampleError(UNREADABLE_MEMBER, f"{self.name}: {skipped.name}: {skipped.reason}")
                if self._ids is None:
                    raise no_file
                self.items += 1
                ref = build_source_ref(self.path, skipped.name, skipped.header_offset)
                self.losses.append(_lost_sample(self._id_prefix + sample_stem(skipped.name), no_file, ref))
        self.losses += [lost_range(self.images_path, *damaged) for damaged in self.index.damaged_ranges]

    def decode(self, member: Member) -> Sample:
        """Return the sample of a json member, or of the text member of a pair without a json.

        Raises:
            SampleError: It cannot be used.
        """
        sample = self._sample(member)
        sample.nbytes = member.size
        if self.decoder.pairs is not None:
            sample.nbytes += sum(len(row.text.encode()) for row in sample.rows if row.text is not None)
        with naming_sample(sample.sample_id):
            _refuse_large(sample, member, f"{self.name}: {member.name}")
        sample.sample_id = self._id_prefix + sample.sample_id
        return sample

    def _documents(self, layout: RawLayout, max_member_bytes: int) -> tuple[Mint1tDecoder, list[Member]]:
        """What decodes the samples, and the members that are samples."""
        found = find_pairs(self.index, layout, self._payload, self._read_text)
        pairs = None if isinstance(found, Member) else found
        if isinstance(found, Member):
            named = {layout.texts_field, layout.images_field}.intersection(self._payload(found))
            self._document = f"{found.name} has the field {min(named)!r}" if named else found.name
        decoder = Mint1tDecoder(self.path, self.index, layout, max_member_bytes, pairs)
        jsons = [member for member in self.index.members if layout.is_json(member.name)]
        if found is None:
            decoder.documents = find_document_layout(jsons, decoder, self._payload)
        return decoder, jsons if pairs is None else pairs.documents(jsons)

    def _sample(self, member: Member) -> Sample:
        payload = self._payload(member) if self._layout.is_json(member.name) else {}
        if is_native_layout(payload):
            return decode_native(payload, member, self.decoder)
        return self.decoder.decode(payload, member)

    def content(self, tally: SchemaTally) -> ContentColumns:
        """Return the columns that look like content, and why what is named or captioned is not taken."""
        found = dict(content_columns(tally.raw_schema(), tally.leaves))
        found |= {UNREAD[modality]: (line,) for modality, line in self.decoder.unread.items()}
        if self._document is not None:
            found[NO_PAIRS] = (f"{self._document}: the whole tar is documents, not image-text pairs",)
        return found

    def unreferenced(self) -> list[Member]:
        """Return members that are neither a json nor an image of any sample seen (nor the text of a pair)."""
        links = {member.link for member in self.index.members if member.link is not None}
        referenced = self.decoder.referenced | links
        return [
            member
            for member in self.index.members
            if not (
                self._layout.is_json(member.name)
                or member.name in referenced
                or self._stands_for_left_out(member)
            )
        ]

    def left_out(self) -> list[str]:
        """Return the names of members that macOS or a tar program had added, in a merged tar with theirs."""
        merged = [member for member in self.index.members if self._stands_for_left_out(member)]
        return [*self.index.left_out, *(json.loads(self._bytes_of(member))["where"] for member in merged)]

    def _stands_for_left_out(self, member: Member) -> bool:
        return self._is_merged and extension(member.name) == LEFT_OUT

    def skipped(self) -> list[Skipped]:
        """Return members that are no files, and by their names no samples either."""
        return [
            member
            for member in self.index.skipped
            if not (member.has_lost_bytes or self._layout.is_json(member.name))
        ]

    def unreferenced_members(self) -> list[Loss]:
        """Return the ledger's entries of all unreferenced and skipped members."""
        refs = [
            *(self._describe(member)[1:] for member in self.unreferenced()),
            *(
                (build_source_ref(self.images_path, member.name, member.header_offset), member.reason)
                for member in self.skipped()
            ),
        ]
        return [
            Loss(None, None, None, "unreferenced", UNREFERENCED_MEMBER, reason, source_ref=ref)
            for ref, reason in refs
        ]

    def ranges_of(self, is_meant: Callable[[str], bool]) -> list[tuple[int, int]]:
        """Return the bytes of some samples, with their headers, in archive order.

        Those are the json, the images, and what else has its key. What other samples have, too, is none of
        them.

        Args:
            is_meant: tells by its id whether a sample is one of them.
        """
        meant: dict[str, bool] = {}  # by stem
        names: dict[bool, set[str]] = {True: set(), False: set()}
        places: dict[bool, set[int]] = {True: set(), False: set()}
        for member in self.members:
            images: list[Member] = []
            try:
                sample = self.decode(member)
                sample_id = sample.sample_id
                images = [row.content.member for row in sample.rows if row.content is not None]
            except SampleError as error:
                sample_id = self._id_prefix + (error.sample_id or sample_stem(member.name))
            side = meant[sample_stem(member.name)] = is_meant(sample_id)
            names[side].update(each.name for each in (member, *images))
            places[side].update(each.offset for each in (member, *images))

        def is_taken(member: Member) -> bool:
            if member.name in names[False] or (member.link is None and member.offset in places[False]):
                return False
            stem = member.name
            while (shorter := sample_stem(stem)) != stem and stem not in meant:
                stem = shorter
            return member.name in names[True] or member.offset in places[True] or meant.get(stem, False)

        found = []
        for member in filter(is_taken, self.index.members):
            start = member.header_offset
            payload = end_of_headers(self.descriptor, start, self.name)
            found.append((start, payload if member.link is not None else payload + padded(member.size)))
        return sorted(found)

    def unreferenced_names(self) -> list[str]:
        """Return the names of `unreferenced` members for messages."""
        return [self._describe(member)[0] for member in self.unreferenced()]

    def _describe(self, member: Member) -> tuple[str, str, str]:
        """Return name, locator and reason of a member that belongs to no sample.

        In a merged tar these are those of the original member.
        """
        if self._is_merged and extension(member.name) == UNPAIRED:
            original = json.loads(self._bytes_of(member))
            return original["where"], original["ref"], original["reason"] or _UNREFERENCED
        path = self.images_path
        ref = build_source_ref(path, member.name) if member.broken else member_ref(path, member)
        return member.name, ref, _UNREFERENCED

    def _bytes_of(self, member: Member) -> bytes:
        return read_member(self.descriptor, member, self.name)

    def _open(self, uri: str, options: StorageOptions | None, stack: ExitStack) -> tuple[int, TarIndex]:
        source: str | IO[bytes] = local_path(uri)
        if is_remote(uri):
            self._download = stack.enter_context(closing(Download(uri, options)))
            source = self._download.file
        limit = unpacked_limit(size_of(uri) if self._download is None else self._download.size)
        damaged: list[TarDamage] | None = None if self._ids is None else []
        opened = local_tar(source, self.images_name, max_bytes=limit, damaged=damaged)
        descriptor = stack.enter_context(opened)
        if damaged is None:
            return descriptor, scan(descriptor, self.images_name)
        index = scan_tolerant(descriptor, self.images_name)
        return descriptor, _with_packing(
            index, damaged[0], os.fstat(descriptor).st_size
        ) if damaged else index

    def _payload(self, member: Member) -> dict[str, Any]:
        return parse_payload(self._read(member, "json"), f"{self.name}: {member.name}")

    def _read_text(self, member: Member) -> str:
        try:
            return self._read(member, "text").decode("utf-8-sig")
        except UnicodeDecodeError as cause:
            error = SampleError(NOT_UTF8, f"{self.name}: {member.name}: not UTF-8: {cause}")
            error.source_ref = self._place(member)
            raise error from cause

    def _read(self, member: Member, kind: str) -> bytes:
        """Return the bytes of a json or text.

        Raises:
            SampleError: It cannot be read; the error locates it.
        """
        place = f"{self.name}: {member.name}"
        error = None
        if member.broken is not None:
            error = SampleError(
                NOT_UTF8 if member.link is None else DANGLING_REFERENCE, f"{place}: {member.broken}"
            )
        elif member.size > MAX_JSON_BYTES:
            error = SampleError(
                OVERSIZED_MEMBER, f"{place}: {kind} member of {member.size} bytes, more than {MAX_JSON_BYTES}"
            )
        if error is not None:
            error.source_ref = self._place(member)
            raise error
        return self._bytes_of(member)

    def _place(self, member: Member) -> str:
        """Return the locator of a json or text; a link that leads nowhere only has a header."""
        is_dead_link = member.link is not None and member.broken is not None
        return (
            build_source_ref(self.path, member.name, member.header_offset)
            if is_dead_link
            else member_ref(self.path, member)
        )

    def _is_usable(self, sample: Sample, member: Member, ids: SampleIds) -> bool:
        """Return True if the sample can be used; otherwise its rows become losses.

        Values are only tested if a json declares their types.
        """
        declared = sample.declared
        reason = (
            None
            if declared is None
            else declared.unwritable or misfit(sample, declared.schema, declared.schema)
        )
        if reason is not None:
            self._quarantine(
                sample, member, BAD_LAYOUT, f"{self.name}: sample {sample.sample_id!r:.200}: {reason}"
            )
        elif (reason := ids.register(sample.sample_id, member.name, self.path)) is not None:
            self._quarantine(sample, member, DUPLICATE_ID, reason)
        return reason is None

    def _quarantine(self, sample: Sample, member: Member, kind: str, reason: str) -> None:
        json_ref = member_ref(self.path, member)
        for number, row in enumerate(sample.rows):
            item = sample.sample_id, row.position, row.modality
            ref = json_ref if row.source_ref is None else row.source_ref
            self.losses.append(Loss.quarantined(*item, kind, _shortened(reason), ref, is_cause=number == 0))

    def _undecodable(self, member: Member, error: SampleError) -> Loss:
        sample_id = sample_stem(member.name) if error.sample_id is None else error.sample_id
        return _lost_sample(self._id_prefix + sample_id, error, error.source_ref or self._place(member))


_BLOCK = 1 << 20
_BLANK = 8  # bytes; longer lines are never taken for empty ones, and not read


def lines_in(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each line in a range of a file, without the empty ones.

    The last of them need not be ended by a line feed. No line is kept in memory.
    """
    number, at = 1, start
    while at < end and (block := os.pread(descriptor, min(_BLOCK, end - at), at)):
        found = block.find(b"\n")
        while found >= 0:
            if not _is_blank(descriptor, start, at + found):
                yield number, start, at + found
            number, start = number + 1, at + found + 1
            found = block.find(b"\n", found + 1)
        at += len(block)
    if start < at and not _is_blank(descriptor, start, at):
        yield number, start, at


def _is_blank(descriptor: int, start: int, end: int) -> bool:
    return end - start <= _BLANK and not os.pread(descriptor, end - start, start).strip()


def lost_range(path: str, start: int, end: int, damage: TarDamage) -> Loss:
    """Return the ledger's entry of bytes of a file that cannot be read."""
    ref = build_source_ref(path, None, start, end - start)
    return Loss.quarantined(None, None, None, damage.kind, str(damage), ref)


def _lost_sample(sample_id: str, error: SampleError, ref: str) -> Loss:
    reason = _shortened(str(error))
    return Loss.quarantined(sample_id, METADATA_POSITION, "metadata", error.kind, reason, ref)


def _with_packing(index: TarIndex, damage: TarDamage, size: int) -> TarIndex:
    """Add damage of the gzip file around a tar: it explains a tar that is cut."""
    earlier, last = index.damaged_ranges[:-1], index.damaged_ranges[-1:]
    if last and not last[0].damage.is_cut:
        earlier, last = index.damaged_ranges, ()
    return replace(
        index, damaged_ranges=(*earlier, DamagedRange(last[0].start if last else size, size, damage))
    )


def _refuse_large(sample: Sample, member: Member, place: str) -> None:
    """Refuse a sample whose table would be too large.

    Every row has every column, so a few fields and a few rows of a json can make a large table.
    """
    rows, room = len(sample.rows), sample.room
    if sample.declared is None:
        fields = sum(len(row.extras) for row in sample.rows)  # at least as many as there are names
        if fields > MAX_FIELDS or rows * fields * SLOT > MAX_ROOM:
            fields = len({name for row in sample.rows for name in row.extras})
        if fields > MAX_FIELDS:
            raise SampleError(BAD_LAYOUT, f"{place}: {fields} fields, at most {MAX_FIELDS}")
        room = rows * fields * SLOT
    if room > max(MAX_ROOM, member.size * _ROOM_PER_BYTE):
        raise SampleError(
            BAD_LAYOUT,
            f"{place}: its {rows} rows take {room} bytes with all their columns, a json of {member.size}",
        )


def _shortened(reason: str) -> str:
    """Return a reason, shortened: reasons quote the data, which may have any length."""
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"


def survey_tar(
    uri: str,
    layout: RawLayout,
    ref_path: str,
    *,
    max_member_bytes: int,
    id_prefix: str = "",
    samples: Callable[..., TarSamples] = TarSamples,
) -> FileSurvey:
    """Survey one tar, local or remote, compressed or not; or another file with such ``samples``.

    Nothing in the tar raises: content that cannot be used is among the ``losses``, as with
    ``quarantine_errors`` of the reader. ``ref_path`` is the tar's path in messages and locators.

    Raises:
        OSError: The file cannot be opened.
    """
    with closing(samples(uri, ref_path, layout, max_member_bytes, SampleIds(), None, id_prefix)) as tar:
        tally = SchemaTally()
        frames = _Frames(tar.descriptor)
        surveyed: list[SurveyedSample] = []
        unresolved: list[tuple[str, int, str]] = []
        for member, sample in tar.sound():
            tally.observe(sample)
            images = [row for row in sample.rows if row.modality == "image"]
            surveyed.append(
                SurveyedSample(
                    sample.sample_id, member.name, member.offset, member.size, len(sample.rows), len(images)
                )
            )
            faults = {row.position: row.error for row in images if row.error is not None} | frames.errors(
                sample
            )
            unresolved += [
                (sample.sample_id, position, faults[position].message) for position in sorted(faults)
            ]
        return FileSurvey(
            samples=tuple(surveyed),
            losses=tuple(tar.losses),
            unresolved=tuple(unresolved),
            frame_counts=tuple(frames.differences),
            unreferenced=tuple(tar.unreferenced_names()),
            skipped=tuple(member.name for member in tar.skipped()),
            left_out=tuple(tar.left_out()),
            tallies=tally.tallies,
            declared=tuple(tally.declared),
            declared_ints=tally.declared_ints,
            content=tar.content(tally),
            documents="" if tar.decoder.documents is None else tar.decoder.documents.name,
            members=tar.entries,
            nbytes=tar.nbytes,
        )


class _Frames:
    """Frame counts of TIFFs whose frames are shared out among references."""

    def __init__(self, descriptor: int) -> None:
        self.differences: list[tuple[str, int, int]] = []
        self._descriptor = descriptor
        self._counted: dict[Member, tuple[int, ImageError | None]] = {}

    def errors(self, sample: Sample) -> dict[int, Fault]:
        """Return by position the faults of references that have no frame.

        There are too few frames, or the chain of frames is damaged before it.
        """
        errors: dict[int, Fault] = {}
        seen: set[Member] = set()
        for row in sample.rows:
            if row.content is None or row.content.frame is None:
                continue
            member, frame, references = row.content.member, row.content.frame, row.content.frames
            if member not in self._counted:
                self._counted[member] = count_frames(self._descriptor, member.offset, member.size)
            frames, damage = self._counted[member]
            if frame >= frames:
                errors[row.position] = (
                    lost_frame(member.name, frame, damage)
                    if damage is not None
                    else surplus_reference(member.name, frame, frames, references)
                )
            if member not in seen and frames != references:
                self.differences.append((member.name, frames, references))
            seen.add(member)
        return errors
