"""A shard of PDFs as a tar in the native layout, one sample for each PDF."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from mm_assets.formats.keys import sample_key
from mm_assets.formats.pdf.limits import Limits
from mm_assets.formats.pdf.reader import PdfReader
from mm_assets.formats.pdf.sample import Scratch, members_of
from mm_assets.formats.pdf.source import OpenSource, PdfInput, PdfSource, open_source
from mm_assets.formats.tar.scan import Member
from mm_assets.formats.tar.writer import TarWriter
from mm_assets.formats.webdataset.merged_tar import refusal, write_unpaired, write_unread
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved.json_values import dumps
from mm_assets.interleaved.source_ref import build_source_ref


def write_shard(
    sources: Sequence[PdfSource], target: str | os.PathLike[str], limits: Limits | None = None
) -> None:
    """Write a sample for each PDF of some sources, in their order.

    The id is the PDF's name without suffix. A PDF that cannot be used gives a sample that readers refuse and
    account for, as does a damaged range of a tar. Members of a tar that belong to no PDF become
    unreferenced members.

    Memory: the bytes and the texts of one PDF; images wait in a temporary file. The process that reads them
    takes what `Limits` allow: one PDF that takes more, or kills it, is refused.

    Args:
        sources: PDF files and tars of them.
        target: path of the tar.
        limits: those of each PDF.

    Raises:
        OSError: a file cannot be read.
        TarDamage: a packed tar is damaged.
        PdfProcessError: no process for PDFs can be started, or others have ended it.
    """
    stems: set[str] = set()
    with (
        TarWriter(target) as tar,
        tempfile.TemporaryFile(prefix="mm-assets-") as file,
        PdfReader(limits) as reader,
    ):
        scratch = Scratch(file)
        for source in sources:
            with ExitStack() as stack:
                opened = open_source(source, stack)
                for pdf in opened.pdfs:
                    _write(tar, pdf, _stem(pdf, stems), scratch, reader)
                _write_others(tar, source.name, opened)


def _stem(pdf: PdfInput, taken: set[str]) -> str:
    """Return the stem of a PDF's members; a second PDF of a key has another stem, and becomes a duplicate."""
    stem = sample_key(pdf.key)
    while stem in taken:
        stem = sample_key(f"{len(taken)}/{pdf.key}")
    taken.add(stem)
    return stem


def _write(tar: TarWriter, pdf: PdfInput, stem: str, scratch: Scratch, reader: PdfReader) -> None:
    try:
        members: Sequence[tuple[str, Any]] = members_of(pdf, pdf.key, stem, scratch, reader)
    except SampleError as error:
        ref = error.source_ref or pdf.ref
        members = [(f"{stem}.json", dumps(refusal(pdf.key, error.kind, str(error), ref)).encode())]
    tar.write_group(members)


def _write_others(tar: TarWriter, name: str, opened: OpenSource) -> None:
    if opened.index is None:
        return
    write_unread(tar, name, opened.index)
    for member in opened.others:
        _write_other(tar, name, member)
    for skipped in opened.index.skipped:
        if not skipped.has_lost_bytes:
            ref = build_source_ref(name, skipped.name, skipped.header_offset)
            write_unpaired(tar, f"{name}/{skipped.name}", f"{name}: {skipped.name}", ref, skipped.reason)


def _write_other(tar: TarWriter, name: str, member: Member) -> None:
    broken = member.broken is not None
    ref = (
        build_source_ref(name, member.name)
        if broken
        else build_source_ref(name, member.name, member.offset, member.size)
    )
    write_unpaired(tar, f"{name}/{member.name}", f"{name}: {member.name}", ref, None)
