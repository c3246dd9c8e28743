"""A check of a user's on a shard of rows: what it is shown, and how one that fails is told."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mm_assets.graph import (
    Check,
    Plan,
    Shard,
    ShardCheck,
    ShardJob,
    ShardResult,
    ShardSet,
    WrittenShard,
)
from mm_assets.graph.shard_jobs import rewrite_shard
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.samples import EXAMPLES, Example, StepResult, examples_of
from mm_assets_tests.formats.datasets import batch_of, item, write


def shouts(batch: InterleavedBatch) -> StepResult:
    texts = batch.data.filter(pc.equal(batch.data["modality"], "text"))
    loud = texts.filter(pc.utf8_is_upper(texts["text_content"]))
    return StepResult(
        batch.with_data(batch.data.slice(1)),  # of no effect
        counts={"texts": len(texts), "shouts": len(loud)},
        examples={"shouts": examples_of(loud, "upper case")},
    )


def calm(shard: WrittenShard) -> Check:
    metadata = {
        "texts": shard.counts["texts"],
        "shouts": shard.counts["shouts"],
        "first": shard.listed("shouts"),
    }
    return Check("calm", shard.counts["shouts"] == 0, "WARN", metadata)


def many_texts(shard: WrittenShard) -> Check:
    return Check("many_texts", shard.counts["texts"] > 5, "ERROR", {"rows": shard.report.rows})


def failing(shard: WrittenShard) -> Check:
    raise KeyError("no such thing")


def failing_step(batch: InterleavedBatch) -> StepResult:
    raise KeyError("no such column")


def answers_no(shard: WrittenShard) -> Check:
    return Check("another", True)


@pytest.fixture
def curated(tmp_path: Path) -> Shard:
    rows = [item(f"s{n:02}", at, text_content="LOUD" if at else "soft") for n in range(30) for at in (0, 1)]
    (partition,) = write("parquet", tmp_path / "in", [batch_of(rows, partition="p")]).partitions
    assert partition.uri is not None
    return Shard("p", partition.uri, partition.digest)


def run(
    curated: Shard, tmp_path: Path, *checks: ShardCheck, blocking: frozenset[str] = frozenset()
) -> ShardResult:
    options = {"on_materialize_error": "error"}
    dest = str(tmp_path / "out" / "p.parquet")
    return rewrite_shard(
        ShardJob(
            curated, dest, options=options, blocking=blocking, root=str(tmp_path), asset="a", checks=checks
        )
    )


def test_a_check_names_what_its_step_found(curated: Shard, tmp_path: Path) -> None:
    two = ShardCheck("calm", calm, step=shouts), ShardCheck("many_texts", many_texts, step=shouts)
    done = run(curated, tmp_path, *two)
    assert done.ok
    assert done.version == curated.version  # every row is there
    calm_found, many_found = done.checks
    assert (calm_found.passed, many_found.passed) == (False, True)
    assert (calm_found.metadata["texts"], calm_found.metadata["shouts"]) == (60, 30)
    listed = calm_found.metadata["first"]["json"]
    assert len(listed) == EXAMPLES
    assert listed[0] == {"sample_id": "s00", "position": 1, "text": "upper case"}


def test_a_blocking_check_withholds_the_shard(curated: Shard, tmp_path: Path) -> None:
    few = ShardCheck(
        "many_texts", many_texts, blocking=True, step=lambda batch: StepResult(batch, counts={"texts": 2})
    )
    done = run(curated, tmp_path, few, blocking=frozenset({"many_texts"}))
    assert (done.ok, done.error) == (False, "blocking check failed: many_texts")
    assert not (tmp_path / "out" / "p.parquet").exists()


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (ShardCheck("bad", failing), f"check 'bad' of {__name__}: KeyError: 'no such thing'"),
        (
            ShardCheck("bad", calm, step=failing_step),
            f"check 'bad' of {__name__}: KeyError: 'no such column'",
        ),
        (ShardCheck("bad", answers_no), f"check 'bad' of {__name__} returned Check(name='another'"),
    ],
)
def test_code_that_fails_is_told_with_its_check(
    check: ShardCheck, line: str, curated: Shard, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(line)}"):
        run(curated, tmp_path, check)
    assert not (tmp_path / "out" / "p.parquet").exists()


def test_examples_are_bounded() -> None:
    rows = batch_of([item("s", at) for at in range(50)]).data
    assert examples_of(rows)[-1] == Example("s", EXAMPLES - 1)
    assert examples_of(pa.concat_tables([rows.slice(0, 1), rows.slice(0, 0)]), "why") == (
        Example("s", 0, "why"),
    )


def test_a_new_version_of_a_check_is_another_plan() -> None:
    plain, first, second = (
        Plan(ShardSet("a"), checks=(ShardCheck("calm", calm, version=version),)).digest()
        for version in ("", "1", "2")
    )
    assert len({plain, first, second}) == 3
    assert plain == Plan(ShardSet("a")).digest()
