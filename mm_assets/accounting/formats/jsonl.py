"""Accounting record of JSON lines."""

from __future__ import annotations

from collections.abc import Iterator

from mm_assets.accounting.canonical.accounted_format import AccountedFormat
from mm_assets.accounting.canonical.jsonl import is_ours, jsonl_parts
from mm_assets.accounting.canonical.location import CanonicalLocation
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.raw import raw_parts


def _parts(source: CanonicalLocation) -> Iterator[RowPart]:
    return jsonl_parts(str(source.uri), lambda: raw_parts(source), source.options)


ACCOUNTED = AccountedFormat(
    library="json.loads, tarfile.TarFile",
    parts=_parts,
    states_types=lambda source: not source.uri or is_ours(source.uri, source.options),
    is_ours=is_ours,
)
