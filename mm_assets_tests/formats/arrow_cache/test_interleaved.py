"""Interleaved rows in caches: how they are written, where they are published, and what a damaged one does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from mm_assets.accounting.canonical import derive
from mm_assets.formats import ArrowCache, read_shard, read_sharded_cache_meta
from mm_assets.formats.arrow_cache import CacheShard, meta_of, metadata_text, reader_writer
from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.arrow_cache.caches import build, marks
from mm_assets_tests.formats.datasets import batch_of, item, read, write
from mm_assets_tests.formats.shelf import ShelfFileSystem

N = pa.field("n", pa.int64())


def rows(name: str, size: int = 10) -> list[dict[str, Any]]:
    return [
        item(name, n=len(name)),
        item(name, 0, text_content=f"text of {name}"),
        item(name, 1, "image", binary_content=bytes(size)),
    ]


def batch(names: str, size: int = 10, partition: str = "p") -> InterleavedBatch:
    return batch_of([row for name in names for row in rows(name, size)], [N], partition=partition)


def test_shards_and_metadata_are_those_of_any_cache(tmp_path: Path) -> None:
    source = batch("abc")
    report = write("arrow_cache", tmp_path, source)
    assert report.files == (str(tmp_path / "p"),)
    meta = read_sharded_cache_meta(tmp_path / "p")
    assert (meta.num_rows, meta.shard_filenames, report.nbytes) == (
        9,
        ["shard-00000.arrow"],
        sum(meta.shard_sizes),
    )
    same(read_shard(meta.shard_paths[0]).cast(source.data.schema), source.data)
    assert [row["n"] for row in ArrowCache(tmp_path / "p", decode=False)][:3] == [1, None, None]
    content = json.loads((tmp_path / "p" / "_metadata.json").read_text())
    assert "features" not in content and meta.schema is not None
    assert meta.schema.metadata[b"mm_assets:shard"] == b"p"
    with pytest.raises(ValueError, match="interleaved rows; open it with InterleavedArrowDataset"):
        ArrowCache(tmp_path / "p")


def test_the_fingerprint_is_of_the_columns(tmp_path: Path) -> None:
    write(
        "arrow_cache",
        tmp_path,
        [
            batch("a"),
            batch("b", partition="q"),
            batch_of(rows("c"), [pa.field("n", pa.int8())], partition="r"),
        ],
    )
    p, q, r = (read_sharded_cache_meta(tmp_path / name).schema_fingerprint for name in "pqr")
    assert p == q != r


def test_batches_hold_whole_samples_of_at_most_16_mib(tmp_path: Path) -> None:
    write("arrow_cache", tmp_path, batch("abcdefgh", 5 << 20))
    batches = list(ArrowCache(tmp_path / "p", decode=False).batches())
    assert [b.num_rows for b in batches] == [9, 9, 6]
    assert max(b.nbytes for b in batches) <= 16 << 20


def test_no_rows_are_no_shards_but_columns(tmp_path: Path) -> None:
    write("arrow_cache", tmp_path, batch(""))
    assert read_sharded_cache_meta(tmp_path / "p").num_shards == 0
    found = derive("arrow_cache", str(tmp_path / "p"))
    assert (found.rows, found.schema.names[-1]) == (0, "n")


def test_memory_under_nulls_is_not_published(tmp_path: Path) -> None:
    """Readers of Parquet leave there what was in memory; then equal rows would have unequal bytes, too."""
    source = batch("abc").data
    secret = np.frombuffer(b"a secret" * 9, np.int64)
    kept = pa.array([n is not None for n in source["n"].to_pylist()]).buffers()[1]
    numbers = pa.Array.from_buffers(pa.int64(), 9, [kept, pa.py_buffer(secret)])
    table = source.set_column(source.num_columns - 1, N, numbers)
    write("arrow_cache", tmp_path, InterleavedBatch(table, (), "p"))
    (shard,) = read_sharded_cache_meta(tmp_path / "p").shard_paths
    assert shard.read_bytes().count(b"a secret") == 3
    same(read("arrow_cache", tmp_path), table)


def test_another_version_replaces_and_the_same_changes_nothing(tmp_path: Path) -> None:
    write("arrow_cache", tmp_path, batch("abc"))
    write("arrow_cache", tmp_path, batch("xy"))
    meta = read_sharded_cache_meta(tmp_path / "p")
    assert sorted(os.listdir(tmp_path / "p")) == sorted(["_metadata.json", *meta.shard_filenames])
    assert os.listdir(tmp_path) == ["p"]
    before = marks(tmp_path / "p")
    write("arrow_cache", tmp_path, batch("xy"))
    assert marks(tmp_path / "p") == before


def test_a_flipped_byte_is_named_by_who_reads_images(tmp_path: Path) -> None:
    write("arrow_cache", tmp_path, batch("abc"))
    shard = tmp_path / "p" / "shard-00000.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ValueError, match=r"p/shard-00000\.arrow: .*its digest is .* the shard is damaged"):
        read("arrow_cache", tmp_path)


def test_examples_of_a_generator_are_not_interleaved(tmp_path: Path) -> None:
    build(tmp_path / "cache")
    with pytest.raises(ValueError, match="cache: not interleaved data, but the examples of a generator"):
        read("arrow_cache", tmp_path)


def _with_schema(folder: Path, schema: pa.Schema) -> None:
    path = folder / "_metadata.json"
    content = json.loads(path.read_text())
    shards = [
        CacheShard(*one)
        for one in zip(
            *(content[f"shard_{name}"] for name in ("filenames", "row_counts", "sizes", "digests")),
            strict=True,
        )
    ]
    path.write_text(metadata_text(meta_of(folder, schema, shards), 1))


def test_columns_that_are_not_those_of_the_shards_are_named(tmp_path: Path) -> None:
    source = batch("abc").data
    write("arrow_cache", tmp_path, batch("abc"))
    _with_schema(tmp_path / "p", source.schema.set(source.num_columns - 1, pa.field("n", pa.string())))
    with pytest.raises(
        ValueError, match=r"shard-00000\.arrow: damaged: its columns are not those that _metadata.json says"
    ):
        read("arrow_cache", tmp_path)
    _with_schema(tmp_path / "p", source.schema.remove(1))
    with pytest.raises(ValueError, match="p: not interleaved data, column 'position' is missing"):
        read("arrow_cache", tmp_path)


@pytest.mark.parametrize("text", [5, "", "AAAA", "/////w=="])
def test_a_schema_that_is_none_is_named(tmp_path: Path, text: object) -> None:
    write("arrow_cache", tmp_path, batch("abc"))
    path = tmp_path / "p" / "_metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"arrow_schema": text}))
    for kind_of_reader in (
        lambda: read("arrow_cache", tmp_path),
        lambda: derive("arrow_cache", str(tmp_path / "p")),
    ):
        with pytest.raises(ValueError, match="p/_metadata.json: "):
            kind_of_reader()


class TestObjectStore:
    """No renames, single puts."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> str:
        return f"{ShelfFileSystem.protocol}://{tmp_path}/caches"

    def names(self, folder: str) -> list[str]:
        fs, path = fsspec.core.url_to_fs(folder)
        return sorted(name.rpartition("/")[2] for name in fs.find(path))

    def test_a_round_trip_and_a_replacement(self, folder: str) -> None:
        write("arrow_cache", folder, batch("abc"))
        same(read("arrow_cache", folder), batch("abc").data)
        (before,) = (name for name in self.names(folder) if name.startswith("shard"))
        report = write("arrow_cache", folder, batch("xy"))
        assert set(read("arrow_cache", folder)["sample_id"].to_pylist()) == set("xy")
        assert len(self.names(folder)) == 2 and before not in self.names(folder)
        assert derive("arrow_cache", f"{folder}/p").digest == report.partitions[0].digest

    def test_the_put_of_the_metadata_makes_it_the_cache(
        self, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write("arrow_cache", folder, batch("abc"))
        fs, _ = fsspec.core.url_to_fs(folder)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="cut off"):
            patch.setattr(type(fs), "pipe_file", lambda *_: (_ for _ in ()).throw(OSError("cut off")))
            write("arrow_cache", folder, batch("xy"))
        assert set(read("arrow_cache", folder)["sample_id"].to_pylist()) == set("abc")
        assert len(self.names(folder)) == 3  # the shard that was put is of nobody

    def test_what_was_abandoned_goes_after_a_week(self, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
        fs, path = fsspec.core.url_to_fs(folder)
        for name in ("shard-00000-0123456789ab.arrow", "theirs.arrow"):
            fs.pipe_file(f"{path}/p/{name}", b"left")
        write("arrow_cache", folder, batch("abc"))
        assert "shard-00000-0123456789ab.arrow" in self.names(folder)
        monkeypatch.setattr("mm_assets.formats.arrow_cache.build.ABANDONED_SECONDS", -60)
        write("arrow_cache", folder, batch("abc"))
        assert "shard-00000-0123456789ab.arrow" not in self.names(folder) and "theirs.arrow" in self.names(
            folder
        )
        assert len(self.names(folder)) == 3


def test_leftovers_beside_the_caches_go_when_all_is_written(tmp_path: Path) -> None:
    (tmp_path / ".0123456789ab.building").mkdir()
    write("arrow_cache", tmp_path, batch("abc"))
    assert os.listdir(tmp_path) == ["p"]


def test_shards_end_with_the_batch_that_fills_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_writer, "DEFAULT_SHARD_SIZE_BYTES", 20 << 20)
    write("arrow_cache", tmp_path, batch("abcdefgh", 5 << 20))
    assert read_sharded_cache_meta(tmp_path / "p").shard_row_counts == [18, 6]
    same(read("arrow_cache", tmp_path), batch("abcdefgh", 5 << 20).data)
