"""A damaged tar: the members around the damage are used, what is not is a stretch that says from where to
where.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mm_assets.formats.tar import TarDamage
from mm_assets.formats.tar.scan import scan_tolerant
from mm_assets.interleaved import InterleavedWebdatasetReader
from mm_assets.model.errors import DAMAGED_TAR, TRUNCATED_TAR
from mm_assets.model.losses import Loss
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.images.tiff_tools import tiff_of
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.tar.raw_headers import END, header, pax, record
from mm_assets_tests.formats.webdataset.tolerant_reading import Reading, read_tolerantly

LONG = "long/" + "x" * 150
MEMBERS: list[tuple[str, Any]] = [
    ("first.png", picture(0)[1]),  # image before its json
    ("first.json", {"images": ["first.png"], "texts": [None, "a"]}),
    ("second.json", {"images": ["second.png", "first.png"], "n": 1}),
    ("second.png", picture(1)[1]),
    (f"{LONG}.json", {"texts": ["t" * 700]}),
    ("pdf.json", {"images": ["p0", "p1"]}),
    ("pdf.tiff", tiff_of(2)),
    ("last.json", {"texts": ["z"]}),
]


def expected_after_cut(data: bytes, size: int) -> tuple[set[str], int]:
    """By tarfile: members that are whole in the first ``size`` bytes, and where what is not begins."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        spans = [(info.name, info.offset, info.offset_data + info.size) for info in tar]
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    whole = {name for name, _, stop in spans if stop <= size}
    start = next((start for _, start, stop in spans if stop > size), end)
    return whole, min(start, size)


def check_samples(reading: Reading, full: Reading, members: set[str]) -> None:
    """Samples whose json is there are there; they are equal when their images are, too, and have error rows
    otherwise.
    """
    assert reading.ids == [name for name in full.ids if f"{name}.json" in members]
    by_place = {(row["sample_id"], row["position"], row["modality"]): row for row in full.rows}
    assert len(reading.rows) == sum(row["sample_id"] in reading.ids for row in full.rows)
    for row in reading.rows:
        told = by_place[row["sample_id"], row["position"], row["modality"]]
        if told["modality"] == "image" and told["source_ref"][1] not in members:
            assert row["binary_content"] is None
            assert row["materialize_error"].startswith(("missing member", "dangling reference"))
        else:
            assert row == {name: told[name] for name in row}


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_tar_cut_anywhere_gives_what_lies_before_the_cut(tmp_path: Path, kind: int) -> None:
    whole = make_tar(tmp_path / "whole" / "x.tar", MEMBERS, kind=kind)
    data, full = whole.read_bytes(), read_tolerantly(whole)
    assert (full.losses, len(full.ids)) == ([], 5)
    assert not [row for row in full.rows if row["materialize_error"]]
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    cut = tmp_path / "cut" / "x.tar"
    cut.parent.mkdir()
    for size in sorted({*range(0, end + 2048, 512), *range(1, end, 613), *range(end - 3, end + 1030, 171)}):
        cut.write_bytes(data[:size])
        reading = read_tolerantly(cut)
        members, at = expected_after_cut(data, size)
        check_samples(reading, full, members)
        if size >= end + 1024:
            assert reading.losses == []
            continue
        (loss,) = reading.losses
        ref = json.dumps({"path": "x.tar", "member": None, "byte_offset": at, "byte_size": size - at})
        reason = loss.reason
        assert loss == Loss(None, None, None, "quarantined", TRUNCATED_TAR, reason, source_ref=ref)
        assert reason.startswith("x.tar: byte ")
        with pytest.raises(TarDamage) as caught:
            list(InterleavedWebdatasetReader(str(cut)))
        assert str(caught.value) == reason.replace("x.tar", str(cut), 1)
        assert (caught.value.is_cut, f"byte {caught.value.at}:" in reason) == (True, True)


def one_loss(shard: Path, end: int | None = None) -> tuple[Reading, Loss, int]:
    """The one stretch, which reaches up to ``end`` or the end of the file, and where it begins."""
    reading = read_tolerantly(shard)
    (loss,) = reading.losses
    assert (loss.sample_id, loss.position, loss.modality, loss.is_item) == (None, None, None, False)
    ref = json.loads(loss.source_ref or "")
    assert (ref["path"], ref["member"]) == (shard.name, None)
    if shard.suffix == ".tar":
        assert ref["byte_offset"] + ref["byte_size"] == (shard.stat().st_size if end is None else end)
    return reading, loss, ref["byte_offset"]


def spans(data: bytes) -> dict[str, tuple[int, int]]:
    """(first byte of the first header, first byte of the main header) of each member."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {info.name: (info.offset, info.offset_data - 512) for info in tar}


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize(
    "flipped", [3, 105, 127, 131, 132, 140, 150, 156, 260, 400]
)  # name, mode, size, mtime, checksum, type, magic
@pytest.mark.parametrize("name", [name for name, _ in MEMBERS])
def test_a_flipped_header_costs_its_own_member(tmp_path: Path, name: str, flipped: int, kind: int) -> None:
    shard = make_tar(tmp_path / "x.tar", MEMBERS, kind=kind)
    full, data = read_tolerantly(shard), bytearray(shard.read_bytes())
    starts = {member: start for member, (start, _) in spans(bytes(data)).items()}
    end = min(
        [start for start in starts.values() if start > starts[name]],
        default=len(data.rstrip(b"\0")) // 512 * 512 + 512,
    )
    start, main = spans(bytes(data))[name]
    for header_at in {start, main}:  # an extended header, or its member's
        damaged = bytearray(data)
        damaged[header_at + flipped] ^= 1
        shard.write_bytes(damaged)
        reading, loss, at = one_loss(shard, end)
        assert (loss.kind, at) == (DAMAGED_TAR, start)
        hint = "" if header_at else ": the file is no tar, or damaged from its first byte on"
        assert loss.reason == f"x.tar: byte {header_at}: header checksum mismatch{hint}"
        check_samples(reading, full, {member for member, _ in MEMBERS} - {name})
        with pytest.raises(TarDamage, match=f"byte {header_at}: header checksum mismatch"):
            list(InterleavedWebdatasetReader(str(shard)))


def test_each_byte_is_a_members_an_end_blocks_or_in_a_stretch(tmp_path: Path) -> None:
    """Whatever is written over the tar, also over several headers."""
    data = make_tar(tmp_path / "whole.tar", MEMBERS).read_bytes()
    pick = random.Random(5)
    path = tmp_path / "x.tar"
    damaged_ranges = 0
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(pick.randrange(1, 5)):
            at, size = pick.randrange(len(data)), pick.choice([1, 100, 512, 2000])
            damaged[at : at + size] = pick.choice([bytes, pick.randbytes])(len(damaged[at : at + size]))
        path.write_bytes(damaged)
        with open(path, "rb") as file:
            index = scan_tolerant(file.fileno(), "x.tar")
        spans_ = [(m.header_offset, m.offset + m.size) for m in index.members] + [
            (s.start, s.end) for s in index.damaged_ranges
        ]
        known = 0
        for start, end in sorted(spans_):
            assert start >= known, "nothing is told twice"
            assert not any(damaged[known:start]), "what nobody tells of is zeros"
            known = -(-end // 512) * 512 if end < len(data) else end
        assert not any(damaged[known:])
        damaged_ranges += len(index.damaged_ranges)
        for member in index.members:
            assert damaged[member.offset : member.offset + member.size].count(0) or member.size
    assert damaged_ranges > 300


def test_the_number_of_stretches_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_assets.formats.tar.scan.MAX_DAMAGED_RANGES", 10)
    data = bytearray(
        make_tar(
            tmp_path / "x.tar", [(f"{n}.json", {}) for n in range(40)], kind=tarfile.USTAR_FORMAT
        ).read_bytes()
    )
    for number in range(0, 40, 2):
        data[number * 1024] ^= 1
    (tmp_path / "x.tar").write_bytes(data)
    reading = read_tolerantly(tmp_path / "x.tar")
    places = [json.loads(loss.source_ref or "") for loss in reading.losses]
    assert [place["byte_offset"] for place in places] == [number * 2048 for number in range(10)]
    assert [place["byte_size"] for place in places] == [*[1024] * 9, len(data) - 9 * 2048]
    assert reading.ids == [str(number) for number in range(1, 19, 2)]


def test_the_way_on_is_found_in_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes read, for a tar of bad headers before a long run of zeros and of half a header everywhere."""
    bad = bytearray(header(b"bad", 300 * 512))
    bad[0] ^= 1
    almost = header(b"almost", 0)
    almost = almost[:148] + b"0000000\0" + almost[156:]
    path = tmp_path / "x.tar"
    read = 0
    pread = os.pread

    def counting(fd: int, size: int, at: int) -> bytes:
        nonlocal read
        found = pread(fd, size, at)
        read += len(found)
        return found

    monkeypatch.setattr(os, "pread", counting)
    for part in (bytes(bad) + header(b"ok", 0), almost, bytes(bad) + bytes(512)):
        path.write_bytes(part * 4000 + bytes(8 << 20) + b"end")
        read = 0
        with open(path, "rb") as file:
            assert scan_tolerant(file.fileno(), "x.tar").damaged_ranges
        assert read < 6 * path.stat().st_size


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str, str]] = {
    "late byte": (lambda d: d + bytes(9999) + b"x", "data after the end-of-archive blocks", "end"),
    "sparse": (
        lambda d: d.rstrip(b"\0") + bytes(-len(d.rstrip(b"\0")) % 512) + header(b"s", 0, b"S") + END,
        "sparse",
        "end",
    ),
    "volume": (
        lambda d: d.rstrip(b"\0") + bytes(-len(d.rstrip(b"\0")) % 512) + header(b"s", 0, b"M") + END,
        "another volume",
        "end",
    ),
    "contradiction": (
        lambda d: pax(record("path", "a")) * 2 + header(b"m", 0) + END,
        *("two extended headers contradict each other", "start"),
    ),
    "no tar": (lambda d: b"<html>" * 200, "header checksum mismatch: the file is no tar, or", "start"),
    "gzip in gzip": (lambda d: gzip.compress(gzip.compress(d)), "is gzip, not a tar", "start"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_that_is_no_cut(tmp_path: Path, case: str) -> None:
    damage, said, place = DAMAGES[case]
    shard = make_tar(tmp_path / "x.tar", MEMBERS)
    full, data = read_tolerantly(shard), shard.read_bytes()
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    shard = shard.rename(tmp_path / ("x.tar.gz" if "gzip" in case else "x.tar"))
    shard.write_bytes(damage(data))
    reading, loss, at = one_loss(
        shard, {"sparse": end + 512, "volume": end + 512, "contradiction": 2560}.get(case)
    )
    assert loss.kind == DAMAGED_TAR and said in loss.reason
    assert (at, reading.ids) == ((end, full.ids) if place == "end" else (0, []))
    assert reading.rows == (full.rows if place == "end" else [])


def test_a_zeroed_header_hides_nothing(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", MEMBERS)
    data = bytearray(shard.read_bytes())
    start, _ = spans(bytes(data))["pdf.json"]
    end, _ = spans(bytes(data))["pdf.tiff"]
    data[start : start + 512] = bytes(512)
    shard.write_bytes(data)
    reading, loss, at = one_loss(shard, end)
    assert (loss.kind, at, reading.ids) == (DAMAGED_TAR, start, ["first", "second", LONG, "last"])


def test_the_second_of_two_tars_is_read_too(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", MEMBERS)
    full, data = read_tolerantly(shard), shard.read_bytes()
    other = make_tar(
        tmp_path / "y.tar", [("z.json", {"texts": ["z"], "images": ["z.png"]}), ("z.png", picture(0)[1])]
    )
    shard.write_bytes(data + other.read_bytes())
    reading, loss, at = one_loss(shard, len(data))
    assert (loss.kind, at) == (DAMAGED_TAR, len(data.rstrip(b"\0")) // 512 * 512 + 512)
    assert "data after the end-of-archive blocks" in loss.reason
    assert reading.ids == [*full.ids, "z"]
    assert reading.rows[: len(full.rows)] == full.rows
    assert reading.rows[-1]["binary_content"] == picture(0)[1]


def test_an_empty_file_is_a_truncated_tar(tmp_path: Path) -> None:
    shard = tmp_path / "x.tar"
    shard.write_bytes(b"")
    reading, loss, at = one_loss(shard)
    assert (reading.rows, loss.kind, at) == ([], TRUNCATED_TAR, 0)
    assert loss.reason == "x.tar: byte 0: the file is empty, not even an empty tar"


def packed(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(gzip.compress(part) for part in parts))
    return path


def test_a_packed_tar_that_is_cut_gives_what_could_be_unpacked(tmp_path: Path) -> None:
    noise = [(f"n{i}.json", {"texts": [os.urandom(3000).hex()]}) for i in range(40)]
    data = make_tar(tmp_path / "plain.tar", noise).read_bytes()
    shard = packed(tmp_path / "x.tar.gz", data)
    full, size = read_tolerantly(shard), shard.stat().st_size
    assert (len(full.ids), full.losses) == (40, [])
    for length in (10, size // 3, size // 2, size - 9, size - 1):
        packed(shard, data)
        os.truncate(shard, length)
        reading, loss, at = one_loss(shard)
        assert loss.kind == TRUNCATED_TAR
        assert loss.reason == f"x.tar.gz: byte {length}: the gzip stream is cut here"
        assert reading.rows == full.rows[: len(reading.rows)]
        starts = [start for start, _ in spans(data).values()]
        assert at == [*starts, len(data)][len(reading.ids)]
        assert (len(reading.ids) > length * 40 // size - 4) or length == 10


def test_bytes_that_fail_their_checksum_are_not_used(tmp_path: Path) -> None:
    """A wrong byte need not show until the end of its gzip member: an image before that may be another
    one.
    """
    data = make_tar(tmp_path / "plain.tar", MEMBERS, kind=tarfile.GNU_FORMAT).read_bytes()
    start, _ = spans(data)["pdf.json"]
    shard = packed(tmp_path / "x.tar.gz", data[:start], data[start:])
    full = read_tolerantly(shard)
    bad = bytearray(shard.read_bytes())
    bad[-6] ^= 1  # in the checksum of the second gzip member
    shard.write_bytes(bad)
    reading, loss, at = one_loss(shard)
    assert (loss.kind, at) == (DAMAGED_TAR, start)
    assert "corrupt gzip" in loss.reason
    assert reading.ids == ["first", "second", LONG]
    assert reading.rows == full.rows[: len(reading.rows)]
    packed(shard, data)
    bad = bytearray(shard.read_bytes())
    bad[-6] ^= 1
    shard.write_bytes(bad)
    reading, loss, at = one_loss(shard)
    assert (reading.rows, loss.kind, at) == ([], DAMAGED_TAR, 0)


def test_junk_after_the_gzip_stream_is_damage_behind_all_samples(tmp_path: Path) -> None:
    data = make_tar(tmp_path / "plain.tar", MEMBERS).read_bytes()
    shard = packed(tmp_path / "x.tar.gz", data)
    full = read_tolerantly(shard)
    shard.write_bytes(shard.read_bytes() + b"junk")
    reading, loss, at = one_loss(shard)
    assert (loss.kind, at) == (DAMAGED_TAR, len(data)), "no byte of the tar"
    assert f"x.tar.gz: byte {shard.stat().st_size - 4}: corrupt gzip, or none" in loss.reason
    assert reading.rows == full.rows


@pytest.mark.parametrize("parts", [1, 2])
def test_nothing_of_a_gzip_bomb_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    monkeypatch.setattr("mm_assets.formats.webdataset.samples.unpacked_limit", lambda size: 1 << 20)
    data = make_tar(tmp_path / "plain.tar", [*MEMBERS, ("zeros.bin", bytes(4 << 20))]).read_bytes()
    shard = packed(tmp_path / "x.tar.gz", *([data] if parts == 1 else [data[:4096], data[4096:]]))
    reading, loss, at = one_loss(shard)
    assert (reading.rows, loss.kind, at) == ([], DAMAGED_TAR, 0)
    hint = "300 times its size and 64 MiB: unpack it yourself (gunzip) if you trust it"
    assert loss.reason == f"x.tar.gz: unpacks to more than 1048576 bytes, {hint}"


def test_a_remote_tar_that_is_cut(tmp_path: Path) -> None:
    data = make_tar(tmp_path / "x.tar", MEMBERS).read_bytes()
    start, _ = spans(data)["pdf.json"]
    with fsspec.open("memory://tolerant/x.tar", "wb") as file:
        file.write(data[: start + 100])
    reader = InterleavedWebdatasetReader("memory://tolerant/x.tar", quarantine_errors=True)
    stream = reader.open(reader.partitions()[0])
    rows = [row for batch in stream for row in batch.data.to_pylist()]
    (loss,) = stream.losses
    assert list(dict.fromkeys(row["sample_id"] for row in rows)) == ["first", "second", LONG]
    assert (loss.kind, json.loads(loss.source_ref or "")["byte_offset"]) == (TRUNCATED_TAR, start)


def test_a_file_that_cannot_be_opened_still_raises(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", MEMBERS)
    reader = InterleavedWebdatasetReader(str(shard), quarantine_errors=True)
    (partition,) = reader.partitions()
    shard.unlink()
    with pytest.raises(FileNotFoundError):
        reader.open(partition)
    shard.mkdir()
    with pytest.raises(IsADirectoryError):
        reader.open(partition)
