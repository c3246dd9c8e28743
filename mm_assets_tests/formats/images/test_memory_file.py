"""A file in memory that is not copied."""

import io

import pytest

from mm_assets.formats.images.decode import MemoryFile

DATA = bytes(range(200))


@pytest.mark.parametrize("size", [0, 1, 199, 200, 201, 1 << 62, -1, None])
@pytest.mark.parametrize("at", [0, 3, 199, 200, 999])
def test_it_reads_as_any_file_does(at: int, size: int | None) -> None:
    ours, known = MemoryFile(memoryview(DATA)), io.BytesIO(DATA)
    for file in (ours, known):
        file.seek(at)
    assert ours.read(size) == known.read(size)
    assert ours.tell() == known.tell()


@pytest.mark.parametrize("at", [0, 150, 200, 999])
def test_a_buffer_is_filled_as_far_as_there_is_data(at: int) -> None:
    ours, known = MemoryFile(memoryview(DATA)), io.BytesIO(DATA)
    buffers = bytearray(100), bytearray(100)
    for file, buffer in zip((ours, known), buffers, strict=True):
        file.seek(at)
        file.readinto(buffer)
    assert buffers[0] == buffers[1]
    assert ours.tell() == known.tell()
