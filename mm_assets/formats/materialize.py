"""Fetching of item bytes from their ``source_ref``: byte range, tar member, whole file or TIFF frame.

It lives with the formats, not in ``interleaved/``, because it must read tars and TIFFs.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.batching import Sizes, cut_rows, row_bytes
from mm_assets.formats.fetching import Fetcher, FetchError, open_fetcher
from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.probe import sniff
from mm_assets.formats.images.tiff import split_frame
from mm_assets.formats.storage import StorageOptions, is_remote, join, local_path
from mm_assets.formats.store_errors import is_store_failure
from mm_assets.formats.stores import canonical_url, clean_url, without_secrets
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.faults import FETCH_FAILED, Fault, lost_frame
from mm_assets.interleaved.policies import with_errors
from mm_assets.interleaved.samples import sample_offsets
from mm_assets.interleaved.source_ref import SourceRef, parse_source_ref

__all__ = ["materialize"]

_LARGEST = 2**62  # largest byte offset: beyond it sums would overflow


@dataclass(frozen=True)
class _Locator:
    """The bytes a row refers to, without its frame: rows with equal locators are fetched once."""

    member: str | None
    byte_offset: int | None
    byte_size: int | None


_Requests = dict[_Locator, list[tuple[int, int | None]]]  # locator -> (row, frame) of the rows that have it


@overload
def materialize(
    data: InterleavedBatch,
    *,
    roots: Sequence[str] | None = None,
    storage_options: StorageOptions | None = None,
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

    Local and remote paths may be mixed; identical ranges are fetched once. A row that cannot be fetched gets
    a message in ``materialize_error`` and stays without bytes: nothing is raised, and no other value is put
    in its place. Rows that already have bytes or an error are left alone.

    Args:
        data: a batch or a table.
        roots: folders or URL prefixes that locators may point into; relative paths are resolved against the
            first. Only images are accepted then. None trusts the locators: pass roots for data that you did
            not write.
        storage_options: for the file systems of the locators.
    """
    if isinstance(data, InterleavedBatch):
        return data.with_data(materialize_table(data.data, roots, storage_options))
    return materialize_table(data, roots, storage_options)


def materialize_table(
    table: pa.Table, roots: Sequence[str] | None = None, storage_options: StorageOptions | None = None
) -> pa.Table:
    """Do what `materialize` does for a table; return the same table when no row needs fetching."""
    rows_to_fetch = _rows_to_fetch(table)
    if not rows_to_fetch:
        return table
    fetched: dict[int, bytes] = {}
    errors: dict[int, Fault] = {}
    refs = table.column("source_ref").take(pa.array(rows_to_fetch)).to_pylist()
    by_path: dict[tuple[str, str], _Requests] = defaultdict(lambda: defaultdict(list))
    for row, text in zip(rows_to_fetch, refs, strict=True):
        try:
            ref = locator_of(text)
            # Of data that are not trusted, no login is taken.
            name = clean_url(str(ref["path"])) if roots is None else without_secrets(str(ref["path"]))
            path = _resolve(name, roots)
        except (TypeError, ValueError) as error:
            errors[row] = error.fault if isinstance(error, FetchError) else Fault(FETCH_FAILED, str(error))
            continue
        locator = _Locator(ref["member"], ref["byte_offset"], ref["byte_size"])
        by_path[path, name][locator].append((row, ref["frame_index"]))
    for (path, name), requests in by_path.items():
        try:
            with open_fetcher(path, name, storage_options) as fetcher:
                _fetch(fetcher, name, requests, fetched, errors)
        # File systems raise errors of any class (botocore, aiohttp, missing packages).
        except Exception as error:
            if is_store_failure(error):  # no fault of the item
                raise
            fault = Fault(FETCH_FAILED, f"failed to read {name}: {_reason(error, path, name)}")
            errors.update({row: fault for rows in requests.values() for row, _ in rows if row not in fetched})
    if roots is not None:
        _keep_images_only(fetched, errors)
    return _with_results(table, fetched, errors)


def _keep_images_only(found: dict[int, bytes], errors: dict[int, Fault]) -> None:
    """Replace fetched bytes that are no image by an error: a file inside the roots may be a secret key."""
    for row in [row for row, data in found.items() if sniff(data) is None]:
        del found[row]
        errors[row] = Fault(FETCH_FAILED, "the source_ref names bytes that are no image")


def materialize_parts(
    table: pa.Table,
    max_bytes: int,
    roots: Sequence[str] | None = None,
    storage_options: StorageOptions | None = None,
) -> Iterator[pa.Table]:
    """Run `materialize_table` on parts of whole samples, to fetch at most ``max_bytes`` at a time."""
    if not _rows_to_fetch(table):
        yield table
        return
    expected = bytes_to_fetch(table)
    for part in cut_rows(table, sample_offsets(table), row_bytes(table) + expected, max_bytes):
        yield materialize_table(part, roots, storage_options)


def bytes_to_fetch(table: pa.Table) -> Sizes:
    """Return how many bytes `materialize` would add to each row, by its locator.

    The frames of one range share its size.
    """
    sizes = np.zeros(table.num_rows, np.int64)
    rows = _rows_to_fetch(table)
    refs = table.column("source_ref").take(pa.array(rows, pa.int64())).to_pylist() if rows else []
    frames_of: set[tuple[object, ...]] = set()
    for row, text in zip(rows, refs, strict=True):
        try:
            ref = locator_of(text)
        except (TypeError, ValueError):
            continue  # becomes a message
        if ref["frame_index"] is not None:
            byte_range = (ref["path"], ref["byte_offset"], ref["byte_size"])
            if byte_range in frames_of:
                continue
            frames_of.add(byte_range)
        sizes[row] = min(ref["byte_size"] or 0, _LARGEST)
    return sizes


def _fetch(
    fetcher: Fetcher, name: str, requests: _Requests, found: dict[int, bytes], errors: dict[int, Fault]
) -> None:
    results = fetcher.fetch([(loc.member, loc.byte_offset, loc.byte_size) for loc in requests])
    for result, (locator, rows) in zip(results, requests.items(), strict=True):
        for row, frame in rows:
            if isinstance(result, Fault):
                errors[row] = result
            elif frame is None:
                found[row] = result
            else:
                try:
                    found[row] = split_frame(result, frame)
                except ImageError as error:
                    errors[row] = lost_frame(locator.member or name, frame, error)


def locator_of(text: str | None) -> SourceRef:
    """Parse and check the locator in a ``source_ref``.

    The text may come from anywhere, so every value in it is checked.

    Raises:
        TypeError, ValueError: the text is no locator, or names nothing.
    """
    ref = parse_source_ref(text)
    for key in ("path", "member"):
        value: object = ref[key]  # type: ignore[literal-required]
        if value is not None and not isinstance(value, str):
            raise FetchError(f"source_ref: {key} is no string: {value!r:.100}")
    for key in ("byte_offset", "byte_size", "frame_index"):
        value = ref[key]  # type: ignore[literal-required]
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST
        ):
            raise FetchError(f"source_ref: {key} is no number of bytes or frames: {value!r:.100}")
    if not ref["path"]:
        raise FetchError("missing path")
    return ref


def _reason(error: Exception, path: str, name: str) -> str:
    """Return what went wrong, with the file named as in the data: paths of this machine are not published."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = str(error.strerror if isinstance(error, OSError) and error.strerror else error)
    return (
        text.replace(path, name)
        if isinstance(error, FetchError | OSError)
        else f"{type(error).__name__}: {text}".replace(path, name)
    )


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


def _resolve(path: str, roots: Sequence[str] | None) -> str:
    given = path
    is_relative = not is_remote(path) and not os.path.isabs(local_path(path))
    if is_relative and roots:
        path = join(roots[0], path)
    if roots is not None and not any(_is_inside(path, root) for root in roots):
        raise FetchError(f"{given!r} is outside the configured roots")
    return path


def _is_inside(path: str, root: str) -> bool:
    if is_remote(path) != is_remote(root):
        return False
    if is_remote(path):
        path, root = canonical_url(path), canonical_url(root)
        # "a::b" chains file systems: the second one is opened wherever the first part points.
        return (
            "::" not in path
            and ".." not in path.split("/")
            and (path == root or path.startswith(root.rstrip("/") + "/"))
        )
    real, real_root = os.path.realpath(local_path(path)), os.path.realpath(local_path(root))
    return real == real_root or real.startswith(real_root.rstrip("/") + "/")


def _with_results(table: pa.Table, found: dict[int, bytes], errors: dict[int, Fault]) -> pa.Table:
    if found:
        index = table.schema.get_field_index("binary_content")
        table = table.set_column(index, table.schema.field(index), _replace(table.column(index), found))
    return with_errors(table, errors)


def _replace(column: pa.ChunkedArray, values: dict[int, bytes]) -> pa.ChunkedArray:
    mask = [row in values for row in range(len(column))]
    replacements = pa.array([values[row] for row in sorted(values)], column.type)
    if column.null_count == len(column):
        return pa.chunked_array([pa.array([values.get(row) for row in range(len(column))], column.type)])
    return pc.replace_with_mask(column, pa.array(mask), replacements)
