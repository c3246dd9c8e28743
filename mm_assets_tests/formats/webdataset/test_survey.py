"""A survey says what reading will say, from headers, json and TIFF directories alone."""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.formats.images.tiff_directories import as_view, count_frames, iter_directories, read_header
from mm_assets.formats.reader import FileSurvey, SurveyedSample
from mm_assets.formats.webdataset import MAX_MEMBER_BYTES, RawLayout
from mm_assets.formats.webdataset.samples import survey_tar
from mm_assets.model.errors import DUPLICATE_ID, ImageError
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.images.tiff_tools import SEEDS, many_tiny_directories, tiff_of
from mm_assets_tests.formats.odd_samples import hostile
from mm_assets_tests.formats.raw_tars import make_tar, tar_members
from mm_assets_tests.formats.webdataset.tolerant_reading import own_members, read_tolerantly

MEMBERS: list[tuple[str, Any]] = [
    ("a.json", {"texts": ["t", None], "images": [None, "a.png", "gone.png"], "n": 1}),
    ("a.png", picture(0)[1]),
    ("pdf.json", {"images": ["p0", None, "p1", "p2"], "n": 2.5, "url": "u"}),
    ("pdf.tiff", tiff_of(2)),
    ("more.json", {"images": ["p0"], "sample_id": "doc/7"}),
    ("more.tiff", tiff_of(3)),
    ("equal.json", {"images": ["p0", "p1"]}),
    ("equal.tiff", tiff_of(2)),
    ("again.json", {"sample_id": "a", "texts": ["x"]}),
    ("stray.png", b"stray"),
]


def survey(shard: Path, max_member_bytes: int = MAX_MEMBER_BYTES) -> FileSurvey:
    return survey_tar(str(shard), RawLayout(), shard.name, max_member_bytes=max_member_bytes)


def test_what_a_survey_finds(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", MEMBERS)
    found = survey(shard)
    data = shard.read_bytes()
    assert [(f.sample_id, f.member, f.items, f.images) for f in found.samples] == [
        ("a", "a.json", 4, 2),
        ("pdf", "pdf.json", 4, 3),
        ("doc/7", "more.json", 2, 1),
        ("equal", "equal.json", 3, 2),
    ]
    for facts in found.samples:
        assert (
            data[facts.byte_offset : facts.byte_offset + facts.byte_size] == tar_members(shard)[facts.member]
        )
    assert [(loss.sample_id, loss.position, loss.kind) for loss in found.losses] == [
        ("a", -1, DUPLICATE_ID),
        ("a", 0, DUPLICATE_ID),
    ]
    assert found.unresolved == (
        ("a", 2, "missing member 'gone.png'"),
        ("pdf", 3, "dangling reference: frame 2 of 'pdf.tiff': it has 2 frames for 3 references"),
    )
    assert found.frame_counts == (("pdf.tiff", 2, 3), ("more.tiff", 3, 1))
    assert found.unreferenced == ("stray.png",)
    types = {name: str(tally.field(name).type) for name, tally in found.tallies.items()}
    assert (types["n"], types["url"]) == ("double", "string")
    assert found.declared == ()
    assert pickle.loads(pickle.dumps(found)).samples == found.samples  # noqa: S301 (our own bytes)


def test_declared_types_of_our_own_tars(tmp_path: Path) -> None:
    found = survey(make_tar(tmp_path / "x.tar", own_members(tmp_path)))
    assert [(f.sample_id, f.items, f.images) for f in found.samples] == [
        (name, 3, 1) for name in ("first", "edited", "last")
    ]
    assert [schema.names for schema in found.declared] == [["extra"]]
    assert (found.declared[0].field("extra").type, dict(found.tallies)) == (pa.string(), {})


def errors_of(shard: Path) -> tuple[tuple[str, int, str], ...]:
    """The error rows of images, as reading gives them."""
    rows = read_tolerantly(shard).table.to_pylist()
    failed = [row for row in rows if row["modality"] == "image" and row["materialize_error"] is not None]
    return tuple((row["sample_id"], row["position"], row["materialize_error"]) for row in failed)


def test_references_of_the_hostile_set_are_unresolved_as_they_are_read(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "hostile.tar", hostile())
    found = survey(shard)
    assert found.unresolved == errors_of(shard) and len(found.unresolved) == 6
    assert sum(facts.items for facts in found.samples) == read_tolerantly(shard).table.num_rows


def overlapping_directories() -> bytes:
    """Three directories of 18 bytes in 44: the third, at byte 14, lies over the other two."""
    first = struct.pack("<HHHIII", 1, 256, 4, 1, 1, 26)
    second = struct.pack("<HHHIII", 1, 0, 0, 1, 1, 14)
    return b"II*\0\x08\0\0\0" + first + second


DAMAGED = {
    "empty": b"",
    "short": b"II*\0",
    "no directory": b"II*\0\0\0\0\0",
    "directory outside": b"II*\0\xff\xff\xff\xff",
    "no tiff": b"no tiff",
    "cut": tiff_of(3)[:900],
    "many": many_tiny_directories(),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_frames_behind_a_damaged_directory_are_unresolved(tmp_path: Path, data: bytes) -> None:
    shard = make_tar(
        tmp_path / "x.tar", [("a.json", {"images": ["p0", "p1", "p2"]}), ("a.tiff", data), ("b.json", {})]
    )
    found = survey(shard)
    sound = 65536 if len(data) > 10_000 else 0
    if sound:
        assert (found.unresolved, found.frame_counts) == ((), (("a.tiff", sound, 3),))
    else:
        assert found.unresolved == errors_of(shard) and len(found.unresolved) == 3
        assert found.frame_counts == (("a.tiff", 0, 3),)


def test_a_tiff_of_several_samples_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(fd: int, offset: int, size: int) -> tuple[int, ImageError | None]:
        counted.append(offset)
        return count_frames(fd, offset, size)

    monkeypatch.setattr("mm_assets.formats.webdataset.samples.count_frames", count)
    jsons: Sequence[tuple[str, Any]] = [(f"{n}.json", {"images": ["s.tiff"] * n}) for n in (2, 3, 4)]
    found = survey(make_tar(tmp_path / "x.tar", [("s.tiff", tiff_of(3)), *jsons]))
    assert found.frame_counts == (("s.tiff", 3, 2), ("s.tiff", 3, 4))
    assert len(counted) == 1


def test_oversized_members_are_unresolved_and_not_unreferenced(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", MEMBERS[:4])
    size = len(dict(MEMBERS)["pdf.tiff"])
    found = survey(shard, max_member_bytes=size - 1)
    message = f"oversized member 'pdf.tiff': {size} bytes, at most {size - 1}"
    assert found.unresolved[-3:] == tuple(("pdf", position, message) for position in (0, 2, 3))
    assert (found.frame_counts, found.unreferenced) == ((), ())


def test_no_image_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = make_tar(tmp_path / "x.tar", [("a.json", {"images": ["a.png"]}), ("a.png", bytes(1 << 20))])
    read = 0
    pread, preadv = os.pread, os.preadv

    def counting(fd: int, size: int, at: int) -> bytes:
        nonlocal read
        data = pread(fd, size, at)
        read += len(data)
        return data

    def counting_v(fd: int, buffers: Any, at: int) -> int:
        nonlocal read
        count = preadv(fd, buffers, at)
        read += count
        return count

    monkeypatch.setattr(os, "pread", counting)
    monkeypatch.setattr(os, "preadv", counting_v)
    assert survey(shard).samples == (SurveyedSample("a", "a.json", 512, 21, 2, 1),)
    assert read < 20_000


def test_a_damaged_and_an_absent_tar(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", MEMBERS)
    whole = survey(shard)
    shard.write_bytes(shard.read_bytes()[: whole.samples[2].byte_offset + 5])
    found = survey(shard)
    assert found.samples == whole.samples[:2]
    assert [loss.kind for loss in found.losses] == ["truncated_tar"]
    with pytest.raises(FileNotFoundError):
        survey(tmp_path / "absent.tar")


# Counting frames


def check_count(data: bytes) -> None:
    """The same directories, and the same error, as a walk over the bytes in memory."""
    expected, message = 0, None
    try:
        view = as_view(data)
        layout, first = read_header(view)
        for _ in iter_directories(view, layout, first):
            expected += 1
    except ImageError as error:
        message = str(error)
    with tempfile.TemporaryFile() as file:
        file.write(b"before" + data + b"II*\0\x08\0\0\0behind")
        file.flush()
        frames, damage = count_frames(file.fileno(), 6, len(data))
    assert (frames, None if damage is None else str(damage)) == (expected, message)


TIFFS = {
    **{f"seed {number}": seed for number, seed in enumerate(SEEDS)},
    **DAMAGED,
    "forty": tiff_of(40),
    "overlap": overlapping_directories(),
    "cut link": SEEDS[0][:-2],
}


@pytest.mark.parametrize("data", TIFFS.values(), ids=TIFFS)
def test_frames_are_counted_as_in_memory(data: bytes) -> None:
    check_count(data)


@given(st.sampled_from(SEEDS), st.data())
def test_frames_of_damaged_tiffs_are_counted_as_in_memory(seed: bytes, data: st.DataObject) -> None:
    damaged = bytearray(seed[: data.draw(st.integers(0, len(seed)))])
    for _ in range(data.draw(st.integers(0, 3)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    check_count(bytes(damaged))


def test_a_file_that_ends_early_is_no_crash(tmp_path: Path) -> None:
    data = tiff_of(2)
    (tmp_path / "x").write_bytes(data[:60])
    with open(tmp_path / "x", "rb") as file:
        frames, damage = count_frames(file.fileno(), 0, len(data))
    assert frames == 0 and "the file ends" in str(damage)
