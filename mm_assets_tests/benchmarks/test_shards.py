"""The shards that benchmarks measure with: always the same bytes, and what the two layouts of MINT-1T look
like.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks import photographs
from benchmarks.documents import LAYOUTS, Layout
from benchmarks.shards import Shape, make_shards
from mm_assets.interleaved import InterleavedWebdatasetReader
from mm_assets_tests.formats.raw_tars import tar_members


def shape(layout: Layout) -> Shape:
    return Shape(layout, shards=2, samples=3, sample_bytes=60_000, images=(2, 4))


@pytest.fixture(scope="module", autouse=True)
def _small_textures() -> Iterator[None]:
    """To make those of 3072 pixels takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(photographs, "SIDE", 768)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Layout], list[Path]]:
    folder = tmp_path_factory.mktemp("made")
    return cache(lambda layout: make_shards(folder / layout, shape(layout)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_shape_gives_the_same_bytes(
    tmp_path: Path, made: Callable[[Layout], list[Path]], layout: Layout
) -> None:
    one, two = made(layout), make_shards(tmp_path, shape(layout))
    assert [path.name for path in one] == ["shard-00000.tar", "shard-00001.tar"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    stamps = [path.stat().st_mtime_ns for path in two]
    assert [path.stat().st_mtime_ns for path in make_shards(tmp_path, shape(layout))] == stamps  # made once


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_the_shards_hold(made: Callable[[Layout], list[Path]], layout: Layout) -> None:
    files = made(layout)
    reader = InterleavedWebdatasetReader([str(file) for file in files], per_image_fields=("image_metadata",))
    rows = [row for batch in reader for row in batch.data.to_pylist()]
    assert [
        len({row["sample_id"] for row in rows if row["source_ref"].count(file.name)}) for file in files
    ] == [2, 1]
    for sample_id in {row["sample_id"] for row in rows}:
        kinds = Counter(row["modality"] for row in rows if row["sample_id"] == sample_id)
        assert kinds["metadata"] == 1
        assert 2 <= kinds["image"] <= 4
        assert 3 <= kinds["text"] <= 8
    images = [row for row in rows if row["modality"] == "image"]
    assert {row["content_type"] for row in images} == {"image/tiff" if layout == "tiff" else "image/jpeg"}
    suffixes = Counter(name.rpartition(".")[2] for file in files for name in tar_members(file))
    assert suffixes == ({"json": 3, "tiff": 3} if layout == "tiff" else {"json": 3, "jpg": len(images)})
