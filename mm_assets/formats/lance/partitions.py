"""Which rows of a Lance table belong to which partition: one small record file per written `FragmentSet`.

The table has no partition column, so the records, in ``<table>/_mm_assets/partitions/``, name the data files
that were written for a partition and its sample ids. A record is put before its commit (an intent) and once
more after it, with the version. **The table is the truth, records are a superset of it**: a record counts
only when its data files are in the current version, or (after a compaction, which moves rows into files that
no record names) when its commit is known.

Each commit call writes record files of its own, and another may delete them only when they say that they
landed, or are old: so no committer, however slow, can take away the record of rows that another is just about
to land.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

import pyarrow as pa
import xxhash

from mm_assets.formats.lance.fragments import FragmentSet, unpack_ids
from mm_assets.formats.lance.location import Location, each
from mm_assets.interleaved.notices import warn_user

FOLDER = "_mm_assets/partitions"
_SUFFIX = ".arrow"
_SEAL = "seal"  # digest of all the rest of a record
_LONGEST_NAME = 150  # bytes of a partition's name in a file name; file systems take 255 with the set id
# Another process may be between its intent and its commit; Lance gives unfinished writers the same seven
# days.
_INTENT_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class PartitionRecord:
    """One `FragmentSet` that was, or was to be, committed.

    ``attempt`` names the commit call that wrote it, ``read_version`` is the table's version when the intent
    was put, ``version`` the one that the commit made (None: not known to have landed), ``created`` Unix
    seconds. A record with no rows stands for the removal of its partition.
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
    packed_ids: bytes

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
            packed_ids=fragments.packed_ids,
        )

    def committed(self, version: int, attempt: str) -> PartitionRecord:
        return replace(self, version=version, attempt=attempt)

    def sample_ids(self) -> pa.Array:
        return unpack_ids(self.packed_ids)

    def holds(self, fragments: FragmentSet) -> bool:
        """Are these the rows of ``fragments``? By the set itself, or by equal digest, row count and schema."""
        if self.set_id == fragments.set_id:
            return True
        return (
            fragments.digest != ""
            and (self.digest, self.rows) == (fragments.digest, fragments.rows)
            and self.schema_digest == hashlib.sha256(fragments.schema).hexdigest()
        )

    def may_be_deleted(self) -> bool:
        """By another than its writer, who may be alive as long as a young record is an intent."""
        return self.version is not None or time.time() - self.created > _INTENT_SECONDS

    @property
    def path(self) -> str:
        return f"{FOLDER}/{_file_key(self.partition)}@{self.set_id}-{self.attempt}{_SUFFIX}"

    def to_bytes(self) -> bytes:
        values = {name: value for name, value in self.__dict__.items() if name != "packed_ids"}
        packed = json.dumps({**values, _SEAL: _seal(values, self.packed_ids)}).encode()
        return len(packed).to_bytes(8, "little") + packed + self.packed_ids

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> PartitionRecord:
        try:
            end = 8 + int.from_bytes(data[:8], "little")
            values = json.loads(data[8:end])
            seal = values.pop(_SEAL, None)  # records of before have none
            if seal is not None and seal != _seal(values, data[end:]):
                raise ValueError("not as it was written")
            return cls(**{**values, "data_files": tuple(values["data_files"])}, packed_ids=data[end:])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"damaged partition record {name}: {error}") from error


class PartitionRecords:
    """The record files of one table."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def all(self) -> dict[str, list[PartitionRecord]]:
        """Every record, by partition."""
        return self._read(self._location.names(FOLDER))

    def of(self, partitions: Collection[str]) -> dict[str, list[PartitionRecord]]:
        """The records of these partitions; each of them is a key, with an empty list when it has none."""
        keys = {_file_key(partition) for partition in partitions}
        found = self._read(name for name in self._location.names(FOLDER) if name.rpartition("@")[0] in keys)
        return {partition: found.get(partition, []) for partition in partitions}

    def named(self, partitions: Iterable[str]) -> set[str]:
        """Those of some partitions that have a record; none is read."""
        keys = {name.rpartition("@")[0] for name in self._location.names(FOLDER) if name.endswith(_SUFFIX)}
        return {partition for partition in partitions if _file_key(partition) in keys}

    def put(self, records: Iterable[PartitionRecord]) -> None:
        each(lambda record: self._location.put(record.path, record.to_bytes()), records)

    def sweep(self) -> None:
        """Remove what writers that died left."""
        self._location.sweep(FOLDER)

    def delete(self, records: Iterable[PartitionRecord]) -> None:
        each(lambda record: self._location.delete(record.path), records)

    def drop_damaged(self, partitions: Collection[str]) -> None:
        """Delete damaged records of partitions that are to be written again.

        Their rows are nobody's then, and replaced.
        """
        keys = {_file_key(partition) for partition in partitions}
        for name in self._location.names(FOLDER):
            if name.rpartition("@")[0] in keys:
                try:
                    self._read([name])
                except ValueError as error:
                    warn_user(f"{error}: its partition is written again")
                    self._location.delete(f"{FOLDER}/{name}")

    def _read(self, names: Iterable[str]) -> dict[str, list[PartitionRecord]]:
        paths = [f"{FOLDER}/{name}" for name in names if name.endswith(_SUFFIX)]
        found: dict[str, list[PartitionRecord]] = {}
        for path, data in zip(paths, each(self._location.read, paths), strict=True):
            if data is not None:  # else pruned by another committer since the listing
                record = PartitionRecord.from_bytes(data, f"{self._location.uri}/{path}")
                found.setdefault(record.partition, []).append(record)
        return found


def _seal(values: Mapping[str, object], packed_ids: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(values).encode() + packed_ids)


def _file_key(partition: str) -> str:
    """Injective: ``quote`` never gives a name that starts with ``=``, and no ``@``."""
    key = quote(partition, safe="")
    return key if len(key) <= _LONGEST_NAME else "=" + hashlib.sha256(partition.encode()).hexdigest()


@dataclass(frozen=True)
class LancePartitionStats:
    """One partition of one version of a table.

    ``rows`` and ``nbytes`` (of data files) are as written, ``version`` is the commit's (None when its process
    died before it could say). ``fragment_ids`` name fragments that hold all of the partition's rows and no
    others; they are empty when there are no such fragments: compaction merged or rewrote some, or rows were
    deleted by hand. ``is_whole`` tells the latter: whether all rows are there, in whichever fragments.
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
