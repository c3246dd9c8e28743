"""Partition records: the rows of a Lance table that belong to each partition, one file per `FragmentSet`.

The table has no partition column, so the records, in ``<table>/_mm_assets/partitions/``, name the data files
that were written for a partition and its sample ids. A record is put before its commit (an intent) and once
more after it, with the version. **The table is the truth, records are a superset of it**: a record counts
only when its data files are in the current version, or (after a compaction, which moves rows into files that
no record names) when its commit is known.

Each commit call writes its own record files. Another may delete them only when they say that they were
committed, or are old. So no committer, however slow, can delete the record of rows that another is about to
commit.

``<table>/_mm_assets/record_index/`` has what committed records say, without the sample ids, in few files
(`FileIndex`): to read the records of all partitions, a run opens those files and the records that are new.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from urllib.parse import quote

import pyarrow as pa
import xxhash

from mm_assets.formats.lance import Location, each
from mm_assets.formats.lance.fragments import FragmentSet, pack_ids, unpack_ids
from mm_assets.model.errors import warn_user
from mm_assets.storage.files import join
from mm_assets.storage.small_files import FileFacts, FileIndex, hashes_of
from mm_assets.storage.stamps import files_in
from mm_assets.storage.temporary import is_temporary

FOLDER = "_mm_assets/partitions"
INDEX_FOLDER = "_mm_assets/record_index"
_SUFFIX = ".arrow"
_SEAL = "seal"  # digest of the rest of a record
_LONGEST_NAME = 150  # bytes of a partition's name in a file name; file systems take 255 with the set id
# Another process may be between its intent and its commit; Lance gives unfinished writers the same seven
# days.
_INTENT_SECONDS = 7 * 24 * 3600.0
_INDEXED_AT_ONCE = 2000  # records in memory before they are written to the index
_NO_IDS = pack_ids(pa.array([], pa.string()))


@dataclass(frozen=True)
class PartitionRecord:
    """One `FragmentSet` that was, or was to be, committed.

    Args:
        attempt: id of the commit call that wrote the record.
        rows: number of rows; 0 is the removal of the partition.
        read_version: the table's version when the intent was put.
        version: version that the commit made; None: not known to be committed.
        created: Unix time in seconds.
        load_ids: returns the packed sample ids; of a record that has been pruned meanwhile, those of no
            sample.
    """

    partition: str
    set_id: str
    attempt: str
    rows: int
    samples: int
    nbytes: int
    digest: str
    schema_digest: str
    data_files: tuple[str, ...]
    read_version: int
    version: int | None
    created: float
    load_ids: Callable[[], bytes] = dataclasses.field(repr=False, compare=False)

    @classmethod
    def intent(cls, fragments: FragmentSet, read_version: int, attempt: str) -> PartitionRecord:
        return cls(
            partition=fragments.partition,
            set_id=fragments.set_id,
            attempt=attempt,
            rows=fragments.rows,
            samples=fragments.samples,
            nbytes=fragments.nbytes,
            digest=fragments.digest,
            schema_digest=hashlib.sha256(fragments.schema).hexdigest(),
            data_files=fragments.data_files(),
            read_version=read_version,
            version=None,
            created=time.time(),
            load_ids=partial(_known, fragments.packed_ids),
        )

    def committed(self, version: int, attempt: str) -> PartitionRecord:
        return replace(self, version=version, attempt=attempt)

    def sample_ids(self) -> pa.Array:
        return unpack_ids(self.load_ids())

    def holds(self, fragments: FragmentSet) -> bool:
        """Return whether these are the rows of ``fragments``.

        They are if it is the same set, or has equal digest, row count and schema.
        """
        if self.set_id == fragments.set_id:
            return True
        return (
            fragments.digest != ""
            and (self.digest, self.rows) == (fragments.digest, fragments.rows)
            and self.schema_digest == hashlib.sha256(fragments.schema).hexdigest()
        )

    def may_be_deleted(self) -> bool:
        """Return whether another committer may delete the record.

        A young intent may not be deleted: its writer may be alive.
        """
        return self.version is not None or time.time() - self.created > _INTENT_SECONDS

    @property
    def path(self) -> str:
        return f"{FOLDER}/{_file_key(self.partition)}@{self.set_id}-{self.attempt}{_SUFFIX}"

    def to_bytes(self) -> bytes:
        text, packed_ids = self.header(), self.load_ids()
        seal = json.dumps({_SEAL: _seal(text.encode(), packed_ids)})
        packed = f"{text[:-1]}, {seal[1:]}".encode()
        return len(packed).to_bytes(8, "little") + packed + packed_ids

    def header(self) -> str:
        """Return everything but the sample ids as text, for `from_header`."""
        return json.dumps({name: value for name, value in self.__dict__.items() if name != "load_ids"})

    @classmethod
    def from_header(cls, text: str | bytes, load_ids: Callable[[], bytes]) -> PartitionRecord:
        values = json.loads(text)
        return cls(**{**values, "data_files": tuple(values["data_files"])}, load_ids=load_ids)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> PartitionRecord:
        try:
            end = 8 + int.from_bytes(data[:8], "little")
            packed = data[8:end]
            seal = json.loads(packed).get(_SEAL)  # older records have none
            if seal is not None:
                written_last = f', "{_SEAL}": {json.dumps(seal)}}}'.encode()
                sealed = packed.removesuffix(written_last) + b"}"  # the text before the seal
                if not packed.endswith(written_last) or seal != _seal(sealed, data[end:]):
                    raise ValueError("not as it was written")
                packed = sealed
            return cls.from_header(packed, partial(_known, data[end:]))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"damaged partition record {name}: {error}") from error


class PartitionRecords:
    """The record files of one table."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._index = FileIndex(join(location.uri, INDEX_FOLDER), location.fs_options)
        self._put: dict[str, bytes] = {}  # by path, until they are indexed

    def all(self) -> dict[str, list[PartitionRecord]]:
        """Return every record, by partition; those in the index without their sample ids, see `load_ids`."""
        stamps = self._stamps()
        named = {
            name: PartitionRecord.from_header(text, partial(self._load_ids, name))
            for name, text in self._index.texts(stamps).items()
        }
        named |= self._read(stamps.keys() - named.keys())
        found: dict[str, list[PartitionRecord]] = {}
        for _, record in sorted(named.items()):
            found.setdefault(record.partition, []).append(record)
        return found

    def names(self) -> dict[str, list[str]]:
        """Return the names of the record files, by the key of their partition: one listing."""
        found: dict[str, list[str]] = {}
        for name in self._location.names(FOLDER):
            found.setdefault(name.rpartition("@")[0], []).append(name)
        return found

    def of(
        self, partitions: Collection[str], listed: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, list[PartitionRecord]]:
        """Return the records of these partitions; each is a key, with an empty list when it has none.

        Args:
            listed: the names of the record files, as `names` has returned them.
        """
        by_key = self.names() if listed is None else listed
        names = [name for key in map(_file_key, partitions) for name in by_key.get(key, ())]
        found: dict[str, list[PartitionRecord]] = {partition: [] for partition in partitions}
        for record in self._read(names).values():
            if record.partition in found:
                found[record.partition].append(record)
        return found

    def named(self, partitions: Iterable[str]) -> set[str]:
        """Return those of some partitions that have a record, by file names alone."""
        keys = {name.rpartition("@")[0] for name in self._location.names(FOLDER) if name.endswith(_SUFFIX)}
        return {partition for partition in partitions if _file_key(partition) in keys}

    def put(self, records: Iterable[PartitionRecord]) -> None:
        def put_one(record: PartitionRecord) -> None:
            data = record.to_bytes()
            self._location.put(record.path, data)
            self._put[record.path] = data

        each(put_one, records)

    def index(self) -> None:
        """Index the committed records that are not indexed yet: they do not change any more.

        A damaged one is left out: whoever reads all records is told of it.
        """
        stamps = self._stamps()
        missing = sorted(stamps.keys() - self._index.texts(stamps).keys())
        put, self._put = self._put, {}
        for start in range(0, len(missing), _INDEXED_AT_ONCE):
            facts = {}
            some = missing[start : start + _INDEXED_AT_ONCE]
            own = [(name, data) for name in some if (data := put.get(f"{FOLDER}/{name}")) is not None]
            others = self._contents(sorted({*some}.difference(name for name, _ in own)))
            for name, data in chain(own, others):
                with suppress(ValueError):
                    record = PartitionRecord.from_bytes(data, name)
                    if record.version is not None:
                        facts[name] = FileFacts(record.header(), hashes_of(()))
            if facts:
                self._index.add(facts, stamps)

    def sweep(self) -> None:
        """Remove what killed writers left."""
        self._location.sweep(FOLDER)

    def delete(self, records: Iterable[PartitionRecord]) -> None:
        each(lambda record: self._location.delete(record.path), records)

    def drop_damaged(self, partitions: Collection[str]) -> None:
        """Delete damaged records of partitions that are about to be written again.

        Their rows become orphan rows, and are replaced.
        """
        keys = {_file_key(partition) for partition in partitions}
        for name in self._location.names(FOLDER):
            if name.rpartition("@")[0] in keys:
                try:
                    self._read([name])
                except ValueError as error:
                    warn_user(f"{error}: its partition is written again")
                    self._location.delete(f"{FOLDER}/{name}")

    def _read(self, names: Iterable[str]) -> dict[str, PartitionRecord]:
        return {
            name: PartitionRecord.from_bytes(data, f"{self._location.uri}/{FOLDER}/{name}")
            for name, data in self._contents(names)
        }

    def _contents(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each record, but of those that were pruned since they were listed."""
        wanted = [name for name in names if name.endswith(_SUFFIX)]
        contents = self._location.read_all([f"{FOLDER}/{name}" for name in wanted])
        for name, data in zip(wanted, contents, strict=True):
            if data is not None:
                yield name, data

    def _load_ids(self, name: str) -> bytes:
        record = self._read([name]).get(name)
        return record.load_ids() if record is not None else _NO_IDS

    def _stamps(self) -> Mapping[str, str]:
        files = files_in(join(self._location.uri, FOLDER), self._location.fs_options, _SUFFIX)
        return {name: file.stamp for name, file in files.items() if not is_temporary(name)}


def _known(packed_ids: bytes) -> bytes:
    return packed_ids  # a function that can be pickled


def _seal(values: bytes, packed_ids: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(values + packed_ids)


def _file_key(partition: str) -> str:
    """Return the partition's part of a file name.

    It is injective: ``quote`` never returns a name that starts with ``=``, and no ``@``.
    """
    key = quote(partition, safe="")
    return key if len(key) <= _LONGEST_NAME else "=" + hashlib.sha256(partition.encode()).hexdigest()


@dataclass(frozen=True)
class LancePartitionStats:
    """One partition of one version of a table.

    Args:
        rows: number of rows as written.
        nbytes: size of the data files as written.
        version: version of the commit; None when its process died before it was recorded.
        fragment_ids: fragments that hold all of the partition's rows and no others. Empty when there are none
            such: compaction merged or rewrote some, or rows were deleted by hand.
        is_whole: whether all rows are there, in whichever fragments.
    """

    partition: str
    rows: int
    samples: int
    nbytes: int
    digest: str
    set_id: str
    version: int | None
    fragment_ids: tuple[int, ...]
    is_whole: bool
