"""A JSON file that tells whether it is as it was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.storage.small_files import seal, unseal

FIELDS = {"name": "sämple/1", "n": 2**60, "x": 0.1, "list": [1, None, {"a": True}]}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda v: st.lists(v, max_size=3),
)


@given(st.dictionaries(st.text().filter(lambda name: name != "seal"), VALUES, max_size=4))
def test_any_object_comes_back(fields: dict[str, Any]) -> None:
    try:
        data = seal(fields)
    except UnicodeEncodeError:  # a lone surrogate cannot be written as UTF-8
        return
    assert unseal(data) == fields


@pytest.mark.parametrize("indent", [None, 1])
def test_one_changed_byte_is_noticed_wherever_it_is(indent: int | None) -> None:
    data = seal(FIELDS, indent)
    told = 0
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            assert unseal(changed) == FIELDS, at  # white space between values
        except ValueError:
            told += 1
    assert told > len(data) * 0.8


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"n": 1}', b'{"n": 1, "seal": "x"}', b"\xff", seal(FIELDS)[:-20]]
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unseal(data)
