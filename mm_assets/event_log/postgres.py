"""Postgres event log that keeps a connection and writes many events in one transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as db
from dagster._core.storage.event_log import SqlEventLogStorageTable
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, DynamicPartitionsTable
from dagster._serdes import ConfigurableClassData
from dagster._utils.concurrency import ConcurrencyClaimStatus
from dagster_postgres.event_log import PostgresEventLogStorage
from dagster_postgres.utils import (
    create_pg_connection,
    create_pg_engine,
    get_token_provider_from_config,
    pg_url_from_config,
)
from sqlalchemy import Connection, Engine
from sqlalchemy.dialects import postgresql

from mm_assets.event_log import BatchedEventLog, Engines
from mm_assets.event_log.rows import EventRow

_CLAIMING = 0x6D6D5F61  # number of the advisory lock of those who claim slots
_PAUSE_SECONDS = 1.0  # between two claims of a step that has to wait


class BatchedPostgresEventLogStorage(BatchedEventLog, PostgresEventLogStorage):
    """Dagster's Postgres event log: the same tables, written in batches.

    Args:
        postgres_url: the database; the scheme must name the driver, ``postgresql+psycopg2``.
        should_autocreate_tables: whether to make missing tables.
    """

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,
        inst_data: ConfigurableClassData | None = None,
        token_provider: Any = None,
    ) -> None:
        self._engines = Engines(self._open)
        self._partitions: dict[str, tuple[object, Sequence[str]]] = {}
        self._start_batching()
        super().__init__(postgres_url, should_autocreate_tables, inst_data, token_provider)

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> BatchedPostgresEventLogStorage:
        return cls(
            pg_url_from_config(config_value),
            config_value.get("should_autocreate_tables", True),
            inst_data,
            get_token_provider_from_config(config_value),
        )

    def _open(self, url: str) -> Engine:
        return create_pg_engine(
            url,
            self._token_provider,
            isolation_level="AUTOCOMMIT",
            pool_size=1,
            max_overflow=30,
            pool_pre_ping=True,  # the server may have been restarted since
            pool_recycle=3600,
            hide_parameters=True,  # an error would tell the values of hundreds of rows
        )

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        self.flush()
        with self._connection() as connection:
            yield connection

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with create_pg_connection(self._engines.get(self.postgres_url)) as connection:
            yield connection

    def _write(self, rows: list[EventRow]) -> None:
        with self._connection() as connection:
            connection = connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                self._write_index(connection, rows)

    def _next_ids(self, connection: Connection, count: int) -> list[int]:
        # Waits for those who are adding events, and has others wait: the sequence alone is in the order of
        # calls, not of commits.
        connection.exec_driver_sql("LOCK TABLE event_logs IN SHARE ROW EXCLUSIVE MODE")
        sequence = db.func.pg_get_serial_sequence(SqlEventLogStorageTable.name, "id")
        numbers = db.func.generate_series(1, count)
        return [
            row[0] for row in connection.execute(db.select(db.func.nextval(sequence)).select_from(numbers))
        ]

    def get_dynamic_partitions(self, partitions_def_name: str) -> Sequence[str]:
        """Return all keys in the order in which they were added.

        Dagster asks about a hundred times in a run; they are read again only when some may have changed.
        """
        self._check_partitions_table()
        columns = DynamicPartitionsTable.c
        of_name = columns.partitions_def_name == partitions_def_name
        # Changes with every key that is added, deleted or renamed.
        state = db.func.sum(db.func.hashtextextended(columns.partition, columns.id))
        with self.index_connection() as connection:
            found = connection.execute(db.select(state).where(of_name)).scalar()
            kept = self._partitions.get(partitions_def_name)
            if kept is None or kept[0] != found:
                # Keys and their state in one statement: others may change them between two.
                query = db.select(columns.partition, state.over()).where(of_name).order_by(columns.id)
                rows = connection.execute(query).fetchall()
                kept = (rows[0][1] if rows else None, [row[0] for row in rows])
                self._partitions[partitions_def_name] = kept
        return list(kept[1])

    def claim_concurrency_slot(
        self, concurrency_key: str, run_id: str, step_key: str, priority: int | None = None
    ) -> ConcurrencyClaimStatus:
        """Claim a slot of a pool for a step, one claim after the other.

        The stock class looks for a free slot in one transaction and takes it in another: two that claim at
        once both get it. And the in-process executor asks without a pause until the next claim is due, at the
        cost of a core: so the pause is made here.
        """
        with self._connection() as connection:
            connection = connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                connection.execute(db.select(db.func.pg_advisory_xact_lock(_CLAIMING)))
                status = super().claim_concurrency_slot(concurrency_key, run_id, step_key, priority)
        if status.is_claimed:
            return status
        time.sleep(_PAUSE_SECONDS)
        return status.with_sleep_interval(0.0)

    def _insert_or_ignore(self) -> Any:
        return postgresql.insert(AssetCheckExecutionsTable).on_conflict_do_nothing()

    def dispose(self) -> None:
        super().dispose()
        self._engines.dispose()
