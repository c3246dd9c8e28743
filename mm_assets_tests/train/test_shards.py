"""Local copies of remote files: whole, shared, bounded."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from mm_assets.model.errors import DataError
from mm_assets.train import InterleavedDataset
from mm_assets.train.shards import LocalCopies
from mm_assets_tests.formats.datasets import batch_of, item, write

SIZE = 1000


@pytest.fixture
def store() -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    for name in "abcd":
        fs.pipe_file(f"/copies/{name}", name.encode() * SIZE)
    yield "memory://copies"
    fs.rm("/copies", recursive=True)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def copies_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.copy"))


def test_copies_are_kept_and_bounded(store: str, tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, 3 * SIZE)
    for name in "abcdabcd":
        assert copies.open(f"{store}/{name}", read) == name.encode() * SIZE
        assert copies_in(tmp_path) <= 3 * SIZE
    assert copies_in(tmp_path) == 3 * SIZE
    assert not list(tmp_path.glob(".*"))


def theirs(folder: Path) -> None:
    folder.mkdir(mode=0o700)


def open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def linked(folder: Path) -> None:
    folder.with_name("elsewhere").mkdir(mode=0o700)
    folder.symlink_to("elsewhere")


def a_file(folder: Path) -> None:
    folder.touch(mode=0o600)


@pytest.mark.parametrize("made_by_others", [theirs, open_to_all, linked, a_file])
def test_the_common_folder_is_of_this_user_alone(
    made_by_others: Callable[[Path], None], store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copies = LocalCopies()
    made_by_others(copies.folder)
    another = os.getuid() + 1
    with monkeypatch.context() as patch, pytest.raises(DataError) as caught:
        if made_by_others is theirs:
            patch.setattr(os, "getuid", lambda: another)
        copies.open(f"{store}/a", read)
    assert str(caught.value).startswith(f"{copies.folder}: is no folder that this user alone may use")
    copies.folder.rename(tmp_path / "theirs")
    assert copies.open(f"{store}/a", read) == b"a" * SIZE
    assert copies.folder.stat().st_mode & 0o777 == 0o700


def test_what_was_used_last_stays(store: str, tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, 2 * SIZE)
    places = {name: copies.open(f"{store}/{name}", str) for name in "ab"}
    copies.open(f"{store}/a", read)
    copies.open(f"{store}/c", read)
    assert Path(places["a"]).exists()
    assert not Path(places["b"]).exists()


def test_another_content_is_another_copy(store: str, tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path)
    copies.open(f"{store}/a", read)
    fsspec.filesystem("memory").pipe_file("/copies/a", b"new" * SIZE)
    assert copies.open(f"{store}/a", read) == b"new" * SIZE


def test_many_at_once_get_whole_files(store: str, tmp_path: Path) -> None:
    """With room for two of four: others remove what one has just made."""
    wrong = []

    def work(name: str) -> None:
        for _ in range(20):
            if LocalCopies(tmp_path, 2 * SIZE).open(f"{store}/{name}", read) != name.encode() * SIZE:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "aabbcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_failed_download_leaves_nothing(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaks:
        def __enter__(self) -> Breaks:
            return self

        def __exit__(self, *_: object) -> None: ...

        def read(self, size: int) -> bytes:
            raise ConnectionResetError("gone")

    monkeypatch.setattr("mm_assets.train.shards.open_binary", lambda _: Breaks())
    with pytest.raises(ConnectionResetError):
        LocalCopies(tmp_path).open(f"{store}/a", read)
    assert {path.suffix for path in tmp_path.iterdir()} == {".lock"}


def test_files_that_cannot_be_copied_are_named(store: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"copies/a: 1000 bytes are more than the 999 of the local copies"):
        LocalCopies(tmp_path, SIZE - 1).open(f"{store}/a", read)
    with pytest.raises(DataError, match=r"copies/x: no such file"):
        LocalCopies(tmp_path).open(f"{store}/x", read)


def test_local_files_are_read_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert LocalCopies(tmp_path / "copies").open(str(tmp_path / "file"), str) == str(tmp_path / "file")
    assert not (tmp_path / "copies").exists()


@pytest.mark.parametrize("kind", ["webdataset", "parquet"])
def test_a_remote_dataset_is_read_through_copies(kind: str, tmp_path: Path) -> None:
    for partition in range(4):
        rows = [item(f"s{partition}{n}", at, text_content="x" * 500) for n in range(3) for at in range(2)]
        write(kind, tmp_path / "data", [batch_of(rows, partition=f"p{partition}")])
    fs = fsspec.filesystem("memory")
    fs.put(f"{tmp_path / 'data'}/", "/remote", recursive=True)
    try:
        largest = max(path.stat().st_size for path in (tmp_path / "data").iterdir() if path.is_file())
        remote = InterleavedDataset(
            "memory://remote", cache_dir=tmp_path / "copies", cache_bytes=2 * largest, window=2
        )
        local = InterleavedDataset(tmp_path / "data", window=2)
        assert remote.order_digest == local.order_digest
        assert list(remote) == list(local)
        assert 0 < copies_in(tmp_path / "copies") <= 2 * largest
    finally:
        fs.rm("/remote", recursive=True)
