"""Fetch the bytes of items from their ``source_ref``: byte range, tar member, whole file, TIFF frame.

Lives with the formats, not in ``interleaved/``, because it must read tars and TIFFs.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.fetching import FetchError, Fetcher, open_fetcher
from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.tiff import split_frame
from mm_assets.formats.storage import StorageOptions, is_remote, join, local_path
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.source_ref import SourceRef, parse_source_ref


@dataclass(frozen=True)
class _Locator:
    """The bytes a row asks for, without its frame: rows with equal locators are fetched once."""

    path: str
    member: str | None
    byte_offset: int | None
    byte_size: int | None


@overload
def materialize(
    data: InterleavedBatch, *, roots: Sequence[str] | None = None, storage_options: StorageOptions | None = None
) -> InterleavedBatch: ...
@overload
def materialize(
    data: pa.Table, *, roots: Sequence[str] | None = None, storage_options: StorageOptions | None = None
) -> pa.Table: ...
def materialize(
    data: InterleavedBatch | pa.Table,
    *,
    roots: Sequence[str] | None = None,
    storage_options: StorageOptions | None = None,
) -> InterleavedBatch | pa.Table:
    """Fill ``binary_content`` of image rows that have none, from their ``source_ref``.

    Local and remote paths may be mixed; identical ranges are fetched once. A row that cannot be fetched gets a message in
    ``materialize_error`` and stays without bytes: nothing is raised and nothing else is put in its place. Rows that
    already carry bytes or an error are left alone.

    ``roots`` are the folders or URL prefixes that locators may point into; relative paths are looked up in the first.
    Without ``roots`` the locators are trusted: pass them for data of others.
    """
    if isinstance(data, InterleavedBatch):
        return data.with_data(materialize_table(data.data, roots, storage_options))
    return materialize_table(data, roots, storage_options)


def materialize_table(
    table: pa.Table, roots: Sequence[str] | None = None, storage_options: StorageOptions | None = None
) -> pa.Table:
    """`materialize` for a table; the very same table when no row needs fetching."""
    wanted = _rows_to_fetch(table)
    if not wanted:
        return table
    found: dict[int, bytes] = {}
    errors: dict[int, str] = {}
    refs = table.column("source_ref").take(pa.array(wanted)).to_pylist()
    by_path: dict[str, dict[_Locator, list[tuple[int, int | None]]]] = defaultdict(lambda: defaultdict(list))
    for row, text in zip(wanted, refs, strict=True):
        try:
            ref = parse_source_ref(text)
            path = _resolve(ref, roots)
        except (FetchError, TypeError, ValueError) as error:
            errors[row] = str(error)
            continue
        locator = _Locator(path, ref["member"], ref["byte_offset"], ref["byte_size"])
        by_path[path][locator].append((row, ref["frame_index"]))
    for path, locators in by_path.items():
        try:
            with open_fetcher(path, storage_options) as fetcher:
                _fetch(fetcher, locators, found, errors)
        except (FetchError, OSError) as error:
            message = f"failed to read {path}: {error}"
            errors.update({row: message for rows in locators.values() for row, _ in rows if row not in found})
    return _with_results(table, found, errors)


def _fetch(
    fetcher: Fetcher,
    locators: dict[_Locator, list[tuple[int, int | None]]],
    found: dict[int, bytes],
    errors: dict[int, str],
) -> None:
    results = fetcher.fetch([(loc.member, loc.byte_offset, loc.byte_size) for loc in locators])
    for result, (locator, rows) in zip(results, locators.items(), strict=True):
        for row, frame in rows:
            if isinstance(result, str):
                errors[row] = result
            elif frame is None:
                found[row] = result
            else:
                try:
                    found[row] = split_frame(result, frame)
                except ImageError as error:
                    errors[row] = f"failed to extract frame {frame} from {locator.member or locator.path!r}: {error}"


def _rows_to_fetch(table: pa.Table) -> list[int]:
    if not {"binary_content", "source_ref", "materialize_error"} <= set(table.column_names):
        return []
    binary = table.column("binary_content")
    if binary.null_count == 0:
        return []
    mask = pc.and_(pc.equal(table.column("modality"), "image"), pc.is_null(binary))
    mask = pc.and_(mask, pc.is_null(table.column("materialize_error")))
    mask = pc.and_(mask, pc.is_valid(table.column("source_ref")))
    return pc.indices_nonzero(mask).to_pylist()


def _resolve(ref: SourceRef, roots: Sequence[str] | None) -> str:
    path = ref["path"]
    if not path:
        raise FetchError("missing path")
    if not isinstance(path, str):
        raise FetchError(f"path is no string: {path!r}")
    is_relative = not is_remote(path) and not os.path.isabs(local_path(path))
    if is_relative and roots:
        path = join(roots[0], path)
    if roots is not None and not any(_is_inside(path, root) for root in roots):
        raise FetchError(f"{ref['path']!r} is outside the configured roots")
    return path


def _is_inside(path: str, root: str) -> bool:
    if is_remote(path) != is_remote(root):
        return False
    if is_remote(path):
        parts = path.split("/")
        return ".." not in parts and (path == root or path.startswith(root.rstrip("/") + "/"))
    real, real_root = os.path.realpath(local_path(path)), os.path.realpath(local_path(root))
    return real == real_root or real.startswith(real_root.rstrip("/") + "/")


def _with_results(table: pa.Table, found: dict[int, bytes], errors: dict[int, str]) -> pa.Table:
    if found:
        index = table.schema.get_field_index("binary_content")
        table = table.set_column(index, table.schema.field(index), _replace(table.column(index), found))
    if errors:
        index = table.schema.get_field_index("materialize_error")
        table = table.set_column(index, table.schema.field(index), _replace(table.column(index), errors))
    return table


def _replace(column: pa.ChunkedArray, values: dict[int, bytes] | dict[int, str]) -> pa.ChunkedArray:
    mask = [row in values for row in range(len(column))]
    replacements = pa.array([values[row] for row in sorted(values)], column.type)
    if column.null_count == len(column):
        return pa.chunked_array([pa.array([values.get(row) for row in range(len(column))], column.type)])
    return pc.replace_with_mask(column, pa.array(mask), replacements)
