from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.formats import tar as tar_writer
from mm_assets.formats.tar import TarDamage, TarWriter
from mm_assets.formats.tar.scan import scan
from mm_assets.formats.webdataset.client_files import tar_idx

SAMPLES = [
    [("a.0.jpg", b"x" * 700), ("a.json", b"{}")],
    [("b.json", b"")],
    [("c.3.png", b"y" * 512), ("c.12.tiff", b"z" * 513), ("c.json", b"j" * 1024)],
]


def write(path: Path, samples: list[list[tuple[str, bytes]]]) -> TarWriter:
    with TarWriter(path) as writer:
        for sample in samples:
            writer.write_group(sample)
    return writer


def reference(samples: list[list[tuple[str, bytes]]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, payload in (member for sample in samples for member in sample):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(payload), 0o644
            tar.addfile(info, io.BytesIO(payload))
        end = tar.offset
    return out.getvalue()[: end + 1024]


member_names = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=100).filter(
    lambda n: not n.endswith("/")
)
samples_strategy = st.lists(
    st.lists(
        st.tuples(member_names, st.binary(max_size=1600)), min_size=1, max_size=5, unique_by=lambda m: m[0]
    ),
    max_size=5,
)


@given(samples_strategy)
def test_bytes_equal_tarfile_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, samples: list[list[tuple[str, bytes]]]
) -> None:
    path = tmp_path_factory.mktemp("write") / "t.tar"
    writer = write(path, samples)
    data = path.read_bytes()
    assert data == reference(samples)
    assert (writer.groups, writer.bytes) == (len(samples), len(data))
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        read = [(m.name, tar.extractfile(m).read()) for m in members]  # type: ignore[union-attr]
    assert read == [member for sample in samples for member in sample]
    lengths = iter(members)
    starts = [[next(lengths).offset for _ in sample][0] for sample in samples]
    assert tar_idx(writer.offsets) == struct.pack(f"<{len(starts) + 1}Q", *starts, len(data) - 1024)


def test_idx_of_a_known_tar(tmp_path: Path) -> None:
    writer = write(tmp_path / "t.tar", SAMPLES)
    offsets = [
        0,
        512 + 1024 + 512 + 512,
        512 + 1024 + 512 + 512 + 512,
        2560 + 512 + 1024 + 512 + 1024 + 512 + 1024,
    ]
    assert tar_idx(writer.offsets) == b"".join(n.to_bytes(8, "little") for n in offsets)
    assert os.path.getsize(tmp_path / "t.tar") == offsets[-1] + 1024


def test_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "one.tar", SAMPLES)
    (tmp_path / "two.tar").write_bytes(b"older and longer" * 10_000)
    write(tmp_path / "two.tar", SAMPLES)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_an_empty_tar_is_two_blocks(tmp_path: Path) -> None:
    writer = write(tmp_path / "t.tar", [])
    assert (tmp_path / "t.tar").read_bytes() == bytes(1024)
    assert tar_idx(writer.offsets) == bytes(8)


def test_arrow_buffers_are_written_from_where_they_lie(tmp_path: Path) -> None:
    array = pa.array([b"one", b"two" * 1000], pa.large_binary())
    buffer = array.buffers()[2]
    views = [memoryview(buffer)[:3], buffer.slice(3, 3000), pa.py_buffer(b"q"), bytearray(b"r")]
    with TarWriter(tmp_path / "t.tar") as writer:
        writer.write_group([(f"k.{i}.jpg", view) for i, view in enumerate(views)])
    with tarfile.open(tmp_path / "t.tar") as tar:
        read = [tar.extractfile(m).read() for m in tar]  # type: ignore[union-attr]
    assert read == [b"one", b"two" * 1000, b"q", b"r"]


BAD = {
    "no members": ([], "different names"),
    "a name twice": ([("a.json", b""), ("a.json", b"")], "different names"),
    "too long": ([("n" * 101, b"")], "1 to 100 ASCII"),
    "empty name": ([("", b"")], "1 to 100 ASCII"),
    "not ASCII": ([("é.jpg", b"")], "1 to 100 ASCII"),
    "NUL": ([("a\0b", b"")], "1 to 100 ASCII"),
    "second member bad": ([("good.0.jpg", b"1"), ("é.jpg", b"")], "1 to 100 ASCII"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_refused_sample_leaves_no_trace(case: str, tmp_path: Path) -> None:
    members, match = BAD[case]
    with TarWriter(tmp_path / "t.tar") as writer:
        writer.write_group(SAMPLES[0])
        with pytest.raises(ValueError, match=match):
            writer.write_group(members)
        writer.write_group(SAMPLES[1])
    assert (tmp_path / "t.tar").read_bytes() == reference(SAMPLES[:2])


def test_members_of_8_gib_are_refused(tmp_path: Path) -> None:
    huge = memoryview(pa.foreign_buffer(1, 8 << 30))  # never read: sizes are checked first
    with TarWriter(tmp_path / "t.tar") as writer, pytest.raises(ValueError, match="smaller than 8589934592"):
        writer.write_group([("a.0.jpg", huge)])
    assert tar_writer._header("a", (8 << 30) - 1)[124:136] == b"77777777777\0"


def test_partial_writes_and_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = [(f"k.{i}.jpg", bytes([i % 256]) * (i % 700)) for i in range(1500)] + [
        ("k.json", b"{}" * 50_000)
    ]
    real = os.writev
    calls: list[int] = []

    def stingy(fd: int, buffers: list[bytes]) -> int:
        assert len(buffers) <= os.sysconf("SC_IOV_MAX")
        calls.append(len(buffers))
        return real(fd, [b"".join(map(bytes, buffers[:5]))[: 1 + len(calls) * 37 % 1500]])

    monkeypatch.setattr(os, "writev", stingy)
    writer = write(tmp_path / "t.tar", [sample, SAMPLES[0]])
    assert (tmp_path / "t.tar").read_bytes() == reference([sample, SAMPLES[0]])
    assert len(calls) > 1000 and writer.groups == 2


def test_an_exception_leaves_a_tar_that_reads_as_damaged(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="given up"), TarWriter(tmp_path / "t.tar") as writer:
        writer.write_group(SAMPLES[0])
        raise RuntimeError("given up")
    with open(tmp_path / "t.tar", "rb") as file, pytest.raises(TarDamage, match="end blocks are missing"):
        scan(file.fileno(), "t.tar")
    with pytest.raises(ValueError, match="closed"):
        writer.write_group(SAMPLES[0])


def test_a_failed_write_cannot_be_closed_as_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TarWriter(tmp_path / "t.tar")
    writer.write_group(SAMPLES[0])

    def full(fd: int, buffers: list[bytes]) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(OSError, match="No space"):
            writer.write_group(SAMPLES[1])
    with pytest.raises(ValueError, match="failed"):
        writer.write_group(SAMPLES[1])
    with pytest.raises(ValueError, match="not complete"):
        writer.close()
    assert os.path.getsize(tmp_path / "t.tar") == 2560


def test_a_full_device_is_an_error() -> None:
    with pytest.raises(OSError, match="No space"), TarWriter("/dev/full") as writer:
        writer.write_group(SAMPLES[0])


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar command on this machine")
def test_gnu_tar_lists_it(tmp_path: Path) -> None:
    write(tmp_path / "t.tar", SAMPLES)
    listed = subprocess.run(["tar", "-tf", tmp_path / "t.tar"], capture_output=True, text=True, check=True)
    assert (listed.stdout.split(), listed.stderr) == ([n for s in SAMPLES for n, _ in s], "")
