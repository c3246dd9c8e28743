"""What is left of a process that died is told from what a living one is making: by more than the number of
the process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mm_assets.cli import main
from mm_assets.formats.lance.fragments import write_fragments
from mm_assets.formats.lance.records import FOLDER
from mm_assets.formats.lance.table import LanceTable
from mm_assets.storage.files import StagedFile, sweep, temporary_name
from mm_assets.storage.temporary import ABANDONED_SECONDS, building_folder, create_locked
from mm_assets_tests.cli.documents import document
from mm_assets_tests.formats.arrow_cache.caches import build, content, require_tidy
from mm_assets_tests.formats.datasets import batch_of, item, write
from mm_assets_tests.formats.raw_tars import make_tar

_HOLD = """
import sys, time
from mm_assets.storage.files import StagedFile
file = StagedFile(sys.argv[1] + "/a.parquet")
print(file.path, flush=True)
time.sleep(600)
"""
_BUILD = """
import sys, time
from pathlib import Path
from mm_assets_tests.formats.arrow_cache.caches import FEATURES, examples
from mm_assets.formats import write_sharded_arrow_cache
def slow():
    for number, pair in enumerate(examples("new", 40)):
        if number == 30:
            print("half", flush=True)
            time.sleep(600)
        yield pair
write_sharded_arrow_cache(slow(), FEATURES, Path(sys.argv[1]), shard_size_bytes=1000, batch_size=3)
"""


@contextmanager
def running(
    code: str, *arguments: object, before: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process, and the first line it prints.

    Who kills it leaves a zombie: nobody asks for its end before the block is over.
    """
    process = subprocess.Popen(
        [*before, sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    while "Z" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]:
        time.sleep(0.01)


def made_by(name: str, **parts: str) -> str:
    """The temporary name with other parts: boot, start, container or pid."""
    match = re.fullmatch(r"(\..*\.on-)([0-9a-f]{8})-(\d+)\.([0-9a-f]{8})-(\d+)(-[0-9a-f]{12}\.tmp)", name)
    assert match is not None
    first, boot, start, container, pid, last = match.groups()
    found = {"boot": boot, "start": start, "container": container, "pid": pid} | parts
    return f"{first}{found['boot']}-{found['start']}.{found['container']}-{found['pid']}{last}"


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    with running(_HOLD, tmp_path) as (process, path):
        assert sweep(str(tmp_path)) == []
        kill(process)
        assert os.path.exists(f"/proc/{process.pid}")
        assert sweep(str(tmp_path)) == [path]


def test_a_number_that_another_process_has_now(tmp_path: Path) -> None:
    """As this process's has been somebody's before."""
    own = temporary_name("a.parquet")
    (tmp_path / own).touch()
    (tmp_path / made_by(own, start="1")).touch()
    assert sweep(str(tmp_path)) == [str(tmp_path / made_by(own, start="1"))]


def test_a_process_whose_start_is_not_known_is_told_by_its_lock(tmp_path: Path) -> None:
    """As where there is no /proc."""
    own = temporary_name("a.parquet")
    paths = [tmp_path / made_by(f".{mark}{own[2:]}", start="0") for mark in ("free", "held", "new")]
    lock = create_locked(paths[1])
    for path in (paths[0], paths[2]):
        path.touch()
    for path in paths[:2]:
        aged(path, 3600)
    assert sweep(str(tmp_path)) == [str(paths[0])]
    os.close(lock)
    assert sweep(str(tmp_path)) == [str(paths[1])]


def test_another_container_of_this_machine(tmp_path: Path) -> None:
    """Its numbers mean nothing here, those of ours nothing there: its lock tells, once it has had the time to
    take one.
    """
    with running(_HOLD, tmp_path) as (process, path):
        name = made_by(os.path.basename(path), container="00000001", pid=str(os.getpid()))
        foreign = Path(path).rename(tmp_path / name)
        assert sweep(str(tmp_path)) == []
        aged(foreign, 3600)
        assert sweep(str(tmp_path)) == []
        kill(process)
        assert sweep(str(tmp_path)) == [str(foreign)]
        foreign.touch()
        assert sweep(str(tmp_path)) == []


@pytest.mark.skipif(
    subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode != 0,
    reason="may not make a pid namespace here",
)
def test_a_real_container(tmp_path: Path) -> None:
    """The same numbers, in a namespace of their own."""
    with running(_HOLD, tmp_path, before=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")) as (
        process,
        path,
    ):
        assert re.search(r"-1-[0-9a-f]{12}\.tmp$", path)  # here that is init
        aged(Path(path), 3600)
        assert sweep(str(tmp_path)) == []
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while sweep(str(tmp_path)) != [path]:
            assert time.monotonic() < deadline


def test_another_machine(tmp_path: Path) -> None:
    """Nothing of it can be known: not that a number is free here, nor that a lock is."""
    name = made_by(temporary_name("a.parquet"), boot="00000000", pid="4000000")
    path = tmp_path / name
    path.touch()
    assert sweep(str(tmp_path)) == []
    aged(path, ABANDONED_SECONDS - 3600)
    assert sweep(str(tmp_path)) == []
    aged(path, ABANDONED_SECONDS + 3600)
    folder = building_folder(path)
    folder.mkdir()
    assert sweep(str(tmp_path)) == []  # what it marks has changed
    aged(folder, ABANDONED_SECONDS + 3600)
    assert sweep(str(tmp_path)) == [str(path)]
    old_name = tmp_path / ".a.parquet.0123abcd-1-0123456789ab.tmp"
    old_name.touch()
    assert sweep(str(tmp_path)) == []
    aged(old_name, ABANDONED_SECONDS + 3600)
    assert sweep(str(tmp_path)) == [str(old_name)]


def test_files_of_others_are_never_swept(tmp_path: Path) -> None:
    for name in ("a.tmp", ".a.tmp", ".a-0123456789ab.tmp", ".x.on-1.tmp", "x.0123abcd-1-0123456789ab.tmp"):
        aged_file = tmp_path / name
        aged_file.touch()
        aged(aged_file, 10 * ABANDONED_SECONDS)
    assert sweep(str(tmp_path)) == []


def test_a_file_that_is_published_or_given_up_is_let_go(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for end in (StagedFile.publish, StagedFile.discard, StagedFile.publish):
        file = StagedFile(str(tmp_path / "a"))
        Path(file.path).write_bytes(b"x")
        end(file)
    assert os.listdir(tmp_path) == ["a"]
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_cache_whose_builder_is_a_zombie(tmp_path: Path, rebuilt: bool) -> None:
    """The folder it was built in, its marker, and the shards in there."""
    if rebuilt:
        build(tmp_path / "cache")
    with running(_BUILD, tmp_path / "cache") as (process, line):
        assert line == "half"
        home = tmp_path / "cache" if rebuilt else tmp_path
        assert len(list(home.glob(".*.building"))) == len(list(home.glob(".*.tmp"))) == 1
        kill(process)
        build(tmp_path / "cache", "third", 20)
        assert content(tmp_path / "cache") == ("third", 20)
        require_tidy(tmp_path / "cache")


def test_a_cache_whose_builder_is_alive_is_left_to_it(tmp_path: Path) -> None:
    with running(_BUILD, tmp_path / "cache") as (_, line):
        assert line == "half"
        build(tmp_path / "cache", "third", 20)
        assert len(list(tmp_path.glob(".*.building"))) == len(list(tmp_path.glob(".*.tmp"))) == 1


def test_records_of_a_lance_table(tmp_path: Path) -> None:
    """A file that was being put when its process died is gone with the next commit."""
    write("lance", tmp_path, batch_of([item("a")], partition="p"))
    folder = tmp_path / "items.lance" / FOLDER
    stale = folder / made_by(temporary_name("p@1.record"), pid="4000000", start="5")
    living = folder / temporary_name("q@1.record")
    for path in (stale, living):
        path.write_bytes(b"half")
    table = LanceTable(str(tmp_path / "items.lance"))
    assert list(table.partitions()) == ["p"]
    table.commit([write_fragments(table.uri, "q", batch_of([item("b")]).data)])
    assert list(table.partitions()) == ["p", "q"]
    assert not stale.exists() and living.exists()


def test_convert_sweeps_what_lies_beside_tars(tmp_path: Path) -> None:
    make_tar(tmp_path / "raw" / "a.tar", document("d1"))
    out = tmp_path / "out"
    stale = made_by(temporary_name("a"), pid="4000000", start="5")
    for folder in ("", ".mm_assets", ".nv-meta"):
        (out / folder).mkdir(exist_ok=True)
        (out / folder / stale).touch()
    assert main(["convert", str(tmp_path / "raw"), str(out), "--to", "webdataset", "--workers", "1"]) == 0
    assert not list(out.rglob(stale))
