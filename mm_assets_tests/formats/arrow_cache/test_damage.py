"""A damaged cache is one clear error that names the file."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from mm_assets.formats import ArrowCache, read_shard, read_sharded_cache_meta, validate_sharded_cache
from mm_assets.formats.arrow_cache.features import feature_of
from mm_assets_tests.formats.arrow_cache.caches import FEATURES, build


def test_a_flipped_byte_in_each_shard(tmp_path: Path) -> None:
    meta = build(tmp_path / "cache")
    assert meta.num_shards > 3
    chance = random.Random(4)
    for number, path in enumerate(meta.shard_paths):
        sound = path.read_bytes()
        for place in (0, len(sound) - 1, *(chance.randrange(len(sound)) for _ in range(5))):
            path.write_bytes(
                sound[:place] + bytes([sound[place] ^ 1 << chance.randrange(8)]) + sound[place + 1 :]
            )
            cache, row = ArrowCache(meta.cache_dir, decode=False), sum(meta.shard_row_counts[:number])
            message = f"{re.escape(str(path))}: its digest is"
            with pytest.raises(ValueError, match=message):
                validate_sharded_cache(meta.cache_dir, FEATURES)
            with pytest.raises(ValueError, match=message):
                read_shard(path)
            with pytest.raises(ValueError, match=message):
                cache[row]
            with pytest.raises(ValueError, match=message):
                list(cache)
            assert cache[row - 1]["number"] == (row - 1) % 30  # the others can be read
        path.write_bytes(sound)
    assert validate_sharded_cache(meta.cache_dir, FEATURES) == meta


def test_damage_after_the_first_opening_is_seen_at_the_next(tmp_path: Path) -> None:
    meta = build(tmp_path / "cache")
    path = meta.shard_paths[0]
    assert ArrowCache(meta.cache_dir, decode=False)[0]["number"] == read_shard(path)["number"][0].as_py() == 0
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="its digest is"):
        read_shard(path)
    with pytest.raises(ValueError, match="its digest is"):
        ArrowCache(meta.cache_dir)[0]


@pytest.mark.parametrize("number", [0, -1])
def test_a_shard_that_is_missing_or_cut(tmp_path: Path, number: int) -> None:
    meta = build(tmp_path / "cache")
    path = meta.shard_paths[number]
    path.write_bytes(path.read_bytes()[:-1])
    for read in (
        lambda: read_sharded_cache_meta(meta.cache_dir),
        lambda: ArrowCache(meta.cache_dir),
        lambda: read_shard(path),
    ):
        with pytest.raises(ValueError, match=f"{re.escape(str(path))}: .*bytes, not"):
            read()
    path.unlink()
    for read in (
        lambda: read_sharded_cache_meta(meta.cache_dir),
        lambda: validate_sharded_cache(meta.cache_dir, FEATURES),
    ):
        with pytest.raises(ValueError, match=f"{re.escape(str(path))}: Missing shard file"):
            read()
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        read_shard(path)


def test_no_cache(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match=re.escape(str(folder / "_metadata.json"))):
            read_sharded_cache_meta(folder)


def test_a_file_alone_is_read_without_metadata(tmp_path: Path) -> None:
    meta = build(tmp_path / "cache")
    alone = tmp_path / "alone.arrow"
    alone.write_bytes(meta.shard_paths[0].read_bytes())
    assert read_shard(alone).num_rows == meta.shard_row_counts[0]
    alone.write_bytes(b"ARROW1 is what it begins with, and no more")
    with pytest.raises(ValueError, match=rf"{re.escape(str(alone))}: not an Arrow file"):
        read_shard(alone)
    alone.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{re.escape(str(alone))}: not an Arrow file"):
        read_shard(alone)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"cache_format_version": 2}',
        b'{"cache_format_version": 1}',
    ],
)
def test_metadata_that_are_none(tmp_path: Path, text: bytes) -> None:
    path = build(tmp_path / "cache").cache_dir / "_metadata.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: not the metadata of a cache"):
        read_sharded_cache_meta(path.parent)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: not the metadata of a cache"):
        read_shard(path.parent / "shard-00000.arrow")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_rows": 29},
        {"num_rows": None},
        {"num_shards": 1},
        {"shard_row_counts": [30]},
        {"shard_row_counts": None},
        {"shard_filenames": []},
        {"shard_digests": ["0" * 31] * 6},
        {"shard_sizes": [-1] * 6},
        {"shard_sizes": [True] * 6},
        {"schema_fingerprint": ""},
        {"features": None},
        {"features": {"number": {"_type": "Value", "dtype": "int33"}}},
        {"features": {"number": {"_type": "Sequence"}}},
        {"features": {"number": {"_type": ["Value"]}}},
        {"features": {"number": {"_type": "Array3D", "shape": 3}}},
        {"features": {"number": {"_type": "Array3D", "shape": [1, 1, 1], "dtype": "(2,"}}},
        {"features": {"number": {"_type": "Value", "dtype": None}}},
    ],
)
def test_metadata_that_contradict_themselves(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = build(tmp_path / "cache").cache_dir / "_metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: not the metadata of a cache"):
        read_sharded_cache_meta(path.parent)


@pytest.mark.parametrize(
    "definition",
    [
        {"_type": "Value", "dtype": None},
        {"_type": "Array3D", "shape": [1, 1, 1], "dtype": None},
        {"_type": "Array3D", "shape": [1, 1, 1], "dtype": "(2,"},
        {"_type": "Array3D", "shape": [1, 1, "1"]},
        {"_type": "Array3D", "shape": [1, 1, -1]},
        {"_type": "Array3D", "shape": [None, 0, 8]},
        {"_type": "ClassLabel", "num_classes": 3},  # a large one would make names until memory is full
        {"_type": "ClassLabel", "names": "ab"},
    ],
)
def test_definitions_that_are_none(definition: dict[str, Any]) -> None:
    for one in (definition, {"_type": "Sequence", "feature": definition}):
        with pytest.raises(ValueError, match="no feature|Array3D"):
            feature_of(one)


@pytest.mark.parametrize(
    "name", ["../shard-00000.arrow", "/etc/passwd", "a/shard-00000.arrow", "shard-00000.arrow\n", "..", "", 5]
)
def test_a_name_in_the_metadata_never_leads_elsewhere(tmp_path: Path, name: Any) -> None:
    path = build(tmp_path / "cache").cache_dir / "_metadata.json"
    content = json.loads(path.read_text())
    (tmp_path / "shard-00000.arrow").write_bytes((path.parent / "shard-00000.arrow").read_bytes())
    content["shard_filenames"][0] = name
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="shard_filenames has"):
        read_sharded_cache_meta(path.parent)


def test_row_counts_are_held_against_the_shards(tmp_path: Path) -> None:
    path = build(tmp_path / "cache").cache_dir / "_metadata.json"
    content = json.loads(path.read_text())
    content["shard_row_counts"][0] += 1
    content["shard_row_counts"][1] -= 1
    path.write_text(json.dumps(content))
    for read in (lambda: validate_sharded_cache(path.parent, FEATURES), lambda: ArrowCache(path.parent)[0]):
        with pytest.raises(ValueError, match=r"shard-00000\.arrow: \d+ rows, not \d+"):
            read()
