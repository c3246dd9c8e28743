"""Statistics of a tar in the native layout, derived from the tar itself."""

from __future__ import annotations

import json
import os
from itertools import groupby

import pyarrow as pa

from mm_assets.formats.tar.header import TarDamage
from mm_assets.formats.tar.scan import scan
from mm_assets.formats.webdataset.client_indexes import TarPartitionStats, hf_type, parse_pairs, tar_idx
from mm_assets.formats.webdataset.layout import BOOKKEEPING, MAX_JSON_BYTES
from mm_assets.interleaved.schema_text import schema_from_text


def measure(fd: int, file: str) -> tuple[TarPartitionStats, bytes]:
    """Return the statistics of an open tar, without columns, and its ``.tar.idx``, both from its headers.

    Raises:
        TarDamage: The tar is damaged.
    """
    index = scan(fd, file)
    starts: list[int] = []
    pairs: set[str] = set()
    for _, members in groupby(index.members, key=lambda member: member.name.partition(".")[0]):
        group = list(members)
        starts.append(group[0].header_offset)
        pairs.update(member.name.partition(".")[2] for member in group)
    idx = tar_idx([*starts, index.end])
    stats = TarPartitionStats(file, len(starts), os.fstat(fd).st_size, parse_pairs(pairs - {"json"}))
    return stats.with_idx(idx), idx


def stated_columns(fd: int, file: str) -> dict[str, str] | None:
    """Return ``columns`` of `TarPartitionStats` from the first json of an open tar.

    All jsons of a tar declare the same columns.

    None if the tar is not one of ours.
    """
    try:
        first = next(
            member
            for member in scan(fd, file).members
            if member.name.endswith(".json") and member.size <= MAX_JSON_BYTES
        )
        stated = json.loads(os.pread(fd, first.size, first.offset))[BOOKKEEPING]["schema"]
        return {column.name: hf_type(column) for column in schema_from_text(stated)}
    except (
        TarDamage,
        StopIteration,
        ValueError,
        LookupError,
        TypeError,
        OSError,
        RecursionError,
        pa.ArrowException,
    ):
        return None
