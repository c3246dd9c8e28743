"""Accounting record of a format: canonical reader, checks beside the rows, lookup of a sample."""

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
    """A lookup of one sample in an output.

    Args:
        folder: location of the output.
        uri_of: returns the file of a partition.
        partitions: partitions that have the sample by other outputs and the ledger.
    """

    folder: str
    uri_of: Callable[[str], str]
    sample_id: str
    partitions: Sequence[str]
    options: StorageOptions | None


class OutputProblems(NamedTuple):
    """Problems of an output whose rows are as they were written.

    ``problems`` are those of the output itself, ``beside`` those of files beside it.
    """

    problems: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableAccount:
    """Accounting of a table that all partitions share.

    Args:
        partitions: returns the partitions that a table has, by its own records.
        suspects: returns the partitions that have problems, with orphan rows counted by sample id. It finds
            them without reading rows, from the columns that each partition was written with.
    """

    partitions: Callable[[str], Collection[str]]
    suspects: Callable[[str, Mapping[str, pa.Schema]], dict[str, Counter[str]]]


@dataclass(frozen=True)
class AccountedFormat:
    """Accounting record of one format.

    Args:
        library: the library that reads it for a proof, as its users do.
        parts: yields the rows of a location, read with that library.
        states_types: whether each column of a location has the type that was chosen for its rows.
        digest: a faster way to the result of `derive`; None where that takes `parts`.
        examine: checks what is beside the rows of an output, once these are known to be sound.
        find_sample: returns rows of a sample by partition; by default its reader reads each partition of the
            query.
        finds_partitions: whether ``find_sample`` needs no partitions to look in.
        is_ours: whether this project wrote a file; used for formats in which others write documents.
        options_for: of the options for documents of others, those that apply to a file, and a description of
            the file; None where all apply.
        table: accounting of the table, for a format whose partitions share one.
        files: returns the files of an output, existing or not; by default there is one, the output itself.
        folder_files: names of the files that all outputs of a folder share.
    """

    library: str
    parts: Callable[[CanonicalLocation], Iterator[RowPart]]
    states_types: Callable[[CanonicalLocation], bool] = lambda _: True
    digest: Callable[[str, StorageOptions | None], Derived | None] | None = None
    examine: Callable[[str, Derived], OutputProblems] = lambda *_: OutputProblems()
    find_sample: Callable[[SampleQuery], Mapping[str | None, Rows]] | None = None
    finds_partitions: bool = False
    is_ours: Callable[[str], bool] = lambda _: False
    options_for: Callable[[str], tuple[Collection[str], str]] | None = None
    table: TableAccount | None = None
    files: Callable[[str, StorageOptions | None], Sequence[str]] = lambda uri, _: (uri,)
    folder_files: Sequence[str] = ()


def accounted_format(kind: str) -> AccountedFormat:
    """Return the accounting record of a format: ``ACCOUNTED`` of the module of its name.

    Raises:
        ValueError: for an unknown format.
    """
    module = import_module(f"mm_assets.accounting.formats.{format_of(kind).name}")
    found: AccountedFormat = module.ACCOUNTED
    return found
