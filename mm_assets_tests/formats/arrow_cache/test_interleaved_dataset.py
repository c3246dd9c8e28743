"""Interleaved samples by number and by id."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.formats import InterleavedArrowDataset, arrow_cache
from mm_assets.formats.arrow_cache import reader_writer
from mm_assets.interleaved import build_source_ref
from mm_assets.model.json_codec import json_field
from mm_assets_tests.formats.arrow_cache.caches import build
from mm_assets_tests.formats.datasets import batch_of, item, write

EXTRAS = [pa.field("n", pa.int64()), json_field("j"), json_field("_source"), pa.field("width", pa.int32())]
PICTURE = bytes(range(256))
LATER = build_source_ref("raw.tar", "7.png")


def rows(name: str) -> list[dict[str, Any]]:
    return [
        item(name, n=len(name), j='{"k":[1,NaN]}', _source='{"lengths":{}}'),
        item(name, 0, text_content=f"text of {name}", content_type="text/plain"),
        item(name, 2, "image", binary_content=PICTURE + name.encode(), content_type="image/png", width=5),
        item(name, 2, text_content="below"),
        item(name, 7, "image", source_ref=LATER),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A storage root with two partitions; a folder that is no cache is beside them."""
    caches = tmp_path / "arrow_cache"
    write(
        "arrow_cache", caches, [batch_of(rows("one") + rows("two"), EXTRAS, partition="p")], materialize=False
    )
    write("arrow_cache", caches, [batch_of(rows("three"), EXTRAS[:1], partition="a/b")], materialize=False)
    (tmp_path / "arrow_cache" / "other").mkdir()
    return tmp_path


def test_a_sample_is_its_items_in_order(folder: Path) -> None:
    sample = InterleavedArrowDataset(folder)[1]
    assert list(sample) == ["sample_id", "items", "metadata"]
    assert sample["sample_id"] == "one"
    assert list(sample["metadata"]) == ["n", "j", "width"]
    assert (sample["metadata"]["n"], sample["metadata"]["width"], sample["metadata"]["j"]["k"][0]) == (
        3,
        None,
        1,
    )
    none = {"metadata": {}}
    assert sample["items"] == [
        {"modality": "text", "position": 0, "content_type": "text/plain", "text": "text of one", **none},
        {"modality": "text", "position": 2, "content_type": None, "text": "below", **none},
        {
            "modality": "image",
            "position": 2,
            "content_type": "image/png",
            "image": PICTURE + b"one",
            "metadata": {"width": 5},
        },
        {"modality": "image", "position": 7, "content_type": None, "image": None, **none},
    ]


def test_an_item_with_an_error_says_so(tmp_path: Path) -> None:
    bad = [
        item("bad"),
        item("bad", 0, "image", binary_content=b"no picture", materialize_error="unreadable image: no"),
    ]
    bad.append(item("bad", 1, text_content="t"))
    write(
        "arrow_cache", tmp_path / "arrow_cache", [batch_of(bad, partition="p")], on_materialize_error="warn"
    )
    (sample,) = InterleavedArrowDataset(tmp_path)
    assert [item.get("error") for item in sample["items"]] == ["unreadable image: no", None]


def test_order_and_access(folder: Path) -> None:
    """By the names of the folders, `a%2Fb` first, and as they lie in each."""
    dataset = InterleavedArrowDataset(folder)
    assert [dataset[i]["sample_id"] for i in range(len(dataset))] == ["three", "one", "two"]
    assert [sample["sample_id"] for sample in dataset.__getitems__([2, 0, -2])] == ["two", "three", "one"]
    assert [dataset.index(name) for name in ("three", "one", "two")] == [0, 1, 2]
    with pytest.raises(KeyError, match="four"):
        dataset.index("four")
    for number in (3, -4):
        with pytest.raises(IndexError, match=f"sample {number} of 3"):
            dataset[number]


def test_a_storage_root_a_folder_of_caches_or_one(folder: Path) -> None:
    assert (
        len(InterleavedArrowDataset(folder)) == len(InterleavedArrowDataset(str(folder / "arrow_cache"))) == 3
    )
    assert len(InterleavedArrowDataset(folder / "arrow_cache" / "p")) == 2
    with pytest.raises(FileNotFoundError, match="other: no cache here"):
        InterleavedArrowDataset(folder / "arrow_cache" / "other")
    with pytest.raises(ValueError, match="s3://bucket/out: only local files can be mapped"):
        InterleavedArrowDataset("s3://bucket/out")
    build(folder / "arrow_cache" / "examples")
    with pytest.raises(ValueError, match="examples: the examples of a generator, not interleaved rows"):
        InterleavedArrowDataset(folder)


def test_a_sample_over_several_shards_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_writer, "DEFAULT_SHARD_SIZE_BYTES", 1)
    monkeypatch.setattr(
        reader_writer,
        "cut_by_bytes",
        lambda tables, _: (t.slice(i, 1) for t in tables for i in range(t.num_rows)),
    )
    write(
        "arrow_cache", tmp_path, batch_of(rows("one") + rows("two"), EXTRAS, partition="p"), materialize=False
    )
    dataset = InterleavedArrowDataset(tmp_path)
    assert [len(dataset[i]["items"]) for i in range(len(dataset))] == [4, 4]
    assert dataset[dataset.index("two")]["items"][0]["text"] == "text of two"


def test_nothing_at_all(tmp_path: Path) -> None:
    write("arrow_cache", tmp_path, batch_of([], EXTRAS, partition="p"))
    dataset = InterleavedArrowDataset(tmp_path)
    assert len(dataset) == 0
    with pytest.raises(KeyError):
        dataset.index("one")


def _ids(dataset: InterleavedArrowDataset) -> list[str]:
    return [dataset[i]["sample_id"] for i in range(len(dataset))]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("is_used", [False, True])
def test_other_processes(folder: Path, method: str, is_used: bool) -> None:
    dataset = InterleavedArrowDataset(folder)
    if is_used:
        assert dataset.index("two") == 2
        assert dataset[0]["sample_id"] == "three"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        assert pool.submit(_ids, dataset).result() == ["three", "one", "two"]


def test_what_is_sent_holds_no_rows(folder: Path) -> None:
    dataset = InterleavedArrowDataset(folder)
    assert dataset[2]["items"][2]["image"].endswith(b"two")
    sent = pickle.dumps(dataset)
    assert PICTURE not in sent


def test_a_shard_is_digested_once_and_damage_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digested = []
    real = arrow_cache.file_digest
    monkeypatch.setattr(
        arrow_cache, "file_digest", lambda path: (digested.append(path.parent.name), real(path))[1]
    )
    dataset = InterleavedArrowDataset(folder)
    assert len(dataset) == 3
    assert digested == []
    assert _ids(dataset) == _ids(InterleavedArrowDataset(folder)) == ["three", "one", "two"]
    assert sorted(digested) == ["a%2Fb", "p"]
    shard = folder / "arrow_cache" / "p" / "shard-00000.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    dataset = InterleavedArrowDataset(folder)
    assert dataset[0]["sample_id"] == "three"
    with pytest.raises(ValueError, match="p/shard-00000.arrow: its digest is .*: the shard is damaged"):
        dataset[1]


def test_a_partition_that_is_replaced_is_never_mixed(folder: Path) -> None:
    opened, unopened = InterleavedArrowDataset(folder), InterleavedArrowDataset(folder)
    assert opened[1]["sample_id"] == "one"
    write(
        "arrow_cache",
        folder / "arrow_cache",
        [batch_of(rows("four"), EXTRAS, partition="p")],
        materialize=False,
    )
    assert _ids(opened) == ["three", "one", "two"]  # what is mapped stays
    with pytest.raises(ValueError, match="the cache was built anew since it was opened"):
        len(unopened)
    assert _ids(InterleavedArrowDataset(folder)) == ["three", "four"]
