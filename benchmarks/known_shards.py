"""Storage as after many raw shards: what real ones left, under other names and with other sample ids.

Written anew, because it names the shard or its sample ids: accounts, surveys, proofs, statistics of tars,
records of Lance partitions. Hard links under other names: raw shards and all data files, whose content
therefore is that of the real ones, sample ids included.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

_LINKED = ("curated", "filtered", "scores", "sample_scores", "quarantine", "webdataset")
_CACHES = "arrow_cache"
_TABLE = "lance/items.lance"
_PROCESSES = 2
_INDEXED_AT_ONCE = 2000


def copied_name(key: str, number: int) -> str:
    """The name of a copy of a shard."""
    return f"{key}-{number:04}"


@contextmanager
def noted_fingerprints() -> Iterator[dict[str, Any]]:
    """What each fingerprint that is made meanwhile is a digest of."""
    from mm_assets.graph import digest, io_manager

    made_from: dict[str, Any] = {}

    def noted(value: Any) -> str:
        found = digest(value)
        made_from[found] = value
        return found

    with mock.patch.object(io_manager, "digest", noted):
        yield made_from


@dataclass(frozen=True)
class Copies:
    """What is to be copied, and how often.

    Args:
        root: the storage.
        raw: the folder of raw shards.
        keys: the real shards.
        made_from: of each fingerprint in their records, what it is a digest of.
        count: how many copies of each there shall be.
    """

    root: str
    raw: str
    keys: tuple[str, ...]
    made_from: Mapping[str, Any]
    count: int

    def make(self) -> Iterator[tuple[int, dict[str, tuple[str, str]]]]:
        """Make them; yield the number of each copy with the versions of its raw shards, old and new."""
        shards = [RealShard(self.root, self.raw, key, self.made_from) for key in self.keys]
        version = self._commit(shards)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(_PROCESSES, spawn, _take, (shards, version)) as pool:
            yield from enumerate(pool.map(_copy, range(1, self.count + 1)), 1)
        self._index(shards)
        self._sum_up_proofs()

    def names(self) -> list[str]:
        """The names of all copies."""
        return [copied_name(key, number) for number in range(1, self.count + 1) for key in self.keys]

    def _commit(self, shards: Sequence[RealShard]) -> int:
        """Add fragments with the data files of the copies to the table; return its version."""
        import lance
        from lance.fragment import FragmentMetadata

        uri = f"{self.root}/{_TABLE}"
        dataset = lance.dataset(uri)
        text_of = {}
        for fragment in dataset.get_fragments():
            fields = fragment.metadata.to_json()
            text_of[tuple(file["path"] for file in fields["files"])] = json.dumps({**fields, "id": 0})
        new = []
        for number in range(1, self.count + 1):
            for shard in shards:
                if shard.committed is not None:
                    text = text_of[shard.committed.data_files]
                    for name in shard.committed.data_files:
                        text = text.replace(name, _data_file(name, number))
                    new.append(FragmentMetadata.from_json(text))
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=[], updated_fragments=[], new_fragments=new
        )
        committed = lance.LanceDataset.commit(dataset, lance.Transaction(dataset.version, operation))
        return int(committed.version)

    def _index(self, shards: Sequence[RealShard]) -> None:
        from mm_assets.accounting import index_folder, survey_store
        from mm_assets.accounting.survey_store import SurveyStore
        from mm_assets.formats.lance import Location
        from mm_assets.formats.lance.records import PartitionRecords
        from mm_assets.storage.small_files import FileFacts, FileIndex, hashes_of

        PartitionRecords(Location(f"{self.root}/{_TABLE}")).index()
        store = SurveyStore(self.root)
        stamps_of = (store.survey_stamps(), store.published_stamps())
        all_facts: list[dict[str, FileFacts]] = [{}, {}]
        texts = [
            (
                survey_store.columns_to_text(shard.survey.columns),
                survey_store.published_to_text(shard.published),
            )
            for shard in shards
        ]
        for number in range(1, self.count + 1):
            for shard, (columns, published) in zip(shards, texts, strict=True):
                name = copied_name(shard.key, number)
                hashes = hashes_of(shard.sample_ids(number).to_pylist())
                kinds = (FileFacts(columns, hashes), FileFacts(published, hashes))
                for facts, found in zip(all_facts, kinds, strict=True):
                    facts[name] = found
        kinds_of_index = ("surveys", "published")
        for kind, facts, stamps in zip(kinds_of_index, all_facts, stamps_of, strict=True):
            index, names = FileIndex(index_folder(self.root, kind)), list(facts)
            for start in range(0, len(names), _INDEXED_AT_ONCE):
                some = names[start : start + _INDEXED_AT_ONCE]
                index.add({name: facts[name] for name in some}, stamps)

    def _sum_up_proofs(self) -> None:
        from mm_assets.accounting.proof import ProofStore

        store = ProofStore(self.root)
        for folder in sorted(Path(self.root, "proof").iterdir()):
            if folder.is_dir():
                real = store.read(folder.name, self.keys).values()
                proofs = [
                    replace(proof, partition=copied_name(proof.partition, number))
                    for number in range(1, self.count + 1)
                    for proof in real
                ]
                store.roll_up({folder.name: proofs})


@dataclass(frozen=True)
class RealShard:
    """What all assets left of one real shard."""

    root: str
    raw: str
    key: str
    made_from: Mapping[str, Any]

    def copy(self, number: int, table_version: int) -> tuple[str, str]:
        """Make a copy; return the versions of the raw shard, old and new."""
        name = copied_name(self.key, number)
        version = self._link_raw(name)
        for path in self.linked:
            target = f"{self.root}/{path.replace(self.key, name)}"
            if path.startswith(_CACHES):
                os.makedirs(os.path.dirname(target), exist_ok=True)
            os.link(f"{self.root}/{path}", target)
        set_id = self._copy_partition(name, number, table_version)
        self._copy_survey(name, number, version)
        changed = {self.key: name, self.survey.version: version, **set_id}
        for path, text in self.proofs:
            fields = json.loads(_changed(text, changed))
            Path(self.root, path.replace(self.key, name)).write_bytes(_seal(fields))
        for text, made_from, rows in self.accounts:
            fields = json.loads(_changed(text, changed))
            fields["fingerprint"] = _digest(json.loads(_changed(made_from, changed)))
            _write_account(self.root, fields, name, rows)
        statistics = f"webdataset/.mm_assets/{self.key}.tar.json"
        stated = self._text(statistics)
        if stated is not None:
            Path(self.root, statistics.replace(self.key, name)).write_text(stated.replace(self.key, name))
        return self.survey.version, version

    def sample_ids(self, number: int) -> pa.Array:
        """The sample ids of a copy."""
        ids = self.survey.sample_ids.to_pylist()
        return pa.array([f"{number:06}{sample_id[6:]}" for sample_id in ids], pa.string())

    @cached_property
    def survey(self) -> Any:
        """The survey of the raw shard."""
        from mm_assets.accounting.survey_store import SurveyStore

        found = SurveyStore(self.root).read(self.key)
        assert found is not None
        return found

    @cached_property
    def published(self) -> Any:
        """What the curated output was made with."""
        from mm_assets.accounting.survey_store import SurveyStore

        ((_, found),) = SurveyStore(self.root).published([self.key])
        return found

    @cached_property
    def committed(self) -> Any:
        """The record of the partition in the Lance table; None if it has no rows."""
        from mm_assets.formats.lance import Location
        from mm_assets.formats.lance.records import PartitionRecords

        found = PartitionRecords(Location(f"{self.root}/{_TABLE}")).of([self.key])[self.key]
        return found[-1] if found else None

    @cached_property
    def linked(self) -> list[str]:
        """The files of which copies are hard links, below the root."""
        root = Path(self.root)
        found = [
            path
            for folder in _LINKED
            for path in root.joinpath(folder).glob(f"**/{self.key}.*")
            if ".mm_assets" not in path.parts
        ]
        found += root.joinpath(_CACHES, self.key).iterdir()
        return [str(path.relative_to(root)) for path in found]

    @cached_property
    def proofs(self) -> list[tuple[str, str]]:
        """Path and text of each proof."""
        from mm_assets.storage.small_files import unseal

        return [
            (str(path.relative_to(self.root)), json.dumps(unseal(path.read_bytes()), ensure_ascii=False))
            for path in sorted(Path(self.root, "proof").glob(f"*/{self.key}.json"))
        ]

    @cached_property
    def accounts(self) -> list[tuple[str, str, pa.Table]]:
        """Of each account the record and what its fingerprint is a digest of, as texts, and the rows."""
        from mm_assets.accounting.accounts import Ledger

        ledger, found = Ledger(self.root), []
        for folder in sorted(Path(self.root, "ledger", "accounts").iterdir()):
            for record in ledger.records(folder.name, [self.key]).values():
                made_from = json.dumps(self.made_from[record.fingerprint])
                fields = json.dumps(vars(record), ensure_ascii=False)
                found.append((fields, made_from, ledger.rows(folder.name, self.key)))
        return found

    def _text(self, path: str) -> str | None:
        file = Path(self.root, path)
        return file.read_text() if file.exists() else None

    def _link_raw(self, name: str) -> str:
        from mm_assets.formats.raw_shards import RawShard

        file = f"{self.raw}/{name}.tar"
        os.link(f"{self.raw}/{self.key}.tar", file)
        return RawShard(name, (file,)).version

    def _copy_partition(self, name: str, number: int, version: int) -> dict[str, str]:
        """Copy data files and record of the partition in the table; return its set id, old and new."""
        from mm_assets.formats.lance import Location
        from mm_assets.formats.lance.fragments import pack_ids
        from mm_assets.formats.lance.records import PartitionRecords

        record = self.committed
        if record is None:
            return {}
        files = tuple(_data_file(file, number) for file in record.data_files)
        data = f"{self.root}/{_TABLE}/data"
        for old, new in zip(record.data_files, files, strict=True):
            os.link(f"{data}/{old}", f"{data}/{new}")
        set_id = f"{number:08x}{record.set_id[8:]}"
        ids = pack_ids(self.sample_ids(number))
        copied = replace(
            record, partition=name, set_id=set_id, data_files=files, version=version, load_ids=lambda: ids
        )
        PartitionRecords(Location(f"{self.root}/{_TABLE}")).put([copied])
        return {record.set_id: set_id}

    def _copy_survey(self, name: str, number: int, version: str) -> None:
        from mm_assets.accounting import survey_store
        from mm_assets.accounting.survey_store import SurveyStore

        ids = self.sample_ids(number)
        samples = self.survey.samples.set_column(0, self.survey.samples.schema.field(0), ids)
        survey = replace(self.survey, version=version, samples=samples)
        survey_store.write_survey(SurveyStore(self.root).uri(name), name, survey)


_shards: Sequence[RealShard] = ()
_table_version = 0


def _take(shards: Sequence[RealShard], table_version: int) -> None:
    """Begin a process that makes copies."""
    global _shards, _table_version
    _shards, _table_version = shards, table_version


def _copy(number: int) -> dict[str, tuple[str, str]]:
    return {shard.key: shard.copy(number, _table_version) for shard in _shards}


def _data_file(name: str, number: int) -> str:
    return f"{name.removesuffix('.lance')}-{number:04}.lance"


def _changed(text: str, changed: Mapping[str, str]) -> str:
    for old, new in changed.items():
        text = text.replace(old, new)
    return text


def _digest(value: Any) -> str:
    from mm_assets.graph import digest

    return digest(value)


def _write_account(root: str, fields: Mapping[str, Any], partition: str, rows: pa.Table) -> None:
    from mm_assets.accounting import ShardRecord
    from mm_assets.accounting.accounts import Ledger

    at = rows.schema.get_field_index("partition")
    names = pa.array([partition] * rows.num_rows, pa.string())
    Ledger(root).write(ShardRecord(**fields), rows.set_column(at, rows.schema.field(at), names))


def _seal(fields: Mapping[str, Any]) -> bytes:
    from mm_assets.storage.small_files import seal

    return seal(fields)
