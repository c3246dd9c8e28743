"""Writer of interleaved batches into a Lance table of many partitions."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Self

import pyarrow as pa

from mm_assets.formats.error_lines import error_line, readable_store_errors
from mm_assets.formats.error_places import located
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.lance.evolution import plan_schema
from mm_assets.formats.lance.fragments import FragmentSet, removal, write_fragments
from mm_assets.formats.lance.mending import MendingTable
from mm_assets.formats.lance.orphan_rows import OrphanRows
from mm_assets.formats.lance.partitions import LancePartitionStats
from mm_assets.formats.lance.reader import LanceSource, lance_options
from mm_assets.formats.lance.storage_types import to_storage_schema, with_original_names, with_stored_names
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reports import PartitionsRefused
from mm_assets.formats.storage import StorageOptions, join
from mm_assets.formats.writer import InterleavedWriter, PartitionReport, Sink
from mm_assets.interleaved.digest import ContentDigest

__all__ = ["InterleavedLanceWriter"]

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

    def _mend(self, table: MendingTable, reports: Sequence[PartitionReport]) -> set[str]:
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

    def _table(self) -> MendingTable:
        return MendingTable(self.table_uri, lance_options(self.table_uri, self.storage_options))

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
