"""The folder of tars and its dataset-level files: publishing, replacing, crashes, several processes."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from mm_assets.formats.tar import TarDamage, TarWriter
from mm_assets.formats.tar.scan import scan
from mm_assets.formats.webdataset import writer as tar_folder
from mm_assets.formats.webdataset.client_files import (
    TarPartitionStats,
    declares,
    energon_dataset,
    energon_info,
    energon_split,
    parse_pairs,
    readme,
    tar_idx,
    wids_index,
)
from mm_assets.formats.webdataset.writer import TarFolder
from mm_assets.interleaved import InterleavedBatch
from mm_assets.storage import files as storage
from mm_assets.storage.small_files import FileFacts
from mm_assets_tests.formats.datasets import item, table_of, write
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.shelf import ShelfFileSystem
from mm_assets_tests.formats.webdataset.card_features import features


class Staged:
    """A tar of ``samples`` samples with one image each at the positions given, staged for publishing."""

    def __init__(
        self, scratch: Path, file: str, samples: int, pairs: list[str], columns: dict[str, str]
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.path = scratch / f"{file}.staged"
        with TarWriter(self.path) as writer:
            for i in range(samples):
                pair = pairs[i % len(pairs)]
                writer.write_group([(f"s{i}.{pair}", b"p" * (100 * i + len(pair))), (f"s{i}.json", b"{}")])
        self.data = self.path.read_bytes()
        self.idx = tar_idx(writer.offsets)
        self.stats = TarPartitionStats(
            file, samples, writer.bytes, parse_pairs(pairs[:samples]), columns
        ).with_idx(self.idx)

    def publish(self, folder: TarFolder) -> None:
        self.path.write_bytes(self.data)
        folder.publish(self.path, self.idx, self.stats)
        assert not self.path.exists()


@pytest.fixture(params=["local", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "webdataset")
        return
    yield f"{ShelfFileSystem.protocol}://{tmp_path}/webdataset"


def contents(root: str, hidden: bool = False) -> dict[str, bytes]:
    """Files of the folder but for the lock; with ``hidden`` those of `.mm_assets` as well."""
    fs, path = fsspec.core.url_to_fs(root)
    fs.invalidate_cache()
    files = (
        {name[len(path) :].lstrip("/"): fs.cat_file(name) for name in fs.find(path)}
        if fs.exists(path)
        else {}
    )
    return {
        n: d
        for n, d in files.items()
        if n != ".mm_assets/lock" and (hidden or not n.startswith(".mm_assets"))
    }


def staged_pair(tmp_path: Path) -> tuple[Staged, Staged]:
    one = Staged(tmp_path / "in", "a.tar", 4, ["0.jpg", "1.png"], {"score": "float64"})
    two = Staged(tmp_path / "in", "b.tar", 2, ["5.gif"], {"tag": "string"})
    return one, two


def published(parts: list[Staged]) -> dict[str, bytes]:
    stats = [part.stats for part in parts]
    texts = {
        "README.md": readme(stats),
        "index.json": wids_index(stats),
        ".nv-meta/.info.json": energon_info(stats),
        ".nv-meta/split.yaml": energon_split(stats),
        ".nv-meta/dataset.yaml": energon_dataset(),
        **{f".mm_assets/{f.file}.json": f.to_json() for f in stats},
    }
    files = {name: text.encode() for name, text in texts.items()}
    for part in parts:
        files |= {part.stats.file: part.data, f"{part.stats.file}.idx": part.idx}
    return files


def test_a_folder_holds_what_follows_from_its_tars(root: str, tmp_path: Path) -> None:
    one, two = staged_pair(tmp_path)
    one.publish(TarFolder(root))
    two.publish(TarFolder(root))
    changed = TarFolder(root).finish()
    assert changed == [
        "index.json",
        ".nv-meta/.info.json",
        ".nv-meta/split.yaml",
        ".nv-meta/dataset.yaml",
        "README.md",
    ]
    assert contents(root, hidden=True) == published([one, two])
    assert TarFolder(root).stats() == [one.stats, two.stats]
    assert TarFolder(root).finish() == []


def test_finish_rewrites_nothing(tmp_path: Path) -> None:
    one, two = staged_pair(tmp_path)
    folder = TarFolder(tmp_path / "out")
    one.publish(folder)
    two.publish(folder)
    folder.finish()
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (tmp_path / "out").rglob("*")}
    assert folder.finish() == []
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (tmp_path / "out").rglob("*")} == before


def test_finish_with_an_index_opens_what_is_new(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = staged_pair(tmp_path)
    folder = TarFolder(root, index=f"{root}-index")
    one.publish(folder)
    folder.finish()
    two.publish(folder)
    opened: list[str] = []
    read_many = TarFolder._read_many

    def noted(self: TarFolder, names: Iterable[str]) -> dict[str, bytes]:
        listed = list(names)
        opened.extend(name for name in listed if ".tar" in name)
        return read_many(self, listed)

    monkeypatch.setattr(TarFolder, "_read_many", noted)
    folder = TarFolder(root, index=f"{root}-index")
    folder.finish()
    assert opened == [".mm_assets/b.tar.json", "b.tar.idx"]
    opened.clear()
    assert folder.finish() == []
    assert opened == []
    assert contents(root, hidden=True) == published([one, two])
    overwrite(root, "a.tar.idx", b"no index")
    assert folder.finish() == []
    assert opened[:2] == [".mm_assets/a.tar.json", "a.tar.idx"]
    assert contents(root, hidden=True) == published([one, two])


def test_an_index_that_does_not_fit_is_no_obstacle(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = staged_pair(tmp_path)
    folder = TarFolder(root, index=f"{root}-index")
    for part in (one, two):
        part.publish(folder)
    # Texts of another release, and of another tar, under stamps that are right.
    with monkeypatch.context() as patched:
        patched.setattr(tar_folder, "FileFacts", lambda text, hashes: FileFacts("{}", hashes))
        folder.finish()
    assert folder.finish() == []
    assert folder.stats() == [one.stats, two.stats]
    # The statistics of a tar under the name of another: all is done that is done without an index.
    overwrite(root, ".mm_assets/a.tar.json", two.stats.to_json().encode())
    fs, path = fsspec.core.url_to_fs(root)
    fs.rm(f"{path}/.mm_assets/b.tar.json")
    folder.finish()
    assert TarFolder(root).finish() == []


def overwrite(root: str, name: str, data: bytes) -> None:
    fs, path = fsspec.core.url_to_fs(root)
    fs.pipe_file(f"{path}/{name}", data)


@pytest.mark.parametrize(
    "name",
    ["index.json", "README.md", ".nv-meta/.info.json", ".nv-meta/split.yaml", "a.tar.idx", "b.tar.idx"],
)
def test_finish_writes_anew_what_someone_overwrote(name: str, root: str, tmp_path: Path) -> None:
    one, two = staged_pair(tmp_path)
    for part in (one, two):
        part.publish(TarFolder(root))
    TarFolder(root).finish()
    sound = contents(root, hidden=True)
    overwrite(root, name, sound[name][:-9] + b"\xff" * 9)
    one.publish(TarFolder(root))  # nobody who publishes trips over it
    fewer = Staged(tmp_path / "in", "b.tar", 1, ["5.gif"], {"tag": "string"})
    fewer.publish(TarFolder(root))
    two.publish(TarFolder(root))
    overwrite(root, name, sound[name][:-9] + b"\xff" * 9)
    TarFolder(root).finish()
    assert contents(root, hidden=True) == sound


@pytest.mark.parametrize("damage", [b"", b'{"file": "a.tar"}', b"\xff", None])
def test_stats_that_are_lost_are_in_the_tar(damage: bytes | None, root: str, tmp_path: Path) -> None:
    """Foreign tars stay out of the index, with an index of their own and without."""
    table = table_of(
        [item("s", n=1), item("s", 2, "image", binary_content=picture(0)[1])], [pa.field("n", pa.int64())]
    )
    write("webdataset", root, InterleavedBatch(table, (), "a"))
    for name in ("foreign.tar", "indexed.tar", "indexed.tar.idx"):
        overwrite(root, name, Staged(tmp_path / "in", "x.tar", 1, ["0.jpg"], {}).data)
    overwrite(root, "junk.tar", b"junk" * 1000)
    overwrite(root, "junk.tar.idx", b"")
    sound = contents(root, hidden=True)
    stats = TarFolder(root).stats()
    assert [(part.file, part.columns, part.pairs) for part in stats] == [
        ("a.tar", {"n": "int64"}, {"png": (2,)})
    ]
    if damage is None:
        fs, path = fsspec.core.url_to_fs(root)
        fs.rm(f"{path}/.mm_assets", recursive=True)
    else:
        overwrite(root, ".mm_assets/a.tar.json", damage)
    assert TarFolder(root).finish() == []
    assert contents(root, hidden=True) == sound
    assert TarFolder(root).stats() == stats


def test_stats_of_another_number_of_samples(root: str, tmp_path: Path) -> None:
    one, two = staged_pair(tmp_path)
    for part in (one, two):
        part.publish(TarFolder(root))
    TarFolder(root).finish()
    sound = contents(root, hidden=True)
    overwrite(
        root,
        ".mm_assets/a.tar.json",
        sound[".mm_assets/a.tar.json"].replace(b'"samples": 4', b'"samples": 5'),
    )
    assert TarFolder(root).finish() == []
    assert contents(root, hidden=True) == sound


def test_a_partition_is_replaced_and_the_card_narrows_only_at_finish(root: str, tmp_path: Path) -> None:
    one, two = staged_pair(tmp_path)
    folder = TarFolder(root)
    one.publish(folder)
    two.publish(folder)
    folder.finish()
    new = Staged(tmp_path / "new", "a.tar", 3, ["2.webp"], {"score": "string", "more": "bool"})
    new.publish(folder)
    between = contents(root)
    card = between["README.md"].decode()
    assert all(declares(card, part.stats) for part in (new, two))
    assert {"0.jpg", "2.webp", "5.gif"} < set(features(card))
    assert [s["nsamples"] for s in json.loads(between["index.json"])["shardlist"]] == [3, 2]
    folder.finish()
    assert contents(root, hidden=True) == published([new, two])
    assert "0.jpg" not in features(contents(root)["README.md"].decode())


def test_a_partition_without_samples_goes(root: str, tmp_path: Path) -> None:
    one, two = staged_pair(tmp_path)
    folder = TarFolder(root)
    for part in (one, two):
        part.publish(folder)
    folder.finish()
    folder.publish(tmp_path / "never-written.tar", b"", TarPartitionStats("a.tar", 0, 0))
    left = contents(root, hidden=True)
    assert not [n for n in left if n.startswith(("a.tar", ".mm_assets/a.tar"))]
    assert [s["url"] for s in json.loads(left["index.json"])["shardlist"]] == ["b.tar"]
    assert "a.tar" not in left[".nv-meta/split.yaml"].decode() + left[".nv-meta/.info.json"].decode()
    folder.finish()
    assert contents(root, hidden=True) == published([two])
    folder.publish(tmp_path / "x", b"", TarPartitionStats("b.tar", 0, 0))
    folder.finish()
    assert contents(root, hidden=True) == published([])


def test_nothing_published_writes_nothing(root: str, tmp_path: Path) -> None:
    folder = TarFolder(root)
    folder.publish(tmp_path / "x", b"", TarPartitionStats("a.tar", 0, 0))
    assert folder.finish() == [] and contents(root, hidden=True) == {}
    assert TarFolder(tmp_path / "none").finish() == [] and not (tmp_path / "none").exists()


def test_parts_that_do_not_belong_together_are_refused(root: str, tmp_path: Path) -> None:
    one, two = staged_pair(tmp_path)
    folder = TarFolder(root)
    for path, idx, stats in (
        (one.path, two.idx, one.stats),
        (one.path, one.idx[:-8], one.stats),
        (one.path, one.idx, TarPartitionStats("a.tar", 4, one.stats.bytes + 512)),
    ):
        with pytest.raises(ValueError, match=r"a\.tar: statistics of 4 samples .* do not belong together"):
            folder.publish(path, idx, stats)
    assert contents(root, hidden=True) == {} and one.path.exists()


class Crash(BaseException):
    """A kill: nothing may catch it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Die before the n-th change of the folder: a rename, a put or a removal."""
    count = iter(range(10_000))

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if next(count) == step:
                raise Crash
            return real(*args, **kwargs)

        return run

    monkeypatch.setattr(storage.StagedFile, "publish", counted(storage.StagedFile.publish))
    monkeypatch.setattr(TarFolder, "_remove", counted(TarFolder._remove))


def check_clients(root: str, versions: dict[str, list[Staged]]) -> list[Staged]:
    """Every tar is one of its versions, and no file beside it promises what it does not hold; returns
    them.
    """
    files = contents(root)
    here = [next(v for v in options if v.data == files[f]) for f, options in versions.items() if f in files]
    counts = {part.stats.file: part.stats.samples for part in here}
    for part in here:
        assert declares(files["README.md"].decode(), part.stats)
        assert files.get(f"{part.stats.file}.idx") in (None, part.idx)
    listed = json.loads(files["index.json"])["shardlist"] if "index.json" in files else []
    assert all(shard["nsamples"] <= counts[shard["url"]] for shard in listed)
    if ".nv-meta/.info.json" in files and not listed:
        pytest.fail("counts without an index")
    return here


STEPS = 16


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("fewer", [True, False])
def test_a_crash_while_replacing_leaves_old_or_new(
    root: str, step: int, fewer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = staged_pair(tmp_path)
    new = Staged(tmp_path / "new", "a.tar", 2 if fewer else 9, ["2.webp"], {"more": "bool"})
    for part in (one, two):
        part.publish(TarFolder(root))
    TarFolder(root).finish()
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        try:
            new.publish(TarFolder(root))
            assert step >= 7, "fewer changes than there are files to replace"
        except Crash:
            pass
    here = check_clients(root, {"a.tar": [one, new], "b.tar": [two]})
    assert [part.stats.file for part in here] == ["a.tar", "b.tar"]
    TarFolder(root).finish()
    after = contents(root, hidden=True)
    wanted = published(here)
    assert {n: d for n, d in after.items() if n != "README.md"} == {
        n: d for n, d in wanted.items() if n != "README.md"
    }
    assert features(after["README.md"].decode()) == features(wanted["README.md"].decode())
    new.publish(TarFolder(root))
    TarFolder(root).finish()
    assert contents(root, hidden=True) == published([new, two])


@pytest.mark.parametrize("step", range(9))
def test_a_crash_while_removing_leaves_old_or_none(
    root: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = staged_pair(tmp_path)
    for part in (one, two):
        part.publish(TarFolder(root))
    TarFolder(root).finish()
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        try:
            TarFolder(root).publish(tmp_path / "x", b"", TarPartitionStats("a.tar", 0, 0))
            assert step >= 7
        except Crash:
            pass
    here = check_clients(root, {"a.tar": [one], "b.tar": [two]})
    TarFolder(root).finish()
    assert contents(root, hidden=True) == published(here)


@pytest.mark.parametrize("step", range(8))
def test_a_crash_of_the_first_publish_leaves_nothing_or_all(
    root: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = staged_pair(tmp_path)
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        try:
            one.publish(TarFolder(root))
            assert step >= 5
        except Crash:
            pass
    here = check_clients(root, {"a.tar": [one]})
    TarFolder(root).finish()
    if here:
        assert contents(root, hidden=True) == published([one])
    else:
        assert set(contents(root, hidden=True)) <= {"README.md"}


def test_finish_names_a_tar_that_was_damaged_in_place(tmp_path: Path) -> None:
    one, _ = staged_pair(tmp_path)
    folder = TarFolder(tmp_path / "out")
    one.publish(folder)
    folder.finish()
    os.truncate(tmp_path / "out" / "a.tar", 2048)
    with pytest.raises(TarDamage, match="a.tar: byte"):
        folder.finish()


def publish_many(root: str, scratch: str, worker: int) -> None:
    for i in range(12):
        name = f"part-{worker}-{i}.tar"
        columns = {f"column_{worker}_{i}": "int64"}
        Staged(Path(scratch) / str(worker), name, 1 + i % 3, [f"{worker * 100 + i}.jpg"], columns).publish(
            TarFolder(root)
        )


def test_processes_that_publish_at_once_lose_no_column(tmp_path: Path) -> None:
    root = str(tmp_path / "out")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=publish_many, args=(root, str(tmp_path / "in"), w)) for w in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    stats = TarFolder(root).stats()
    assert len(stats) == 36
    card = (tmp_path / "out" / "README.md").read_text()
    assert all(declares(card, part) for part in stats)
    TarFolder(root).finish()
    assert list(features((tmp_path / "out" / "README.md").read_text()))[3:] == [
        f"{w * 100 + i}.jpg" for w in range(3) for i in range(12)
    ]
    for part in stats:
        with open(tmp_path / "out" / part.file, "rb") as file:
            assert len(scan(file.fileno(), part.file).members) == 2 * part.samples
    assert not [p for p in (tmp_path / "out").rglob("*") if p.name.endswith(".tmp")]


def test_a_card_overwritten_by_another_process_is_derived_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock: another publisher derived its card before it could see ours, and puts it after ours."""
    root = f"memory://{tmp_path}/race"
    one, two = staged_pair(tmp_path)
    real = TarFolder._write
    raced: list[str] = []

    def write(self: TarFolder, name: str, content: str | bytes) -> None:
        if name == "README.md" and not raced:
            raced.append(name)
            other = TarFolder(root)
            real(other, f".mm_assets/{two.stats.file}.pending.json", two.stats.to_json())
            real(other, "README.md", readme([], also=[two.stats]))
        real(self, name, content)

    monkeypatch.setattr(TarFolder, "_write", write)
    one.publish(TarFolder(root))
    card = contents(root)["README.md"].decode()
    assert raced and declares(card, one.stats) and declares(card, two.stats)


def test_one_new_partition_costs_the_same_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = TarFolder(tmp_path / "out")
    for i in range(30):
        Staged(
            tmp_path / "in", f"p{i:02d}.tar", 1, ["0.jpg"], {"score": "int64", "none": "list:null"}
        ).publish(folder)
    reads: list[str] = []
    real = TarFolder._read_many

    def read_many(self: TarFolder, names: Iterable[str]) -> dict[str, bytes]:
        wanted = list(names)
        reads.extend(wanted)
        return real(self, wanted)

    monkeypatch.setattr(TarFolder, "_read_many", read_many)
    Staged(tmp_path / "in", "q.tar", 1, ["0.jpg"], {"score": "int64", "none": "list:null"}).publish(folder)
    assert len(reads) <= 5, reads


def test_publishers_of_a_local_folder_wait_for_each_other(tmp_path: Path) -> None:
    one, two = staged_pair(tmp_path)
    one.publish(TarFolder(tmp_path / "out"))
    before = contents(str(tmp_path / "out"), hidden=True)
    publisher = threading.Thread(target=two.publish, args=(TarFolder(tmp_path / "out"),))
    with open(tmp_path / "out" / ".mm_assets" / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        publisher.start()
        publisher.join(0.3)
        during = contents(str(tmp_path / "out"), hidden=True)
        assert publisher.is_alive() and {n: d for n, d in during.items() if not n.endswith(".tmp")} == before
    publisher.join(30)
    assert [part.file for part in TarFolder(tmp_path / "out").stats()] == ["a.tar", "b.tar"]
