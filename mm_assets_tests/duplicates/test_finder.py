"""Images and documents of all shards, which of them are copies, and the verdicts on each shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_assets.duplicates.finder import Documents, Images, _noted, _publish
from mm_assets.filters.duplicates import VerdictIndex
from mm_assets.filters.minhash import signature

VECTOR = pa.list_(pa.field("element", pa.float32()))
NONE = pa.array([], pa.string())
TYPES = {
    "sample_id": pa.string(),
    "position": pa.int32(),
    "width": pa.int32(),
    "height": pa.int32(),
    "byte_size": pa.int64(),
    "error": pa.string(),
    "sha256": pa.string(),
    "perceptual_hash": pa.string(),
    "perceptual_quality": pa.int32(),
    "clip_embedding": VECTOR,
}


def image(sample_id: str, file: int, picture: int, **values: Any) -> dict[str, Any]:
    known = {"position": 0, "width": 10, "height": 10, "byte_size": 100, "perceptual_quality": 90}
    return {
        **dict.fromkeys(TYPES),
        **known,
        "sample_id": sample_id,
        "sha256": f"{file}" * 64,
        "perceptual_hash": f"{picture:064x}",
        **values,
    }


def scores(*images: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in images], kind) for name, kind in TYPES.items()})


def copies(images: Images, gone: pa.Array = NONE) -> dict[str, tuple[str, float]]:
    """What each copy is a copy of, and by how many bits; -1 for equal files."""
    items, clusters = images.clusters(gone)
    ids = items.ids.to_pylist()
    found = clusters.copies.tolist()
    measures = np.nan_to_num(clusters.measures, nan=-1)
    return {ids[copy]: (ids[clusters.survivors[copy]], float(measures[copy])) for copy in found}


def test_images_with_more_pixels_then_bytes_then_the_smallest_id_stay(tmp_path: Path) -> None:
    rows = [
        image("d", 1, 0b111),
        image("c", 2, 0b110, width=11),
        image("b", 3, 0b100, byte_size=101),
        image("a", 3, 0b100, byte_size=101),
    ]
    expected = {"a": ("c", 1), "b": ("c", 1), "d": ("c", 1)}
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):  # whatever the order of shards
        images = Images(31, str(tmp_path))
        for shard, row in enumerate(order):
            images.add(shard, scores(rows[row]))
        assert copies(images) == expected
        exact = Images(None, str(tmp_path))
        exact.add(0, scores(*(rows[row] for row in order)).drop_columns(["perceptual_hash"]))
        assert copies(exact) == {"b": ("a", -1)}


def test_of_equal_images_that_of_the_first_shard_stays(tmp_path: Path) -> None:
    """So a new shard, whose name is mostly the last, does not change what is kept of the old ones."""
    images = Images(31, str(tmp_path))
    images.add(1, scores(image("a", 1, 7), image("c", 2, 0b110)))
    images.add(0, scores(image("b", 1, 7), image("d", 3, 0b100), image("e", 3, 0b100)))
    assert copies(images) == {"c": ("b", 1), "d": ("b", 2), "a": ("b", -1), "e": ("b", 2)}


def test_what_is_not_compared(tmp_path: Path) -> None:
    images = Images(31, str(tmp_path))
    flat = [image(name, 3, 0, perceptual_quality=19) for name in ("f", "g")]
    images.add(
        0,
        scores(
            image("a", 1, 0, width=20),
            image("b", 2, 1, error="broken"),
            image("c", 4, 0, perceptual_hash=None, perceptual_quality=None),
            image("refused", 5, 0),
            image("gone", 6, 0, width=30),
            *flat,
        ),
        {("refused", 0)},
    )
    assert copies(images, pa.array(["gone"])) == {"g": ("f", -1)}  # flat ones only by their files


def document(sample_id: str, text: str, images: int = 0, signed: bool = True) -> dict[str, Any]:
    words = text.split()
    value = signature([word.encode() for word in words]).tobytes() if signed and len(words) >= 25 else None
    return {
        "sample_id": sample_id,
        "images": images,
        "words": len(words),
        "text_digest": text or None,
        "minhash": value,
    }


def documents(
    folder: Path, similarity: float | None, *rows: Mapping[str, Any], **files: str
) -> dict[str, Any]:
    found = Documents(similarity, str(folder))
    table = pa.Table.from_pylist(list(rows)).cast(
        pa.schema(
            [
                *(("sample_id", pa.string()), ("images", pa.int32()), ("words", pa.int64())),
                *(("text_digest", pa.string()), ("minhash", pa.binary(224))),
            ]
        )
    )
    beside = pa.table(
        {
            "sample_id": pa.array(list(files), pa.string()),
            "sha256": pa.array(list(files.values()), pa.string()),
        }
    )
    found.add(0, table, beside)
    items, clusters = found.clusters()
    ids = items.ids.to_pylist()
    return {ids[copy]: ids[clusters.survivors[copy]] for copy in clusters.copies.tolist()}


LONG = " ".join(f"w{number}" for number in range(100))


@pytest.mark.parametrize("similarity", [None, 0.8])
def test_documents_with_equal_texts_and_images(tmp_path: Path, similarity: float | None) -> None:
    """A caption says too little: with another picture it is another document."""
    found = documents(
        tmp_path,
        similarity,
        document("a", "a dog"),
        document("b", "a dog"),
        document("c", "a dog", 1),
        document("d", "a dog", 1),
        document("e", "a dog", 1),
        document("f", ""),
        document("g", ""),
        c="1",
        d="1",
        e="2",
    )
    assert found == {"b": "a", "d": "c"}


def test_documents_with_alike_texts(tmp_path: Path) -> None:
    rows = (document("a", LONG), document("b", f"{LONG} more"), document("c", f"{LONG} again", 1))
    files = {"c": "1"}
    assert documents(tmp_path, 0.8, *rows, **files) == {"a": "c", "b": "c"}
    assert documents(tmp_path, None, *rows, **files) == {}


def test_images_with_like_clip_vectors_are_copies(tmp_path: Path) -> None:
    rows = [
        image("a", 1, 0, clip_embedding=[1.0, 0.0, 0.0]),
        image("b", 2, 2**256 - 1, clip_embedding=[0.96, 0.28, 0.0]),
        image("c", 3, 2**128 - 1, clip_embedding=[0.0, 0.0, 1.0]),
        image("d", 4, 2**200 - 1, perceptual_quality=0, clip_embedding=[0.0, 0.1, 0.995]),
        image("e", 5, 2**60 - 1),
        image("f", 6, 0b1, clip_embedding=[0.0, 1.0, 0.0]),  # alike by its hash
    ]
    images = Images(31, str(tmp_path), 0.95)
    images.add(1, scores(*rows[3:]))
    images.add(0, scores(*rows[:3]))
    found = copies(images)
    assert {name: of for name, (of, _) in found.items()} == {"b": "a", "d": "c", "f": "a"}
    assert found["b"][1] == pytest.approx(-0.96) and found["f"][1] == 1
    alone = Images(31, str(tmp_path))
    alone.add(0, scores(*rows))
    assert set(copies(alone)) == {"f"}


SHARDS = "abcdef"
NO_IMAGES = pa.table({"sample_id": pa.array([], pa.string()), "sha256": pa.array([], pa.string())})


def scores_of(shard: str) -> pa.Table:
    """Documents of which some are copies of some in the same shard and in others, exact and near."""
    draw = np.random.default_rng(0)
    signatures = draw.integers(0, 1 << 16, (8, 112), np.uint16)
    own = np.random.default_rng(ord(shard))
    rows = signatures[own.integers(0, 8, 6)]
    for row in rows:
        row[own.choice(112, own.choice([0, 0, 5, 10]), replace=False)] ^= 1
    names = [f"{own.integers(1 << 30):08x}" for _ in rows]
    return pa.table(
        {
            "sample_id": names,
            "images": pa.array(own.integers(0, 2, len(rows)), pa.int32()),
            "words": own.integers(100, 102, len(rows)),
            "text_digest": names,
            "minhash": pa.array([row.tobytes() for row in rows], pa.binary(224)),
        }
    )


def publish(folder: str, shards: Sequence[str]) -> list[str]:
    """Find and publish the verdicts on shards; return those that have others than before."""
    with TemporaryDirectory() as scratch:
        documents = Documents(0.8, scratch)
        for number, shard in enumerate(sorted(shards)):
            documents.add(number, scores_of(shard), NO_IMAGES)
        verdicts = _noted("document", [], sorted(shards), *documents.clusters())
    return _publish(folder, {}, verdicts, dict.fromkeys(sorted(shards), "1"))


def published(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).rglob("*.parquet")}


@settings(max_examples=10, deadline=None)
@given(st.permutations(SHARDS), st.integers(1, 3))
def test_verdicts_do_not_depend_on_the_order_of_arrival(order: Sequence[str], at_once: int) -> None:
    with TemporaryDirectory() as at_last, TemporaryDirectory() as whole:
        for end in range(at_once, len(order) + at_once, at_once):
            before = published(at_last)
            changed = publish(at_last, order[:end])
            now = published(at_last)
            del now["index.parquet"]
            differing = {name for name, data in now.items() if before.get(name) != data}
            new = set(order[end - at_once : end])
            assert {f"{shard}.parquet" for shard in changed} - differing <= {f"{key}.parquet" for key in new}
            assert differing <= {f"{shard}.parquet" for shard in changed}
        assert set(publish(whole, order)) == set(order)
        assert published(at_last) == published(whole)
        assert VerdictIndex.read(whole).digest == VerdictIndex.read(at_last).digest
        assert publish(at_last, order) == []
        assert all(digest for _, digest in VerdictIndex.read(whole).shards.values())  # copies in each
