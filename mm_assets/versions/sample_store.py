"""Sample digests and lost items of outputs that were tagged: what a later comparison needs of them.

versions/samples/<data version>.parquet   a row per sample: its id, and the sum of the digests of its rows
versions/losses/<digest>.parquet          a copy of the ledger's lost items of a shard

Both are named by their content: tags and assets with the same content share a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from mm_assets.accounting.canonical.source import CanonicalSource
from mm_assets.accounting.canonical.types import retyped
from mm_assets.accounting.ledger import ITEMS_SCHEMA
from mm_assets.formats.parquet_file import read_small_table
from mm_assets.formats.storage import StorageOptions, exists, join, open_binary, staged
from mm_assets.interleaved.digest import ContentDigest, row_digests
from mm_assets.interleaved.errors import DataError

SAMPLES_SCHEMA = pa.schema(
    [pa.field("sample_id", pa.string(), nullable=False), pa.field("digest", pa.binary(16), nullable=False)]
)
LOCATOR = "source_ref"
_DIGEST = re.compile("[0-9a-f]{32}")
_MODULUS = 1 << 128
_ROWS_AT_ONCE = 1 << 14


class SampleStore:
    """Sample digests and lost items below ``folder``, a folder or URL."""

    def __init__(self, folder: str, options: StorageOptions | None = None) -> None:
        self._folder = folder
        self._options = options

    def has(self, version: str) -> bool:
        """Return whether the sample digests of a data version are here."""
        return exists(self._uri("samples", version), self._options)

    def samples(self, version: str) -> dict[str, bytes] | None:
        """Return sample id -> digest of a data version; None if it is not here."""
        table = self._read("samples", version, SAMPLES_SCHEMA)
        if table is None:
            return None
        return dict(zip(*(table.column(name).to_pylist() for name in SAMPLES_SCHEMA.names), strict=True))

    def losses(self, digest: str) -> pa.Table | None:
        """Return lost items; None if they are not here."""
        return self._read("losses", digest, ITEMS_SCHEMA)

    def write_samples(self, version: str, samples: dict[str, int]) -> None:
        """Publish the sample digests of a data version."""
        ids = sorted(samples)
        digests = [samples[sample_id].to_bytes(16, "big") for sample_id in ids]
        table = pa.table([ids, pa.array(digests, pa.binary(16))], schema=SAMPLES_SCHEMA)
        with staged(self._uri("samples", version), self._options) as file:
            pq.write_table(table, file.path, compression="zstd", use_dictionary=False, write_statistics=False)
            file.publish()

    def copy_losses(self, digest: str, uri: str) -> None:
        """Publish a copy of a shard's lost items, if it is not here yet.

        Raises:
            DataError: the file is not the one with this digest.
        """
        target = self._uri("losses", digest)
        if exists(target, self._options):
            return
        with open_binary(uri, self._options) as source:
            data = source.read()
        if xxhash.xxh3_128_hexdigest(data) != digest:
            raise DataError(f"{uri}: other bytes than were written; materialize the shard again")
        with staged(target, self._options) as file:
            with open(file.path, "wb") as stream:
                stream.write(data)
            file.publish()

    def _read(self, kind: str, digest: str, schema: pa.Schema) -> pa.Table | None:
        uri = self._uri(kind, digest)
        with suppress(FileNotFoundError):
            return read_small_table(uri, schema.names, self._options)
        return None

    def _uri(self, kind: str, digest: str) -> str:
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{self._folder}: {digest!a:.100} is no digest")
        return join(self._folder, kind, f"{digest}.parquet")


def sample_digests(source: CanonicalSource, schema: pa.Schema | None = None) -> tuple[dict[str, int], str]:
    """Return sample id -> sum modulo 2^128 of the digests of its rows, and the digest of all rows.

    Every byte is read; the digest of all rows is the data version of an output that is as it was written. In
    the digests of samples locators are left out: a sample that only lies elsewhere in its raw shard is the
    same.

    Args:
        source: one partition of an output.
        schema: digest these columns in these types: a table may have widened some since they were written.
    """
    samples: dict[str, int] = {}
    whole = ContentDigest()
    for part in source.parts():
        for table in part.tables():
            typed = table if schema is None else retyped(table, schema)
            whole.observe(typed)
            for sample_id, digest in _rows(typed.drop_columns([LOCATOR])):
                samples[sample_id] = (samples.get(sample_id, 0) + digest) % _MODULUS
    return samples, whole.hexdigest()


def _rows(table: pa.Table) -> Iterator[tuple[str, int]]:
    for start in range(0, table.num_rows, _ROWS_AT_ONCE):
        rows = table.slice(start, _ROWS_AT_ONCE)
        yield from zip(rows.column("sample_id").to_pylist(), row_digests(rows), strict=True)
