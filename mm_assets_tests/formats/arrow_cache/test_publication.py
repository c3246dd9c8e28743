"""There is a whole cache at every moment: builders that are killed, that race, and readers beside them."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mm_assets.formats import (
    ArrowCache,
    ShardedCacheMeta,
    arrow_cache,
    read_sharded_cache_meta,
    validate_sharded_cache,
)
from mm_assets.formats.arrow_cache import CacheShard
from mm_assets.formats.arrow_cache.build import withdraw_cache
from mm_assets_tests.formats.arrow_cache.caches import FEATURES, build, content, examples, marks, require_tidy
from mm_assets_tests.formats.arrow_cache.killing import (
    FORKSERVER,
    build_and_die_at_event,
    build_and_die_at_row,
    run,
)

KILLED = -9


def require_mended(cache_dir: Path, before: tuple[str, int] | None) -> None:
    """What was there or what was built is whole; the next build succeeds and sweeps."""
    if before is None and not cache_dir.exists():
        assert sorted(path.name[0] for path in cache_dir.parent.iterdir()) in ([".", "."], ["."], [])
    else:
        assert content(cache_dir) in (before, ("new", 40))
    build(cache_dir, "third", 20)
    assert content(cache_dir) == ("third", 20)
    require_tidy(cache_dir)


@pytest.mark.parametrize("rebuilt", [False, True])
def test_killed_at_twenty_points_of_the_build(tmp_path: Path, rebuilt: bool) -> None:
    for row in random.Random(20).sample(range(40), 20):
        cache_dir = tmp_path / f"{row}" / "cache"
        before = ("first", build(cache_dir).num_rows) if rebuilt else None
        assert run(build_and_die_at_row, cache_dir, "new", 40, row) == KILLED
        assert not rebuilt or content(cache_dir) == before
        require_mended(cache_dir, before)


@pytest.mark.parametrize("rebuilt", [False, True])
def test_killed_before_each_step_of_the_publication(tmp_path: Path, rebuilt: bool) -> None:
    start = tmp_path / "start"
    start.mkdir()
    if rebuilt:
        build(start / "cache")
    seen, ends = FORKSERVER.Value("i"), []
    steps_of = shutil.copytree(start, tmp_path / "steps", copy_function=shutil.copy2)
    assert run(build_and_die_at_event, steps_of / "cache", "new", 40, -1, seen) == 0
    assert seen.value > 15
    for step in range(seen.value):
        cache_dir = shutil.copytree(start, tmp_path / f"{step}") / "cache"
        assert run(build_and_die_at_event, cache_dir, "new", 40, step) == KILLED
        ends.append(content(cache_dir)[0] if cache_dir.exists() else None)
        require_mended(cache_dir, ("first", 30) if rebuilt else None)
    old = "first" if rebuilt else None
    assert {old, "new"} == set(ends) and ends == sorted(
        ends, key=lambda mark: mark == "new"
    )  # one moment, and no way back


def build_on_a_full_disk(cache_dir: Path, answers: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
    try:
        build(cache_dir, "new", 40)
    except OSError as error:
        answers.put(error.errno)


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, rebuilt: bool) -> None:
    if rebuilt:
        build(tmp_path / "cache")
    answers = FORKSERVER.Queue()
    assert run(build_on_a_full_disk, tmp_path / "cache", answers) == 0
    assert answers.get(timeout=50) == errno.EFBIG
    if rebuilt:
        assert content(tmp_path / "cache") == ("first", 30)
        require_tidy(tmp_path / "cache")
    else:
        assert list(tmp_path.iterdir()) == []


def build_again_and_again(cache_dir: Path, worker: int, stop: Any) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        assert build(cache_dir, f"worker {worker}", 10 + number % 7).num_rows == 10 + number % 7


def read_whole(cache_dir: Path) -> str:
    """The mark of the build whose rows were read; empty if it was replaced while they were."""
    assert read_sharded_cache_meta(cache_dir).num_rows >= 10
    try:
        rows = list(ArrowCache(cache_dir, FEATURES, decode=False))
    except ValueError as error:
        assert "built anew since it was opened" in str(error)
        return ""
    mark = str(rows[0]["mark"])
    assert rows == [example for _, example in examples(mark, len(rows))]
    return mark


def test_builders_race_and_readers_always_find_a_whole_cache(tmp_path: Path) -> None:
    build(tmp_path / "cache")
    stop = FORKSERVER.Event()
    processes = [
        FORKSERVER.Process(target=build_again_and_again, args=(tmp_path / "cache", worker, stop))
        for worker in range(3)
    ]
    for process in processes:
        process.start()
    reads = 0
    while reads < 50 and all(process.is_alive() for process in processes):
        reads += read_whole(tmp_path / "cache").startswith("worker")
    stop.set()
    for process in processes:
        process.join(timeout=50)
    assert [process.exitcode for process in processes] == [0] * 3 and reads == 50
    assert content(tmp_path / "cache")[0].startswith("worker")
    require_tidy(tmp_path / "cache")


def build_once(barrier: Any, cache_dir: Path, answers: Any) -> None:
    barrier.wait()
    answers.put(build(cache_dir).shard_filenames)


def test_the_first_of_equal_builders_stays(tmp_path: Path) -> None:
    barrier, answers = FORKSERVER.Barrier(4), FORKSERVER.Queue()
    processes = [
        FORKSERVER.Process(target=build_once, args=(barrier, tmp_path / "cache", answers)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    names = [answers.get(timeout=50) for _ in processes]
    for process in processes:
        process.join(timeout=50)
    assert names == [read_sharded_cache_meta(tmp_path / "cache").shard_filenames] * 4
    assert names[0][0] == "shard-00000.arrow"
    require_tidy(tmp_path / "cache")


def test_building_the_same_again_changes_no_file(tmp_path: Path) -> None:
    first = build(tmp_path / "cache")
    before = marks(first.cache_dir)
    assert build(tmp_path / "cache") == first
    assert marks(first.cache_dir) == before


def test_building_the_same_again_mends_a_damaged_shard(tmp_path: Path) -> None:
    damaged = build(tmp_path / "cache").shard_paths[1]
    damaged.write_bytes(bytes(damaged.stat().st_size))
    build(tmp_path / "cache")
    assert content(tmp_path / "cache") == ("first", 30)
    require_tidy(tmp_path / "cache")


def test_damaged_metadata_are_replaced(tmp_path: Path) -> None:
    build(tmp_path / "cache")
    (tmp_path / "cache" / "_metadata.json").write_text("{")
    build(tmp_path / "cache", "second")
    assert content(tmp_path / "cache") == ("second", 30)
    require_tidy(tmp_path / "cache")


def test_a_reader_keeps_the_generation_it_has_mapped(tmp_path: Path) -> None:
    build(tmp_path / "cache")
    cache, late = (ArrowCache(tmp_path / "cache", decode=False) for _ in range(2))
    batches = list(cache.batches())
    meta = build(tmp_path / "cache", "second")
    assert all(name.startswith(f"shard-{i:05d}-") for i, name in enumerate(meta.shard_filenames))
    require_tidy(tmp_path / "cache")
    assert [row["mark"] for batch in batches for row in batch.select(["mark"]).to_pylist()] == ["first"] * 30
    assert cache[29]["mark"] == "first"
    with pytest.raises(ValueError, match="built anew since it was opened"):
        late[0]


@pytest.mark.parametrize(
    "read", [read_sharded_cache_meta, lambda folder: validate_sharded_cache(folder, FEATURES)]
)
def test_a_cache_that_is_replaced_while_it_is_checked_is_checked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], ShardedCacheMeta]
) -> None:
    build(tmp_path / "cache")
    checked = arrow_cache.require_size

    def replaced(path: Path, shard: CacheShard) -> arrow_cache.FileStamp:
        monkeypatch.undo()
        build(tmp_path / "cache", "second", 10)
        return checked(path, shard)

    monkeypatch.setattr(arrow_cache, "require_size", replaced)
    assert read(tmp_path / "cache").num_rows == 10


def test_an_empty_folder_and_a_link_to_one_become_the_cache(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert build(tmp_path / "link").shard_filenames[0] == "shard-00000.arrow"
    assert content(tmp_path / "real") == content(tmp_path / "link") == ("first", 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_withdrawn_link_takes_the_cache_with_it(tmp_path: Path, is_there: bool) -> None:
    """Also one that leads nowhere any more, as an interrupted withdrawal leaves it."""
    (tmp_path / "link").symlink_to("real")
    if is_there:
        build(tmp_path / "real")
    withdraw_cache(tmp_path / "link")
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_stay(tmp_path: Path) -> None:
    cache_dir = tmp_path / "cache"
    cache_dir.mkdir()
    (cache_dir / "notes.txt").write_text("mine")
    for mark in ("first", "second"):
        build(cache_dir, mark)
        assert content(cache_dir) == (mark, 30)
    assert {path.suffix for path in cache_dir.iterdir()} == {".txt", ".json", ".arrow"}
    assert len(list(cache_dir.iterdir())) == 2 + read_sharded_cache_meta(cache_dir).num_shards


@pytest.mark.parametrize("inside", [False, True])
def test_leftovers_of_another_machine_are_swept_when_they_are_a_week_old(
    tmp_path: Path, inside: bool
) -> None:
    build(tmp_path / "cache")
    home = tmp_path / "cache" if inside else tmp_path
    marker, folder = home / ".cache.00000000-1-0123456789ab.tmp", home / ".0123456789ab.building"
    folder.mkdir()
    (folder / "shard-00000.arrow").write_bytes(b"half")
    moved = tmp_path / "cache" / "shard-00000-0123456789ab.arrow"
    paths = [folder / "shard-00000.arrow", folder, marker, *([moved] if inside else [])]
    for path in (marker, *([moved] if inside else [])):
        path.touch()
    for days, swept in ((6, False), (8, True)):
        then = time.time() - days * 24 * 3600
        for path in paths:
            os.utime(path, (then, then))
        build(tmp_path / "cache", f"{days}")
        assert [path.exists() for path in paths] == [not swept] * len(paths)
    require_tidy(tmp_path / "cache")


@pytest.mark.parametrize("rebuilt", [False, True])
def test_everything_is_on_disk_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebuilt: bool
) -> None:
    if rebuilt:
        build(tmp_path / "cache")
    synced: list[str] = []
    at_commit: list[list[str]] = []
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def note(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    def commit(move: Any, source: Path, target: Path) -> None:
        if target.name in ("_metadata.json", "cache"):
            at_commit.append(list(synced))
        move(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", lambda source, target: commit(rename, source, target))
    monkeypatch.setattr(os, "replace", lambda source, target: commit(replace, source, target))
    meta = build(tmp_path / "cache", "second")
    [before] = at_commit
    assert {"_metadata.json", *(f"shard-{i:05d}.arrow" for i in range(meta.num_shards))} < set(before)
    assert before[-1] == "cache" if rebuilt else before[-1].endswith(".building")  # the names in the folder
    assert synced[len(before) :] == ["cache" if rebuilt else tmp_path.name]
