"""Command ``mm-assets diff A [B]``: samples that differ between two states of the outputs, and why."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from mm_assets.cli.storage_root import add_storage_flag, storage_root
from mm_assets.terminal import printable


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "diff", help="list the samples added, dropped and changed between two tags, and why"
    )
    parser.add_argument("a", metavar="A", help="a tag, or now for the current state")
    parser.add_argument("b", metavar="B", nargs="?", default="now", help="the same (default: now)")
    add_storage_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a line per shard and sample, tab-separated, then a summary of each output.

    Raises:
        FileNotFoundError: there is no such tag.
    """
    from mm_assets.formats.error_lines import readable_store_errors
    from mm_assets.formats.error_places import located
    from mm_assets.settings import Settings
    from mm_assets.versions.diffing import Diff
    from mm_assets.workers import WorkerPool

    root = storage_root(options)
    summary = _Summary()
    with (
        located(root),
        readable_store_errors(),
        WorkerPool(Settings.load().workers, may_fork=True) as pool,
        Diff(root, options.a, options.b, pool) as diff,
    ):
        for partition, before, after, differences in diff.partitions():
            summary.add_partition(before, after)
            for found in differences:
                summary.add(found)
                cells = (found.change, partition, found.sample_id, ",".join(found.assets), found.why)
                print("\t".join(map(printable, cells)))
    summary.print()
    return 0


class _Summary:
    """Counts of shards and samples by output, and of samples by reason."""

    def __init__(self) -> None:
        self._shards: Counter[tuple[str, str]] = Counter()
        self._samples: Counter[tuple[str, str]] = Counter()
        self._reasons: Counter[tuple[str, str, str]] = Counter()

    def add_partition(self, before: Any, after: Any) -> None:
        """Count a shard that differs in some output."""
        from mm_assets.versions.differences import ADDED, CHANGED, DROPPED

        for asset in before.keys() | after.keys():
            if asset not in before:
                self._shards[asset, ADDED] += 1
            elif asset not in after:
                self._shards[asset, DROPPED] += 1
            elif before[asset].version != after[asset].version:
                self._shards[asset, CHANGED] += 1

    def add(self, found: Any) -> None:
        """Count a sample that differs."""
        for asset in found.assets:
            self._samples[asset, found.change] += 1
            for reason in found.reasons:
                self._reasons[asset, found.change, reason] += 1

    def print(self) -> None:
        """Print the counts; one line where nothing differs."""
        from mm_assets.accounting.outputs import BY_ASSET
        from mm_assets.versions.differences import ADDED, CHANGED, DROPPED

        if not self._shards:
            print("no difference")
        for asset in BY_ASSET:
            changes = (ADDED, DROPPED, CHANGED)
            if not any(self._shards[asset, change] for change in changes):
                continue
            shards, samples = (
                ", ".join(f"{counts[asset, change]} {change}" for change in changes)
                for counts in (self._shards, self._samples)
            )
            print(f"{asset}: samples {samples}; shards {shards}")
            for (of, change, reason), count in sorted(self._reasons.items()):
                if of == asset:
                    print(f"  {count} {change}: {printable(reason)}")
