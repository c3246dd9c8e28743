"""A storage in two versions, and how far another one is from the second."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.accounting import TARS, survey_store
from mm_assets.accounting.canonical import derive
from mm_assets.accounting.proof import ProofStore
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.formats import read_sharded_cache_meta
from mm_assets.formats.lance.table import LanceTable
from mm_assets.formats.webdataset.writer import _stamps
from mm_assets.storage.small_files import hashes_of, unseal
from mm_assets.storage.stamps import files_in
from mm_assets_tests.live.killing import TABLE, RunServer, digest
from mm_assets_tests.live.raw_versions import write_version
from mm_assets_tests.live.watching import Event, Watch

CACHES = "arrow_cache/"
INDEX = "ledger/index/"


@dataclass(frozen=True)
class State:
    """What lies in a storage: digests of ``files`` by path, less what says when; of the Lance table ``rows``
    by partition, and a digest.
    """

    files: dict[str, str]
    rows: dict[str, int] = field(default_factory=dict)
    table: str = ""

    @classmethod
    def of(cls, storage: Path) -> State:
        apart = (f"{TABLE}/", CACHES, INDEX)
        outside = [name for name in _files(storage) if not (name.startswith(apart) or _is_of_proofs(name))]
        files = {name: digest(_timeless(name, (storage / name).read_bytes())) for name in outside}
        files |= _caches(storage) | _wrong_rows_of_index(storage) | _proofs(storage)
        if not (storage / TABLE).exists():
            return cls(files)
        rows = {name: facts.rows for name, facts in LanceTable(storage / TABLE).partitions().items()}
        return cls(files, rows, derive("lance", str(storage / TABLE)).digest)


@dataclass
class Versions:
    """A ``storage``, and copies of it as undisturbed runs left it: of ``old`` raw shards, and of the ``new``
    ones that ``raw`` has.

    ``bad`` are the checks that do not pass for the new ones, ``events`` how many were seen in the making of
    the new version, by path.
    """

    raw: Path
    storage: Path
    home: Path
    old: Path
    new: Path
    bad: set[str]
    events: Counter[str]

    def __post_init__(self) -> None:
        self.before, self.after = State.of(self.old), State.of(self.new)
        both = [self.before.files, self.after.files]
        names = [name for name in both[0] | both[1] if not _is_derived(name)]
        self.legal = {name: frozenset(files[name] for files in both if name in files) for name in names}
        self._base: dict[str, int] = {}  # rows of the table at the last `restore`

    def server(self) -> RunServer:
        """A process that runs the graph from the raw shards into the storage."""
        return RunServer(self.raw, self.storage, self.home)

    def count(self, clock: re.Pattern[str]) -> int:
        """How many events were seen in paths that match."""
        return sum(count for path, count in self.events.items() if clock.match(path))

    def failed(self, assets: Collection[str]) -> set[str]:
        """The checks of these assets that do not pass."""
        return {check for check in self.bad if check.partition(".")[0] in assets}

    def restore(self, own: re.Pattern[str], to_old: bool) -> None:
        """Make the storage the new version, but for the paths that match: those are as in the old version, or
        gone.
        """
        wanted = {name: self.new / name for name in _files(self.new) if not own.match(name)}
        if to_old:
            wanted |= {name: self.old / name for name in _files(self.old) if own.match(name)}
        for name in set(_files(self.storage)) - wanted.keys():
            (self.storage / name).unlink()
        if not any(name.startswith(TABLE) for name in wanted):
            shutil.rmtree(self.storage / TABLE, ignore_errors=True)
        for name, source in wanted.items():
            target = self.storage / name
            if not target.exists() or _stamp(target) != _stamp(source):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        self._base = State.of(self.storage).rows

    def differences(self) -> list[str]:
        """In what the storage is not the new version."""
        found = State.of(self.storage)
        names = sorted(found.files.keys() | self.after.files.keys())
        lines = [f"{name}: differs" for name in names if found.files.get(name) != self.after.files.get(name)]
        if (found.rows, found.table) != (self.after.rows, self.after.table):
            lines.append(f"{TABLE}: {found.rows} instead of {self.after.rows}, or other content")
        return lines

    def illegal_rows(self, seen: Collection[int], missing: Collection[str] = ()) -> set[int]:
        """Numbers of rows that the table had (it keeps all its versions) or was ``seen`` to have, and never
        should have had.

        It has those of its old version, those of the new one, and meanwhile of the new one but for
        ``missing`` shards. It begins empty.
        """
        new = self.after.rows
        partly = new | {shard: self._base.get(shard, 0) for shard in missing}
        legal = {sum(rows.values()) for rows in (self._base, partly, new)}
        past = {sum(self.before.rows.values())} if self._base else set()
        counts = {dataset.version: dataset.count_rows() for dataset in self._table_versions()}
        had = {rows for version, rows in counts.items() if (version, rows) != (1, 0)}
        return (set(seen) | had) - legal - past - ({0} if not self._base else set())

    def orphans(self) -> list[str]:
        """Data files of the Lance table that are in none of its versions."""
        used = {
            file.path
            for dataset in self._table_versions()
            for fragment in dataset.get_fragments()
            for file in fragment.data_files()
        }
        return sorted({path.name for path in (self.storage / TABLE / "data").iterdir()} - used)

    def _table_versions(self) -> list[lance.LanceDataset]:
        table = lance.dataset(str(self.storage / TABLE))
        return [table.checkout_version(entry["version"]) for entry in table.versions()]


@contextmanager
def versions_and_server(folder: Path, assets: Sequence[str]) -> Iterator[tuple[Versions, RunServer]]:
    """Run the whole graph for the one, then for the other version of the raw shards; the server stays."""
    raw, storage, home, old, new = (folder / name for name in ("raw", "storage", "home", "old", "new"))
    storage.mkdir()
    events: Counter[str] = Counter()

    def see(event: Event) -> None:
        events[event.path] += 1

    write_version(raw, 1)
    with RunServer(raw, storage, home) as server:
        first = server.run(assets)
        shutil.copytree(storage, old)
        write_version(raw, 2)
        with Watch(storage, see):
            second = server.run(assets)
        shutil.copytree(storage, new)
        assert first.ok and second.ok and not first.died + second.died, (first, second)
        yield Versions(raw, storage, home, old, new, second.failed, events), server


def _files(storage: Path) -> list[str]:
    return sorted(str(path.relative_to(storage)) for path in storage.rglob("*") if path.is_file())


def _stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


def _caches(storage: Path) -> dict[str, str]:
    """A digest for each cache, of its shards in their order: a generation that replaces another has other
    names. Other files are told.
    """
    found = {name: "" for name in _files(storage) if name.startswith(CACHES)}
    for metadata in storage.glob(f"{CACHES}*/_metadata.json"):
        folder = metadata.parent
        meta = read_sharded_cache_meta(folder)
        told = [
            meta.schema_fingerprint,
            meta.shard_row_counts,
            [digest(path.read_bytes()) for path in meta.shard_paths],
        ]
        for path in (metadata, *meta.shard_paths):
            del found[str(path.relative_to(storage))]
        found[str(folder.relative_to(storage))] = digest(json.dumps(told).encode())
    return found


def _wrong_rows_of_index(storage: Path) -> dict[str, str]:
    """Rows of the index that count, and say something else than their file: there are none in any storage.

    Its files are called and cut as it happens, and have inodes and times of the files that they are about.
    """
    store = SurveyStore(str(storage))
    stamps = {
        "surveys": store.survey_stamps(),
        "published": store.published_stamps(),
        "tars": _stamps(
            files_in(str(storage / TARS.folder)), files_in(str(storage / TARS.folder / ".mm_assets"))
        ),
    }
    wrong = {}
    for path in sorted(storage.glob(f"{INDEX}*/*.parquet")):
        kind = path.parent.name
        for row in pq.read_table(path).to_pylist():
            if stamps[kind].get(row["name"]) != row["stamp"]:
                continue
            said = (row["text"], sorted(row["id_hashes"]))
            if kind == "tars":
                expected = (Path(storage, TARS.folder, ".mm_assets", f"{row['name']}.json").read_text(), [])
            else:
                expected = _of_file(store, kind, unquote(row["name"]))
            if said != expected:
                wrong[f"{INDEX}{kind}/{row['name']}"] = repr(said)
    return wrong


def _of_file(store: SurveyStore, kind: str, partition: str) -> tuple[str, list[int]]:
    """What the index has to say of a file."""
    if kind == "published":
        ((_, published),), ((_, ids),) = store.published([partition]), store.published_ids([partition])
        facts = survey_store.published_facts(published, ids.to_pylist())
        return facts.text, sorted(facts.id_hashes.tolist())
    ((_, (columns, ids)),) = store.columns_and_ids([partition])
    return survey_store.columns_to_text(columns), sorted(hashes_of(ids.to_pylist()).tolist())


def _is_derived(name: str) -> bool:
    """Whether a file is made from others, or called as it happens, and so may have further contents on the
    way to the other version.
    """
    return name.endswith(".json") or name.startswith(
        ("webdataset/README", "webdataset/.nv-meta", "ledger/accounts/", "proof/", CACHES)
    )


def _is_of_proofs(name: str) -> bool:
    return name.startswith("proof/") and name.endswith(".parquet")


def _proofs(storage: Path) -> dict[str, str]:
    """A digest of the proofs of each asset, without their times: the names of their files tell of these."""
    found = {}
    for folder in storage.glob("proof/*/"):
        store = ProofStore(str(storage))
        proofs = store.read(folder.name, store.partitions(folder.name))
        facts = {name: _without(vars(proof), {"stat", "examined_at"}) for name, proof in proofs.items()}
        found[f"proof/{folder.name}"] = digest(json.dumps(facts, sort_keys=True, default=list).encode())
    return found


def _timeless(name: str, data: bytes) -> bytes:
    """An account without time stamps, and without the count of quarantine records that the very run has
    closed.
    """
    rows: list[Any] = []
    if name.startswith("ledger/accounts/"):
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
        data = pq.read_metadata(pa.BufferReader(data)).metadata[b"mm_assets:record"]
    elif not name.endswith(".json") or not name.startswith(("ledger/", "proof/")):
        return data
    values = unseal(data)
    values.get("metadata", {}).pop("closed", None)
    # Rows are filtered without these scores, which a killed worker may not have made yet.
    values.get("account", {}).get("inputs", {}).pop("sample_scores", None)
    return json.dumps([rows, _without(values, {"stat", "examined_at"})], sort_keys=True).encode()


def _without(value: Any, names: Collection[str]) -> Any:
    """A JSON value without the fields of these names, wherever they are."""
    if isinstance(value, dict):
        return {name: _without(inner, names) for name, inner in value.items() if name not in names}
    return [_without(inner, names) for inner in value] if isinstance(value, list) else value
