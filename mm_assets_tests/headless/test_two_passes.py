"""`mm-assets run` with conditions on figures of the whole set: scores of all shards come first."""

from __future__ import annotations

from functools import partial

import pyarrow.parquet as pq
import pytest

from mm_assets.headless import request
from mm_assets_tests.headless.conftest import Project


def test_scores_of_all_shards_come_first(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad shard keeps no figure back."""
    monkeypatch.setattr(request, "chunks", partial(request.chunks, size=2))
    for name, text in {"a": "one", "b": "one two", "d": "one two three", "e": "one two three four"}.items():
        project.shard(name, text)
    project.broken("c")
    rank = {"MM_KEEP_SAMPLES": "words_percent_rank >= 0.5"}

    done = project.run(**rank)

    told = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert told[1] == "first pass: scores of all shards, for sample: words_percent_rank"
    assert "sample: words_percent_rank: 4 values of 4 shards" in told
    kept = sorted(path.stem for path in (project.storage / "filtered").glob("*.parquet"))
    ids = [pq.read_table(project.storage / "filtered" / f"{name}.parquet").num_rows for name in kept]
    assert dict(zip(kept, ids, strict=True)) == {"a": 0, "b": 0, "d": 3, "e": 3}

    again = project.run(**rank)
    assert "first pass" not in again.stdout
