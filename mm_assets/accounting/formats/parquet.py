"""Accounting record of Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from mm_assets.accounting.canonical.accounted_format import AccountedFormat, Rows, SampleQuery
from mm_assets.accounting.canonical.location import CanonicalLocation
from mm_assets.accounting.canonical.parquet import parquet_parts
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.raw import raw_parts
from mm_assets.accounting.lookup import in_parquet
from mm_assets.formats.format_table import DOCUMENT_OPTIONS

_PREFIX = "sample_id_prefix"  # the only option that applies to files with a row per item


def _parts(source: CanonicalLocation) -> Iterator[RowPart]:
    has_prefixes = bool(source.layout.get(_PREFIX))
    return parquet_parts(str(source.uri), lambda: raw_parts(source), has_prefixes, source.options)


def _find_sample(query: SampleQuery) -> Mapping[str | None, Rows]:
    return in_parquet(query.folder, query.sample_id, query.options)


def _is_ours(file: str) -> bool:
    from mm_assets.formats.parquet_source import OURS, rows_of

    return rows_of(file) == OURS


def _options_for(file: str) -> tuple[Collection[str], str]:
    from mm_assets.formats.parquet_source import DOCUMENTS, rows_of

    rows = rows_of(file)
    return (DOCUMENT_OPTIONS if rows == DOCUMENTS else (_PREFIX,)), rows


ACCOUNTED = AccountedFormat(
    library="pyarrow.parquet.ParquetFile",
    parts=_parts,
    find_sample=_find_sample,
    finds_partitions=True,
    is_ours=_is_ours,
    options_for=_options_for,
)
