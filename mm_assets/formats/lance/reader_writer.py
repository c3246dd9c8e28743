"""Reader and writer of interleaved Lance tables; the writer puts many partitions into one table."""

from __future__ import annotations

import copy
import glob
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import pyarrow as pa

from mm_assets.formats.batching import SampleSpans, cut_by_bytes, grouped
from mm_assets.formats.lance import (
    from_storage,
    from_storage_schema,
    naming_table,
    opened,
    to_storage_schema,
    until_answered,
    with_original_names,
    with_stored_names,
)
from mm_assets.formats.lance.commit import OrphanRows
from mm_assets.formats.lance.fragments import FragmentSet, plan_schema, removal, write_fragments
from mm_assets.formats.lance.records import LancePartitionStats
from mm_assets.formats.lance.snapshot import unreadable_text
from mm_assets.formats.lance.table import LanceTable
from mm_assets.formats.names import partition_filename
from mm_assets.formats.partitions import Partition, partition_name, refuse_equal_names
from mm_assets.formats.reader import FileSource, InterleavedReader, require_interleaved
from mm_assets.formats.reports import PartitionsRefused
from mm_assets.formats.writer import InterleavedWriter, PartitionReport, Sink
from mm_assets.model.digest import ContentDigest
from mm_assets.model.errors import ShardError
from mm_assets.storage import lance_arguments
from mm_assets.storage.errors import StoreError, attempts, error_line, located, readable_store_errors
from mm_assets.storage.files import StorageOptions, absolute, filesystem, is_remote, join
from mm_assets.storage.listing import matching

__all__ = ["InterleavedLanceReader", "InterleavedLanceWriter"]


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
        require_interleaved(schema, uri)
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

    They say how often Lance repeats a request to a store, as `attempts` has it.
    """
    given = {key: str(value) for key, value in (options or {}).items()}
    if not is_remote(uri):
        return given or None
    return {
        "client_max_retries": str(attempts() - 1),
        **(given or lance_arguments(uri)),
    }


TABLE_NAME = "items.lance"
_BYTES_AT_ONCE = 16 << 20  # of rows that are read for their digest


class InterleavedLanceWriter(InterleavedWriter):
    """Writes partitions into one Lance table.

    The table is ``path`` itself when it ends in ``.lance``, else ``items.lance`` in that folder. Workers
    write fragments, which are invisible; `finish` adds them to the table in one commit, replacing these
    partitions. See `InterleavedWriter` for the arguments.
    """

    suffix = ".lance"
    needs_schemas = True

    planned: pa.Schema | None = None

    @property
    def table_uri(self) -> str:
        """URI of the table."""
        return self.path if self.path.rstrip("/").endswith(self.suffix) else join(self.path, TABLE_NAME)

    @property
    def is_single_file(self) -> bool:
        """Always False: a table holds many partitions whatever its path, so they are never merged."""
        return False

    def uri_of(self, partition: str) -> str:
        return self.table_uri

    def describe(self, partition: str) -> str:
        return f"{self.table_uri}, partition {partition!r}"

    def note_name(self, partition: str) -> str:
        return f"{super().note_name(partition)}.{partition_filename(partition)}"

    def existing(self, partitions: Iterable[str]) -> set[str]:
        table = self._table()
        return table.recorded(partitions) if table.exists() else set()

    def prepared(self, schemas: Sequence[pa.Schema]) -> Self:
        if not schemas:
            return self
        output_schemas = [super(InterleavedLanceWriter, self)._output_schema(schema)[0] for schema in schemas]
        stored = [with_stored_names(schema) for schema in output_schemas]
        planned = plan_schema(self.table_uri, stored, lance_options(self.table_uri, self.storage_options))
        return self.planned_as(with_original_names(planned))

    def planned_as(self, schema: pa.Schema) -> Self:
        """Return the writer for partitions of a table with this schema.

        The schema is the result of `prepared` in another process.
        """
        writer = copy.copy(self)
        writer.planned = schema
        return writer

    def partition_stats(
        self, partitions: Collection[str] | None = None
    ) -> dict[str, dict[str, object]] | None:
        """Return rows, digest and commit of all or some partitions in the table, and whether each is whole.

        None without a table.
        """
        table = self._table()
        if not table.exists():
            return None
        return {
            n: {"rows": f.rows, "digest": f.digest, "set_id": f.set_id, "is_whole": f.is_whole}
            for n, f in table.partitions(partitions).items()
        }

    def drop_damaged_records(self, partitions: Collection[str]) -> None:
        """Delete damaged records of these partitions.

        The partitions count as absent, and are written again.
        """
        self._table().drop_damaged_records(partitions)

    def table_columns(self) -> pa.Schema | None:
        """Return the columns of the table in original names and types; None without a table."""
        table = self._table()
        return with_original_names(table.schema()) if table.exists() else None

    def partitions_with_values(self, columns: Collection[str], among: Collection[str]) -> set[str]:
        """Return those partitions in ``among`` with a value in one of some columns (original names)."""
        table = self._table()
        schema = table.schema()
        stored = dict(zip(with_original_names(schema).names, schema.names, strict=True))
        return table.partitions_with_values([stored[name] for name in columns], among)

    def orphan_rows(self) -> list[OrphanRows]:
        """Return the rows of the table that were not committed with a partition."""
        return self._table().orphan_rows()

    def remove_orphan_rows(self) -> int:
        """Remove orphan rows in a separate commit, and return their number."""
        return self._table().remove_orphan_rows()

    def finish(self, reports: Sequence[PartitionReport]) -> None:
        """Commit all accepted partitions.

        Raises:
            PartitionsRefused: for the others.
        """
        try:
            with readable_store_errors(), located(self.table_uri):
                complaints = self.commit(reports)
        except (OSError, ValueError) as error:  # none was committed
            raise PartitionsRefused({report.partition: error_line(error) for report in reports}) from error
        if complaints:
            raise PartitionsRefused(complaints)

    def commit(self, reports: Sequence[PartitionReport], afresh: Collection[str] = ()) -> dict[str, str]:
        """Commit all accepted partitions at once.

        A partition that repeats a sample id of another is refused: ids are unique in a table. Partitions that
        the table cannot read, or whose rows differ from their record, are replaced even by equal rows.

        Args:
            afresh: further partitions that are replaced even by equal rows: those in the table are known to
                be damaged.

        Returns:
            The reason for each refused partition.
        """
        if not reports:
            return {}
        table = self._table()
        sets = [FragmentSet.from_json(r.extra["fragment_set"]).with_digest(r.digest) for r in reports]
        damaged = self._mend(table, reports)
        complaints = table.repeated_ids(sets)
        if sound := [fragments for fragments in sets if fragments.partition not in complaints]:
            table.commit(sound, afresh={*afresh, *damaged})
            table.ensure_indexes()
        table.discard_unused(sets)  # a partition that was there already, unchanged, keeps its old files
        return complaints

    def remove(self, partitions: Collection[str]) -> None:
        """Remove partitions, those of them that the table has, in one commit. Older versions keep them."""
        table = self._table()
        if table.exists() and (present := sorted(table.recorded(partitions))):
            schema = table.schema()
            table.commit([removal(name, schema) for name in present])
            table.ensure_indexes()

    def _mend(self, table: LanceTable, reports: Sequence[PartitionReport]) -> set[str]:
        """Repair the table before a commit of these partitions.

        Returns:
            Partitions that the table would keep, although their rows have changed.
        """
        if not table.exists():
            return set()
        digests = {report.partition: report.digest for report in reports}
        table.drop_damaged_records(digests)
        table.take_out_unreadable(digests)
        table.mend_indexes(digests)
        known = [
            stats for stats in table.partitions(digests).values() if stats.digest == digests[stats.partition]
        ]
        return {
            stats.partition for stats in known if stats.fragment_ids and self._digest(stats) != stats.digest
        }

    def _digest(self, stats: LancePartitionStats) -> str | None:
        """Return the digest of the partition's current rows; None where they cannot be read."""
        found = ContentDigest()
        partition = Partition(stats.partition, (self.table_uri,), stats.fragment_ids)
        try:
            source = LanceSource(self.table_uri, partition, self.storage_options, {})
            for table in source.tables(source.schema.names, _BYTES_AT_ONCE):
                found.observe(table)
        except ValueError:
            return None
        return found.hexdigest()

    def _table(self) -> LanceTable:
        return LanceTable(self.table_uri, lance_options(self.table_uri, self.storage_options))

    def _output_schema(self, found: pa.Schema) -> tuple[pa.Schema, tuple[str, ...]]:
        schema, left_out = super()._output_schema(found)
        if self.planned is None:
            return schema, left_out
        return pa.schema([field for field in self.planned if field.name in schema.names]), left_out

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return LanceSink(self.table_uri, schema, partition, self.storage_options)


class LanceSink(Sink):
    """Fragments of one partition; invisible until the writer's `finish` commits them."""

    def __init__(self, uri: str, schema: pa.Schema, partition: str, options: StorageOptions | None) -> None:
        self._uri = uri
        self._schema = with_stored_names(schema)
        to_storage_schema(self._schema)  # raises for a column that Lance cannot hold
        self._partition = partition
        self._options = lance_options(uri, options)
        self._fragments: FragmentSet | None = None

    def write(self, tables: Iterator[pa.Table]) -> None:
        renamed = (table.rename_columns(self._schema.names) for table in tables)
        self._fragments = write_fragments(
            self._uri, self._partition, renamed, schema=self._schema, storage_options=self._options
        )

    def publish(self) -> tuple[str | None, int]:
        assert self._fragments is not None
        self.extra = {"fragment_set": self._fragments.to_json()}
        return self._uri, self._fragments.nbytes

    def discard(self) -> None:
        """Do nothing: Lance's own clean-up removes data files that no version names."""
