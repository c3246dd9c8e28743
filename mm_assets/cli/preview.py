"""The command ``mm-assets preview``: what filters would drop, from stored scores, before they do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mm_assets.cli.arguments import as_utf8, location
from mm_assets.cli.filter_flags import add_set_flags
from mm_assets.cli.html_file import refuse_other_than_file, write_page
from mm_assets.cli.storage_root import add_storage_flag, refuse_other_folder, settings_root, storage_root
from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.terminal import FAILED, ProgressLine, fail, printable

if TYPE_CHECKING:
    from mm_assets.formats.raw_shards import RawShard
    from mm_assets.settings import Settings

_FOR_WORKERS = 20  # shards: to start workers takes longer than to read fewer


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "preview",
        help="say what filters would drop, from stored scores, and show what is near their bounds",
        description="Say what the filters of the settings would drop, each alone and all together, from the "
        "stored scores of the graph. Nothing is changed, and no image is measured.",
    )
    parser.add_argument(
        "shards", nargs="*", metavar="SHARD", help="these shards (default: up to 400, evenly spread)"
    )
    add_set_flags(parser)
    parser.add_argument(
        "--html", type=location, metavar="FILE", help="write one page, with curves and images; - is stdout"
    )
    add_storage_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the counts or write the page; 1 if scores are missing.

    Raises:
        ValueError: for settings that do not fit, and for shards that are unknown or damaged.
    """
    from mm_assets.cli.filter_overrides import filters_with_overrides
    from mm_assets.preview import summary_lines
    from mm_assets.preview.page import preview_page
    from mm_assets.preview.stored_scores import StoredScores
    from mm_assets.preview.study import study
    from mm_assets.settings import Settings
    from mm_assets.workers import WorkerPool

    if options.html:
        refuse_other_than_file(options.html)
    filters = filters_with_overrides(options)
    root = storage_root(options)
    refuse_other_folder(root)
    settings = Settings.load()
    stored = StoredScores(root, [as_utf8(name) for name in options.shards], _raw_version(settings, root))
    shards = len(stored.shards)
    if not shards:
        return _failed(summary_lines.left_out(stored))
    progress = ProgressLine(shards)
    try:
        with WorkerPool(settings.workers, may_fork=True) as pool:
            found = study(
                stored,
                filters,
                pool if shards >= _FOR_WORKERS else None,
                lambda done: progress.show(done, f"{done} of {shards} shards"),
            )
    finally:
        progress.end()
    if options.html:
        write_page(options.html, preview_page(stored, found))
    if options.html != "-":
        print(summary_lines.title(stored))
        _print_table(
            [[*summary_lines.HEADS], *summary_lines.count_rows(found)] if found.counts.filters else []
        )
        _print_table(summary_lines.distribution_rows(found) if found.distributions else [])
        for line in summary_lines.summary(found):
            print(printable(line))
        if not filters:
            print(f"no filter is on; {summary_lines.HOW_TO_SET}")
    return _failed(summary_lines.faults(stored, found))


def _raw_version(settings: Settings, root: str) -> Callable[[str], str | None]:
    """Return what gives the version of a raw shard; nothing of those of another storage root's data."""
    from mm_assets.formats.error_lines import readable_store_errors
    from mm_assets.formats.raw_shards import RawLocations

    listing: Mapping[str, RawShard] = {}
    if settings.raw_shards and settings_root(settings) == root:
        # Scores are shown all the same where raw shards are out of reach, or cannot be told apart.
        with suppress(OSError, MmAssetsError), readable_store_errors():
            listing = RawLocations(
                settings.raw_shards, excluded=root, missing_keys=settings.missing_keys
            ).shards(settings.shards_per_partition)
    return lambda key: listing[key].version if key in listing else None


def _failed(lines: Sequence[str]) -> int:
    for line in lines:
        fail(printable(line))
    return FAILED if lines else 0


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print(f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip())
