"""Reader of tar shards: MINT-1T-style, image-text pairs, and our own, as interleaved batches.

A `WebdatasetSource` scans the headers of one tar first. Then it reads batches straight into Arrow buffers:
`BlobBuilder` has the image bytes of some rows in one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mm_assets.formats.batching import SampleIds
from mm_assets.formats.images import CONTENT_TYPES, sniff
from mm_assets.formats.images.tiff import FramePlan, plan_sound_frames
from mm_assets.formats.materialize import reading_roots
from mm_assets.formats.names import TAR_SUFFIXES, ZIP_SUFFIXES
from mm_assets.formats.partitions import Partition, id_prefix, ref_path
from mm_assets.formats.reader import FileSource, InterleavedReader
from mm_assets.formats.reports import CONTENT, DOCUMENTS, LEFT_OUT_MEMBERS
from mm_assets.formats.tar.scan import Member, read_members
from mm_assets.formats.webdataset import (
    DEFAULT_IMAGE_EXTENSIONS,
    DEFAULT_JSON_EXTENSIONS,
    IMAGES,
    MAX_MEMBER_BYTES,
    SOURCE,
    TEXTS,
    RawLayout,
    SampleError,
    normal_extensions,
)
from mm_assets.formats.webdataset.documents import member_ref
from mm_assets.formats.webdataset.folders import tar_samples
from mm_assets.formats.webdataset.rows import (
    MISFITS,
    ResolvedContent,
    Row,
    Sample,
    SchemaTally,
    build_table,
    misfit,
    width,
)
from mm_assets.formats.webdataset.samples import TarSamples
from mm_assets.model.digest import DIGEST_FIELDS, declared_digests, digest_fault
from mm_assets.model.errors import (
    BAD_LAYOUT,
    UNREFERENCED_FRAME,
    Fault,
    ImageError,
    lost_frame,
    surplus_reference,
    warn_user,
)
from mm_assets.model.losses import Loss
from mm_assets.model.nested_types import blob_array
from mm_assets.model.schema import RESERVED_COLUMNS, align_table, canonical_schema
from mm_assets.storage.files import StorageOptions, local_path
from mm_assets.storage.listing import Paths

__all__ = ["InterleavedWebdatasetReader"]


_ROW_OVERHEAD = 256  # Arrow bytes of a row besides text and image: offsets, locator, content type
# Bytes of jsons and texts whose decoded samples are kept between the schema pass and the read. Others are
# decoded twice, and only their types are kept.
_KEPT_BYTES = 2 << 20
_FRAME_OVERHEAD = 1024  # bytes of a split frame besides its strips: header, directory, tag values


class WebdatasetSource(FileSource):
    """One tar. Headers are scanned and json fields typed when it is opened, payloads are read later.

    With ``ids``, samples that cannot be used are quarantined instead of raising; see `TarSamples`, which
    ``samples`` may take the place of.
    """

    def __init__(
        self,
        uri: str,
        layout: RawLayout,
        ref_path: str,
        materialize: bool,
        options: StorageOptions | None,
        max_member_bytes: int,
        ids: SampleIds | None,
        id_prefix: str = "",
        samples: Callable[..., TarSamples] = TarSamples,
    ) -> None:
        self._layout = layout
        self._samples = samples(uri, ref_path, layout, max_member_bytes, ids, options, id_prefix)
        try:
            self._materialize = materialize
            self._members: list[Member] = []
            self._kept: dict[Member, Sample] = {}
            self._frames: dict[str, tuple[Member, int, int]] = {}  # as `BlobBuilder.frames`, of all batches
            tally = SchemaTally()
            is_of_others = False
            kept_bytes = 0
            for member, sample in self._samples.sound():
                self._members.append(member)
                is_of_others |= sample.declared is None
                tally.observe(sample)
                kept_bytes += sample.nbytes
                if kept_bytes <= _KEPT_BYTES:
                    self._kept[member] = sample
            self._raw_schema = tally.raw_schema()
            self._declares_digests = not DIGEST_FIELDS.isdisjoint(self._raw_schema.names)
            super().__init__(uri, canonical_schema(tally.schema()), self._samples.items)
        except BaseException:
            self._samples.close()
            raise
        self.losses = self._samples.losses
        self.notes |= {"nbytes": self._samples.nbytes, "of_others": is_of_others}
        if described := self._samples.decoder.described:
            self.notes[DOCUMENTS] = described
        if content := self._samples.content(tally):
            self.notes[CONTENT] = content
        if unreferenced := self._samples.unreferenced_names():
            self.notes["unreferenced_members"] = unreferenced
        if skipped := self._samples.skipped():
            self.notes["skipped_members"] = [member.name for member in skipped]
        if left_out := self._samples.left_out():
            self.notes[LEFT_OUT_MEMBERS] = left_out
        if unreferenced_members := self._samples.unreferenced_members():
            self.notes["unreferenced_losses"] = unreferenced_members
        per_item = [*layout.per_text_fields, *layout.per_image_fields]
        if self._members and (
            absent := [name for name in per_item if name not in self._samples.decoder.spread]
        ):
            warn_user(f"{uri}: per-item fields not found in any sample: {', '.join(absent)}")

    def close(self) -> None:
        self._samples.close()

    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        requested = set(columns)
        names = [name for name in self.schema.names if name in requested]
        row_bytes = _ROW_OVERHEAD + sum(
            width(self.schema.field(name).type) for name in names if name not in RESERVED_COLUMNS
        )
        with_bytes = self._materialize and "binary_content" in names
        pending: list[Sample] = []
        filled = 0
        for member in self._members:
            # Not kept any longer: its rows change while the table is built.
            sample = self._kept.pop(member, None) or self._samples.decode(member)
            size = _estimate(sample, row_bytes, with_bytes)
            if pending and max_bytes is not None and filled + size > max_bytes:
                yield self._table(pending, names, with_bytes)
                pending, filled = [], 0
            pending.append(sample)
            filled += size
        if pending:
            yield self._table(pending, names, with_bytes)
        self._note_frames()
        if with_bytes:
            self._samples.forget_copy()

    def _note_frames(self) -> None:
        """Note unreferenced frames. Only at the end, because samples may share a TIFF."""
        for member, frames, references in self._frames.values():
            if frames > references:
                self.notes.setdefault("unreferenced_frames", []).append(
                    f"{member.name}: {frames - references} of {frames} frames"
                )
                self.notes.setdefault("unreferenced_losses", []).extend(
                    _unreferenced_frame(self._samples.images_path, member, frame, frames)
                    for frame in range(references, frames)
                )
        self._frames.clear()

    def _table(self, samples: list[Sample], names: list[str], with_bytes: bool) -> pa.Table:
        target = pa.schema([self.schema.field(name) for name in names])
        tables = []
        for group, declared in _alike(samples):
            rows = [row for sample in group for row in sample.rows]
            if with_bytes:
                digests = {} if declared is not None else self._digests_of_tiffs(group)
                builder = BlobBuilder(self._samples.descriptor, self._samples.images_name, digests)
                blobs = builder.build(rows)
                for name, (member, frames, references) in builder.frames.items():
                    earlier = self._frames.get(name)
                    self._frames[name] = (member, frames, max(references, earlier[2] if earlier else 0))
            else:
                blobs = pa.array([row.binary for row in rows], pa.large_binary())
            extras = self._raw_schema if declared is None else declared
            try:
                tables.append(align_table(build_table(group, blobs, extras, names), target))
            except MISFITS as error:
                raise self._located(error, group, extras) from error
        return pa.concat_tables(tables)

    def _digests_of_tiffs(self, samples: list[Sample]) -> dict[str, dict[str, str]]:
        """Return the digests that documents declare of the one TIFF with all their images, by its name."""
        found = {}
        for sample in samples if self._declares_digests else ():
            contents = [row.content for row in sample.rows if row.modality == "image"]
            names = {content and content.member.name for content in contents}
            if len(names) == 1 and contents[0] is not None and contents[0].frame is not None:
                declared = declared_digests(sample.rows[0].extras, self._layout.declared_digests)
                found[contents[0].member.name] = declared
        return found

    def _located(self, error: Exception, group: list[Sample], extras: pa.Schema) -> SampleError:
        """Return the error with the sample it is about, found by building each sample alone."""
        for sample in group:
            if (reason := misfit(sample, extras, self.schema)) is not None:
                return SampleError(BAD_LAYOUT, f"{self.uri}: sample {sample.sample_id!r}: {reason}")
        return SampleError(BAD_LAYOUT, f"{self.uri}: {error}")


def _unreferenced_frame(path: str, member: Member, frame: int, frames: int) -> Loss:
    """Return the ledger's entry of a frame that no reference leads to."""
    reason = f"frame {frame} of {frames} is no image of any sample that was read"
    ref = member_ref(path, member, frame)
    return Loss(None, None, None, "unreferenced", UNREFERENCED_FRAME, reason, source_ref=ref)


def _estimate(sample: Sample, row_bytes: int, with_bytes: bool) -> int:
    """Return an upper bound of the Arrow bytes of a sample, from sizes in headers alone."""
    size = sample.room + sample.nbytes * 2 + len(sample.rows) * (row_bytes + len(sample.sample_id.encode()))
    if with_bytes:
        frames_of: dict[str, Member] = {}
        for row in sample.rows:
            if row.content is None:
                continue
            if row.content.frame is None:
                size += row.content.member.size
            else:
                frames_of[row.content.member.name] = row.content.member
                size += _FRAME_OVERHEAD
        size += sum(member.size for member in frames_of.values())
    return size


def _alike(samples: list[Sample]) -> Iterator[tuple[list[Sample], pa.Schema | None]]:
    """Yield samples that make one table, with the columns that they declare, of which none contradict."""
    group: list[Sample] = []
    columns: dict[str, pa.Field] | None = None
    common: set[str] = set()

    def declared() -> pa.Schema | None:
        fields = (columns or {}).values()
        united = [field if field.name in common else field.with_nullable(True) for field in fields]
        return None if columns is None else pa.schema(united)

    last = None
    for sample in samples:
        own = None if sample.declared is None else {field.name: field for field in sample.declared.schema}
        if group and sample.declared is not last:
            fits = (own is None) == (columns is None) and all(
                field.equals((columns or {}).get(name, field), check_metadata=True)
                for name, field in (own or {}).items()
            )
            if not fits:
                yield group, declared()
                group = []
        if not group:
            columns, common = own, set(own or ())
        elif columns is not None and own is not None and sample.declared is not last:
            columns.update(own)
            common &= own.keys()
        last = sample.declared
        group.append(sample)
    if group:
        yield group, declared()


class InterleavedWebdatasetReader(InterleavedReader):
    """Reader of tar shards; see `InterleavedReader` for the arguments not listed here.

    Args:
        sample_id_field: Json field with the sample id. None: the json's ``sample_id`` string, else the
            member's path without its suffix.
        sample_id_prefix: ``"shard"`` puts the partition's name and a slash before each sample id, for ids
            that start anew in each shard.
        image_extensions: Suffixes (any case) of image members.
        json_extensions: Suffixes (any case) of the members that are samples.
        texts_field: Json field with the list of texts.
        images_field: Json field with the parallel list of images.
        images_from: Folders and tars, quoted and separated as in a shell, with the images that documents only
            name, by name or by URL.
        declared_digests: Which images of raw samples are compared with a sha256 or md5 that their json has;
            see `mm_assets.model.digest.declared_digests`.
        image_member_field: Json field with the name of the sample's (multi-frame) image member.
        document_layout: Layout of documents: one of `LAYOUT_NAMES` (`mm_assets.formats.document_layouts`).
            None: it is found by looking at the first documents of each file.
        per_image_fields: Json lists with one value per image, which go to the image rows.
        per_text_fields: Json lists with one value per text, which go to the text rows.
        materialize: Read image bytes (default). False leaves only locators.
        relative_to: Folder or URL prefix. Locators below it are stored relative to it, so that no path of
            this machine leaks.
        quarantine_errors: Turn unreadable content (a bad json, a duplicate, the rest of a damaged tar) into
            losses of the stream, and read everything else. By default it raises.
        max_member_bytes: A larger image is not read; it becomes an error row.
        taken_ids: With ``quarantine_errors``, ids of samples in other partitions: a sample with one of them
            is a duplicate.
    """

    suffixes: tuple[str, ...] = (*TAR_SUFFIXES, *ZIP_SUFFIXES)

    def __init__(
        self,
        file_paths: Paths,
        *,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        max_batch_bytes: int | None = None,
        fields: Sequence[str] | None = None,
        read_kwargs: Mapping[str, Any] | None = None,
        schema: pa.Schema | None = None,
        schema_overrides: Mapping[str, pa.DataType] | None = None,
        sample_id_field: str | None = None,
        sample_id_prefix: str | None = None,
        image_extensions: Sequence[str] = DEFAULT_IMAGE_EXTENSIONS,
        json_extensions: Sequence[str] = DEFAULT_JSON_EXTENSIONS,
        texts_field: str = TEXTS,
        images_field: str = IMAGES,
        images_from: str = "",
        declared_digests: str | None = None,
        image_member_field: str | None = None,
        per_image_fields: Sequence[str] = (),
        per_text_fields: Sequence[str] = (),
        document_layout: str | None = None,
        materialize: bool = True,
        relative_to: str | None = None,
        quarantine_errors: bool = False,
        max_member_bytes: int = MAX_MEMBER_BYTES,
        taken_ids: Collection[str] = (),
        roots: Sequence[str] | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        spread = [*_names(per_image_fields), *_names(per_text_fields)]
        if reserved := sorted(set(spread) & {*RESERVED_COLUMNS, SOURCE}):
            raise ValueError(f"per-item fields become columns; {', '.join(reserved)} is a column of its own")
        super().__init__(
            file_paths,
            files_per_partition=files_per_partition,
            blocksize=blocksize,
            max_batch_bytes=max_batch_bytes,
            fields=fields,
            schema=schema,
            schema_overrides=schema_overrides,
            materialize=materialize and bool(images_from),  # the bytes of a tar are read in any case
            roots=reading_roots(roots, relative_to, images_from),
            storage_options={**(storage_options or {}), **(read_kwargs or {})} or None,
        )
        self.layout = RawLayout(
            sample_id_field=sample_id_field,
            sample_id_prefix=sample_id_prefix,
            texts_field=texts_field,
            images_field=images_field,
            images_from=images_from,
            declared_digests=declared_digests,
            image_member_field=image_member_field,
            per_image_fields=_names(per_image_fields),
            per_text_fields=_names(per_text_fields),
            image_extensions=normal_extensions(_names(image_extensions)),
            json_extensions=normal_extensions(_names(json_extensions)),
            document_layout=document_layout,
        )
        self.read_bytes = materialize
        self.images_from = images_from
        # Found by URL, they may be what img2dataset has stored of it.
        self.declared_digests = declared_digests or ("off" if images_from else None)
        self.relative_to = local_path(relative_to).rstrip("/") if relative_to else None
        self.quarantine_errors = quarantine_errors
        self.max_member_bytes = max_member_bytes
        self.taken_ids = frozenset(taken_ids)

    def _opener(self, partition: Partition) -> Callable[[str], FileSource]:
        ids = SampleIds(self.taken_ids) if self.quarantine_errors else None
        return lambda uri: self._source(uri, partition, ids)

    def _open_file(self, uri: str, partition: Partition) -> FileSource:
        return self._opener(partition)(uri)

    def _source(self, uri: str, partition: Partition, ids: SampleIds | None) -> FileSource:
        return self._opened(uri, partition, ids, tar_samples(uri, partition))

    def _opened(
        self,
        uri: str,
        partition: Partition,
        ids: SampleIds | None,
        samples: Callable[..., TarSamples] = TarSamples,
    ) -> FileSource:
        return WebdatasetSource(
            uri,
            self.layout,
            ref_path(uri, self.relative_to),
            self.read_bytes,
            self.storage_options,
            self.max_member_bytes,
            ids,
            id_prefix(self.layout.sample_id_prefix, partition.name, partition.files, uri),
            samples,
        )


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one name, several, or none as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given or ())


_SNIFF_BYTES = 64
# Bytes of all split frames per byte of their TIFF: frames that share strips could take far more.
_MAX_GROWTH = 2
_FRAME_RESERVE = 1 << 16
_FRAME_HEAD = 1 << 10  # usual largest size of a frame's directory


class BlobBuilder:
    """Builder of ``binary_content`` for some rows.

    A row whose image cannot be read gets a fault in ``error``. ``frames`` has for each TIFF, by name, its
    member, its number of frames, and the number of frames that a sample references.

    Args:
        digests: What is declared of some TIFFs, by name. The frames of one with another digest get a fault.
    """

    def __init__(self, descriptor: int, uri: str, digests: Mapping[str, Mapping[str, str]]) -> None:
        self._descriptor = descriptor
        self._uri = uri
        self.frames: dict[str, tuple[Member, int, int]] = {}
        self._digests = digests
        self._tiff: str | None = None  # name of the TIFF being split; a sample has one
        self._mismatch: Fault | None = None  # of that TIFF
        self._plans: list[FramePlan | ImageError] | ImageError = []
        self._scratch = memoryview(b"")

    def build(self, rows: Sequence[Row]) -> pa.Array:
        """Return one value per row (null without content), as ``large_binary`` over a single buffer."""
        blobs = _Blobs(_expected_bytes(rows))
        for row in rows:
            content = row.content
            if content is None:
                if row.binary is None:
                    blobs.add_null()
                else:
                    blobs.add(len(row.binary))[:] = row.binary
            elif content.frame is None:
                view = blobs.add(content.member.size)
                read_members(self._descriptor, [content.member], view, self._uri)
                if row.content_type is None and not row.is_typed:
                    row.content_type = _content_type(view)
            elif (plan := self._frame(row, content, content.frame)) is None:
                blobs.add_null()
            else:
                plan.write_into(blobs.add(plan.size))
                if row.content_type is None and not row.is_typed:
                    row.content_type = CONTENT_TYPES["tiff"]
        return blobs.array()

    def _frame(self, row: Row, content: ResolvedContent, frame: int) -> FramePlan | None:
        name = content.member.name
        if name != self._tiff:
            self._tiff, self._plans = name, self._plan(content.member)
        plans = self._plans
        if isinstance(plans, ImageError):
            row.error = lost_frame(name, frame, plans)
            return None
        counts = self.frames.get(name)
        if counts is None or counts[2] < content.frames:  # samples may share a TIFF
            self.frames[name] = (content.member, len(plans), content.frames)
        if frame < len(plans):
            plan = plans[frame]
        elif plans and isinstance(plans[-1], ImageError):  # the chain of frames ends there in damage
            plan = plans[-1]
        else:
            row.error = surplus_reference(name, frame, len(plans), content.frames)
            return None
        if isinstance(plan, ImageError):
            row.error = lost_frame(name, frame, plan)
            return None
        row.error = self._mismatch
        return plan

    def _plan(self, member: Member) -> list[FramePlan | ImageError] | ImageError:
        """Return the frames of a TIFF, valid until the next TIFF is planned.

        The TIFF is split right after it was read, while it is in the processor's cache.
        """
        if len(self._scratch) < member.size:
            # Not a bytearray, which would be filled with zeros first.
            self._scratch = memoryview(pa.allocate_buffer(member.size)).cast("B")
        data = self._scratch[: member.size]
        read_members(self._descriptor, [member], data, self._uri)
        self._mismatch = digest_fault(data, self._digests.get(member.name, {}))
        try:
            plans = plan_sound_frames(data)
        except ImageError as error:
            return error
        size = sum(plan.size for plan in plans if isinstance(plan, FramePlan))
        if size > _MAX_GROWTH * member.size + _FRAME_RESERVE * len(plans):
            return ImageError(f"its frames share data: {len(plans)} of them would take {size} bytes")
        return plans


class _Blobs:
    """Values in sequence in one Arrow buffer, which grows if the expected bytes do not suffice."""

    def __init__(self, expected: int) -> None:
        self._buffer = pa.allocate_buffer(expected, resizable=True)
        self._view = memoryview(self._buffer).cast("B")
        self._offsets = [0]
        self._present: list[bool] = []

    def add(self, size: int) -> memoryview:
        """Return the buffer of one more value, to be filled before the next is added."""
        start = self._offsets[-1]
        if start + size > len(self._view):
            self._view.release()
            self._buffer.resize(max(start + size, start * 3 // 2))
            self._view = memoryview(self._buffer).cast("B")
        self._offsets.append(start + size)
        self._present.append(True)
        return self._view[start : start + size]

    def add_null(self) -> None:
        self._offsets.append(self._offsets[-1])
        self._present.append(False)

    def array(self) -> pa.Array:
        """Return the values as ``large_binary``; nothing can be added afterwards."""
        self._view.release()
        self._buffer.resize(self._offsets[-1])
        return blob_array(self._offsets, self._buffer, self._present)


def _expected_bytes(rows: Sequence[Row]) -> int:
    total = 0
    tiffs: set[str] = set()
    for row in rows:
        if row.content is None:
            total += len(row.binary or b"")
        elif row.content.frame is None:
            total += row.content.member.size
        else:
            total += _FRAME_HEAD
            if row.content.member.name not in tiffs:
                tiffs.add(row.content.member.name)
                total += row.content.member.size
    return total


def _content_type(view: memoryview) -> str | None:
    kind = sniff(view[:_SNIFF_BYTES])
    return CONTENT_TYPES.get(kind) if kind else None
