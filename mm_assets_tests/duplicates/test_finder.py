"""Verdicts on shards that come one after the other: those of a search of all at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_assets.duplicates.finder import _noted, _publish
from mm_assets.duplicates.items import Documents
from mm_assets.filters.duplicates import VerdictIndex

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
