"""State of an output: what a shard of an asset was made from, what came out, and its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from mm_assets.accounting.outputs import BY_ASSET, DERIVED, OUTPUTS

# All assets with outputs, each behind those that it is made from.
ASSETS = tuple(asset for output in OUTPUTS for asset in (output.asset, *DERIVED.get(output.asset, ())))
_ORDER = {asset: number for number, asset in enumerate(ASSETS)}


@dataclass(frozen=True)
class FileState:
    """A file of an output.

    Args:
        path: path below the storage root.
        bytes: its size.
        digest: xxh3-128 of its bytes, in hex.
        mark: modification time or etag: by it a later tag knows the file again without reading it.
    """

    path: str
    bytes: int
    digest: str
    mark: str = ""


@dataclass(frozen=True)
class OutputState:
    """One partition of one asset.

    Args:
        version: data version: a digest of the content.
        fingerprint: digest of everything that it was made from.
        made_by: digest of code and settings.
        settings: the same in readable form; empty in records of older releases.
        inputs: data version of each input, by asset; empty in records of older releases.
        rows: number of rows; None for an asset without rows.
        samples: number of samples; likewise.
        losses: xxh3-128 of the ledger's file of its lost items; empty where it lost none.
        files: its files; empty where they were not asked for.
    """

    asset: str
    partition: str
    version: str
    fingerprint: str
    made_by: str
    inputs: Mapping[str, str]
    rows: int | None = None
    samples: int | None = None
    losses: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[FileState, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether the asset is one of interleaved rows."""
        return self.asset in BY_ASSET


Group = Mapping[str, OutputState]  # states of one partition, by asset


def by_partition(states: Iterator[OutputState]) -> Iterator[tuple[str, Group]]:
    """Yield the states of each partition by asset, in the order of the graph."""
    for partition, group in groupby(states, lambda state: state.partition):
        members = sorted(group, key=lambda state: _ORDER.get(state.asset, len(_ORDER)))
        yield partition, {state.asset: state for state in members}


def merged(
    left: Iterator[tuple[str, Group]], right: Iterator[tuple[str, Group]]
) -> Iterator[tuple[str, Group, Group]]:
    """Yield each partition of two sorted sequences with its states in both; one partition at a time."""
    end: tuple[str | None, Group] = (None, {})
    one, other = next(left, end), next(right, end)
    while one[0] is not None or other[0] is not None:
        partition = min(name for name in (one[0], other[0]) if name is not None)
        in_left, in_right = one[0] == partition, other[0] == partition
        yield partition, one[1] if in_left else {}, other[1] if in_right else {}
        one = next(left, end) if in_left else one
        other = next(right, end) if in_right else other
