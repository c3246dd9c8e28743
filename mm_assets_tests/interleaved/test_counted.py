"""Numbers of things in words."""

from __future__ import annotations

from mm_assets.model.errors import counted


def test_one_thing_has_no_s() -> None:
    found = [counted(number, "shard") for number in (0, 1, 2)]
    assert found == ["0 shards", "1 shard", "2 shards"]


def test_other_words_than_an_s() -> None:
    assert counted(1, "row belongs", "rows belong") == "1 row belongs"
    assert counted(2, "row belongs", "rows belong") == "2 rows belong"
