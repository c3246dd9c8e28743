"""Digests of plans are stable across processes and tell apart what matters; the nouns cross a process
border.
"""

import enum
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from mm_assets.accounting import ACCOUNT_SCHEMA, Balance, account_table, count_lost_items, lost_items
from mm_assets.graph import (
    INPUT_MISSING,
    Check,
    Plan,
    Shard,
    ShardJob,
    ShardResult,
    ShardSet,
    blocked_by,
    digest,
)
from mm_assets.model.losses import Loss

REPOSITORY = Path(__file__).parents[3]
RAW = ShardSet("raw", (Shard("a", "/a", "1"),))


class Policy(enum.Enum):
    ERROR = 1
    WARN = 2


@dataclass(frozen=True)
class AspectRatio:
    low: float
    high: float


@dataclass(frozen=True)
class Size:
    low: float
    high: float


def test_plan_digest_follows_the_steps_and_nothing_else() -> None:
    same = [
        Plan(RAW, (AspectRatio(1.0, 2.0),)),
        Plan(ShardSet("other"), (AspectRatio(1.0, 2.0),), {"scores": RAW}),
    ]
    others = [
        Plan(RAW),
        Plan(RAW, (AspectRatio(1.0, 2.5),)),
        Plan(RAW, (Size(1.0, 2.0),)),
        Plan(RAW, (AspectRatio(1.0, 2.0), Size(1.0, 2.0))),
        Plan(RAW, (Size(1.0, 2.0), AspectRatio(1.0, 2.0))),
    ]
    assert len({plan.digest() for plan in same}) == 1
    assert len({plan.digest() for plan in same + others}) == 1 + len(others)


def test_a_severity_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"check 'n': severity is ERROR or WARN, not 'ERR'"):
        Check("n", False, "ERR")


def test_digest_tells_values_apart() -> None:
    values: list[Any] = [
        None,
        True,
        1,
        1.0,
        "1",
        b"1",
        "",
        [],
        [1, 2],
        [2, 1],
        [[1], 2],
        {"a": 1},
        {"a": 1, "b": 2},
        {1, 2},
        {1: "a"},
        {"1": "a"},
        Policy.ERROR,
        Policy.WARN,
        PurePosixPath("1"),
        AspectRatio(1, 2),
        AspectRatio(1.0, 2),
        float("nan"),
        float("inf"),
        2**70,
    ]
    assert len({digest(value) for value in values}) == len(values)


def test_digest_ignores_order_where_there_is_none() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"x", "y", "z"}) == digest({"z", "y", "x"})
    assert digest((1, 2)) == digest([1, 2])


def test_digest_is_equal_in_every_process() -> None:
    code = "from mm_assets.graph import digest; print(digest([{'b', 'a', 'c'}, {'k': (1.5, None)}]))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=REPOSITORY,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {digest([{"b", "a", "c"}, {"k": (1.5, None)}])}


@pytest.mark.parametrize("step", [object(), AspectRatio, len, 5])
def test_step_without_digest_is_refused(step: Any) -> None:
    with pytest.raises(TypeError, match="a step must be an instance of a frozen dataclass"):
        Plan(RAW, (step,)).digest()


def test_field_without_digest_is_refused() -> None:
    with pytest.raises(TypeError, match="no stable digest of a object"):
        Plan(RAW, (AspectRatio(object(), 2),)).digest()  # type: ignore[arg-type]


def test_nouns_are_picklable() -> None:
    job = ShardJob(
        RAW.shards[0],
        "/out/a",
        {"scores": Shard("a", "/s", "2")},
        (AspectRatio(1, 2),),
        {"level": 3},
        frozenset({"c"}),
    )
    done = ShardResult("a", True, "/out/a", "v", {"rows": 1}, (Check("c", True),), payload=[b"fragment"])
    for noun in (RAW, Plan(RAW), job, done):
        assert pickle.loads(pickle.dumps(noun)) == noun  # noqa: S301  (made one line above)


@pytest.mark.parametrize("losses", [0, 2])
def test_rows_of_an_account_come_from_a_worker_as_they_are(losses: int) -> None:
    lost = [Loss(f"s{n}", n, "image", "quarantined", "undecodable_image", "ä\n") for n in range(losses)]
    rows = account_table("curated", "a", Balance(3, 3 - losses, {}, {"undecodable_image": losses}), lost)
    done = pickle.loads(pickle.dumps(ShardResult("a", True, rows=rows)))  # noqa: S301  (made on this line)
    assert done.rows.equals(rows, check_metadata=True) and done.rows.schema.equals(ACCOUNT_SCHEMA)
    assert count_lost_items(done.rows) == len(lost_items(rows)) == losses


def test_shard_set_says_why_a_shard_is_absent() -> None:
    shards = ShardSet("curated", RAW.shards, {"b": "failed in this run"})
    assert [s.key for s in shards] == ["a"] and len(shards) == 1 and shards.by_key()["a"].uri == "/a"
    assert shards.why_absent("b") == "shard 'b' of curated: failed in this run"
    further = ShardSet("scores", (), {"b": f"failed in this run: {INPUT_MISSING}{shards.why_absent('b')}"})
    assert further.why_absent("b") == shards.why_absent("b"), "the first asset that lacks it"
    assert shards.why_absent("c") == "shard 'c' of curated: not among its partitions"


def test_only_failed_errors_of_blocking_checks_block() -> None:
    checks = [Check("a", False), Check("b", False, "WARN"), Check("c", True), Check("d", False)]
    assert blocked_by(checks, frozenset("abc")) == "blocking check failed: a"
    assert blocked_by(checks, frozenset("bc")) is None
    assert blocked_by(checks, frozenset("ad")) == "blocking check failed: a, d"


def test_worker_side_imports_no_dagster() -> None:
    code = (
        "import sys, mm_assets.pool.workers, mm_assets.graph;"
        "print([m for m in sys.modules if m.split('.')[0] in ('dagster', 'lance', 'torch', 'ray', 'cv2')])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"
