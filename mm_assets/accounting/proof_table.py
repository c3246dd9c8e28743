"""Table of the proofs of one asset: a row per shard, so that sums over all need not open every proof.

proof/<asset>.parquet   derived from proof/<asset>/<partition>.json; it can always be rebuilt
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting.sealed_json import seal, unseal
from mm_assets.accounting.shard_proof import ShardProof
from mm_assets.formats.parquet_file import UNREADABLE, read_buffer

_MODULUS = 1 << 128
_COUNTS = ("rows", "samples", "images", "texts", "lost_rows")
_DIGESTS = ("digest", "lost_digest")
_NAMED = ("reader", "config")
_TOTALS = b"mm_assets:totals"  # key in the Parquet metadata

SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        *(pa.field(name, pa.int64()) for name in _COUNTS),
        *(pa.field(name, pa.string()) for name in _DIGESTS),
        *(pa.field(name, pa.string(), nullable=False) for name in _NAMED),
        pa.field("is_equal", pa.bool_(), nullable=False),
        pa.field("examined_at", pa.string(), nullable=False),
        pa.field("problems", pa.list_(pa.field("element", pa.string())), nullable=False),
    ]
)


def proof_table(proofs: Iterable[ShardProof]) -> pa.Table:
    """Return the rows of these proofs."""
    return pa.Table.from_pylist([_row(proof) for proof in proofs], SCHEMA)


def merged(table: pa.Table, examined: Sequence[ShardProof]) -> pa.Table:
    """Return the table with these proofs in the place of earlier ones, ordered by partition."""
    others = without(table, [proof.partition for proof in examined])
    return pa.concat_tables([others, proof_table(examined)]).sort_by("partition").combine_chunks()


def without(table: pa.Table, partitions: Collection[str]) -> pa.Table:
    """Return the table without the rows of these partitions."""
    gone = pc.is_in(table["partition"], pa.array(list(partitions), pa.string()))
    return table.filter(pc.invert(gone))


def to_bytes(table: pa.Table) -> bytes:
    """Return the table and its sums as a Parquet file with checksums; equal tables give equal bytes."""
    sink = pa.BufferOutputStream()
    stated = table.replace_schema_metadata({_TOTALS: seal(totals(table))})
    pq.write_table(stated, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def from_bytes(data: bytes) -> pa.Table | None:
    """Return the table of a file; None if it is torn, changed or of another layout."""
    try:
        table = read_buffer(data, verify=True)
    except UNREADABLE:
        return None
    return table.replace_schema_metadata(None) if table.schema.equals(SCHEMA) else None


def stated_totals(data: bytes) -> dict[str, Any] | None:
    """Return the sums that a file states, without reading its rows; None as `from_bytes`."""
    try:
        return unseal(pq.read_schema(pa.BufferReader(data)).metadata[_TOTALS])
    except UNREADABLE:
        return None


def totals(table: pa.Table) -> dict[str, Any]:
    """Return the sums of a table: number of shards, counts, digests modulo 2^128, and all problems."""
    unequal = table.filter(pc.invert(table["is_equal"])).select(["partition", "problems"])
    problems: Mapping[str, list[str]] = {row["partition"]: row["problems"] for row in unequal.to_pylist()}
    return {
        "shards": table.num_rows,
        "is_equal": not problems,
        **{name: pc.sum(table[name]).as_py() or 0 for name in _COUNTS},
        **{name: _sum_of_digests(table[name]) for name in _DIGESTS},
        **{name: sorted(pc.unique(table[name]).to_pylist()) for name in _NAMED},
        "problems": problems,
    }


def _sum_of_digests(column: pa.ChunkedArray) -> str:
    return f"{sum(int(digest or '0', 16) for digest in column.to_pylist()) % _MODULUS:032x}"


def _row(proof: ShardProof) -> dict[str, Any]:
    return {
        "partition": proof.partition,
        **{name: proof.derived[name] for name in ("rows", "samples", "images", "texts", "digest")},
        **{f"lost_{name}": proof.lost.get(name) for name in ("rows", "digest")},
        "reader": proof.reader,
        "config": proof.config,
        "is_equal": proof.is_equal,
        "examined_at": proof.examined_at,
        "problems": list(proof.problems),
    }
