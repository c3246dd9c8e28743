"""Builders that are killed at a point of their work that is the same in every run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_assets.formats import write_sharded_arrow_cache
from mm_assets_tests.formats.arrow_cache.caches import FEATURES, examples

FORKSERVER = multiprocessing.get_context(
    "forkserver"
)  # Arrow is imported once, and each child is a clean process
FORKSERVER.set_forkserver_preload([__name__])

# What Python tells of the file system: opening, making, renaming, listing, removing.
_EVENTS = ("open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.remove", "os.rmdir")


def wait_for_no_disk() -> None:
    """A killed process loses nothing that it has written: that files are on disk in time is another test's
    matter.
    """
    os.fsync = lambda _: None  # type: ignore[assignment]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def build_and_die_at_row(cache_dir: Path, mark: str, count: int, row: int) -> None:
    wait_for_no_disk()

    def dying() -> Iterator[tuple[str, dict[str, Any]]]:
        for number, pair in enumerate(examples(mark, count)):
            if number == row:
                die()
            yield pair

    write_sharded_arrow_cache(dying(), FEATURES, cache_dir, shard_size_bytes=1000, batch_size=3)


def build_and_die_at_event(cache_dir: Path, mark: str, count: int, number: int, seen: Any = None) -> None:
    """Die before the ``number``-th thing done with a file below the folder's parent after the last row.

    ``seen`` counts them.
    """
    wait_for_no_disk()
    left, watching = number, False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if not watching or event not in _EVENTS or str(cache_dir.parent) not in str(arguments[0]):
            return
        left -= 1
        if left < 0 <= number:
            die()

    def watched() -> Iterator[tuple[str, dict[str, Any]]]:
        nonlocal watching
        yield from examples(mark, count)
        watching = True

    sys.addaudithook(hook)
    write_sharded_arrow_cache(watched(), FEATURES, cache_dir, shard_size_bytes=1000, batch_size=3)
    if seen is not None:
        seen.value = number - left


def run(target: Any, *arguments: Any) -> int:
    """The exit code of a process: -9 for one that was killed."""
    process = FORKSERVER.Process(target=target, args=arguments)
    process.start()
    process.join(timeout=50)
    assert process.exitcode is not None
    return process.exitcode
