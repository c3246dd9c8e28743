"""One file, or one Lance table or partition of it, as a source of plain tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.types import normalized

# What reads each format. Files of others, whose rows or members are documents, are read by `RawReader`: there
# is no other reader.
READERS = {
    "parquet": "pyarrow.parquet.ParquetFile",
    "webdataset": "webdataset.tariterators",
    "lance": "lance.LanceDataset.scanner",
    "arrow_cache": "pyarrow.ipc.RecordBatchFileReader",
}


@dataclass(frozen=True)
class CanonicalSource:
    """Where rows lie: ``kind`` is a key of `READERS`, ``uri`` a file, a Lance table or the folder of a cache
    (path or URL; empty: nothing was written).

    ``partition`` narrows a Lance table to one partition (None: the whole table), and is the name of that of a
    file; files are read whole. Of files of others ``relative_to`` is the folder that locators are relative
    to, ``layout`` what their reader is to know of them. ``options`` are those of the file system.
    """

    kind: str
    uri: str | None
    partition: str | None = None
    relative_to: str | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    options: dict[str, Any] | None = None

    def states_types(self) -> bool:
        """Whether each column has the type that was chosen for the rows here: not in a Lance table, whose
        other rows have a say in it, nor in a raw tar, whose types are told from its values.
        """
        if self.kind != "webdataset" or not self.uri:
            return self.kind != "lance"
        from mm_assets.accounting.canonical.webdataset import is_ours

        return is_ours(self.uri, self.options)

    def tables(self) -> Iterator[pa.Table]:
        """The rows in the types they were written in, some megabytes at a time; a table without rows where
        there is only a schema.

        Raises ``FileNotFoundError``, and ``ValueError`` naming the file for what its reader, or the layout,
        does not allow.
        """
        for part in self.parts():
            yield from part.tables()

    def parts(self) -> Iterator[RowPart]:
        """The same rows as they are read.

        Raises as `tables` does, also while the blobs of a part are asked for.
        """
        for part in self._read():
            yield normalized(part, str(self.uri))

    def _read(self) -> Iterator[RowPart]:
        if not self.uri:
            return iter(())
        if self.kind == "parquet":
            from mm_assets.accounting.canonical.parquet import parquet_parts

            return parquet_parts(self.uri, self._raw, bool(self.layout.get("sample_id_prefix")), self.options)
        if self.kind == "webdataset":
            from mm_assets.accounting.canonical.webdataset import tar_parts

            return tar_parts(self.uri, self._raw, self.options)
        if self.kind == "lance":
            from mm_assets.accounting.canonical.lance import lance_parts

            return lance_parts(self.uri, self.partition, self.options)
        if self.kind == "arrow_cache":
            from mm_assets.accounting.canonical.arrow_cache import arrow_cache_parts

            return arrow_cache_parts(self.uri, self.options)
        raise ValueError(f"format must be one of {', '.join(READERS)}, not {self.kind!r}")

    def _raw(self) -> Iterator[RowPart]:
        from mm_assets.accounting.canonical.raw import raw_parts

        return raw_parts(str(self.uri), self.partition, self.relative_to, self.layout, self.options)
