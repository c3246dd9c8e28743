"""Counts and digest of rows, derived from what lies there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical.digest_tally import Derived, DigestTally
from mm_assets.accounting.canonical.source import CanonicalSource
from mm_assets.accounting.canonical.tar_digest import derive_tar
from mm_assets.accounting.canonical.types import retyped


def derive(
    kind: str,
    uri: str | None,
    partition: str | None = None,
    schema: pa.Schema | None = None,
    *,
    options: dict[str, Any] | None = None,
) -> Derived:
    """What one partition of an output holds; an empty ``uri`` holds nothing.

    With ``schema`` the columns it names are digested in its types: a Lance table may have widened some since
    they were written. Raises as `CanonicalSource.tables` does, and `SchemaMismatch`
    for a column that does not fit.
    """
    _keep_freed_memory()
    if kind == "webdataset" and uri and schema is None:
        found = derive_tar(uri, options)
        if found is not None:
            return found
    tally = DigestTally()
    for part in CanonicalSource(kind, uri, partition, options=options).parts():
        tally.add(part if schema is None else replace(part, table=retyped(part.table, schema)))
    return tally.derived()


@cache
def _keep_freed_memory() -> None:
    """Until glibc has seen a block as large freed, it gives back the memory of each image, and page faults
    cost more than reading.
    """
    bytes(16 << 20)
