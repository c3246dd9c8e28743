"""The record of a format on the side of accounting: its canonical reader, checks beside the rows, lookup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from mm_assets.formats.format_table import format_of
from mm_assets.formats.storage import StorageOptions

if TYPE_CHECKING:
    from mm_assets.accounting.canonical.derived import Derived
    from mm_assets.accounting.canonical.location import CanonicalLocation
    from mm_assets.accounting.canonical.parts import RowPart

Rows = list[dict[str, Any]]


class SampleQuery(NamedTuple):
    """One sample, asked for in an output that lies in ``folder``; ``uri_of`` a partition is its file.

    ``partitions`` are those that other outputs and the ledger have the sample in.
    """

    folder: str
    uri_of: Callable[[str], str]
    sample_id: str
    partitions: Sequence[str]
    options: StorageOptions | None


class Found(NamedTuple):
    """What is wrong with an output whose rows are as they were written: in the output itself, and in files
    ``beside`` it.
    """

    problems: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableAccount:
    """What is asked of a table that all partitions share.

    Args:
        partitions: those that a table has, by its own account.
        suspects: partitions with which something is wrong, found without reading rows, from the columns that
            each was written with; and rows that are no partition's, counted by sample id.
    """

    partitions: Callable[[str], Collection[str]]
    suspects: Callable[[str, Mapping[str, pa.Schema]], dict[str, Counter[str]]]


@dataclass(frozen=True)
class AccountedFormat:
    """What accounting knows of one format.

    Args:
        library: what reads it for a proof, as its users would.
        parts: the rows of a source, read with that library.
        states_types: whether each column of a source has the type that was chosen for its rows.
        digest: a faster way to what `derive` finds; None where that takes `parts`.
        examine: checks of an output, beside its rows, once these are known to be sound.
        find_sample: rows of a sample by partition; by default its reader passes over each partition asked
            for.
        finds_partitions: whether ``find_sample`` needs no partitions to look in.
        is_ours: whether this project wrote a file; asked of formats that others write documents in.
        options_for: of the options for documents of others, those that mean something for a file, and what
            the file is; None where all do.
        table: of a format whose partitions share one table.
    """

    library: str
    parts: Callable[[CanonicalLocation], Iterator[RowPart]]
    states_types: Callable[[CanonicalLocation], bool] = lambda _: True
    digest: Callable[[str, StorageOptions | None], Derived | None] | None = None
    examine: Callable[[str, Derived], Found] = lambda *_: Found()
    find_sample: Callable[[SampleQuery], Mapping[str | None, Rows]] | None = None
    finds_partitions: bool = False
    is_ours: Callable[[str], bool] = lambda _: False
    options_for: Callable[[str], tuple[Collection[str], str]] | None = None
    table: TableAccount | None = None


def accounted_format(kind: str) -> AccountedFormat:
    """What accounting knows of a format: ``ACCOUNTED`` of the module of its name. Raises ``ValueError``."""
    module = import_module(f"mm_assets.accounting.formats.{format_of(kind).name}")
    found: AccountedFormat = module.ACCOUNTED
    return found
