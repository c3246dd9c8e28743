"""Erasing content of samples from Dagster's databases, and from what its steps have printed.

No row goes, and none changes its place, outcome, data version or numbers: only texts do. What an event said
of a named partition before the erasure began goes whatever it said: thumbnails and shortened texts are no
traces that could be looked for. From all else go traces.

Databases keep what was overwritten or deleted until `VACUUM`: `erase_events` does that, too.
What a server has in its write-ahead log, replicas and backups is beyond its reach, and told.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as db
from dagster._core.storage.event_log.schema import SqlEventLogStorageMetadata
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager
from dagster._core.storage.runs.schema import RunStorageSqlMetadata
from dagster._core.storage.runs.sql_run_storage import SqlRunStorage
from dagster._core.storage.schedules.schema import ScheduleStorageSqlMetadata
from dagster._core.storage.schedules.sql_schedule_storage import SqlScheduleStorage
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import NullPool

from mm_assets.accounting.needles import NAMING, OF_DAGSTER
from mm_assets.event_log.rows import to_json
from mm_assets.graph.dagster_internals import TRIED_WITH
from mm_assets.model.errors import MmAssetsError, warn_user
from mm_assets.storage.errors import located
from mm_assets.storage.files import staged, sweep

_BATCH = 500  # rows in one transaction
_PATIENCE = 60.0  # seconds to wait for other users of a database
_LINES = 16 * 1024 * 1024  # bytes of printed lines that are looked at together

_PRINTED = (".out", ".err", ".partial")  # of files with what a step has printed

# Columns whose texts may quote data, by table; all others name things, or are numbers.
_EVENTS = {"event_logs": ("event",), "asset_check_executions": ("evaluation_event",)}
_TAGS = {"asset_event_tags": ("value",), "run_tags": ("value",), "backfill_tags": ("value",)}
_ASSETS = {"asset_keys": ("last_materialization", "asset_details", "tags", "cached_status_data")}
_TEXTS: Mapping[str, tuple[str, ...]] = {
    **_EVENTS,
    **_ASSETS,
    **_TAGS,
    "runs": ("run_body",),
    "bulk_actions": ("body",),
    "kvs": ("value",),
    "daemon_heartbeats": ("body",),
    "jobs": ("job_body",),
    "instigators": ("instigator_body",),
    "job_ticks": ("tick_body",),
    "asset_daemon_asset_evaluations": ("asset_evaluation_body",),
}
_TABLES = {
    table.name: table
    for metadata in (SqlEventLogStorageMetadata, RunStorageSqlMetadata, ScheduleStorageSqlMetadata)
    for table in metadata.sorted_tables
}

_NO_TAG, _LONGEST_TAG = re.compile(r"[^\w.-]", re.ASCII), 63
_CONTENT = frozenset(
    {"TextMetadataEntryData", "MarkdownMetadataEntryData", "JsonMetadataEntryData", "TableMetadataEntryData"}
)
_PICTURE = "data:image/"
_CHART = f"{_PICTURE}svg"
_ERASED = "erased"  # the metadata entry that stands for what is gone


class VacuumBlocked(MmAssetsError, OSError):
    """A database keeps what was erased, as another user still sees it, or may not be changed."""


def erase_events(
    instance: dg.DagsterInstance,
    partitions: Collection[str],
    is_trace: Callable[[str], bool],
    aliases: Mapping[str, str],
    *,
    reason: str,
    begun: float,
) -> int:
    """Erase content from all databases of an instance, and from what its steps have printed into local files.

    It may be repeated, also after it was killed: what is erased stays as it is. Runs must have ended.

    Args:
        partitions: of what was logged of them before the erasure began, numbers and versions stay alone.
        is_trace: whether a text holds something that is to be erased.
        aliases: what stands for ids that are traces, where nothing else in a text is one.
        reason: the text that stands for what is gone.
        begun: when the erasure began, in whole seconds since 1970: runs after it cannot quote what is erased.

    Returns:
        The number of rows, and of printed files, that were changed.

    Raises:
        VacuumBlocked: another user of a database has an old state of it open. What is written stays; to be
            repeated.
    """
    eraser = _Eraser(frozenset(partitions), is_trace, aliases, reason, begun)
    count = _erase_printed(instance, eraser)
    for database in _databases(instance):
        with located(str(database)), database.read() as connection:
            changed = _erase_rows(database, connection, eraser)
            _vacuum(database, connection, is_changed=changed > 0)
        count += changed
    return count


def event_texts(instance: dg.DagsterInstance) -> Iterator[tuple[str, str]]:
    """Yield all texts in databases that are no files of this machine, each with its place."""
    every = {name: table.columns.keys() for name, table in _TABLES.items()}
    for database in _databases(instance):
        if not database.is_file:
            with database.read() as connection:
                for table, columns in list(_tables_of(connection, every)):
                    for row in chain.from_iterable(_batches(connection, table, columns)):
                        place = f"{database} {table.name} {row.id}"
                        yield from ((place, text) for text in map(_as_text, row) if text)


@dataclass(frozen=True)
class _Eraser:
    """What becomes of texts. See `erase_events`."""

    partitions: frozenset[str]
    is_trace: Callable[[str], bool]
    aliases: Mapping[str, str]
    reason: str
    begun: float

    def has_trace(self, *texts: str) -> bool:
        """Return whether one of some texts of a database holds a trace, as it is written or as it is read."""
        if self.is_trace("\n".join(texts)):
            return True
        escaped = [text for text in texts if "\\" in text]
        found = chain.from_iterable(_strings(_unpacked(text)) for text in escaped)
        return bool(escaped) and self.is_trace("\n".join(found))

    def stored(self, text: str, *, has_trace: bool, may_quote: bool) -> str:
        """Return a text of a database, the same where nothing is erased.

        Args:
            may_quote: it may hold an event of which content goes, whether or not that is a trace.
        """
        packed = _unpacked(text) if has_trace or may_quote else None
        if packed is None:
            return self.text(text) if has_trace else text
        new = self._without_content(packed) if may_quote else packed
        new = self._without_traces(new) if has_trace else new
        return text if new == packed else to_json(new)

    def tag(self, text: str) -> str:
        """Return the value of a tag, or its key; Dagster refuses others than these characters."""
        return _NO_TAG.sub("-", self.reason)[:_LONGEST_TAG] if self.has_trace(text) else text

    def text(self, text: str) -> str:
        """Return a text: all of it is gone, where more than an id is a trace."""
        if not self.is_trace(text):
            return text
        if self._sought.pattern:
            text = self._sought.sub(lambda found: self.aliases[found[0]], text)
        return self.reason if self.is_trace(text) else text

    @cached_property
    def _sought(self) -> re.Pattern[str]:
        """Ids in a text that are not a part of a word; others, as ``1``, only a field tells."""
        given = sorted(filter(self.is_trace, self.aliases), key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, given))})(?!\w)" if given else "")

    def lines(self, text: str) -> str:
        """Return printed lines, each as a text of its own."""
        if not self.is_trace(text):
            return text
        kept = "\n".join(map(self.text, text.split("\n")))
        return self.reason if self.is_trace(kept) else kept  # one that is longer than a line

    def _without_traces(self, value: Any, name: str = "") -> Any:
        match value:
            case str() if name == "sample_id" and value in self.aliases:
                return self.aliases[value]
            case str():
                is_name = name.startswith(OF_DAGSTER) or value in self.partitions
                return value if is_name else self._without_trace(value)
            case list():
                return [self._without_traces(each) for each in value]
            case {"__class__": "AssetKey"}:
                return value
            case {"__class__": "EventMetadataEntry", "label": str(label)}:
                return {
                    key: each if key in NAMING else self._without_traces(each, label)
                    for key, each in value.items()
                }
            case {"__class__": str()}:
                return {
                    key: each if key in NAMING else self._without_traces(each, key)
                    for key, each in value.items()
                }
            case dict() if name == "tags":
                return {
                    self.tag(key): each if key.startswith(OF_DAGSTER) else self.tag(str(each))
                    for key, each in value.items()
                }
            case dict():
                return {
                    key if key in self.partitions else self.text(key): self._without_traces(each, key)
                    for key, each in value.items()
                }
        return value

    def _without_trace(self, text: str) -> str:
        if not self.has_trace(text):
            return text
        packed = _unpacked(text)
        try:
            new = self._without_traces(packed)
        except RecursionError:  # no text of ours
            packed = None
        if packed is None:
            return self.text(text)
        return text if new == packed else to_json(new)

    def _without_content(self, value: Any) -> Any:
        """Return packed values without what events before the erasure said of the partitions."""
        if isinstance(value, list):
            return [self._without_content(each) for each in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("__class__")
        if kind == "EventLogEntry" and value["timestamp"] >= self.begun + 1:  # it is rounded down
            return value
        if "metadata_entries" in value or kind == "AssetCheckEvaluation":
            return self._without_metadata(value)
        found = {name: self._without_content(each) for name, each in value.items()}
        return self._without_descriptions(found, value) if kind == "EventLogEntry" else found

    def _without_metadata(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return a materialization, observation or evaluation with the metadata that may stay."""
        partition = event.get("partition")
        if partition is not None and partition not in self.partitions:
            return event
        is_gone = _has_picture if partition is None else _is_content
        told = {"__class__": "TextMetadataEntryData", "text": self.reason}
        found = dict(event)
        if partition is not None and event.get("description"):
            found["description"] = self.reason
        if entries := event.get("metadata_entries"):
            kept = [each for each in entries if not is_gone(each["label"], _value_of(each))]
            if len(kept) < len(entries):
                entry = {"__class__": "EventMetadataEntry", "label": _ERASED, "entry_data": told}
                found["metadata_entries"] = [*kept, {**entry, "description": None}]
        if metadata := event.get("metadata"):
            stays = {label: value for label, value in metadata.items() if not is_gone(label, value)}
            if len(stays) < len(metadata):
                found["metadata"] = {**stays, _ERASED: told}
        return found

    def _without_descriptions(self, entry: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
        """Return an event without the description that its message repeats."""
        data = (before.get("dagster_event") or {}).get("event_specific_data") or {}
        for event in (data, *data.values()):
            if isinstance(event, dict) and event.get("partition") in self.partitions:
                description = event.get("description")
                for told in (entry, entry["dagster_event"]) if description else ():
                    for name in ("message", "user_message"):
                        if isinstance(told.get(name), str):
                            told[name] = told[name].replace(description, self.reason)
        return entry


def _value_of(entry: dict[str, Any]) -> Any:
    return entry["entry_data"] if "entry_data" in entry else entry.get("value")


def _is_content(label: str, value: Any) -> bool:
    """Return whether a packed metadata value may quote data: a text, or what is made of texts."""
    if label in (_ERASED, TRIED_WITH) or label.startswith(OF_DAGSTER):
        return False
    is_plain = isinstance(value, str | list) or (isinstance(value, dict) and "__class__" not in value)
    return is_plain or (isinstance(value, dict) and value["__class__"] in _CONTENT)


def _has_picture(_label: str, value: Any) -> bool:
    """Return whether a packed metadata value shows more than charts."""
    return any(text.count(_PICTURE) > text.count(_CHART) for text in _strings(value))


def _unpacked(text: str) -> Any:
    """Return the JSON object or list of a text; None if it is none."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return None


def _as_text(value: Any) -> str:
    """Return a value of a column as text; snapshots of jobs are compressed."""
    if isinstance(value, bytes):
        with suppress(zlib.error):
            value = zlib.decompress(value)
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts within JSON values, with those of objects that are written as a text."""
    if isinstance(value, str):
        yield value
        with suppress(RecursionError):
            yield from list(_strings(_unpacked(value)))
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


class _Files:
    """One engine for all files of SQLite in turn: a new one would compile each statement anew."""

    def __init__(self) -> None:
        self._file = ""
        self._engine = db.create_engine(
            "sqlite://", creator=self._connect, poolclass=NullPool, hide_parameters=True
        )

    def engine(self, file: Path) -> Engine:
        """Return the engine, which connects to this file from now on."""
        self._file = str(file)
        return self._engine

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._file, timeout=_PATIENCE)
        connection.execute("PRAGMA secure_delete=ON")
        return connection


@dataclass(frozen=True)
class _Database:
    """One of Dagster's databases.

    Args:
        place: a file of SQLite, else an engine.
        files: connects to files.
        is_of_run: it has the log of one run alone, of which nothing is ever deleted or overwritten.
    """

    place: Path | Engine
    files: _Files
    is_of_run: bool = False

    def __str__(self) -> str:
        return str(self.place if isinstance(self.place, Path) else self.place.url.render_as_string())

    @property
    def is_file(self) -> bool:
        return isinstance(self.place, Path)

    @property
    def is_postgres(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Columns with texts, by table."""
        return {"event_logs": _TEXTS["event_logs"]} if self.is_of_run else _TEXTS

    def read(self) -> Connection:
        """Return a connection that keeps no transaction open."""
        return self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def write(self) -> AbstractContextManager[Connection]:
        """Begin a transaction."""
        level = "READ COMMITTED" if self.is_postgres else "SERIALIZABLE"
        return self._engine.execution_options(isolation_level=level).begin()

    @property
    def _engine(self) -> Engine:
        return self.files.engine(self.place) if isinstance(self.place, Path) else self.place


def _databases(instance: dg.DagsterInstance) -> list[_Database]:
    """Return all databases of an instance; SQLite has one more for each run."""
    log, runs, schedules = instance.event_log_storage, instance.run_storage, instance.schedule_storage
    assert isinstance(log, SqlEventLogStorage) and isinstance(runs, SqlRunStorage), "storages in a database"
    files = _Files()
    found: dict[Any, _Database] = {}

    def add(connection: Connection) -> None:
        url = connection.engine.url
        is_file = url.get_backend_name() == "sqlite" and os.path.isfile(url.database or "")
        place = Path(url.database or "") if is_file else connection.engine
        found.setdefault(place if is_file else url, _Database(place, files))

    with log.index_connection() as connection:  # writes what waits
        add(connection)
    (index,) = found
    with runs.connect() as connection:
        add(connection)
    if isinstance(schedules, SqlScheduleStorage):
        with schedules.connect() as connection:
            add(connection)
    for file in sorted(index.parent.iterdir()) if isinstance(index, Path) else ():
        if file.name.endswith(".db"):
            found.setdefault(file, _Database(file, files, is_of_run=True))
    return list(found.values())


def _tables_of(
    connection: Connection, columns: Mapping[str, Iterable[str]]
) -> Iterator[tuple[db.Table, list[str]]]:
    """Yield those of the tables that a database has, with the columns that it has of them."""
    known = db.inspect(connection)
    there = set(known.get_table_names())
    for table, names in columns.items():
        if table in there:
            has = {column["name"] for column in known.get_columns(table)}
            yield _TABLES[table], [name for name in names if name in has]


def _batches(connection: Connection, table: db.Table, columns: Iterable[str]) -> Iterator[list[Any]]:
    """Yield all rows of a table, with their ids, some at a time."""
    last = -1
    named = [table.c[name] for name in columns if name != "id"]
    while True:
        query = db.select(table.c.id, *named).where(table.c.id > last).order_by(table.c.id).limit(_BATCH)
        rows = list(connection.execute(query))
        if rows:
            yield rows
        if len(rows) < _BATCH:
            return
        last = rows[-1].id


def _erase_rows(database: _Database, connection: Connection, eraser: _Eraser) -> int:
    """Erase texts of a database, in one transaction for each batch of rows; return how many rows."""
    count = 0
    for table, columns in list(_tables_of(connection, database.texts)):
        read = [*columns, *(name for name in ("partition", "key") if name in table.c)]
        for batch in _batches(connection, table, read):
            rows = batch
            while changes := dict(_changes(table, columns, rows, eraser)):
                with database.write() as writing:
                    written = {key for key, new in changes.items() if _write(writing, table, key, new)}
                count += len(written)
                # What somebody has changed since it was read is looked at again.
                query = db.select(*(table.c[name] for name in ("id", *read)))
                rows = list(connection.execute(query.where(table.c.id.in_(changes.keys() - written))))
    return count


Change = tuple[str, str, str]  # column, text before, text after


def _changes(
    table: db.Table, columns: Collection[str], rows: Collection[Any], eraser: _Eraser
) -> Iterator[tuple[int, list[Change]]]:
    """Yield the ids of rows that are to be changed, each with what is."""
    texts = {text for row in rows for column in columns if (text := getattr(row, column))}
    traced = {text for text in texts if eraser.has_trace(text)} if eraser.has_trace(*texts) else set()
    for row in rows:
        if "key" in table.c and (row.key or "").startswith(OF_DAGSTER):
            continue
        found = []
        for column in columns:
            text = getattr(row, column)
            if text and (new := _erased(table, row, text, eraser, text in traced)) != text:
                found.append((column, text, new))
        if found:
            yield row.id, found


def _erased(table: db.Table, row: Any, text: str, eraser: _Eraser, has_trace: bool) -> str:
    if table.name in _TAGS:
        return eraser.tag(text) if has_trace else text
    may_quote = table.name in _ASSETS  # the last event of an asset, whatever its partition
    if table.name in _EVENTS:
        may_quote = row.partition in eraser.partitions if row.partition else _PICTURE in text
    return eraser.stored(text, has_trace=has_trace, may_quote=may_quote)


def _write(connection: Connection, table: db.Table, id_: int, changes: Iterable[Change]) -> bool:
    """Change a row; return whether it was still as it has been read."""
    update = table.update().where(table.c.id == id_, *(table.c[name] == old for name, old, _ in changes))
    return connection.execute(update.values({name: new for name, _, new in changes})).rowcount == 1


def _vacuum(database: _Database, connection: Connection, *, is_changed: bool) -> None:
    """Write a database without what was overwritten or deleted; one of a run only after a change.

    Raises:
        VacuumBlocked: others have an older state of it open, or it may not be vacuumed.
    """
    if database.is_postgres:
        connection.exec_driver_sql(f"SET lock_timeout = {int(_PATIENCE * 1000)}")
        try:
            _vacuum_postgres(str(database), connection)
        finally:
            connection.exec_driver_sql("RESET lock_timeout")
        warn_user(f"{database}: its write-ahead log, replicas and backups may keep what is erased here")
    if not database.is_file:
        return
    try:
        if is_changed or not database.is_of_run:
            connection.exec_driver_sql("VACUUM")
    except db.exc.OperationalError as error:
        raise VacuumBlocked(f"{database}: {error.orig}: end what writes to it, and repeat") from error
    # Waits for those who read an older state, and leaves nothing in the write-ahead log.
    is_busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
    if is_busy:
        raise VacuumBlocked(
            f"{database}: another process has open what it was before the erasure: end it (is mm-assets "
            "ui running?), and repeat"
        )


# Other transactions of this database for which it keeps what is older than the transaction `last`.
_OLDER = db.text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND age(backend_xmin) >= age(CAST(CAST(:last AS text) AS xid))"
)


def _vacuum_postgres(place: str, connection: Connection) -> None:
    last = connection.exec_driver_sql("SELECT txid_current() & 4294967295").scalar_one()
    until = time.monotonic() + _PATIENCE
    while connection.execute(_OLDER, {"last": last}).scalar_one():
        if time.monotonic() > until:
            raise VacuumBlocked(
                f"{place}: an open transaction is older than the erasure, and Postgres keeps what that "
                "sees: end it (pg_stat_activity, backend_xmin), and repeat"
            )
        time.sleep(0.1)
    for table, _ in list(_tables_of(connection, _TEXTS)):
        node = db.text("SELECT pg_relation_filenode(:name)").bindparams(name=table.name)
        before = connection.execute(node).scalar_one()
        try:
            connection.exec_driver_sql(f"VACUUM FULL {table.name}")
        except db.exc.OperationalError as error:
            raise VacuumBlocked(f"{place}: {table.name}: {str(error.orig).strip()}: repeat") from error
        if connection.execute(node).scalar_one() == before:  # of others' tables it only warns
            raise VacuumBlocked(f"{place}: {table.name}: only its owner may rewrite it (VACUUM FULL)")


def _erase_printed(instance: dg.DagsterInstance, eraser: _Eraser) -> int:
    """Erase lines with traces from files with what steps have printed; return how many files."""
    manager = instance.compute_log_manager
    local = getattr(manager, "local_manager", manager)
    folders = {Path(instance.storage_directory())}
    if isinstance(local, LocalComputeLogManager):
        folders.add(Path(local._base_dir))
    if not isinstance(manager, LocalComputeLogManager | NoOpComputeLogManager):
        warn_user(
            f"{type(manager).__name__}: what steps have printed is not on this machine, and not looked at: "
            "erase it there"
        )
    found = sorted({path for folder in folders for path in folder.rglob("*") if path.is_file()})
    return sum(_erase_lines(path, eraser) for path in found if path.suffix in _PRINTED)


def _erase_lines(path: Path, eraser: _Eraser) -> bool:
    """Write a file without lines that hold traces; return whether there were some."""
    if not any(map(eraser.is_trace, _lines_of(path))):
        return False
    sweep(str(path.parent))  # what one that was killed has left
    with staged(str(path)) as new:
        with open(new.path, "wb") as file:
            for lines in _lines_of(path):
                file.write(eraser.lines(lines).encode(errors="surrogateescape"))
        new.publish()
    return True


def _lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file, many at a time."""
    with open(path, "rb") as file:
        while lines := file.readlines(_LINES):
            yield b"".join(lines).decode(errors="surrogateescape")
