"""MDS shards: their bytes as mosaicml-streaming documents them, and damage as one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.accounting.canonical import derive
from mm_assets.formats import mds
from mm_assets.model.errors import ShardError
from mm_assets_tests.formats.datasets import batch_of, item, read, table_of, write

N = pa.field("n", pa.int64())
ROWS = [
    item("a.b", n=2**60),
    item("a.b", 0, "image", binary_content=b"\xff\xd8\xff\xe0one", content_type="image/jpeg"),
    item("a.b", 1, text_content="tëxt", content_type="text/plain"),
    item("a.b", 2, "image", binary_content=b"\x89PNG\r\n\x1a\ntwo", content_type="image/png"),
    item("ü/2"),
    item("ü/2", 3, text_content="alone", content_type="text/plain"),
]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    write("mds", tmp_path, batch_of(ROWS, [N], partition="p"))
    return tmp_path / "p.mds"


def samples_of(shard: Path) -> tuple[dict[str, Any], list[dict[str, bytes]]]:
    """The description of the columns, and the values of each sample, by struct alone."""
    data = shard.read_bytes()
    (count,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
    assert offsets[-1] == len(data)
    config = json.loads(data[4 * (count + 2) : offsets[0]])
    found = []
    for start in offsets[:-1]:
        names = config["column_names"]
        sizes = struct.unpack_from(f"<{len(names)}I", data, start)
        at = start + 4 * len(names)
        values = {}
        for name, size in zip(names, sizes, strict=True):
            values[name] = data[at : at + size]
            at += size
        found.append(values)
    return config, found


def test_a_shard_is_as_documented(shard: Path) -> None:
    config, (first, second) = samples_of(shard)
    assert list(zip(config["column_names"], config["column_encodings"], strict=True)) == [
        ("image_bytes", "bytes"),
        ("image_sizes", "json"),
        ("json", "json"),
    ]
    assert (config["version"], config["format"], config["compression"]) == (2, "mds", None)
    assert first["image_bytes"] == b"\xff\xd8\xff\xe0one\x89PNG\r\n\x1a\ntwo"
    assert json.loads(first["image_sizes"]) == [7, 11] and json.loads(second["image_sizes"]) == []
    document = json.loads(first["json"])
    assert (document["sample_id"], document["images"]) == ("a.b", ["0.jpg", None, "2.png"])
    index = json.loads((shard.parent / "index.json").read_text())
    assert index == {
        "version": 2,
        "shards": [
            {
                **config,
                "raw_data": {"basename": "p.mds", "bytes": shard.stat().st_size, "hashes": {}},
                "samples": 2,
                "zip_data": None,
            }
        ],
    }


def test_rows_come_back(shard: Path) -> None:
    assert read("mds", shard.parent).to_pylist() == table_of(ROWS, [N]).to_pylist()
    found = derive("mds", str(shard))
    assert (found.samples, found.rows, found.images) == (2, 6, 2)


def test_a_shard_that_is_gone_leaves_the_index(shard: Path) -> None:
    write("mds", shard.parent, batch_of([item("c")], partition="q"))
    shard.unlink()
    mds.InterleavedMdsWriter(str(shard.parent)).finish(())
    index = json.loads((shard.parent / "index.json").read_text())
    assert [each["raw_data"]["basename"] for each in index["shards"]] == ["q.mds"]


@pytest.mark.parametrize("kept", [0, 3, 8, 40, -1])
def test_a_cut_shard(shard: Path, kept: int) -> None:
    shard.write_bytes(shard.read_bytes()[:kept])
    with pytest.raises(ShardError, match=r"p\.mds: no MDS shard, or (it is cut|damaged)"):
        read("mds", shard)
    with pytest.raises(ShardError, match=r"p\.mds: "):
        derive("mds", str(shard))


@pytest.mark.parametrize(
    ("found", "other"),
    [
        (b'"images":["0.jpg"', b'"images":[["0.jpg"'),
        (b'"image_members"', b'"image_nembers"'),
        (b"[7, 11]", b"[7, 12]"),
        (b"[7, 11]", b"[-7,25]"),
    ],
)
def test_a_changed_shard(shard: Path, found: bytes, other: bytes) -> None:
    data = shard.read_bytes()
    assert found in data
    shard.write_bytes(data.replace(found, other[: len(found)], 1))
    with pytest.raises(ShardError, match=r"p\.mds: sample 0: damaged: "):
        read("mds", shard)


def test_a_hostile_number_of_samples_takes_no_memory(shard: Path) -> None:
    shard.write_bytes(struct.pack("<I", 2**32 - 1) + shard.read_bytes()[4:])
    with pytest.raises(ShardError, match="no MDS shard, or it is cut"):
        read("mds", shard)
    with pytest.raises(ShardError, match=r"p\.mds: "):
        derive("mds", str(shard))


def test_shards_of_others_are_no_interleaved_data(tmp_path: Path) -> None:
    config = json.dumps({"column_names": ["x"], "column_encodings": ["int"], "column_sizes": [8]}).encode()
    start = 4 * 3 + len(config)
    (tmp_path / "x.mds").write_bytes(struct.pack("<III", 1, start, start + 8) + config + bytes(8))
    with pytest.raises(ShardError, match=r"x\.mds: not interleaved data: its columns are x"):
        read("mds", tmp_path / "x.mds")


def test_a_shard_that_offsets_cannot_reach_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mds, "_MAX_BYTES", 1000)
    with pytest.raises(ShardError, match=r"p\.mds: an MDS shard has less than 4 GiB: write smaller ones"):
        write("mds", tmp_path, batch_of(ROWS, [N], partition="p"))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
