"""Documents packed into sequences: full, and nothing dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.model.errors import DataError
from mm_assets.train import InterleavedDataset, PackedDataset, count_tokens, pack
from mm_assets_tests.formats.datasets import batch_of, item, write

SEPARATOR, IMAGE = 1, 0
PER_IMAGE = 3  # placeholders


def counts_of(documents: Sequence[tuple[int, Sequence[int]]]) -> pa.Table:
    tokens, images = zip(*documents, strict=True)
    return pa.table({"tokens": pa.array(tokens), "images": pa.array(images, pa.list_(pa.int64()))})


def filling(plan: pa.Table, length: int) -> float:
    """The share of all places that have a token."""
    used = np.sum(plan.column("stop").to_numpy() - plan.column("start").to_numpy())
    return float(used / (plan.column("pack").to_numpy().max() + 1) / length)


DOCUMENTS = st.lists(
    st.integers(0, 60).flatmap(
        lambda tokens: st.tuples(
            st.just(tokens), st.sets(st.integers(0, max(tokens - 1, 0)), max_size=min(tokens, 8)).map(sorted)
        )
    ),
    min_size=1,
    max_size=30,
)


@given(documents=DOCUMENTS, length=st.integers(1, 25), cap=st.none() | st.integers(1, 4))
def test_each_token_and_image_is_in_one_place(documents: Any, length: int, cap: int | None) -> None:
    plan = pack(counts_of(documents), length, cap)
    pieces: dict[int, list[dict[str, Any]]] = {}
    used: Counter[int] = Counter()
    shown: Counter[int] = Counter()
    for piece in plan.to_pylist():
        pieces.setdefault(piece["document"], []).append(piece)
        used[piece["pack"]] += piece["stop"] - piece["start"]
        shown[piece["pack"]] += piece["images"]
    assert max(used.values()) <= length
    assert max(shown.values()) <= (cap or 60)
    assert sorted(used) == list(range(len(used)))
    assert sorted(pieces) == list(range(len(documents)))
    for number, (tokens, images) in enumerate(documents):
        found = sorted(pieces[number], key=lambda piece: piece["start"])
        starts = [piece["start"] for piece in found]
        assert starts[0] == 0
        assert [piece["stop"] for piece in found] == [*starts[1:], tokens]
        for piece in found:
            of_piece = images[piece["first_image"] : piece["first_image"] + piece["images"]]
            assert of_piece == [at for at in images if piece["start"] <= at < piece["stop"]]
        for before, after in zip(found, found[1:], strict=False):
            is_at_image = after["start"] in images
            assert is_at_image or before["stop"] - before["start"] == length


def test_a_long_document_is_cut_where_images_begin() -> None:
    plan = pack(counts_of([(100, [10, 35, 60, 90])]), 40)
    spans = sorted(zip(plan.column("start").to_pylist(), plan.column("stop").to_pylist(), strict=True))
    assert spans == [(0, 35), (35, 60), (60, 100)]
    by_images = pack(counts_of([(100, [10, 35, 60, 90])]), 100, image_cap=2)
    assert sorted(by_images.column("start").to_pylist()) == [0, 60]


def test_sequences_of_8k_are_full() -> None:
    """Documents as MINT-1T has them: most are some hundred tokens, a few are longer than a sequence."""
    random = np.random.default_rng(4)
    documents = []
    for tokens in np.exp(random.normal(6.6, 1.1, 4000)).astype(int) + 1:
        images = np.unique(random.integers(0, tokens, random.integers(0, 6))).tolist()
        documents.append((int(tokens), images))
    assert max(tokens for tokens, _ in documents) > 8192
    for cap in (None, 48, 24):
        plan = pack(counts_of(documents), 8192, cap)
        assert filling(plan, 8192) >= 0.98


def with_images(texts: Sequence[int], per_image: int) -> tuple[int, list[int]]:
    """Tokens of a document with an image behind each text, and where they begin."""
    ends = np.cumsum(np.asarray(texts) + per_image)
    return int(ends[-1]), (ends - per_image).tolist()


@pytest.mark.parametrize(
    ("per_image", "texts", "least", "most_cut"),
    [
        (64, lambda _: [836] * 5, 0.98, 0.5),  # all have 4,500 tokens
        (64, lambda random: random.multinomial(random.integers(2700, 4700), [0.2] * 5), 0.99, 0.1),
        (576, lambda random: random.integers(20, 900, random.integers(2, 7)), 0.99, 0.2),
        # Six or seven images fill a sequence, and none is cut.
        (1024, lambda random: random.integers(10, 400, random.integers(1, 9)), 0.94, 0.6),
    ],
)
def test_documents_that_leave_room_are_cut(per_image: int, texts: Any, least: float, most_cut: float) -> None:
    random = np.random.default_rng(5)
    documents = [with_images(texts(random), per_image) for _ in range(1000)]
    plan = pack(counts_of(documents), 8192)
    assert filling(plan, 8192) >= least
    assert len(plan) <= len(documents) * (1 + most_cut)


def test_documents_are_whole_where_sequences_are_full_without() -> None:
    plan = pack(counts_of([with_images([400] * 5, 100), with_images([500] * 5, 200)] * 40), 6000)
    assert len(plan) == 80
    assert filling(plan, 6000) == 1


def tokenize(document: Any) -> tuple[list[int], list[int]]:
    ids, images = [SEPARATOR], []
    for each in document["items"]:
        if each["modality"] == "text":
            ids += [2 + byte for byte in each["text"].encode()]
        elif each["image"] is not None:
            images.append(len(ids))
            ids += [IMAGE] * PER_IMAGE
    return ids, images


@pytest.fixture
def dataset(tmp_path: Path) -> InterleavedDataset:
    for partition in range(2):
        rows = []
        for number in range(12):
            name = f"{partition}-{number}"
            rows.append(item(name))
            for place in range(number):
                if place % 3 == 2:
                    image = b"GIF89a" + f"{name} {place}".encode()
                    rows.append(item(name, place, "image", binary_content=image, content_type="image/gif"))
                else:
                    rows.append(
                        item(name, place, text_content=f"<{name} {place}>", content_type="text/plain")
                    )
        write("webdataset", tmp_path, [batch_of(rows, partition=f"p{partition}")])
    return InterleavedDataset(tmp_path, shuffle=False)


def test_of_no_documents_there_is_no_plan(tmp_path: Path) -> None:
    none = pa.table({"tokens": pa.array([], pa.int64()), "images": pa.array([], pa.list_(pa.int64()))})
    pq.write_table(none, tmp_path / "counts.parquet")
    for counts, name in ((none, "counts"), (f"{tmp_path}/counts.parquet", f"{tmp_path}/counts.parquet")):
        with pytest.raises(DataError, match=rf"{name}: no documents to pack"):
            pack(counts, 8)


def test_sequences_hold_all_items(dataset: InterleavedDataset, tmp_path: Path) -> None:
    """The multiset of tokens and of images is that of the documents, from files that are kept."""
    counts, plan = str(tmp_path / "counts.parquet"), str(tmp_path / "plan.parquet.plan")
    count_tokens(dataset, tokenize, counts)
    pack(counts, 40, 2, plan)
    packed = PackedDataset(dataset, plan, tokenize, seed=3)
    sequences = list(packed)
    assert len(sequences) == packed.epoch_length

    documents = dataset.fetch(0, np.arange(dataset.epoch_length))
    tokens = Counter(token for document in documents for token in tokenize(document)[0])
    images = Counter(
        each["image"] for document in documents for each in document["items"] if each["modality"] == "image"
    )
    assert sum(images.values()) > 30
    assert Counter(token for one in sequences for token in one["input_ids"].tolist()) == tokens
    assert Counter(image for one in sequences for image in one["images"]) == images
    for one in sequences:
        assert len(one["input_ids"]) <= 40
        assert len(one["images"]) <= 2
        assert len(one["images"]) == len(one["image_positions"])
        for place in one["image_positions"].tolist():
            assert one["input_ids"][place : place + PER_IMAGE].tolist() == [IMAGE] * PER_IMAGE
        assert one["documents"][0] == 0
        assert one["documents"][-1] == len(one["input_ids"])


def test_sequences_are_shared_and_resumed(dataset: InterleavedDataset) -> None:
    plan = pack(count_tokens(dataset, tokenize), 40)
    whole = [one["input_ids"].tolist() for one in PackedDataset(dataset, plan, tokenize, seed=3)]
    loader = PackedDataset(dataset, plan, tokenize, seed=3).loader(2)
    given = [one["input_ids"].tolist() for _, batch in zip(range(3), loader, strict=False) for one in batch]
    for rank in range(2):
        rest = PackedDataset(dataset, plan, tokenize, seed=3, rank=rank, world_size=2)
        rest.load_state_dict(loader.state_dict())
        given += [one["input_ids"].tolist() for one in rest]
    assert sorted(given) == sorted(whole)


def test_sequences_have_the_ranks_of_their_documents(dataset: InterleavedDataset, tmp_path: Path) -> None:
    plan = pack(count_tokens(dataset, tokenize), 40)
    documents = InterleavedDataset(tmp_path, shuffle=False, rank=1, world_size=2)
    packed = PackedDataset(documents, plan, tokenize)
    assert (packed.rank, packed.world_size) == (1, 2)
    with pytest.raises(ValueError, match="rank=0 and 1: "):
        PackedDataset(documents, plan, tokenize, rank=0)


def test_what_does_not_fit_the_plan_is_refused(dataset: InterleavedDataset, tmp_path: Path) -> None:
    plan = pack(count_tokens(dataset, tokenize), 40)
    other = InterleavedDataset(tmp_path / "p0.tar", shuffle=False)
    with pytest.raises(DataError, match="of other documents: count and pack again"):
        PackedDataset(other, plan, tokenize)
    packed = PackedDataset(dataset, plan, lambda document: ([1], []))
    with pytest.raises(DataError, match=r"document '\d-\d+' has other tokens"):
        list(packed)
    with pytest.raises(DataError, match=r"document 0: images at \[5\] of 1 tokens"):
        count_tokens(dataset, lambda document: ([1], [5]))
    with pytest.raises(ValueError, match="room for tokens and images"):
        pack(plan, 0)
