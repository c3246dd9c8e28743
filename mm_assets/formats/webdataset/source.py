"""One tar as a source of tables: headers first, then batch by batch straight into Arrow buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from mm_assets.formats.reader import FileSource
from mm_assets.formats.storage import StorageOptions, is_remote, local_path, open_binary, size_of
from mm_assets.formats.webdataset.blobs import BlobBuilder
from mm_assets.formats.webdataset.layout import RawLayout, is_own_layout
from mm_assets.formats.webdataset.own_sample import decode_own
from mm_assets.formats.webdataset.payload import SampleError, parse_payload
from mm_assets.formats.webdataset.raw_sample import RawDecoder
from mm_assets.formats.webdataset.rows import Sample, SchemaTally, build_table
from mm_assets.formats.webdataset.spool import local_tar, unpacked_limit
from mm_assets.formats.webdataset.tar_scan import Member, read_members, scan
from mm_assets.interleaved.notices import warn_user
from mm_assets.interleaved.schema import align_table, canonical_schema
from mm_assets.interleaved.unify import unify_schemas

_ROW_OVERHEAD = 256  # Arrow bytes of a row beside its text and image: offsets, locator, content type
_FRAME_OVERHEAD = 1024  # bytes a split frame may have more than its strips: header, directory, tag values
# What values that are not as the json's own schema says may raise on their way into Arrow.
_MISFITS = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError)
MAX_JSON_BYTES = 256 << 20  # a json member beyond this is an attack or a mistake


class WebdatasetSource(FileSource):
    """Scans the headers and types the json fields when opened (both small), reads payloads when iterated."""

    def __init__(
        self, uri: str, layout: RawLayout, ref_path: str, materialize: bool, options: StorageOptions | None
    ) -> None:
        self._stack = ExitStack()
        try:
            self._descriptor = self._stack.enter_context(_open(uri, options, self._stack))
            self._index = scan(self._descriptor, uri)
            self._layout = layout
            self._materialize = materialize
            self._decoder = RawDecoder(ref_path, self._index, layout)
            self._uri = uri
            self._json_members = [m for m in self._index.members if layout.is_json(m.name)]
            tally = SchemaTally()
            referenced: set[str] = set()
            for sample, _ in self._samples():
                tally.observe(sample)
                referenced.update(row.content.member.name for row in sample.rows if row.content is not None)
            self._raw_schema = tally.raw_schema()
            passthrough = unify_schemas(tally.schemas())
        except BaseException:
            self._stack.close()
            raise
        super().__init__(uri, canonical_schema(passthrough))
        if unreferenced := self._unreferenced(referenced):
            self.notes["unreferenced_members"] = unreferenced
        if self._index.skipped:
            self.notes["skipped_members"] = [member.name for member in self._index.skipped]
        per_item = [*layout.per_text_fields, *layout.per_image_fields]
        if self._json_members and (absent := [name for name in per_item if name not in self._decoder.spread]):
            warn_user(f"{uri}: per-item fields not found in any sample: {', '.join(absent)}")

    def close(self) -> None:
        self._stack.close()

    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        wanted = [name for name in self.schema.names if name in set(columns)]
        with_bytes = self._materialize and "binary_content" in wanted
        pending: list[Sample] = []
        filled = 0
        for sample, json_bytes in self._samples():
            size = _estimate(sample, json_bytes, with_bytes)
            if pending and max_bytes is not None and filled + size > max_bytes:
                yield self._table(pending, wanted, with_bytes)
                pending, filled = [], 0
            pending.append(sample)
            filled += size
        if pending:
            yield self._table(pending, wanted, with_bytes)

    def _samples(self) -> Iterator[tuple[Sample, int]]:
        for member in self._json_members:
            where = f"{self._uri}: {member.name}"
            if member.broken is not None:
                raise SampleError("member", f"{where}: {member.broken}")
            if member.size > MAX_JSON_BYTES:
                raise SampleError("json", f"{where}: json member of {member.size} bytes, more than {MAX_JSON_BYTES}")
            data = bytearray(member.size)
            read_members(self._descriptor, [member], memoryview(data), self._uri)
            payload = parse_payload(bytes(data), where)
            own = is_own_layout(payload)
            yield (decode_own(payload, member, self._decoder) if own else self._decoder.decode(payload, member)), len(data)

    def _table(self, samples: list[Sample], wanted: list[str], with_bytes: bool) -> pa.Table:
        target = pa.schema([self.schema.field(name) for name in wanted])
        tables = []
        for group in _same_declaration(samples):
            declared = group[0].declared
            rows = [row for sample in group for row in sample.rows]
            if with_bytes:
                builder = BlobBuilder(self._descriptor, self._uri)
                blobs = builder.build(rows)
                if builder.unreferenced:
                    self.notes.setdefault("unreferenced_frames", []).extend(builder.unreferenced)
            else:
                blobs = pa.array([row.binary for row in rows], pa.large_binary())
            extras = self._raw_schema if declared is None else declared
            try:
                table = build_table(group, blobs, extras, wanted)
            except _MISFITS as error:
                raise self._located(error, group, extras, wanted) from error
            tables.append(align_table(table, target))
        return pa.concat_tables(tables)

    def _located(self, error: Exception, group: list[Sample], extras: pa.Schema, wanted: list[str]) -> SampleError:
        """Which sample of a group the error is about: found by building each alone."""
        for sample in group:
            try:
                build_table([sample], pa.nulls(len(sample.rows), pa.large_binary()), extras, wanted)
            except _MISFITS as own:
                return SampleError("layout", f"{self._uri}: sample {sample.sample_id!r}: {own}")
        return SampleError("layout", f"{self._uri}: {error}")

    def _unreferenced(self, referenced: set[str]) -> list[str]:
        links = {member.link for member in self._index.members if member.link is not None}
        known = referenced | links
        return [m.name for m in self._index.members if not self._layout.is_json(m.name) and m.name not in known]


def _open(uri: str, options: StorageOptions | None, stack: ExitStack) -> Any:
    if is_remote(uri):
        return local_tar(stack.enter_context(open_binary(uri, options)), uri, max_bytes=unpacked_limit(size_of(uri, options)))
    return local_tar(local_path(uri), uri, max_bytes=unpacked_limit(size_of(uri)))


def _estimate(sample: Sample, json_bytes: int, with_bytes: bool) -> int:
    """At least the Arrow bytes of a sample, from sizes in headers alone."""
    size = json_bytes * 2 + len(sample.rows) * (_ROW_OVERHEAD + len(sample.sample_id.encode()))
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


def _same_declaration(samples: list[Sample]) -> Iterator[list[Sample]]:
    group: list[Sample] = []
    for sample in samples:
        if group and sample.declared is not group[0].declared:
            yield group
            group = []
        group.append(sample)
    if group:
        yield group
