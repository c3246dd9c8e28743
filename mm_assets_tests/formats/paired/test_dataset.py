"""`MultiModalWebDataset` as a webdataset: chaining, shuffling, splitting, epochs."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds

from mm_assets.formats import MultiModalWebDataset, PairedShardList, PairedTarExpander
from mm_assets.model.errors import DataError
from mm_assets_tests.formats.paired.shards import (
    keys_of,
    paired,
    payload,
    write_pair,
    write_pictures,
    write_shards,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """12 aligned shards of 3 samples."""
    return write_shards(tmp_path_factory.mktemp("shards"), 12)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_pictures(tmp_path_factory.mktemp("pictures"), 4)


def is_aligned(sample: dict[str, object]) -> bool:
    key = str(sample["__key__"])
    return sample["jpg"] == payload("images", key) and sample["emb.npy"] == payload("embeddings", key)


def test_samples_decode_to_tuples_and_batches(pictures: dict[str, str]) -> None:
    ds = paired(pictures).decode("rgb").to_tuple("jpg", "emb.npy", "txt").batched(3)
    batches = list(ds)
    assert [len(captions) for _, _, captions in batches] == [3, 3, 2]
    images, embeddings, captions = batches[0]
    assert images.shape == (3, 8, 8, 3) and images.dtype == np.float32
    assert embeddings[:, 0].tolist() == [0, 1, 2]
    assert captions[2] == "caption 2"


def test_pictures_of_different_sizes_are_batched_as_a_list(tmp_path: Path) -> None:
    urls = write_pictures(tmp_path, 2, sizes=[(8, 8), (4, 6)])
    shapes = [(8, 8, 3), (6, 4, 3)] * 2
    ds = paired(urls).decode("rgb").to_tuple("jpg", "emb.npy", "txt")
    ((images, embeddings, captions),) = ds.batched(32)
    assert [image.shape for image in images] == shapes
    assert embeddings[:, 0].tolist() == [0, 1, 2, 3]
    assert captions[3] == "caption 3"
    ((only_images,),) = paired(urls).decode("rgb").to_tuple("jpg").batched(32)
    assert [image.shape for image in only_images] == shapes
    (batch,) = ds.batched(32, collation_fn=None)
    assert [image.shape for image in next(zip(*batch, strict=True))] == shapes


def test_batches_of_dicts(tmp_path: Path) -> None:
    urls = write_pictures(tmp_path, 2, sizes=[(8, 8), (4, 6)])
    one, other = paired(urls).decode("rgb").batched(3)
    assert list(one) == list(next(iter(paired(urls))))
    assert one["__key__"] == ["sample_0000_0000", "sample_0000_0001", "sample_0001_0000"]
    assert isinstance(one["jpg"], list) and one["emb.npy"].shape == (3, 4)
    assert other["jpg"].shape == (1, 6, 4, 3)
    with pytest.raises(AssertionError, match="keys don't match"):
        list(
            paired(
                write_pair(tmp_path / "x", images="ab", embeddings="a"), missing_key_policy="partial"
            ).batched(2)
        )


def test_the_fluent_methods(pictures: dict[str, str]) -> None:
    ds = (
        paired(pictures)
        .select(lambda sample: sample["__key__"].endswith("1"))
        .decode()
        .map(lambda sample: {**sample, "number": int(sample["emb.npy"][0])})
        .rename(caption="txt")
        .map_dict(caption=str.upper)
        .shuffle(100)
        .to_tuple("number", "caption")
        .slice(3)
    )
    assert isinstance(ds, MultiModalWebDataset)
    found = list(ds)
    assert len(found) == 3 and set(found) <= {(n, f"CAPTION {n}") for n in (1, 3, 5, 7)}


def test_chaining_leaves_the_dataset_as_it_was(shards: dict[str, str]) -> None:
    ds = paired(shards)
    ds.to_tuple("jpg")
    assert all(isinstance(sample, dict) for sample in ds)


def test_every_pass_has_the_same_samples(shards: dict[str, str]) -> None:
    ds = paired(shards)
    first = list(ds)
    assert len(first) == 36 and all(map(is_aligned, first))
    assert list(ds) == first


@pytest.mark.parametrize(
    "arguments", [{"shardshuffle": 100, "seed": 42}, {"shardshuffle": 4, "detshuffle": True, "seed": 42}]
)
def test_shards_are_shuffled_as_webdataset_shuffles_them(
    arguments: dict[str, int], shards: dict[str, str]
) -> None:
    ours, theirs = MultiModalWebDataset(shards, **arguments), wds.WebDataset(shards["images"], **arguments)  # type: ignore[arg-type]
    for _ in range(3):
        samples = list(ours)
        assert all(map(is_aligned, samples))
        assert keys_of(samples) == keys_of(theirs)
        assert keys_of(samples) != sorted(keys_of(samples))


def test_deterministic_shuffles_repeat_and_differ_between_passes(shards: dict[str, str]) -> None:
    def passes() -> list[list[str]]:
        ds = MultiModalWebDataset(shards, shardshuffle=100, detshuffle=True)
        return [keys_of(ds) for _ in range(3)]

    first, second, third = passes()
    assert first != second != third
    assert sorted(first) == sorted(second) == sorted(third)
    assert passes() == [first, second, third]


def test_a_shuffle_without_a_seed_is_another_in_each_pass(shards: dict[str, str]) -> None:
    ds = MultiModalWebDataset(shards, shardshuffle=100)
    orders = {tuple(keys_of(ds)) for _ in range(5)}
    assert len(orders) > 1
    assert len({tuple(sorted(order)) for order in orders}) == 1


def test_the_environments_seed(shards: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = keys_of(MultiModalWebDataset(shards, shardshuffle=100, detshuffle=True, seed=7))
    monkeypatch.setenv("WDS_SEED", "7")
    assert keys_of(MultiModalWebDataset(shards, shardshuffle=100, detshuffle=True)) == told
    assert keys_of(MultiModalWebDataset(shards, shardshuffle=100, detshuffle=True, seed=8)) != told


def test_shardshuffle_that_is_not_told_warns_as_in_webdataset(shards: dict[str, str]) -> None:
    with pytest.warns(UserWarning, match="shardshuffle is None") as caught:
        ds = MultiModalWebDataset(shards)
    assert caught[0].filename == __file__
    assert keys_of(ds) == keys_of(paired(shards))
    with pytest.warns(UserWarning, match="shardshuffle is True, taken as 100"):
        MultiModalWebDataset(shards, shardshuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MultiModalWebDataset(shards, shardshuffle=False)


def split(shards: dict[str, str], node: int, worker: int, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Three passes as worker ``worker`` of 2 on node ``node`` of 2 sees them."""
    for name, value in {"RANK": node, "WORLD_SIZE": 2, "WORKER": worker, "NUM_WORKERS": 2}.items():
        monkeypatch.setenv(name, str(value))
    ds = MultiModalWebDataset(
        shards, shardshuffle=100, detshuffle=True, seed=1, nodesplitter=wds.split_by_node
    )
    samples = [list(ds) for _ in range(3)]
    assert all(is_aligned(sample) for found in samples for sample in found)
    return [keys_of(found) for found in samples]


def test_nodes_and_workers_see_each_sample_once(
    shards: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [split(shards, node, worker, monkeypatch) for node in range(2) for worker in range(2)]
    for epoch in zip(*parts, strict=True):
        assert [len(part) for part in epoch] == [9] * 4
        assert sorted(key for part in epoch for key in part) == [
            f"s{shard:04d}_{n}" for shard in range(12) for n in range(3)
        ]


def test_several_nodes_need_a_splitter(shards: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="explicit nodesplitter"):
        next(iter(paired(shards)))
    assert len(list(paired(shards, nodesplitter=None))) == 36


def test_a_splitter_gets_whole_groups(shards: dict[str, str]) -> None:
    def last_two(groups):  # type: ignore[no-untyped-def]
        return list(groups)[-2:]

    assert len(list(paired(shards, workersplitter=last_two))) == 6


def test_a_worker_without_shards_is_an_error_unless_allowed(
    shards: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER", "12")
    monkeypatch.setenv("NUM_WORKERS", "13")
    with pytest.raises(ValueError, match="No samples found in dataset: fewer shards than workers"):
        list(paired(shards))
    assert list(paired(shards, empty_check=False)) == []


@pytest.mark.parametrize("empty_check", [True, False])
def test_a_rank_without_shards_is_an_error(
    empty_check: bool, shards: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under DistributedDataParallel the other ranks would wait for it for ever."""
    monkeypatch.setenv("RANK", "12")
    monkeypatch.setenv("WORLD_SIZE", "13")
    ds = paired(shards, nodesplitter=wds.split_by_node, empty_check=empty_check)
    with pytest.raises(
        DataError, match=r"rank 12 of 13 has no shard: .* none of the 12 shards\. Start no more"
    ):
        list(ds)
    monkeypatch.setenv("RANK", "11")
    assert len(list(ds)) == 3
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    # It has a shard, which is that of its other worker.
    assert list(paired(shards, nodesplitter=wds.split_by_node, empty_check=False)) == []


def test_an_empty_result_is_an_error_unless_allowed(tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="ab", embeddings="cd")
    with pytest.raises(ValueError, match=r"No samples found.*4 keys, of which 4 are not in all"):
        list(paired(urls))
    assert list(paired(urls, empty_check=False)) == []
    assert len(list(paired(urls, missing_key_policy="partial"))) == 4


def test_epochs_of_any_length(shards: dict[str, str]) -> None:
    assert len(list(paired(shards).with_epoch(100))) == 100
    assert len(list(paired(shards).repeat(2))) == 72
    assert len(paired(shards).with_length(36, silent=True)) == 36


def test_a_dataset_is_closed_by_its_block(shards: dict[str, str]) -> None:
    with paired(shards) as ds:
        assert len(list(ds)) == 36
    with pytest.raises(AttributeError):
        list(ds)


def test_a_dataset_can_be_pickled(shards: dict[str, str]) -> None:
    """As for workers that are spawned."""
    ds = MultiModalWebDataset(shards, shardshuffle=100, detshuffle=True, seed=3).to_tuple("__key__")
    copy = pickle.loads(pickle.dumps(ds))  # noqa: S301 (made one line before)
    assert list(copy) == list(ds)
    code = "import pickle, sys; print(len(list(pickle.load(sys.stdin.buffer))))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(ds), capture_output=True, check=True
    )
    assert done.stdout.split() == [b"36"]


def test_the_parts_make_the_same_pipeline(shards: dict[str, str]) -> None:
    stage = PairedTarExpander(handler=wds.warn_and_continue, missing_key_policy="skip")
    ds = wds.DataPipeline(PairedShardList(modalities=shards), wds.split_by_worker, stage)
    assert list(ds) == list(paired(shards))
    assert [report.samples for report in stage.reports] == [3] * 12


def test_importing_the_room_loads_no_client() -> None:
    code = (
        "import sys, mm_assets.formats as f; print(sorted({'webdataset', 'torch', 'pyarrow', 'datasets'} "
        "& set(sys.modules)))"
    )
    code += "; f.MultiModalWebDataset; print('webdataset' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines() == ["[]", "True"]
