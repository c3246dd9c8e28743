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
from mm_assets.formats.lance.unanswered import until_answered
from mm_assets.formats.store_errors import StoreError, is_of_store

_STDERR = 2
_PANIC = re.compile(rb"\n?^thread '[^\n]* panicked at .*", re.MULTILINE | re.DOTALL)
_stderr_is_led_away = threading.Lock()
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
