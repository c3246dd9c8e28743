"""Versions of the outputs: their state, tags that mark it, and the differences between two states.

The state says what a shard of an asset was made from, what came out, and its files.

* `OutputState` is the state of one partition of one asset, `CurrentState` yields all below a storage root, by
  the records of their shards.
* `capture` is the work on one partition for a tag, in a worker: digests of its files and samples.
* `SampleStore` keeps sample digests and lost items of outputs that were tagged. A later comparison needs
  them, as the outputs may be gone by then:

versions/samples/<data version>.parquet   a row per sample: its id, and the sum of the digests of its rows
versions/losses/<digest>.parquet          the lost items of a shard's account

Both are named by their content: tags and assets with the same content share a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.accounting import (
    BY_ASSET,
    DERIVED,
    ITEMS_SCHEMA,
    OUTPUTS,
    ShardRecord,
    digest_files,
    recorded_files,
)
from mm_assets.accounting.accounts import Ledger, losses_digest
from mm_assets.accounting.canonical import CanonicalSource, retyped
from mm_assets.accounting.formats import accounted_format
from mm_assets.formats.parquet import UnreadableFile, publish_table, read_small_table
from mm_assets.model.digest import ContentDigest, row_digests
from mm_assets.model.errors import DataError
from mm_assets.model.schema import schema_from_text
from mm_assets.storage.files import exists, join, staged
from mm_assets.storage.stamps import stat_outputs

# All assets with outputs, each behind those that it is made from.
ASSETS = tuple(asset for output in OUTPUTS for asset in (output.asset, *DERIVED.get(output.asset, ())))
_ORDER = {asset: number for number, asset in enumerate(ASSETS)}


@dataclass(frozen=True)
class FileState:
    """A file of an output.

    Args:
        path: path below the storage root.
        bytes: its size.
        digest: xxh3-128 of its bytes, in hex.
        mark: modification time or etag: by it a later tag knows the file again without reading it.
    """

    path: str
    bytes: int
    digest: str
    mark: str = ""


@dataclass(frozen=True)
class OutputState:
    """One partition of one asset.

    Args:
        version: data version: a digest of the content.
        fingerprint: digest of everything that it was made from.
        made_by: digest of code and settings.
        settings: the same in readable form; empty in records of older releases.
        inputs: data version of each input, by asset; empty in records of older releases.
        rows: number of rows; None for an asset without rows.
        samples: number of samples; likewise.
        losses: digest of the account with its lost items; empty where it lost none.
        files: its files; empty where they were not asked for.
    """

    asset: str
    partition: str
    version: str
    fingerprint: str
    made_by: str
    inputs: Mapping[str, str]
    rows: int | None = None
    samples: int | None = None
    losses: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[FileState, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether the asset is one of interleaved rows."""
        return self.asset in BY_ASSET


Group = Mapping[str, OutputState]  # states of one partition, by asset


def by_partition(states: Iterator[OutputState]) -> Iterator[tuple[str, Group]]:
    """Yield the states of each partition by asset, in the order of the graph."""
    for partition, group in groupby(states, lambda state: state.partition):
        members = sorted(group, key=lambda state: _ORDER.get(state.asset, len(_ORDER)))
        yield partition, {state.asset: state for state in members}


def merged(
    left: Iterator[tuple[str, Group]], right: Iterator[tuple[str, Group]]
) -> Iterator[tuple[str, Group, Group]]:
    """Yield each partition of two sorted sequences with its states in both; one partition at a time."""
    end: tuple[str | None, Group] = (None, {})
    one, other = next(left, end), next(right, end)
    while one[0] is not None or other[0] is not None:
        partition = min(name for name in (one[0], other[0]) if name is not None)
        in_left, in_right = one[0] == partition, other[0] == partition
        yield partition, one[1] if in_left else {}, other[1] if in_right else {}
        one = next(left, end) if in_left else one
        other = next(right, end) if in_right else other


SAMPLES_SCHEMA = pa.schema(
    [pa.field("sample_id", pa.string(), nullable=False), pa.field("digest", pa.binary(16), nullable=False)]
)
LOCATOR = "source_ref"
_DIGEST = re.compile("[0-9a-f]{32}")
_MODULUS = 1 << 128
_ROWS_AT_ONCE = 1 << 14


class SampleStore:
    """Sample digests and lost items below ``folder``, a folder or URL."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._found: set[str] = set()  # data versions: outputs of a shard often have the same

    def has(self, version: str) -> bool:
        """Return whether the sample digests of a data version are here."""
        if version not in self._found and exists(self._uri("samples", version)):
            self._found.add(version)
        return version in self._found

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
        with staged(self._uri("samples", version)) as file:
            pq.write_table(table, file.path, compression="zstd", use_dictionary=False, write_statistics=False)
            file.publish()
        self._found.add(version)

    def copy_losses(self, ledger: Ledger, record: ShardRecord) -> None:
        """Publish a copy of a shard's lost items, if it has any and it is not here yet.

        Raises:
            DataError: the account is not the one that the record was written with.
        """
        digest = losses_digest(record)
        if not digest or exists(self._uri("losses", digest)):
            return
        try:
            items = ledger.recorded_items(record)
        except UnreadableFile as error:
            raise DataError(f"{error}; materialize the shard again") from error
        publish_table(self._uri("losses", digest), items)

    def _read(self, kind: str, digest: str, schema: pa.Schema) -> pa.Table | None:
        uri = self._uri(kind, digest)
        with suppress(FileNotFoundError):
            return read_small_table(uri, schema.names)
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


_AT_ONCE = 500  # partitions whose records are in memory


class CurrentState:
    """The recorded outputs below ``root`` (a folder or URL), partition by partition in sorted order."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._ledger = Ledger(root)
        self._keys = {asset: set(self._ledger.named(asset)) for asset in ASSETS}

    @property
    def partitions(self) -> list[str]:
        """All partitions of all assets, sorted."""
        return sorted(set().union(*self._keys.values()))

    def records(self) -> Iterator[list[list[ShardRecord]]]:
        """Yield the records of some partitions at a time: for each partition those of its assets.

        Raises:
            ValueError: a record cannot be read, so that nobody knows what was written.
        """
        ledger, partitions = self._ledger, self.partitions
        for start in range(0, len(partitions), _AT_ONCE):
            some = partitions[start : start + _AT_ONCE]
            found = {
                asset: ledger.records(asset, [name for name in some if name in self._keys[asset]])
                for asset in ASSETS
            }
            for asset, by_name in found.items():
                for name in some:
                    if name in self._keys[asset] and name not in by_name:
                        raise ValueError(
                            f"{ledger.uri(asset, name)}: unreadable, so the state of {asset} is not known: "
                            "materialize the shard again"
                        )
            yield [[found[asset][name] for asset in ASSETS if name in found[asset]] for name in some]

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Yield the states of each partition, without their files."""
        return by_partition(
            state_of(self._root, record) for several in self.records() for one in several for record in one
        )


def state_of(root: str, record: ShardRecord) -> OutputState:
    """Return the state that a record below a storage root tells, without its files."""
    account = record.account
    written = account.get("written", {})
    return OutputState(
        asset=record.asset,
        partition=record.key,
        version=record.version,
        fingerprint=record.fingerprint,
        made_by=str(account.get("made_by", "")),
        inputs=dict(account.get("inputs", {})),
        rows=written.get("rows"),
        samples=written.get("samples"),
        losses=losses_digest(record),
        settings=dict(account.get("settings", {})),
    )


FOLDER = "versions"


@dataclass(frozen=True)
class CaptureJob:
    """Records of one partition, and what is known of its files already.

    Args:
        root: storage root.
        records: its records, in the order of the graph.
        known: files of an earlier tag, by path.
        table_files: data files of its rows in the table, as paths below the root.
        store: folder of the sample digests.
        reads_files: whether files are digested and lost items copied, for a tag.
    """

    root: str
    records: Sequence[ShardRecord]
    store: str
    known: Mapping[str, FileState] = field(default_factory=dict)
    table_files: Sequence[str] = ()
    reads_files: bool = True


def capture(job: CaptureJob) -> tuple[OutputState, ...]:
    """Return the states of one partition, after its sample digests were put into the store.

    Sample digests are read from the first output with the data version, if the store does not have them, or
    the output is not as it was published.

    Raises:
        DataError: an output is not what its record says.
    """
    store, ledger = SampleStore(job.store), Ledger(job.root)
    stats = stat_outputs({record.uri for record in job.records if record.uri and not _is_table(record)})
    states = []
    for record in job.records:
        state = state_of(job.root, record)
        is_intact = _is_table(record) or not record.uri or stats[record.uri] == record.stat
        if not is_intact and stats[record.uri] is None:
            raise _other(job, record, "is gone")
        if record.asset in BY_ASSET and not (is_intact and store.has(record.version)):
            store.write_samples(record.version, _samples(job, record))
        elif not is_intact and ledger.problems([record]):
            raise _other(job, record, "is not as it was written")
        if job.reads_files:
            store.copy_losses(ledger, record)
            state = replace(state, files=_files(job, record))
        states.append(state)
    return tuple(states)


def file_states(root: str, uris: Sequence[str], known: Mapping[str, FileState]) -> list[FileState]:
    """Return the states of those files that exist; one with a known size and mark is not read again."""
    stats = {uri: stat for uri, stat in stat_outputs(uris).items() if stat is not None}
    prefix = join(root, "")
    unread = [uri for uri in stats if not _is_known(known.get(uri.removeprefix(prefix)), stats[uri])]
    digests = digest_files(root, unread)
    found = []
    for uri, stat in stats.items():
        path = uri.removeprefix(prefix)
        digest = digests.get(path)
        found.append(
            known[path]
            if digest is None
            else FileState(path, int(digest["bytes"]), str(digest["digest"]), _mark(stat))
        )
    return found


def _samples(job: CaptureJob, record: ShardRecord) -> dict[str, int]:
    output = BY_ASSET[record.asset]
    source = CanonicalSource(output.kind, record.uri, record.key)
    schema = schema_from_text(record.account["schema"]) if output.format.is_table else None
    samples, digest = sample_digests(source, schema)
    if digest != record.version:
        raise _other(job, record, "has other rows than were written")
    return samples


def _files(job: CaptureJob, record: ShardRecord) -> tuple[FileState, ...]:
    small = {path: found for path, found in recorded_files(record).items() if found is not None}
    if _is_table(record):
        uris = [join(job.root, path) for path in job.table_files]
    elif record.asset in BY_ASSET:
        kind = BY_ASSET[record.asset].kind
        uris = list(accounted_format(kind).files(record.uri, None)) if record.uri else []
    else:
        uris = []  # their one file is among the small ones
    states = file_states(job.root, uris, job.known)
    states += [FileState(path, int(found["bytes"]), str(found["digest"])) for path, found in small.items()]
    return tuple(sorted(states, key=lambda state: state.path))


def _is_table(record: ShardRecord) -> bool:
    return record.asset in BY_ASSET and BY_ASSET[record.asset].format.is_table


def _is_known(known: FileState | None, stat: Mapping[str, Any]) -> bool:
    return known is not None and known.mark == _mark(stat) and known.bytes == stat["size"]


def _mark(stat: Mapping[str, Any]) -> str:
    return str(stat["mtime_ns"] if "mtime_ns" in stat else stat["mark"])


def _other(job: CaptureJob, record: ShardRecord, what: str) -> DataError:
    place = record.uri.removeprefix(join(job.root, ""))
    return DataError(
        f"{record.asset}, shard {record.key!r}: {place} {what}; materialize the shard again, "
        "or wait for the run that is making it"
    )
