"""Tags: a name for the state of all outputs, kept as a manifest and as a tag of the Lance table.

versions/<tag>.parquet   a row per shard and asset: versions, inputs, files with sizes and digests
versions/<tag>.json      when, settings, sums, and the digest of the other file. It is published last: a tag
                         without it does not exist

`Tagger` makes a tag, `Manifest` reads one. Names of tags become file names and tags of the Lance table, so
both must take them (`check_tag_name`).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from mm_assets import __version__
from mm_assets.accounting import BY_ASSET, LANCE, OUTPUTS, ShardRecord
from mm_assets.accounting.erasures import DenyList
from mm_assets.accounting.formats import accounted_format
from mm_assets.accounting.traces import Found
from mm_assets.formats.arrow_cache import digest_of
from mm_assets.formats.parquet import UNREADABLE
from mm_assets.model.errors import DataError
from mm_assets.pool import WorkerFailure
from mm_assets.pool.workers import WorkerPool
from mm_assets.storage.files import (
    StagedFile,
    exists,
    filesystem,
    is_remote,
    join,
    local_path,
    open_binary,
    remove,
    staged,
    sweep,
)
from mm_assets.storage.small_files import seal, unseal
from mm_assets.versions import (
    FOLDER,
    CaptureJob,
    CurrentState,
    FileState,
    Group,
    OutputState,
    SampleStore,
    by_partition,
    capture,
    file_states,
)

NOW = "now"  # stands for the current state
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_tag_name(name: str) -> None:
    """Check that a name is one to 100 letters, digits, dots, hyphens and underscores.

    Raises:
        ValueError: in one line, for any other name, and for ``now``.
    """
    if name == NOW:
        raise ValueError(f"{NOW!r} stands for the current state: choose another name for the tag")
    if not _NAME.fullmatch(name) or ".." in name or name.endswith((".", ".lock")):
        raise ValueError(
            f"{name!r:.120} is no name of a tag: 1 to 100 of A-Z a-z 0-9 . _ -, with a letter or digit "
            "first, not two dots together, and no dot or '.lock' at the end"
        )


def check_new_tag_name(name: str, existing: Iterable[str]) -> None:
    """Check that no name differs by case only: on some systems these are one file.

    Raises:
        ValueError: in one line, for one that does, and for ``now`` in any case.
    """
    if same := next((other for other in (NOW, *existing) if other.lower() == name.lower()), None):
        what = "which stands for the current state" if same == NOW else "which there is"
        raise ValueError(f"{name!r} differs by case only from {same!r}, {what}: choose another name")


FORMAT = 1
_FILE = pa.struct(
    [("path", pa.string()), ("bytes", pa.int64()), ("digest", pa.string()), ("mark", pa.string())]
)
STATES_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        pa.field("asset", pa.string(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("made_by", pa.string(), nullable=False),
        pa.field("inputs", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("rows", pa.int64()),
        pa.field("samples", pa.int64()),
        pa.field("losses", pa.string(), nullable=False),
        pa.field("files", pa.list_(_FILE), nullable=False),
    ]
)
_ROWS_AT_ONCE = 4096


class Manifest:
    """The manifest of an existing tag.

    Args:
        root: storage root.
        name: the tag.

    Raises:
        ValueError: the name is none, or the manifest was changed or torn.
        FileNotFoundError: there is no such tag.
    """

    def __init__(self, root: str, name: str) -> None:
        check_tag_name(name)
        self.name = name
        self._uri = states_uri(root, name)
        header = header_uri(root, name)
        if not exists(header):
            known = ", ".join(tag_names(root)[:20]) or "none"
            raise FileNotFoundError(f"{root}: no tag {name!r}; tags here: {known}")
        with open_binary(header) as file:
            data = file.read()
        try:
            self.header = unseal(data)
            if self.header["format"] != FORMAT:
                raise ValueError(f"of format {self.header['format']}, and {FORMAT} is known")
        except (ValueError, LookupError) as error:
            raise DataError(f"{header}: not a manifest: {error}") from error

    def states(self) -> Iterator[OutputState]:
        """Yield the states, sorted by partition, each partition's in the order of the graph.

        Raises:
            DataError: the file was changed or torn.
        """
        settings: Mapping[str, Any] = self.header["settings"]
        with ExitStack() as stack:
            try:
                source = stack.enter_context(open_binary(self._uri))
                if digest_of(source) != self.header["states"]["digest"]:
                    raise ValueError("other bytes than were written")
                source.seek(0)
                file = pq.ParquetFile(source, pre_buffer=False)
                for batch in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
                    for row in batch.to_pylist():
                        files = tuple(FileState(**entry) for entry in row.pop("files"))
                        inputs = dict(row.pop("inputs"))
                        known = settings.get(row["made_by"], {})
                        yield OutputState(**row, inputs=inputs, files=files, settings=known)
            except UNREADABLE as error:
                raise DataError(f"{self._uri}: not readable: {error}") from error

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Yield the states of each partition by asset, sorted by partition."""
        return by_partition(self.states())


def state_rows(states: Iterator[OutputState] | list[OutputState]) -> pa.Table:
    """Return states as a table in `STATES_SCHEMA`."""
    rows = []
    for state in states:
        row = {name: getattr(state, name) for name in STATES_SCHEMA.names}
        row["inputs"] = sorted(state.inputs.items())
        row["files"] = [asdict(file) for file in state.files]
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=STATES_SCHEMA)


def publish_header(root: str, name: str, header: Mapping[str, Any]) -> None:
    """Publish the manifest's header, with which the tag exists."""
    with staged(header_uri(root, name)) as file:
        with open(file.path, "wb") as stream:
            stream.write(seal({"format": FORMAT, **header}, indent=1))
        file.publish()


def tag_names(root: str) -> list[str]:
    """Return the names of all tags, sorted."""
    fs, path = filesystem(join(root, FOLDER))
    fs.invalidate_cache()
    try:
        names = [str(file).rpartition("/")[2] for file in fs.ls(path, detail=False)]
    except FileNotFoundError:
        return []
    return sorted(n.removesuffix(".json") for n in names if n.endswith(".json") and not n.startswith("."))


def newest(root: str) -> Manifest | None:
    """Return the manifest of the tag that was made last; None without any that can be read."""
    found = []
    for name in tag_names(root):
        try:
            found.append(Manifest(root, name))
        except ValueError:  # whoever asks for that very tag is told
            continue
    return max(found, key=lambda manifest: str(manifest.header["created"]), default=None)


def drop_tag(root: str, name: str) -> None:
    """Remove a tag: its two files, and the tag of the Lance table. What is of it already gone is no error."""
    check_tag_name(name)
    remove(header_uri(root, name))  # first: without it there is no tag
    uri = LANCE.place(root, "")
    if exists(join(uri, "_versions")):
        from mm_assets.formats.lance.reader_writer import lance_options
        from mm_assets.formats.lance.table import PinnedTable

        PinnedTable(uri, lance_options(uri, None)).untag(name)
    remove(states_uri(root, name))


def header_uri(root: str, name: str) -> str:
    """Return the location of a tag's header."""
    return join(root, FOLDER, f"{name}.json")


def states_uri(root: str, name: str) -> str:
    """Return the location of a tag's states."""
    return join(root, FOLDER, f"{name}.parquet")


def identity(state: OutputState) -> bytes:
    """Return bytes that two states share only if content, origin and files are the same."""
    files = [(file.path, file.bytes, file.digest) for file in state.files]
    return json.dumps([state.partition, state.asset, state.version, state.fingerprint, files]).encode()


_STATES_AT_ONCE = 4096


def tags_holding(
    root: str,
    found: Found,
    partitions: Collection[str],
    deny: DenyList,
    present: Collection[tuple[str, str, str]],
) -> tuple[list[str], list[str]]:
    """Return our tags that hold it, and further tags of the table.

    Looked at are what a tag has of the shards that hold it now, and states that are not the present ones.
    """
    of_table, ours, store = _table_tags(root, found), tag_names(root), SampleStore(join(root, FOLDER))
    if not ours:
        return [], sorted(of_table)
    ids = {sample.sample_id for sample in found.samples if sample.is_whole}

    @cache
    def tells(kind: str, digest: str) -> bool:
        if kind == "samples":
            known: Iterable[str | None] = store.samples(digest) or ()
        else:
            losses = store.losses(digest)
            known = () if losses is None else losses.column("sample_id").unique().to_pylist()
        return any(each in ids or (each is not None and deny.hides_sample(each)) for each in known)

    def holds(state: OutputState) -> bool:
        key = state.partition, state.version, state.losses
        if state.partition not in partitions and key in present:
            return False
        has_rows = state.has_rows and tells("samples", state.version)
        return has_rows or (bool(state.losses) and tells("losses", state.losses))

    holding = [name for name in ours if name in of_table or any(map(holds, Manifest(root, name).states()))]
    return holding, sorted(of_table.difference(ours))


def _table_tags(root: str, found: Found) -> set[str]:
    """Return the tags of the table whose version has rows of the samples."""
    uri = LANCE.place(root, "")
    if not found.samples or not exists(join(uri, "_versions")):
        return set()
    import lance

    from mm_assets.formats.lance.reader_writer import lance_options
    from mm_assets.formats.lance.snapshot import ids_predicate
    from mm_assets.formats.lance.table import PinnedTable

    options = lance_options(uri, None)
    where = ids_predicate({sample.sample_id for sample in found.samples})
    denied = {(s.sample_id, *item) for s in found.samples if not s.is_whole for item in s.items}
    whole = {sample.sample_id for sample in found.samples if sample.is_whole}
    holding = set()
    for name, version in PinnedTable(uri, options).tags().items():
        dataset = lance.dataset(uri, version=version, storage_options=options or None)
        rows = dataset.to_table(columns=["sample_id", "position", "modality"], filter=where).to_pylist()
        if any(row["sample_id"] in whole or tuple(row.values()) in denied for row in rows):
            holding.add(name)
    return holding


class Tagger:
    """Maker of one tag.

    Args:
        root: storage root, a folder or URL.
        name: name of the tag.
        pool: workers that read outputs.

    Raises:
        ValueError: the name cannot be one, or the Lance table has a tag of this name from someone else.
    """

    def __init__(self, root: str, name: str, pool: WorkerPool) -> None:
        check_tag_name(name)
        existing = tag_names(root)
        if name not in existing:
            check_new_tag_name(name, existing)
        self._root, self._name, self._pool = root, name, pool
        self._existing = Manifest(root, name) if exists(header_uri(root, name)) else None
        self._current = CurrentState(root)
        if not self._current.partitions:
            raise FileNotFoundError(f"{root}: no output of the graph is recorded here; nothing to tag")
        self._table = self._pinned_table()
        self._settings: dict[str, Mapping[str, Any]] = {}
        self._sums: dict[str, dict[str, int]] = {}
        self._state = xxhash.xxh3_128()
        self._attributed: set[str] = set()  # data files of the table that belong to one partition

    def run(self) -> bool:
        """Make the tag, and return True; False where it marks this very state already.

        Raises:
            ValueError: the tag exists and marks another state, or an output is not what its record says.
        """
        for below in ("", "samples", "losses"):
            sweep(join(self._root, FOLDER, below))
        with staged(states_uri(self._root, self._name)) as file:
            with pq.ParquetWriter(file.path, STATES_SCHEMA, compression="zstd") as writer:
                for states in _chunks(self._states()):
                    writer.write_table(state_rows(states))
            shared = self._shared_files()
            for entry in shared:
                self._state.update(repr((entry.path, entry.bytes, entry.digest)).encode())
            with self._alone():
                names = tag_names(self._root)  # others may have been made meanwhile
                if self._name in names:
                    existing = Manifest(self._root, self._name)
                    if existing.header["state"] == self._state.hexdigest():
                        file.discard()
                        return False
                    raise ValueError(
                        f"{self._root}: tag {self._name!r} exists and marks another state; "
                        "choose another name"
                    )
                check_new_tag_name(self._name, names)
                self._publish(file, shared)
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for others that are about to make a tag; for those on an object store see `_withdraw`."""
        folder = join(self._root, FOLDER)
        if is_remote(folder):
            yield
            return
        descriptor = os.open(local_path(folder), os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # released when it is closed, or the process killed
            yield
        finally:
            os.close(descriptor)

    def _withdraw(self) -> None:
        """Take the new tag back if another has come whose name differs by case only.

        On an object store two may be made at the same time: each sees the other, or one of them does.
        """
        try:
            others = [name for name in tag_names(self._root) if name != self._name]
            check_new_tag_name(self._name, others)
        except ValueError:
            remove(header_uri(self._root, self._name))
            raise

    def _publish(self, file: StagedFile, shared: list[FileState]) -> None:
        with open(file.path, "rb") as stream:
            digest = digest_of(stream)
        nbytes = file.publish()
        if self._table is not None:
            self._table.tag(self._name)
        header = {
            "tag": self._name,
            "created": datetime.now(UTC).isoformat(timespec="microseconds"),
            "mm_assets": __version__,
            "state": self._state.hexdigest(),
            "lance_version": self._table.version if self._table is not None else None,
            "assets": self._sums,
            "settings": self._settings,
            "shared_files": [{"path": f.path, "bytes": f.bytes, "digest": f.digest} for f in shared],
            "states": {"bytes": nbytes, "digest": digest},
        }
        publish_header(self._root, self._name, header)
        self._withdraw()

    def _states(self) -> Iterator[OutputState]:
        """Yield the captured states, sorted by partition."""
        done: dict[str, tuple[OutputState, ...]] = {}
        waiting: deque[str] = deque()

        def jobs() -> Iterator[CaptureJob]:
            known = _Known(self._existing or newest(self._root))
            for records in self._current.records():
                table_files = self._table_files(records)
                for group in records:
                    key = group[0].key
                    waiting.append(key)
                    yield CaptureJob(
                        self._root,
                        group,
                        join(self._root, FOLDER),
                        known.files(key),
                        table_files.get(key, ()),
                    )

        for job, answer in self._pool.map(capture, jobs()):
            if isinstance(answer, WorkerFailure):
                raise DataError(str(answer))
            done[job.records[0].key] = answer
            while waiting and waiting[0] in done:
                for state in done.pop(waiting.popleft()):
                    self._count(state)
                    yield state

    def _count(self, state: OutputState) -> None:
        self._state.update(identity(state))
        if state.settings:
            self._settings[state.made_by] = state.settings
        sums = self._sums.setdefault(state.asset, {"shards": 0, "rows": 0, "samples": 0, "bytes": 0})
        sums["shards"] += 1
        sums["rows"] += state.rows or 0
        sums["samples"] += state.samples or 0
        sums["bytes"] += sum(file.bytes for file in state.files)

    def _shared_files(self) -> list[FileState]:
        """Return the files that belong to no single partition."""
        uris = [
            join(self._root, output.folder, name)
            for output in OUTPUTS
            for name in accounted_format(output.kind).folder_files
        ]
        if self._table is not None:
            files = (f"{LANCE.folder}/{path}" for path in self._table.data_files())
            uris += [join(self._root, path) for path in files if path not in self._attributed]
        return file_states(self._root, uris, {})

    def _table_files(self, records: list[list[ShardRecord]]) -> dict[str, tuple[str, ...]]:
        """Return the data files of each partition, as paths below the root.

        Raises:
            DataError: the table has other rows than the records say.
        """
        recorded = {r.key: r for group in records for r in group if r.asset == LANCE.asset}
        found = self._table.partitions(list(recorded)) if self._table is not None and recorded else {}
        for key, record in recorded.items():
            stats = found[key].stats if key in found else None
            wanted = (record.stat or {}).get("set_id")
            if (stats.set_id if stats is not None else None) != wanted or (stats and not stats.is_whole):
                raise DataError(
                    f"{LANCE.asset}, shard {key!r}: the table has other rows than its record says; "
                    "materialize the shard again, or wait for the run that is making it"
                )
        paths = {key: tuple(f"{LANCE.folder}/{path}" for path in found[key].files) for key in found}
        for files in paths.values():
            self._attributed.update(files)
        return paths

    def _pinned_table(self) -> Any:
        uri = BY_ASSET[LANCE.asset].place(self._root, "")
        if not exists(join(uri, "_versions")):
            return None
        from mm_assets.formats.lance.reader_writer import lance_options
        from mm_assets.formats.lance.table import PinnedTable

        table = PinnedTable(uri, lance_options(uri, None))
        # A tag of the table without a manifest is a tag that was being made when its process died, if there
        # are states of that name; else it is somebody's own.
        is_ours = exists(states_uri(self._root, self._name))
        if self._name in table.tags() and not is_ours:
            raise ValueError(
                f"{uri}: the table has a tag {self._name!r} that is not ours; choose another name"
            )
        return table


class _Known:
    """Files of the earlier tag, for partitions that are asked for in sorted order."""

    def __init__(self, manifest: Manifest | None) -> None:
        self._groups: Iterator[tuple[str, Group]] = iter(()) if manifest is None else manifest.groups()
        self._next = next(self._groups, None)

    def files(self, partition: str) -> dict[str, FileState]:
        while self._next is not None and self._next[0] < partition:
            self._next = next(self._groups, None)
        if self._next is None or self._next[0] != partition:
            return {}
        return {f.path: f for state in self._next[1].values() for f in state.files if f.mark}


def _chunks(states: Iterator[OutputState]) -> Iterator[list[OutputState]]:
    chunk: list[OutputState] = []
    for state in states:
        chunk.append(state)
        if len(chunk) >= _STATES_AT_ONCE:
            yield chunk
            chunk = []
    yield chunk
