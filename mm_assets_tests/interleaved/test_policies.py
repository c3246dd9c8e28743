"""The four policies for rows with an error."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mm_assets.interleaved import MaterializeError
from mm_assets.model.losses import apply_policy, check_policy
from mm_assets_tests.formats.datasets import item, table_of

TABLE = table_of(
    [
        item("a"),
        item("a", 0),
        item("a", 1, "image", materialize_error="gone"),
        item("b"),
        item("b", 0),
        item("c", materialize_error=""),
    ]
)


def ids(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table.column("sample_id").to_pylist(), table.column("position").to_pylist(), strict=True))


def test_error_raises_and_says_where() -> None:
    with pytest.raises(
        MaterializeError, match=r"x\.tar: sample 'a', position 1: gone \(and 1 more items with errors\)"
    ):
        apply_policy(TABLE, "error", "x.tar")


def test_warn_keeps_every_row() -> None:
    with pytest.warns(UserWarning, match="sample 'a', position 1: gone") as caught:
        outcome = apply_policy(TABLE, "warn")
    assert outcome.table is TABLE
    assert [error.outcome for error in outcome.errors] == ["kept", "kept"]
    assert {w.filename for w in caught} == {__file__}


def test_drop_row_keeps_the_rest_and_the_positions() -> None:
    outcome = apply_policy(TABLE, "drop_row")
    assert ids(outcome.table) == [("a", -1), ("a", 0), ("b", -1), ("b", 0)]
    assert outcome.dropped is not None
    assert ids(outcome.dropped) == [("a", 1), ("c", -1)]
    assert [(e.sample_id, e.position, e.message, e.outcome) for e in outcome.errors] == [
        ("a", 1, "gone", "row dropped"),
        ("c", -1, "", "row dropped"),
    ]


def test_drop_sample_drops_every_row_of_it_and_names_them() -> None:
    outcome = apply_policy(TABLE, "drop_sample")
    assert ids(outcome.table) == [("b", -1), ("b", 0)]
    assert outcome.dropped is not None
    assert ids(outcome.dropped) == [("a", -1), ("a", 0), ("a", 1), ("c", -1)]
    assert [e.outcome for e in outcome.errors] == ["sample dropped", "sample dropped"]


@pytest.mark.parametrize("policy", ["error", "warn", "drop_row", "drop_sample"])
def test_without_errors_nothing_happens(policy: str) -> None:
    table = TABLE.slice(3, 2)
    outcome = apply_policy(table, check_policy(policy))
    assert (outcome.table, outcome.errors, outcome.dropped) == (table, (), None)
    assert apply_policy(TABLE.slice(0, 0), check_policy(policy)).table.num_rows == 0


def test_an_unknown_policy_names_the_four() -> None:
    with pytest.raises(ValueError, match="error, warn, drop_row, drop_sample, not 'ignore'"):
        check_policy("ignore")
