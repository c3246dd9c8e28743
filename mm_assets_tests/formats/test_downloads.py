"""Remote files are fetched once for all passes of a worker pool, and their copies do not fill the disk."""

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from mm_assets.formats.raw_shards import RawReader
from mm_assets.formats.tar import spool
from mm_assets.formats.tar.spool import Download, KeptCopies, keep_copies
from mm_assets.storage.temporary import TemporaryFolder
from tools.demo import make_shards


class _File(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        CountingStore.requests.append(self.path)
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(end - start)


class CountingStore(AbstractFileSystem):
    """Local files as objects that have ETags; ``requests`` are the paths whose bytes were read."""

    protocol = "counting"
    requests: list[str] = []
    etags: dict[str, str] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return path.removeprefix("counting://") if isinstance(path, str) else path

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        found = LocalFileSystem().info(self._strip_protocol(path))
        return {**found, "ETag": self.etags.get(found["name"], "v1")}

    def _open(self, path: str, mode: str = "rb", **arguments: Any) -> _File:
        return _File(self, path, mode, **arguments)


fsspec.register_implementation("counting", CountingStore, clobber=True)


@pytest.fixture
def requests() -> Iterator[list[str]]:
    CountingStore.requests.clear()
    CountingStore.etags.clear()
    yield CountingStore.requests
    CountingStore.requests.clear()


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    def start(max_bytes: int) -> Path:
        folder = tmp_path / "copies"
        folder.mkdir()
        keep_copies(KeptCopies(str(folder), max_bytes))
        return folder

    yield start
    keep_copies(None)


def read(uri: str) -> bytes:
    download = Download(uri)
    try:
        return download.file.read()
    finally:
        download.close()


def test_a_second_pass_reads_the_copy(
    tmp_path: Path, requests: list[str], keep: Callable[[int], Path]
) -> None:
    (tmp_path / "a").write_bytes(b"some bytes")
    keep(1 << 20)
    assert read(f"counting://{tmp_path}/a") == read(f"counting://{tmp_path}/a") == b"some bytes"
    assert requests == [f"{tmp_path}/a"]


def test_a_replaced_object_is_read_anew(
    tmp_path: Path, requests: list[str], keep: Callable[[int], Path]
) -> None:
    (tmp_path / "a").write_bytes(b"some bytes")
    keep(1 << 20)
    read(f"counting://{tmp_path}/a")
    (tmp_path / "a").write_bytes(b"other data")
    CountingStore.etags[f"{tmp_path}/a"] = "v2"
    assert read(f"counting://{tmp_path}/a") == b"other data"


def test_copies_take_no_more_room_than_they_may(
    tmp_path: Path, requests: list[str], keep: Callable[[int], Path]
) -> None:
    folder = keep(2500)
    for name in "abcd":
        (tmp_path / name).write_bytes(name.encode() * 1000)
        assert read(f"counting://{tmp_path}/{name}") == name.encode() * 1000
    assert sum(file.stat().st_size for file in folder.iterdir()) == 2000
    requests.clear()
    assert [read(f"counting://{tmp_path}/{name}")[:1] for name in "abcd"] == [b"a", b"b", b"c", b"d"]
    assert requests == [f"{tmp_path}/c", f"{tmp_path}/d"]


def test_without_a_pool_nothing_is_kept(tmp_path: Path, requests: list[str]) -> None:
    (tmp_path / "a").write_bytes(b"some bytes")
    assert read(f"counting://{tmp_path}/a") == read(f"counting://{tmp_path}/a") == b"some bytes"
    assert len(requests) == 2


def test_a_full_disk_is_named(
    tmp_path: Path, requests: list[str], keep: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"some bytes")
    folder = keep(1 << 20)
    monkeypatch.setattr(spool.os, "fdopen", lambda *_, **__: io.FileIO("/dev/full", "wb"))
    with pytest.raises(OSError, match="No space left") as raised:
        read(f"counting://{tmp_path}/a")
    assert raised.value.__notes__ == [f"at the folder {tempfile.gettempdir()} for temporary files (TMPDIR)"]
    assert list(folder.iterdir()) == []


def test_a_shard_is_fetched_once_for_types_ids_and_rows_and_its_copy_goes(
    tmp_path: Path, requests: list[str], keep: Callable[[int], Path]
) -> None:
    shard = make_shards(tmp_path / "raw", members=1, pdf=0)[0]
    folder = keep(1 << 30)
    reader = RawReader(f"counting://{shard}", relative_to=f"counting://{shard.parent}")
    partition = reader.partitions()[0]
    _, ids = reader.project(partition, ["sample_id"])
    n_ids = sum(table.num_rows for table in ids)
    requests.clear()
    assert len(list(folder.iterdir())) == 1
    (rows,) = [batch.data for batch in reader.open(partition)]
    assert rows.num_rows == n_ids > 0
    assert requests == []
    assert list(folder.iterdir()) == []
    (local,) = [batch.data for batch in RawReader(str(shard), relative_to=str(shard.parent))]
    assert rows.equals(local)


def test_folder_of_a_pool_is_private_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = TemporaryFolder()
    assert os.stat(folder.path).st_mode & 0o777 == 0o700
    Path(folder.path, "left").write_bytes(b"x")
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_killed_process_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import os, signal, tempfile\n"
        "from mm_assets.storage.temporary import TemporaryFolder\n"
        "folder = TemporaryFolder()\n"
        "open(folder.path + '/left', 'w').write('x')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert len(list(tmp_path.iterdir())) == 1
    stranger = tmp_path / "mm-assets-of-somebody"
    stranger.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = TemporaryFolder()
    assert {path.name for path in tmp_path.iterdir()} == {stranger.name, Path(folder.path).name}
    folder.remove()


def test_a_quarter_of_the_free_disk(tmp_path: Path) -> None:
    kept = KeptCopies.beside(str(tmp_path))
    assert abs(kept.max_bytes - shutil.disk_usage(tmp_path).free // 4) < 1 << 30
