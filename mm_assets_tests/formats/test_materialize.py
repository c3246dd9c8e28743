"""Bytes from locators: every kind, every file system, every failure a message on its row."""

from __future__ import annotations

import os
import tarfile
import threading
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.registry import _registry

from mm_assets.formats import materialize as fetching
from mm_assets.interleaved import InterleavedBatch, InterleavedWebdatasetReader, build_source_ref, materialize
from mm_assets_tests.formats.datasets import item, table_of
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.images.tiff_tools import assert_same, read_tiff, tiff_of
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.shelf import TwoSchemesFileSystem

PNG, JPG = picture(0)[1], picture(1)[1]
TIFF = tiff_of(3)


@pytest.fixture
def memory() -> fsspec.AbstractFileSystem:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    return fs


def refs(*locators: str | None, **values: Any) -> pa.Table:
    return table_of([item("s", n, "image", source_ref=ref, **values) for n, ref in enumerate(locators)])


def fetched(table: pa.Table, **options: Any) -> list[bytes | str | None]:
    """Bytes, or the message, of each row; never both."""
    result = []
    for row in materialize(table, **options).to_pylist():
        assert row["binary_content"] is None or row["materialize_error"] is None
        result.append(row["binary_content"] if row["materialize_error"] is None else row["materialize_error"])
    return result


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return make_tar(
        tmp_path / "x.tar", [("a.png", PNG), ("dir/b.jpg", JPG), ("c.tiff", TIFF), ("empty.png", b"")]
    )


def offset_of(shard: Path, name: str) -> int:
    with tarfile.open(shard) as tar:
        return tar.getmember(name).offset_data


def test_every_strategy_in_one_batch(shard: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.png"
    whole.write_bytes(PNG)
    table = refs(
        build_source_ref(str(shard), "a.png", offset_of(shard, "a.png"), len(PNG)),
        build_source_ref(str(shard), "dir/b.jpg"),
        build_source_ref(str(whole)),
        build_source_ref(f"file://{whole}"),
        build_source_ref(str(whole), None, 1, 3),
        build_source_ref(str(shard), "empty.png", 512, 0),
    )
    assert fetched(table) == [PNG, JPG, PNG, PNG, PNG[1:4], b""]


def test_tiff_frames(shard: Path) -> None:
    at = offset_of(shard, "c.tiff")
    table = refs(
        *[build_source_ref(str(shard), "c.tiff", at, len(TIFF), frame) for frame in (2, 0)],
        build_source_ref(str(shard), "c.tiff", frame_index=1),
    )
    found = fetched(table)
    for frame, data in zip((2, 0, 1), found, strict=True):
        assert isinstance(data, bytes)
        assert_same(read_tiff(TIFF)[frame], read_tiff(data)[0])


def test_frames_are_those_the_reader_gives(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", [("a.json", {"images": ["p0", "p1", None, "p2"]}), ("a.tiff", TIFF)])
    (eager,) = InterleavedWebdatasetReader(str(shard))
    (lazy,) = InterleavedWebdatasetReader(str(shard), materialize=False)
    assert lazy.data["binary_content"].null_count == lazy.num_rows
    assert materialize(lazy).data.equals(eager.data)


def test_local_and_remote_in_one_batch(shard: Path, memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/bucket/x.tar", shard.read_bytes())
    memory.pipe("/bucket/one.png", PNG)
    at = offset_of(shard, "a.png")
    table = refs(
        build_source_ref("memory://bucket/x.tar", "a.png", at, len(PNG)),
        build_source_ref(str(shard), "a.png", at, len(PNG)),
        build_source_ref("memory://bucket/x.tar", "dir/b.jpg"),
        build_source_ref("memory://bucket/one.png"),
        build_source_ref("memory://bucket/gone.tar", "a.png", at, 5),
        build_source_ref("memory://bucket/gone.png"),
    )
    *found, gone_range, gone_file = fetched(table)
    assert found == [PNG, PNG, JPG, PNG]
    for message in (gone_range, gone_file):
        assert isinstance(message, str)
        assert "gone" in message


@pytest.mark.parametrize("remote", [False, True])
def test_packed_tars_by_the_offsets_of_the_unpacked(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, remote: bool
) -> None:
    shard = make_tar(
        tmp_path / "x.tar.gz",
        [("a.json", {"images": ["a.png", "b.jpg"]}), ("a.png", PNG), ("b.jpg", JPG)],
        mode="w:gz",
    )
    uri = str(shard)
    if remote:
        memory.pipe("/bucket/x.tar.gz", shard.read_bytes())
        uri = "memory://bucket/x.tar.gz"
    (lazy,) = InterleavedWebdatasetReader(uri, materialize=False)
    found = materialize(lazy).data
    assert found["binary_content"].to_pylist() == [None, PNG, JPG]
    assert found["materialize_error"].null_count == 3
    assert fetched(refs(build_source_ref(uri, "b.jpg"))) == [JPG]


def test_identical_ranges_are_fetched_once(
    shard: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/bucket/x.tar", shard.read_bytes())
    remote_ranges: list[tuple[int, int]] = []
    local_ranges: list[tuple[int, int]] = []
    original = type(memory).cat_ranges

    def cat_ranges(self: Any, paths: Any, starts: Any, ends: Any, **more: Any) -> Any:
        remote_ranges.extend(zip(starts, ends, strict=True))
        return original(self, paths, starts, ends, **more)

    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        local_ranges.append((offset, size))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(type(memory), "cat_ranges", cat_ranges)
    monkeypatch.setattr(fetching.os, "pread", counted)
    at, size = offset_of(shard, "c.tiff"), len(TIFF)
    table = refs(
        *[build_source_ref("memory://bucket/x.tar", "c.tiff", at, size, frame) for frame in (0, 1, 2, 0)],
        *[build_source_ref(str(shard), "c.tiff", at, size, frame) for frame in (0, 1, 2, 0)],
    )
    found = fetched(table)
    assert found[:4] == found[4:]
    assert found[0] == found[3] != found[1]
    assert remote_ranges.count((at, at + size)) == 1
    assert local_ranges.count((at, size)) == 1


def test_rows_with_bytes_errors_or_no_locator_are_left_alone(shard: Path) -> None:
    ref = build_source_ref(str(shard), "a.png")
    rows = [
        item("s", source_ref=ref),
        item("s", 0, text_content="t", source_ref=ref),
        item("s", 1, "image", source_ref=ref, binary_content=b"mine"),
        item("s", 2, "image", source_ref=ref, materialize_error="earlier"),
        item("s", 3, "image"),
    ]
    table = table_of(rows)
    assert materialize(table) is table
    batch = InterleavedBatch(table, ("f",), "p")
    assert list(materialize(batch).source_files) == ["f"]
    assert materialize(table_of([])).num_rows == 0
    assert materialize(table.drop_columns(["source_ref"])).num_rows == 5


def test_mixed_rows_keep_their_places(shard: Path) -> None:
    ref = build_source_ref(str(shard), "a.png")
    rows = [
        item("s"),
        item("s", 0, "image", binary_content=b"x"),
        item("s", 1, "image", source_ref=ref),
        item("s", 2, "image", source_ref="{}"),
    ]
    table = pa.concat_tables([table_of(rows[:2]), table_of(rows[2:])])
    done = materialize(table)
    assert done["binary_content"].to_pylist() == [None, b"x", PNG, None]
    assert done["materialize_error"].to_pylist() == [None, None, None, "missing path"]
    assert done.schema.equals(table.schema, check_metadata=True)


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("{}", "missing path"),
        ("not json", "Expecting value"),
        ("[1]", "must be a JSON object"),
        ('{"path": 5}', "path is no string"),
        ('{"path": "X", "member": 5}', "member is no string"),
        ('{"path": "X", "byte_offset": "0", "byte_size": 5}', "byte_offset is no number"),
        ('{"path": "X", "byte_offset": 1.5, "byte_size": 5}', "byte_offset is no number"),
        ('{"path": "X", "byte_offset": -1, "byte_size": 5}', "byte_offset is no number"),
        ('{"path": "X", "byte_offset": 0, "byte_size": true}', "byte_size is no number"),
        ('{"path": "X", "byte_offset": 0, "byte_size": 1e400}', "byte_size is no number"),
        ('{"path": "X", "byte_offset": 0, "byte_size": 99999999999999999999999}', "byte_size is no number"),
        ('{"path": "X", "byte_offset": 0, "byte_size": 4611686018427387904}', "outside the file"),
        ('{"path": "X", "byte_offset": 999999, "byte_size": 5}', "outside the file"),
        ('{"path": "X", "byte_offset": 5}', "a range of bytes takes an offset and a size"),
        ('{"path": "X", "byte_size": 5}', "a range of bytes takes an offset and a size"),
        ('{"path": "X", "byte_offset": 5, "byte_size": 0}', "a range of bytes takes an offset and a size"),
        ('{"path": "X", "member": "nope.png"}', "missing member 'nope.png'"),
        ('{"path": "X", "member": "a.png", "frame_index": 0}', "failed to extract frame 0"),
        ('{"path": "X", "member": "c.tiff", "frame_index": 3}', "failed to extract frame 3"),
        ('{"path": "X", "member": "c.tiff", "frame_index": "0"}', "frame_index is no number"),
        ('{"path": "X.gone"}', "no such file"),
        ('{"path": "X/y"}', "failed to read"),
        ('{"path": "a\\u0000b"}', "null byte"),
        ('{"path": "/proc/self"}', "not a regular file"),
        ('{"path": "nosuchprotocol://a/b"}', "nosuchprotocol"),
    ],
    ids=lambda v: v[:60],
)
def test_failures_are_messages_and_cost_only_their_row(shard: Path, ref: str, said: str) -> None:
    good = build_source_ref(str(shard), "a.png")
    first, message, last = fetched(refs(good, ref.replace("X", str(shard)), good))
    assert first == last == PNG
    assert isinstance(message, str)
    assert said in message


def test_a_file_that_is_no_tar_has_no_members(tmp_path: Path) -> None:
    file = tmp_path / "plain.bin"
    file.write_bytes(b"x" * 2000)
    (message,) = fetched(refs(build_source_ref(str(file), "a.png")))
    assert isinstance(message, str)
    assert "plain.bin" in message


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    results: list[Any] = []
    worker = threading.Thread(
        target=lambda: results.extend(fetched(refs(build_source_ref(str(tmp_path / "pipe"))))), daemon=True
    )
    worker.start()
    worker.join(10)
    assert results == [f"failed to read {tmp_path / 'pipe'}: not a regular file"]


@pytest.fixture
def confined(tmp_path: Path, shard: Path) -> Path:
    """A root with one tar in it, and a secret beside it."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "x.tar").write_bytes(shard.read_bytes())
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "root-too").mkdir()
    (tmp_path / "root-too" / "f").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to(tmp_path)
    return root


@pytest.mark.parametrize(
    "path",
    [
        "TMP/secret",
        "/etc/passwd",
        "../secret",
        "sub/../../secret",
        "link",
        "up/secret",
        "TMP/root/../secret",
        "TMP/root-too/f",
        "file:///etc/passwd",
        "file://TMP/secret",
        "memory://bucket/f",
        "local:///etc/passwd",
        "s3://bucket/x",
        "x.tar/../../secret",
    ],
)
def test_nothing_outside_the_roots_is_read(
    tmp_path: Path, confined: Path, memory: fsspec.AbstractFileSystem, path: str
) -> None:
    memory.pipe("/bucket/f", b"secret")
    (message,) = fetched(refs(build_source_ref(path.replace("TMP", str(tmp_path)))), roots=[str(confined)])
    assert isinstance(message, str)
    assert "outside the configured roots" in message or "no such file" in message


@pytest.mark.parametrize(
    "path",
    [
        "memory://other/f",
        "memory://bucket-2/f",
        "memory://bucket/../other/f",
        "/etc/passwd",
        "memory://bucket/::file:///etc/passwd",
    ],
)
def test_nothing_outside_a_remote_root_is_read(memory: fsspec.AbstractFileSystem, path: str) -> None:
    for place in ("/other/f", "/bucket-2/f"):
        memory.pipe(place, b"secret")
    (message,) = fetched(refs(build_source_ref(path)), roots=["memory://bucket"])
    assert isinstance(message, str)
    assert "outside the configured roots" in message


def test_relative_paths_are_looked_up_in_the_first_root(confined: Path, tmp_path: Path) -> None:
    table = refs(build_source_ref("x.tar", "a.png"), build_source_ref(str(confined / "x.tar"), "a.png"))
    assert fetched(table, roots=[str(confined), str(tmp_path / "elsewhere")]) == [PNG, PNG]


def test_without_roots_locators_are_trusted_and_with_none_nothing_is_read(shard: Path) -> None:
    table = refs(build_source_ref(str(shard), "a.png"))
    assert fetched(table) == [PNG]
    (message,) = fetched(table, roots=[])
    assert isinstance(message, str)
    assert "outside the configured roots" in message


def test_a_member_link_never_leaves_the_tar(tmp_path: Path) -> None:
    shard = tmp_path / "x.tar"
    with tarfile.open(shard, "w") as tar:
        info = tarfile.TarInfo("a.png")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    (message,) = fetched(refs(build_source_ref(str(shard), "a.png")))
    assert isinstance(message, str)
    assert "outside the tar" in message


def test_messages_call_files_what_the_data_calls_them(confined: Path) -> None:
    """Published errors hold no path of this machine."""
    (confined / "bad.tar").write_bytes(b"x" * 3000)
    locators = [
        build_source_ref("gone.tar"),
        build_source_ref("x.tar", "nope"),
        build_source_ref("x.tar", None, 10**9, 5),
        build_source_ref("bad.tar", "a"),
        build_source_ref("."),
        build_source_ref("x.tar", "a.png", frame_index=1),
    ]
    for message in fetched(refs(*locators), roots=[str(confined)]):
        assert isinstance(message, str)
        assert str(confined) not in message


def test_a_cut_gzip_is_a_message(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar.gz", [("a.png", PNG)], mode="w:gz")
    shard.write_bytes(shard.read_bytes()[:-20])
    (message,) = fetched(refs(build_source_ref(str(shard), "a.png", 512, len(PNG))))
    assert isinstance(message, str)
    assert "gzip" in message


def test_hostile_member_names_do_not_touch_the_disk(shard: Path) -> None:
    for name in ("../../etc/passwd", "/etc/passwd", "a.png/../../x", "./../a.png"):
        (message,) = fetched(refs(build_source_ref(str(shard), name)))
        assert isinstance(message, str)
        assert "missing member" in message


def test_the_other_scheme_of_a_root_is_inside(confined: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gs", "gcs"):
        monkeypatch.setitem(_registry, name, TwoSchemesFileSystem)
    Path(confined, "there").write_bytes(PNG)
    locator = refs(build_source_ref(f"gs://{confined}/there"))
    assert fetched(locator, roots=[f"gcs://{confined}"]) == [PNG]
