"""Which raw shards a text names: those that are absent or contend for a name cost nobody else, and each
version is told from the next.
"""

from __future__ import annotations

import gzip
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from mm_assets.formats.names import RAW_SUFFIXES
from mm_assets.formats.partitions import group_name, member_name
from mm_assets.formats.raw_shards import (
    AmbiguousPartition,
    Listing,
    RawLocations,
    RawShard,
    files_of,
    unchanged_shards,
)
from mm_assets.formats.registry import detect_format
from mm_assets_tests.formats.shelf import TwoSchemesFileSystem

TIME = 1_600_000_000_000_000_000


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for name in ("a/s-0.tar", "a/s-1.tar", "a/s-3.tar", "b/x.tar", "b/y.tgz", "b/deep/z.TAR"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


def listing(text: str, **options: Any) -> Listing:
    return RawLocations(text, **options).shards()


def version(path: Path) -> str:
    (shard,) = listing(str(path)).values()
    return shard.version


def test_a_named_file_is_a_partition_whether_it_is_there_or_not(raw: Path) -> None:
    found = listing(f"{raw}/a/s-{{0..3}}.tar {raw}/b/none.tar.gz {raw}/gone/t-{{0..1}}.tgz {raw}/b/*.tar")
    assert list(found) == ["a/s-0", "a/s-1", "a/s-2", "a/s-3", "b/none", "gone/t-0", "gone/t-1", "b/x"]
    assert files_of(found["a/s-2"].uri) == (f"{raw}/a/s-2.tar",)
    assert found.unmatched == ()
    before = found["a/s-2"].version
    (raw / "a" / "s-2.tar").write_bytes(b"here now")
    again = listing(f"{raw}/a/s-{{0..3}}.tar")
    assert again["s-2"].version != before
    assert again["s-1"].version == found["a/s-1"].version


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_the_other_scheme_of_a_store_names_the_same(
    raw: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    for name in ("gs", "gcs"):
        monkeypatch.setitem(_registry, name, TwoSchemesFileSystem)
    found = listing(f"{scheme}://{raw}/b/")
    assert {key: files_of(shard.uri) for key, shard in found.items()} == {
        "deep/z": (f"gs://{raw}/b/deep/z.TAR",),
        "x": (f"gs://{raw}/b/x.tar",),
        "y": (f"gs://{raw}/b/y.tgz",),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{raw}/a/none.tar", "no raw shards: {raw}/a/none.tar: no such file"),
        ("{raw}/nowhere", "no raw shards: {raw}/nowhere: no such file"),
        (
            "{raw}/empty",
            f"no raw shards: {{raw}}/empty: no {'/'.join(RAW_SUFFIXES)} file in this folder",
        ),
        (
            "{raw}/a/*.tgz {raw}/b/none.tar",
            "no raw shards: {raw}/b/none.tar: no such file; {raw}/a/*.tgz: no such file",
        ),
        (
            "{raw}/n-{{0..9}}.tar",
            "no raw shards: {raw}/n-0.tar: no such file; {raw}/n-1.tar: no such file; {raw}/n-2.tar: "
            "no such file; and 7 more",
        ),
        ("memory://nowhere/x.tar", "no raw shards: memory://nowhere/x.tar: no such file"),
        ("", "no raw shards: none are named; set MM_RAW_SHARDS"),
    ],
)
def test_where_nothing_is_found_at_all_one_line_says_so(raw: Path, text: str, message: str) -> None:
    (raw / "empty").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        listing(text.format(raw=raw))
    assert str(caught.value) == message.format(raw=raw)


def test_a_folder_or_pattern_without_shards_is_told_and_the_others_are_listed(raw: Path) -> None:
    (raw / "empty").mkdir()
    found = listing(f"{raw}/gone {raw}/empty {raw}/a/*.tgz {raw}/b memory://no-bucket/*.tar")
    assert list(found) == ["b/deep/z", "b/x", "b/y"]
    assert found.unmatched == (
        f"{raw}/gone: no such file",
        f"{raw}/empty: no {'/'.join(RAW_SUFFIXES)} file in this folder",
        f"{raw}/a/*.tgz: no such file",
        "memory://no-bucket/*.tar: no such file",
    )


def test_outputs_are_left_out_and_named_when_nothing_else_is_found(raw: Path) -> None:
    assert list(listing(str(raw), excluded=f"{raw}/b")) == ["a/s-0", "a/s-1", "a/s-3"]
    with pytest.raises(FileNotFoundError, match="^no raw shards: those found lie below MM_STORAGE$"):
        listing(f"{raw}/b/*.t* {raw}/b/x.tar", excluded=f"{raw}/b/")
    with pytest.raises(
        FileNotFoundError,
        match=r"^no raw shards: .*/none.tar: no such file; those found lie below MM_STORAGE$",
    ):
        listing(f"{raw}/b {raw}/a/none.tar", excluded=f"{raw}/b")


def test_brace_lists_of_folders_and_patterns(raw: Path) -> None:
    found = listing(f"{raw}/{{a,b,c}}")
    assert list(found) == ["a/s-0", "a/s-1", "a/s-3", "b/deep/z", "b/x", "b/y"]
    assert found.unmatched == (f"{raw}/c: no such file",)
    assert list(listing(f"{raw}/{{b,a}}/*[0x].tar")) == ["b/x", "a/s-0"]


def test_a_folder_stands_for_its_tars_and_without_any_for_its_parquet(raw: Path) -> None:
    for name in ("a/s-0.parquet", "a/deep/t.PARQUET", "c/x.parquet", "c/deep/y.parquet"):
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / name).write_bytes(b"")
    (raw / "a" / "s-0_stats.json").write_bytes(b"{}")
    told = "2 Parquet files beside tars passed over, such as t.PARQUET; name *.parquet to read them"
    for text in (f"{raw}/a", f"{raw}/a/**"):
        found = listing(text)
        assert sorted(found) == ["s-0", "s-1", "s-3"]
        assert found.unmatched == (f"{text}: {told}",)
    found = listing(f"{raw}/c {raw}/b")
    assert (sorted(found), found.unmatched) == (["b/deep/z", "b/x", "b/y", "c/deep/y", "c/x"], ())
    assert listing(str(raw)).unmatched == (f"{raw}: {told.replace('2', '4', 1)}",)
    assert sorted(listing(f"{raw}/a/*.parquet {raw}/c/x.parquet {raw}/c/none.parquet")) == [
        "a/s-0",
        "c/none",
        "c/x",
    ]


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ({"train.jsonl": '{"image": "a.jpg"}\n{', "train.tar": ""}, [".jsonl"]),
        ({"train.jsonl.gz": gzip.compress(b'{"images": [null, "a.jpg"]}\n'), "train.tar": ""}, [".jsonl.gz"]),
        ({"train.jsonl": '{"image": "a.jpg"}\n', "train.tar": "", "val.jsonl": "{"}, [".jsonl", ".jsonl"]),
        ({"train.jsonl": '{"image": "a.jpg"}\n', "train.tar": "", "val.tar": ""}, [".tar", ".tar"]),
        ({"train.jsonl": '{"level": "info", "message": "x"}\n', "train.tar": ""}, [".tar"]),
        ({"train.jsonl": "\n", "train.tar": ""}, [".tar"]),
        ({"train.jsonl": '{"images": ["0.jpg"], "_row_extra": {}}\n', "train.tar": ""}, [".tar"]),
    ],
)
def test_lines_come_before_the_tars_of_their_images(
    tmp_path: Path, files: dict[str, Any], chosen: list[str]
) -> None:
    """Only where they are documents, and each tar has some; else they may be a log."""
    for name, text in files.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    found = listing(str(tmp_path))
    places = [Path(file) for shard in found.values() for file in files_of(shard.uri)]
    assert [place.name.removeprefix(place.name.split(".")[0]) for place in places] == chosen
    is_told = "passed over, such as train.jsonl; name *.jsonl" in "".join(found.unmatched)
    assert is_told == (chosen[0] == ".tar")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert detect_format(str(tmp_path)) == ("webdataset" if chosen[0] == ".tar" else "jsonl")


def test_tars_that_are_outputs_do_not_hide_parquet(raw: Path) -> None:
    (raw / "c" / "out").mkdir(parents=True)
    (raw / "c" / "x.parquet").write_bytes(b"")
    (raw / "c" / "out" / "o.tar").write_bytes(b"")
    (raw / "a" / "out").mkdir()
    (raw / "a" / "out" / "o.parquet").write_bytes(b"")
    found = listing(f"{raw}/c", excluded=f"{raw}/c/out")
    assert (list(found), found.unmatched) == (["x"], ())
    found = listing(f"{raw}/a", excluded=f"{raw}/a/out")
    assert (list(found), found.unmatched) == (["s-0", "s-1", "s-3"], ()), "nor are outputs passed over"


def test_a_tar_and_a_parquet_file_that_are_both_named_contend(raw: Path) -> None:
    (raw / "a" / "s-0.parquet").write_bytes(b"")
    found = listing(f"{raw}/a/s-0.tar {raw}/a/*.parquet")
    with pytest.raises(AmbiguousPartition, match="2 files would become partition 's-0'"):
        files_of(found["s-0"].uri)


@pytest.mark.parametrize("name", ["odd{1,2}.tar", "odd[1].tar", "folder.tar/x.tar"])
def test_a_name_that_exists_is_taken_literally(raw: Path, name: str) -> None:
    (raw / "odd" / name).parent.mkdir(parents=True)
    (raw / "odd" / name).write_bytes(b"")
    (shard,) = listing(str(raw / "odd" / name.partition("/")[0])).values()
    assert shard.files == (str(raw / "odd" / name),)


def test_files_that_contend_for_a_name_cost_that_partition_alone(raw: Path) -> None:
    clear = listing(f"{raw}/b")
    (raw / "b" / "x.tar.gz").write_bytes(b"")
    found = listing(f"{raw}/b")
    assert sorted(found) == ["deep/z", "x", "y"]
    with pytest.raises(AmbiguousPartition) as caught:
        files_of(found["x"].uri)
    assert (
        str(caught.value)
        == f"2 files would become partition 'x', rename all but one: {raw}/b/x.tar, {raw}/b/x.tar.gz"
    )
    assert found["x"].version != clear["x"].version
    assert [found[key].version == clear[key].version for key in ("deep/z", "y")] == [True, True]
    (raw / "b" / "x.tar.gz").unlink()
    assert listing(f"{raw}/b") == clear
    assert listing(f"{raw}/b")["x"].version == clear["x"].version


def test_groups_follow_from_the_numbers_in_names(raw: Path) -> None:
    (raw / "b" / "x.tar.gz").write_bytes(b"")
    found = RawLocations(f"{raw}/a {raw}/b").shards(2)
    assert {key: [os.path.basename(file) for file in shard.files] for key, shard in found.items()} == {
        "a/s-0-1": ["s-0.tar", "s-1.tar"],
        "a/s-2-3": ["s-3.tar"],
        "b/deep/z": ["z.TAR"],
        "b/y": ["y.tgz"],
        "b/x": ["x.tar", "x.tar.gz"],
    }
    assert files_of(found["a/s-0-1"].uri) == (f"{raw}/a/s-0.tar", f"{raw}/a/s-1.tar")


@pytest.mark.parametrize(
    ("shard", "size", "group"),
    [
        ("web-00012", 1, "web-00012"),
        ("web-00012", 10, "web-00010-00019"),
        ("en/web-00217", 100, "en/web-00200-00299"),
        ("99", 100, "00-99"),
        ("100", 100, "100-199"),
        ("0099", 100, "0000-0099"),
        ("v2/pages", 100, "v2/pages"),
        ("v2-pages٣", 100, "v2-pages٣"),
    ],
)
def test_names_of_groups(shard: str, size: int, group: str) -> None:
    assert group_name(shard, size) == group
    member = member_name(group, os.path.basename(shard))
    assert member == (None if group == shard else shard)


@pytest.mark.parametrize(
    ("partition", "shard"),
    [
        ("web-00000-00099", "web-00100"),
        ("web-00000-00099", "web-007"),
        ("web-00000-00099", "wob-00007"),
        ("web-00000-00099", "web-00000-00099"),
        ("web-00012", "web-00012"),
        ("web-00000+1", "web-00000"),
    ],
)
def test_no_member_of_a_group(partition: str, shard: str) -> None:
    assert member_name(partition, shard) is None


def test_a_group_whose_name_others_contend_for_is_not_read(raw: Path) -> None:
    for name in ("c-0.tar", "c-1.tar", "c-0-1.tar", "c-0-1.tar.gz"):
        (raw / "b" / name).write_bytes(b"")
    found = RawLocations(f"{raw}/b/c*").shards(2)
    with pytest.raises(AmbiguousPartition, match=r"4 files would become partition 'c-0-1'"):
        files_of(found["c-0-1"].uri)


@pytest.mark.parametrize("at", [0, 65_535, -65_536, -1])
def test_a_shard_mended_within_its_time_stamp_has_another_version(tmp_path: Path, at: int) -> None:
    path = tmp_path / "x.tar"
    content = bytearray(300_000)
    path.write_bytes(content)
    os.utime(path, ns=(TIME, TIME))
    before = version(path)
    content[at] = 1
    path.write_bytes(content)
    os.utime(path, ns=(TIME, TIME))
    assert version(path) != before


def test_a_version_goes_by_size_and_time_but_not_by_the_folder(tmp_path: Path) -> None:
    versions = []
    for folder, size, time in (("a", 9, TIME), ("b", 9, TIME), ("c", 8, TIME), ("d", 9, TIME + 1)):
        path = tmp_path / folder / "x.tar"
        path.parent.mkdir()
        path.write_bytes(bytes(size))
        os.utime(path, ns=(time, time))
        versions.append(version(path))
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3


def test_what_is_no_file_to_be_read_keeps_no_other_from_its_version(raw: Path) -> None:
    (raw / "b" / "dangling.tar").symlink_to(raw / "nowhere")
    (raw / "b" / "loop.tar").symlink_to(raw / "b" / "loop.tar")
    os.mkfifo(raw / "b" / "pipe.tar")  # reading it would wait for ever
    (raw / "b" / "folder.tar").mkdir()
    found = listing(f"{raw}/b/*.tar")
    assert {"dangling", "pipe", "folder", "x"} <= set(found)
    assert len({shard.version for shard in found.values()}) == len(found)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """A bucket of 40 files without the eighth, in memory; how often it was asked."""
    fs = MemoryFileSystem()
    fs.pipe({f"/bucket/s-{number}.tar": b"x" * number for number in range(40) if number != 7})
    asked = {"ls": 0, "info": 0}
    for name in asked:
        monkeypatch.setattr(MemoryFileSystem, name, _counted(name, asked))
    yield asked
    fs.rm("/bucket", recursive=True)


def _counted(name: str, asked: dict[str, int]) -> Any:
    original = getattr(MemoryFileSystem, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        asked[name] += 1
        return original(*arguments, **options)

    return counted


def test_files_of_one_remote_folder_are_asked_for_together(bucket: dict[str, int]) -> None:
    found = listing("memory://bucket/s-{0..39}.tar")
    assert len(found) == len({shard.version for shard in found.values()}) == 40
    assert bucket["ls"] <= 2 and bucket["info"] <= 2
    MemoryFileSystem().pipe({"/bucket/s-7.tar": b"new"})
    again = listing("memory://bucket/s-{0..39}.tar")
    assert [key for key in again if again[key].version != found[key].version] == ["s-7"]


def test_a_remote_folder_that_may_not_be_listed_is_asked_file_by_file(
    bucket: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {key: shard.version for key, shard in listing("memory://bucket/s-{0..9}.tar").items()}

    def forbidden(*_: Any, **__: Any) -> Any:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(MemoryFileSystem, "ls", forbidden)
    assert {key: shard.version for key, shard in listing("memory://bucket/s-{0..9}.tar").items()} == versions
    assert bucket["info"] >= 10


def test_shards_that_the_file_system_tells_to_be_unchanged(tmp_path: Path) -> None:
    """A file that was changed, or is reached by a link that was, is not among them: none can hide it."""
    (tmp_path / "one").mkdir()
    file = tmp_path / "one" / "a.tar"
    file.touch()
    changed = file.stat().st_ctime
    while (now := _link(tmp_path / "a.tar", file)) <= changed:  # by a clock that ticks every few milliseconds
        (tmp_path / "a.tar").unlink()
    (tmp_path / "two").symlink_to("one")
    places = {"file": file, "link": tmp_path / "a.tar", "folder": tmp_path / "two" / "a.tar"}
    listing = {name: RawShard(name, (str(path),)) for name, path in places.items()}
    listing["gone"] = RawShard("gone", (str(tmp_path / "gone.tar"),))
    listing["remote"] = RawShard("remote", ("s3://bucket/a.tar",))

    def unchanged(at: float) -> set[str]:
        return unchanged_shards(listing, dict.fromkeys([*listing, "unknown"], at))

    assert unchanged(changed + 60) == set()
    assert unchanged((changed + now) / 2 + 60) == {"file"}
    assert unchanged(changed + 3600) == {"file", "link", "folder"}
    os.utime(file, (0, 0))
    assert unchanged((changed + now) / 2 + 60) == set()


def _link(path: Path, target: Path) -> float:
    path.symlink_to(target)
    return path.lstat().st_ctime
