"""Reader of interleaved Lance tables."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from mm_assets.formats.batching import cut_by_bytes
from mm_assets.formats.grouping import SampleSpans, grouped
from mm_assets.formats.lance.damage import naming_table, opened, unreadable_text
from mm_assets.formats.lance.location import storage_options_from_env
from mm_assets.formats.lance.storage_types import from_storage, from_storage_schema, with_original_names
from mm_assets.formats.lance.table import LanceTable
from mm_assets.formats.lance.unanswered import until_answered
from mm_assets.formats.listing import matching
from mm_assets.formats.partitions import Partition, partition_name, refuse_equal_names
from mm_assets.formats.reader import FileSource, InterleavedReader
from mm_assets.formats.storage import StorageOptions, absolute, filesystem, is_remote, join
from mm_assets.formats.store_errors import StoreError
from mm_assets.formats.store_retries import attempts
from mm_assets.formats.stores import lance_arguments
from mm_assets.interleaved.errors import ShardError

__all__ = ["InterleavedLanceReader"]

_ROWS_AT_ONCE = 4096


class InterleavedLanceReader(InterleavedReader):
    """Reads Lance tables; see `InterleavedReader` for the arguments.

    A table of our writer yields its partitions one by one; any other table is one partition. The version is
    the newest, or ``read_kwargs={"version": n}`` with a number or a tag.
    """

    suffixes = (".lance",)

    def partitions(self) -> list[Partition]:
        partitions: list[Partition] = []
        for uri in self._tables():
            table = LanceTable(uri, lance_options(uri, self.storage_options))
            version = self.read_kwargs.get("version")
            stats = table.partitions() if version is None else {}
            if stats and all(part.fragment_ids or part.rows == 0 for part in stats.values()):
                version = table.dataset().version
                parts = [f for f in stats.values() if f.rows]
                partitions.extend(Partition(f.partition, (uri,), f.fragment_ids, version) for f in parts)
            else:
                partitions.append(Partition(partition_name(uri, ""), (uri,), (), version))
        refuse_equal_names(partitions)
        return partitions

    def _tables(self) -> list[str]:
        tables: list[str] = []
        for item in self.file_paths:
            is_table = item.rstrip("/").endswith(".lance")
            pattern = item if is_table else join(glob.escape(item), "*.lance")
            found = [item] if is_table and self._is_folder(item) else matching(pattern, self.storage_options)
            existing = [absolute(name) for name in found if self._is_folder(name)]
            if not existing:
                raise FileNotFoundError(f"{item}: no Lance table here")
            tables.extend(existing)
        return tables

    def _is_folder(self, uri: str) -> bool:
        fs, path = filesystem(uri, self.storage_options)
        return bool(fs.isdir(path))

    def _open_file(self, uri: str, partition: Partition) -> FileSource:
        return LanceSource(uri, partition, self.storage_options, self.read_kwargs)


class LanceSource(FileSource):
    """One partition of a Lance table; only requested columns are read, a few rows at a time."""

    def __init__(
        self, uri: str, partition: Partition, options: StorageOptions | None, read_kwargs: dict[str, Any]
    ) -> None:
        arguments = {"version": partition.version, **read_kwargs}
        try:
            self._dataset = opened(uri, storage_options=lance_options(uri, options), **arguments)
        except StoreError:
            raise
        except OSError as error:
            raise ShardError(str(error)) from error
        stored = from_storage_schema(self._dataset.schema)
        schema = with_original_names(stored)
        self._stored_names = dict(zip(schema.names, stored.names, strict=True))
        missing = [name for name in ("sample_id", "position", "modality") if name not in schema.names]
        if missing:
            raise ShardError(f"{uri}: not interleaved data, column {missing[0]!r} is missing")
        fragments = self._dataset.get_fragments()
        selected = set(partition.fragments)
        self._is_ours = bool(selected)
        self._fragments = [f for f in fragments if not selected or f.fragment_id in selected]
        super().__init__(uri, schema, sum(fragment.count_rows() for fragment in self._fragments))

    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        slices = self._checked(list(columns), max_bytes)
        return cut_by_bytes(
            slices if self._is_ours else grouped(slices, SampleSpans.of(self._ids()), max_bytes, self.uri),
            max_bytes,
        )

    def _ids(self) -> Iterator[pa.Array]:
        column = self._stored_names["sample_id"]
        with self._damage_as_shard_error():
            for batch in self._dataset.scanner(columns=[column], fragments=self._fragments).to_batches():
                yield batch.column(0)

    def _checked(self, columns: list[str], max_bytes: int | None) -> Iterator[pa.Table]:
        with self._damage_as_shard_error():
            yield from self._slices(columns, max_bytes)

    @contextmanager
    def _damage_as_shard_error(self) -> Iterator[None]:
        try:
            with naming_table(self.uri):
                yield
        except StoreError:
            raise
        except OSError as error:
            found = unreadable_text(self._fragments, error)
            raise ShardError(f"{self.uri}: {found}" if found else str(error)) from error

    def _slices(self, columns: list[str], max_bytes: int | None) -> Iterator[pa.Table]:
        stored = [self._stored_names[name] for name in columns]
        step = self._rows_at_once(max_bytes) if "binary_content" in columns else _ROWS_AT_ONCE
        for fragment in self._fragments:
            rows = fragment.count_rows()
            for start in range(0, rows, step):
                # Not a scanner: whatever its limits, it reads ahead by hundreds of megabytes.
                numbers = list(range(start, min(start + step, rows)))
                table = until_answered(partial(fragment.take, numbers, columns=stored))
                yield from_storage(table).rename_columns(columns)

    def _rows_at_once(self, max_bytes: int | None) -> int:
        rows = sum(fragment.count_rows() for fragment in self._fragments)
        stored = sum(file.file_size_bytes or 0 for f in self._fragments for file in f.metadata.files)
        mean = max(stored // max(rows, 1), 64)
        return min(max((max_bytes or 64 << 20) // 8 // mean, 1), _ROWS_AT_ONCE)

    def close(self) -> None:
        """Do nothing: Lance closes its files itself."""


def lance_options(uri: str, options: StorageOptions | None) -> dict[str, str] | None:
    """Return Lance's storage options for a URI: the given ones; of a URL else those of its location.

    They say how often Lance repeats a request to a store, as `store_retries` has it.
    """
    given = {key: str(value) for key, value in (options or {}).items()}
    if not is_remote(uri):
        return given or None
    return {
        "client_max_retries": str(attempts() - 1),
        **(given or lance_arguments(uri, storage_options_from_env())),
    }
