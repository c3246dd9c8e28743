"""Accounting record of Arrow caches."""

from __future__ import annotations

from collections.abc import Iterator

from mm_assets.accounting.canonical.accounted_format import AccountedFormat, OutputProblems
from mm_assets.accounting.canonical.arrow_cache import arrow_cache_parts
from mm_assets.accounting.canonical.cache_files import cache_problems
from mm_assets.accounting.canonical.location import CanonicalLocation
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.formats.storage import StorageOptions, filesystem, join


def _parts(source: CanonicalLocation) -> Iterator[RowPart]:
    return arrow_cache_parts(str(source.uri), source.options)


def _files(uri: str, options: StorageOptions | None) -> list[str]:
    fs, path = filesystem(uri, options)
    fs.invalidate_cache()
    names = (str(name).rstrip("/").rpartition("/")[2] for name in fs.ls(path, detail=False))
    return [join(uri, name) for name in sorted(names) if not name.startswith(".")]


ACCOUNTED = AccountedFormat(
    library="pyarrow.ipc.RecordBatchFileReader",
    parts=_parts,
    examine=lambda uri, _: OutputProblems(tuple(cache_problems(uri))),
    files=_files,
)
