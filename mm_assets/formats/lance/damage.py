"""Detection of unreadable data in a Lance table."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import lance

from mm_assets.formats.error_lines import cause_line, error_line
from mm_assets.formats.error_places import located
from mm_assets.formats.lance.partitions import PartitionRecord
from mm_assets.formats.lance.snapshot import Snapshot
from mm_assets.formats.lance.storage_types import with_original_names
from mm_assets.formats.lance.unanswered import until_answered
from mm_assets.formats.store_errors import StoreError, is_of_store

_STDERR = 2
_PANIC = re.compile(rb"\n?^thread '[^\n]* panicked at .*", re.MULTILINE | re.DOTALL)
_stderr_is_led_away = threading.Lock()
_ROWS_AT_ONCE = 4096
_RAISED = (OSError, ValueError, RuntimeError)  # by Lance, for files that are not as they were written


@contextmanager
def naming_table(uri: str) -> Iterator[None]:
    """Turn Lance's errors for damaged files into ``OSError``, in one line that names the table.

    This includes Lance's panics, which are no ``Exception``. What a store refused is a ``StoreError``: the
    files may be as they were written.
    """
    try:
        with located(uri):
            yield
    except FileNotFoundError:
        raise
    except BaseException as error:
        if is_of_store(error):
            raise StoreError(error_line(error)) from error
        if not isinstance(error, _RAISED) and type(error).__name__ != "PanicException":
            raise
        raise OSError(f"{uri}: unreadable Lance data: {cause_line(error, uri)}") from error


def opened(uri: str, **arguments: Any) -> lance.LanceDataset:
    """Open a version of a table.

    Raises:
        OSError: for a damaged manifest.
    """

    def attempt() -> lance.LanceDataset:
        with _without_panic_text():
            dataset = lance.dataset(uri, **arguments)
            _ = dataset.schema  # decoded on first use
            return dataset

    with naming_table(uri):
        return until_answered(attempt)


@contextmanager
def _without_panic_text() -> Iterator[None]:
    """Keep from stderr what Rust itself prints there of a panic, which the error says as well.

    What else is printed meanwhile, 64 KiB at most, comes after the block.
    """
    with _stderr_is_led_away, ExitStack() as stack:
        try:
            stderr = os.dup(_STDERR)
        except OSError:  # there is none
            yield
            return
        stack.callback(os.close, stderr)
        read_end, write_end = os.pipe()
        for end in (read_end, write_end):
            stack.callback(os.close, end)
            os.set_blocking(end, False)
        os.dup2(write_end, _STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, _STDERR)
            with suppress(OSError):  # nothing was printed, or stderr takes nothing
                os.write(stderr, _PANIC.sub(b"", os.read(read_end, 1 << 16)))


def is_readable(uri: str, read: Callable[[], object]) -> bool:
    """Return whether ``read`` succeeds.

    Raises:
        StoreError: nobody can tell, as the store refuses.
    """
    try:
        with naming_table(uri):
            until_answered(read)
    except StoreError:
        raise
    except OSError:
        return False
    return True


def unreadable_text(fragments: Sequence[Any], error: Exception) -> str | None:
    """Return which sample and column are meant if Lance refuses text that is not UTF-8; else None."""
    if "utf-8" not in str(error):
        return None
    for fragment in fragments:
        for stored, field in zip(fragment.schema.names, with_original_names(fragment.schema), strict=True):
            numbers = list(range(fragment.count_rows()))
            if not any(word in str(field.type) for word in ("string", "json")):
                continue
            for start in range(0, len(numbers), _ROWS_AT_ONCE):
                rows = numbers[start : start + _ROWS_AT_ONCE]
                if not _refuses(fragment, rows, stored):
                    continue
                place = f"rows {rows[0]} to {rows[-1]}"
                while len(rows) > 1 and "dictionary" not in str(field.type):
                    half = rows[: len(rows) // 2]
                    rows = half if _refuses(fragment, half, stored) else rows[len(half) :]
                if len(rows) == 1:
                    place = f"row {rows[0]}"
                    if not _refuses(fragment, rows, "sample_id"):
                        sample_id = fragment.take(rows, columns=["sample_id"]).column(0)[0].as_py()
                        place = f"sample {sample_id!r:.200}"
                return f"{place}, column {field.name!r}: text that is not UTF-8"
    return None


def _refuses(fragment: Any, rows: Sequence[int], column: str) -> bool:
    try:
        fragment.take(rows, columns=[column])
    except _RAISED as error:
        return "utf-8" in str(error)
    return False


def unreadable_fragments(
    uri: str, snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]]
) -> set[int]:
    """Return the fragments of some partitions of which not even the sample ids can be read."""
    fragment_ids = {
        id_ for entries in records.values() for record in entries for id_ in snapshot.all_fragment_ids(record)
    }
    return {id_ for id_ in fragment_ids if not is_readable(uri, lambda id_=id_: _read_ids(snapshot, id_))}  # type: ignore[misc]


def _read_ids(snapshot: Snapshot, fragment: int) -> None:
    scanner = snapshot.dataset.scanner(columns=["sample_id"], fragments=[snapshot.fragment(fragment)])
    rows = sum(batch.num_rows for batch in scanner.to_batches())
    if rows != snapshot.fragments[fragment].num_rows:
        raise ValueError(f"{rows} rows instead of {snapshot.fragments[fragment].num_rows}")
