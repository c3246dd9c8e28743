"""`mm-assets run` with conditions on statistics of the whole set: scores of all shards come first."""

from __future__ import annotations

from functools import partial

import pyarrow.parquet as pq
import pytest

from mm_assets.headless import request
from mm_assets_tests.headless.conftest import FILTERED, Project


def test_scores_of_all_shards_come_first(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad shard keeps no statistic back."""
    monkeypatch.setattr(request, "chunks", partial(request.chunks, size=2))
    for name, text in {"a": "one", "b": "one two", "d": "one two three", "e": "one two three four"}.items():
        project.shard(name, text)
    project.broken("c")
    rank = {"MM_KEEP_SAMPLES": "words_percent_rank >= 0.5"}

    done = project.run(*FILTERED, **rank)

    told = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert told[1] == "first pass: scores of all shards, for sample: words_percent_rank"
    assert "sample: words_percent_rank: 4 values of 4 shards" in told
    kept = sorted(path.stem for path in (project.storage / "filtered").glob("*.parquet"))
    ids = [pq.read_table(project.storage / "filtered" / f"{name}.parquet").num_rows for name in kept]
    assert dict(zip(kept, ids, strict=True)) == {"a": 0, "b": 0, "d": 3, "e": 3}


def test_a_run_of_all_shards_computes_statistics_anew_and_a_run_of_some_does_not(project: Project) -> None:
    def kept(*shards: str) -> dict[str, int]:
        project.run(*shards, MM_KEEP_IMAGES="sha256_occurrences <= 2")
        folder = project.storage / "filtered"
        found = {path.stem: pq.read_table(path)["modality"].to_pylist() for path in folder.glob("*.parquet")}
        return {name: kinds.count("image") for name, kinds in sorted(found.items())}

    project.shards("ab")  # with the same image
    assert kept() == {"a": 1, "b": 1}
    project.shards("c")
    assert kept("c") == {"a": 1, "b": 1, "c": 1}
    assert kept() == {"a": 0, "b": 0, "c": 0}
