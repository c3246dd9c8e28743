"""A sealed object is read as it was written, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.accounting.sealed_json import sealed, unsealed

VALUES = {"format": 3, "key": "a/ü", "odd": "\udc80", "n": 2**60, "x": 0.1, "list": [None, True, {"": "seal"}]}
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(values=st.dictionaries(st.text().filter(lambda name: name != "seal"), _JSON, max_size=5))
def test_what_was_sealed_is_read(values: dict[str, Any]) -> None:
    assert unsealed(sealed(values)) == values
    assert sealed(values) == sealed(dict(reversed(values.items())))


def test_keys_that_are_no_text_become_text() -> None:
    assert unsealed(sealed({"counts": {10: 1, 9: 2}})) == {"counts": {"10": 1, "9": 2}}


def test_no_flipped_bit_passes() -> None:
    data = sealed(VALUES).encode()
    for at in range(len(data)):
        for bit in range(8):
            changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            try:
                found = unsealed(changed)
            except ValueError:
                continue
            # The same in other letters, or the name of the seal: who knows the fields finds one that is none.
            assert {name: found[name] for name in VALUES} == VALUES


@pytest.mark.parametrize("data", [b"", b"[]", b"5", b'"text"', b"\xff\xfe", b"[" * 100_000, sealed(VALUES).encode()[:-1]])
def test_other_texts_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unsealed(data)


def test_an_object_of_before_there_were_seals_is_read() -> None:
    assert unsealed(json.dumps(VALUES)) == VALUES
