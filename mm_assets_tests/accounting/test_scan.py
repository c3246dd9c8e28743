"""The scan for what is left of samples, in each kind of file and spelling that the storage has."""

from __future__ import annotations

import base64
import bz2
import gzip
import html
import json
import lzma
import os
import sqlite3
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import scan as scan_module
from mm_assets.accounting.erasures import SAMPLE_ID, URL
from mm_assets.accounting.needles import IMAGE, TEXT, Needle, Needles
from mm_assets.accounting.scan import Scan, scan
from mm_assets.pool import WorkerFailure
from mm_assets.pool.workers import WorkerPool

J = TypeVar("J")
R = TypeVar("R")


class Here:
    """Does jobs in this process."""

    def map(
        self, fn: Callable[[J], R], jobs: Iterable[J]
    ) -> Generator[tuple[J, R | WorkerFailure], None, None]:
        for job in jobs:
            yield job, fn(job)


class Content:
    """What a sample holds; another seed gives another sample."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.sample_id = f"{seed:03}/{random.bytes(12).hex()}"
        self.image = random.bytes(9_000)
        words = 'harbour "lighthouse" stone <b>sea</b> & Größe 灯塔 night garden paper signal'.split()
        self.text = " ".join(random.choice(words, 80))
        self.url = f"https://images.example.org/{random.bytes(8).hex()}.jpg?a=1&b=<2>"

    def needles(self) -> Needles:
        return Needles.of_values([self.image, self.text, {"links": [self.url]}], [self.sample_id])

    def texts(self) -> dict[str, str]:
        return {SAMPLE_ID: self.sample_id, TEXT: self.text, URL: self.url}

    def rows(self) -> pa.Table:
        return pa.table(
            {
                "sample_id": [self.sample_id] * 3,
                "text_content": [None, self.text, None],
                "binary_content": pa.array([None, None, self.image], pa.large_binary()),
                "page": [{"links": [{"href": self.url}], "names": ["a"]}, None, None],
            }
        )


ERASED, OTHERS = Content(1), [Content(seed) for seed in range(2, 6)]
ALL = frozenset({IMAGE, SAMPLE_ID, TEXT, URL})


def _table(contents: Iterable[Content]) -> pa.Table:
    return pa.concat_tables([content.rows() for content in contents])


def _parquet(**options: Any) -> Callable[[Path, list[Content]], None]:
    def write(folder: Path, contents: list[Content]) -> None:
        pq.write_table(_table(contents), folder / "a.parquet", **options)

    return write


def _footer(folder: Path, contents: list[Content]) -> None:
    texts = json.dumps([content.texts() for content in contents])
    images = base64.b64encode(b"-".join(content.image for content in contents))
    table = pa.table({"n": [1]}).replace_schema_metadata({b"notes": texts.encode(), b"images": images})
    pq.write_table(table, folder / "a.parquet")


def _written_again(folder: Path, contents: list[Content]) -> None:
    """A file of what was read from another one: its schema has the footer of that."""
    _footer(folder, contents)
    table = pq.read_table(folder / "a.parquet")
    with pq.ParquetWriter(folder / "a.parquet", table.schema, store_schema=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"notes": "", "images": ""})


def _metadata_of_lance(folder: Path, contents: list[Content]) -> None:
    _footer(folder, contents)
    lance.write_dataset(pq.read_table(folder / "a.parquet"), folder / "items.lance")
    (folder / "a.parquet").unlink()


def _arrow(new: Any, name: str, **options: Any) -> Callable[[Path, list[Content]], None]:
    def write(folder: Path, contents: list[Content]) -> None:
        table = _table(contents)
        header = b"our own header: " if "behind" in name else b""
        with open(folder / name, "wb") as file:
            file.write(header)
            with new(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
                writer.write_table(table, max_chunksize=2)

    return write


def _lance(folder: Path, contents: list[Content]) -> None:
    lance.write_dataset(_table(contents), folder / "items.lance")


def _deleted_rows_of_lance(folder: Path, contents: list[Content]) -> None:
    dataset = lance.write_dataset(_table(contents), folder / "items.lance")
    dataset.delete(f"sample_id = '{contents[0].sample_id}'")


def _earlier_version_of_lance(folder: Path, contents: list[Content]) -> None:
    lance.write_dataset(_table(contents[:1]), folder / "items.lance")
    lance.write_dataset(_table(contents[1:] or [Content(9)]), folder / "items.lance", mode="overwrite")


def _index_of_lance(folder: Path, contents: list[Content]) -> None:
    ids = pa.table({"sample_id": [content.sample_id for content in contents]})
    dataset = lance.write_dataset(ids, folder / "items.lance")
    dataset.create_scalar_index("sample_id", "BTREE")
    for file in (folder / "items.lance" / "data").iterdir():
        file.unlink()


def _tar(folder: Path, contents: list[Content]) -> None:
    (folder / "a.tar").write_bytes(_packed_tar(contents))


def _packed_tar(contents: Iterable[Content]) -> bytes:
    file = BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for content in contents:
            for name, data in (("0.jpg", content.image), ("json", json.dumps(content.texts()).encode())):
                member = tarfile.TarInfo(f"{content.sample_id.replace('/', '%2F')}.{name}")
                member.size = len(data)
                tar.addfile(member, BytesIO(data))
    return file.getvalue()


def _packed(name: str, pack: Callable[[bytes], bytes]) -> Callable[[Path, list[Content]], None]:
    def write(folder: Path, contents: list[Content]) -> None:
        (folder / name).write_bytes(pack(_packed_tar(contents)))

    return write


def _page(folder: Path, contents: list[Content]) -> None:
    cells = [f"<td>{html.escape(text)}</td>" for content in contents for text in content.texts().values()] + [
        f'<img src="data:image/jpeg;base64,{base64.b64encode(c.image).decode()}">' for c in contents
    ]
    (folder / "page.html").write_text("\n".join(cells))


def _event(content: Content) -> str:
    return json.dumps({"metadata": {"first": json.dumps(content.texts()), "image": list(content.image)}})


def _database(folder: Path, contents: list[Content], *statements: str) -> None:
    with sqlite3.connect(folder / "runs.db") as database:
        for statement in ("PRAGMA secure_delete = OFF", *statements):
            database.execute(statement)
        database.execute('CREATE TABLE "the events" (id INTEGER PRIMARY KEY, event TEXT, body BLOB)')
        rows = [(json.dumps(content.texts()), content.image) for content in contents]
        database.executemany('INSERT INTO "the events" (event, body) VALUES (?, ?)', rows)
    database.close()


def _database_of_dagster(folder: Path, contents: list[Content]) -> None:
    _database(folder, contents, "PRAGMA journal_mode = WAL")


def _open_database(folder: Path, contents: list[Content]) -> None:
    """One that a process has open, whose newest rows are in the log of changes."""
    _log_of_database(folder, contents, keep=True)


def _deleted_from_database(folder: Path, contents: list[Content]) -> None:
    _database(folder, contents)
    with sqlite3.connect(folder / "runs.db") as database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute('DELETE FROM "the events" WHERE id = 1')
    database.close()


def _log_of_database(folder: Path, contents: list[Content], keep: bool = False) -> None:
    """Rows that are in the log of changes alone, as a process leaves them that is killed."""
    _database(folder, [], "PRAGMA journal_mode = WAL")
    writer = sqlite3.connect(folder / "runs.db")
    rows = [(json.dumps(content.texts()), content.image) for content in contents]
    writer.executemany('INSERT INTO "the events" (event, body) VALUES (?, ?)', rows)
    writer.commit()
    files = {path: path.read_bytes() for path in folder.iterdir()}
    writer.close()
    for path, data in files.items():
        if keep or path.suffix == ".db-wal":
            path.write_bytes(data)
        else:
            path.unlink(missing_ok=True)


def _packed_in_database(folder: Path, contents: list[Content]) -> None:
    packed = zlib.compress(json.dumps([content.texts() for content in contents]).encode())
    with sqlite3.connect(folder / "runs.db") as database:
        database.execute("CREATE TABLE snapshots (body BLOB)")
        database.execute("INSERT INTO snapshots VALUES (?)", (packed,))
    database.close()


def _names(folder: Path, contents: list[Content]) -> None:
    for content in contents:
        (folder / f"{content.sample_id.replace('/', '%2F')}.log").touch()


def _hidden(folder: Path, contents: list[Content]) -> None:
    (folder / ".nested" / ".more").mkdir(parents=True)
    _parquet()(folder / ".nested" / ".more", contents)


PLACES: dict[str, tuple[Callable[[Path, list[Content]], None], frozenset[str]]] = {
    "Parquet": (_parquet(compression="zstd"), ALL),
    "Parquet without compression": (_parquet(compression="none"), ALL),
    "Parquet without dictionaries": (_parquet(compression="none", use_dictionary=False), ALL),
    "Parquet with deltas": (
        _parquet(
            compression="none", use_dictionary=False, column_encoding={"text_content": "DELTA_BYTE_ARRAY"}
        ),
        ALL,
    ),
    "footer of Parquet": (_footer, ALL),
    "schema of Parquet": (_written_again, ALL),
    "metadata of Lance": (_metadata_of_lance, ALL),
    "Arrow": (_arrow(pa.ipc.new_file, "a.arrow"), ALL),
    "packed Arrow": (_arrow(pa.ipc.new_file, "a.arrow", compression="zstd"), ALL),
    "Arrow stream": (_arrow(pa.ipc.new_stream, "a.arrow", compression="lz4"), ALL),
    "Arrow stream behind a header": (_arrow(pa.ipc.new_stream, "behind.arrow", compression="zstd"), ALL),
    "Lance": (_lance, ALL),
    "deleted rows of Lance": (_deleted_rows_of_lance, ALL),
    "earlier version of Lance": (_earlier_version_of_lance, ALL),
    "index of Lance": (_index_of_lance, frozenset({SAMPLE_ID})),
    "tar": (_tar, ALL),
    "gzip": (_packed("a.tar.gz", gzip.compress), ALL),
    "bzip2": (_packed("a.tar.bz2", bz2.compress), ALL),
    "xz": (_packed("a.tar.xz", lzma.compress), ALL),
    "Zstandard": (_packed("a.zst", lambda data: pa.compress(data, "zstd", asbytes=True)), ALL),
    "two gzip files in one": (
        _packed("a.gz", lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:])),
        ALL,
    ),
    "page": (_page, ALL),
    "database": (_database, ALL),
    "database with a log": (_database_of_dagster, ALL),
    "open database": (_open_database, ALL),
    "deleted from a database": (_deleted_from_database, ALL),
    "log of a database": (_log_of_database, ALL),
    "packed in a database": (_packed_in_database, ALL - {IMAGE}),
    "names of files": (_names, frozenset({SAMPLE_ID})),
    "hidden folder": (_hidden, ALL),
}


def _scan(*folders: Path, needles: Needles | None = None, **options: Any) -> Scan:
    return scan([str(folder) for folder in folders], needles or ERASED.needles(), Here(), **options)


def _kinds(found: Scan) -> set[str]:
    return {occurrence.kind for occurrence in found.occurrences}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_left_is_found(place: str, tmp_path: Path) -> None:
    write, kinds = PLACES[place]
    write(tmp_path, [ERASED, *OTHERS])
    found = _scan(tmp_path)
    assert _kinds(found) == kinds
    assert not found.unread
    assert found.occurrences or found.unread


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_others_is_found(place: str, tmp_path: Path) -> None:
    write, _ = PLACES[place]
    write(tmp_path, OTHERS)
    found = _scan(tmp_path)
    assert not found.occurrences and not found.unread
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert (found.files, found.nbytes) == (len(files), sum(path.stat().st_size for path in files))
    assert found.searched_for == {IMAGE: 1, SAMPLE_ID: 1, TEXT: 1, URL: 1}


@pytest.mark.parametrize("place", PLACES)
def test_files_stay_as_they_are(place: str, tmp_path: Path) -> None:
    write, _ = PLACES[place]
    write(tmp_path, [ERASED])
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    _scan(tmp_path)
    shared = {path for path in files if path.name.endswith("-shm")}  # memory of who reads a database
    assert {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path not in shared
    } == {path: data for path, data in files.items() if path not in shared}


def test_short_id_is_found_as_a_value(tmp_path: Path) -> None:
    needles = Needles.of_values([], ["17"])
    for name, options in {"zstd": {}, "plain": {"compression": "none", "use_dictionary": False}}.items():
        pq.write_table(pa.table({"sample_id": ["16", "17"]}), tmp_path / f"{name}.parquet", **options)
    pq.write_table(pa.table({"sample_id": ["170"], "other": ["17"]}), tmp_path / "others.parquet")
    lance.write_dataset(pa.table({"sample_id": ["17"]}), tmp_path / "items.lance")
    found = _scan(tmp_path, needles=needles)
    names = {path.removeprefix(f"{tmp_path}/").partition("/")[0] for path in found.paths()}
    assert names == {"zstd.parquet", "plain.parquet", "items.lance"}


def test_short_id_is_found_in_events_and_in_the_ledger(tmp_path: Path) -> None:
    needles = Needles.of_values([], ["000000013"])
    (ledger := tmp_path / "ledger" / "raw_shards").mkdir(parents=True)
    told = json.dumps({"content": json.dumps({"unreferenced": ["000000013.7.png"]})})
    for name, folder in {"survey": ledger, "others": tmp_path}.items():
        with pq.ParquetWriter(folder / f"{name}.parquet", pa.schema([("n", pa.int64())])) as writer:
            writer.add_key_value_metadata({"mm_assets:survey": told})
    for name, text in {"index": told, "other": json.dumps({"first": ["0000000130"]})}.items():
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database:
            database.execute("CREATE TABLE event_logs (event TEXT)")
            database.execute("INSERT INTO event_logs VALUES (?)", [text])
            database.commit()
    found = _scan(tmp_path, needles=needles)
    assert {(Path(each.path).name, *each[1:]) for each in found.occurrences} == {
        ("survey.parquet", "metadata mm_assets:survey", SAMPLE_ID),
        ("index.db", "table event_logs", SAMPLE_ID),
    }
    assert found.omitted == {"sample_id, short: within other text": 1}


def test_large_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "_PART", 10_000)
    monkeypatch.setattr(scan_module, "_CHUNK", 3_000)
    needle = ERASED.image[:50]
    needles = Needles((Needle(IMAGE, 1, 1, needle),))
    for places in ([0, 9_993, 19_950, 30_000, 32_995, 35_950, 99_950], [2_990], [9_990], [10_000]):
        data = bytearray(np.random.default_rng(5).bytes(100_000))
        for at in places:
            data[at : at + 50] = needle
        (tmp_path / "a.bin").write_bytes(data)
        found = _scan(tmp_path, needles=needles)
        assert list(found.occurrences.values()) == [len(places)]
        assert found.nbytes == 100_000


def test_damaged_containers_are_told(tmp_path: Path) -> None:
    _parquet()(tmp_path, OTHERS)
    damaged = tmp_path / "a.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    (tmp_path / "a.gz").write_bytes(gzip.compress(ERASED.text.encode() * 99)[:-30])
    (tmp_path / "b.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    (tmp_path / "c.lance").write_bytes(b"no table")
    (tmp_path / "d.arrow").write_bytes(b"no table")
    found = _scan(tmp_path)
    assert sorted(os.path.basename(path) for path in found.unread) == [
        "a.gz",
        "a.parquet",
        "b.db",
        "c.lance",
        "d.arrow",
    ]
    assert found.occurrences or found.unread


def test_links_and_files_to_skip(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    (outside / "deep").mkdir(parents=True)
    _tar(inside, [ERASED])
    _tar(outside / "deep", [ERASED])
    (inside / "again.tar").symlink_to(inside / "a.tar")
    (inside / "folder").symlink_to(outside)
    (outside / "deep" / "up").symlink_to(inside)
    (inside / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(inside / "pipe")
    found = _scan(inside, tmp_path / "missing", inside)
    assert (found.files, len(found.paths()), found.unread) == (2, 2, {})
    rest = _scan(inside, skip=[str(inside / "a.tar")])
    assert rest.paths() == [f"{inside}/folder/deep/a.tar"]


def test_folder_that_nobody_may_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def refused(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refused)
    found = _scan(tmp_path)
    assert list(found.unread) == [str(tmp_path / "closed")]
    assert found.occurrences or found.unread


def test_file_that_nobody_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tar(tmp_path, [ERASED])

    def refused(*_: Any) -> Iterator[bytes]:
        raise PermissionError(13, "Permission denied", str(tmp_path / "a.tar"))

    monkeypatch.setattr(scan_module, "open_binary", refused)
    found = _scan(tmp_path)
    assert list(found.unread) == [str(tmp_path / "a.tar")]
    assert found.occurrences or found.unread


def test_something_else_that_is_missing_does_not_make_a_file_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _parquet()(tmp_path, [ERASED])

    def batches(*_: Any) -> Any:
        raise FileNotFoundError("no folder for temporary files")

    monkeypatch.setattr(scan_module, "batches_in", batches)
    file = str(tmp_path / "a.parquet")
    assert _scan(tmp_path).unread == {file: "no folder for temporary files"}

    def removed(part: Any) -> Any:
        (tmp_path / "a.parquet").unlink()
        raise FileNotFoundError(file)

    monkeypatch.setattr(scan_module, "_opened", removed)
    assert _scan(tmp_path).unread == {}


def test_a_store_that_does_not_say_whether_a_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tar(tmp_path, [ERASED])
    _parquet()(tmp_path, [ERASED])

    def absent(*_: Any) -> Any:
        raise FileNotFoundError(str(tmp_path / "a.parquet"))

    def refused(_: str) -> bool:
        raise PermissionError("the store refuses it")

    monkeypatch.setattr(scan_module, "batches_in", absent)
    monkeypatch.setattr(scan_module, "exists", refused)
    found = _scan(tmp_path)
    assert found.unread == {str(tmp_path / "a.parquet"): "the store refuses it"}
    assert str(tmp_path / "a.tar") in found.paths()


def test_workers_find_the_same(tmp_path: Path) -> None:
    for number, (write, _) in enumerate(PLACES.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, [ERASED, *OTHERS])
    with WorkerPool(2) as pool:
        assert scan([str(tmp_path)], ERASED.needles(), pool) == _scan(tmp_path)
