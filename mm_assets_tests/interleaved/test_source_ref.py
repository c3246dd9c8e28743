from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.interleaved import build_source_ref, parse_source_ref

TEXT = st.none() | st.text(st.characters(exclude_categories=("Cs",)))
NUMBER = st.none() | st.integers(0, 2**63)


@given(TEXT, TEXT, NUMBER, NUMBER, NUMBER)
def test_comes_back(
    path: str | None, member: str | None, offset: int | None, size: int | None, frame: int | None
) -> None:
    text = build_source_ref(path, member, offset, size, frame)
    assert text.isascii()
    assert parse_source_ref(text) == {
        "path": path,
        "member": member,
        "byte_offset": offset,
        "byte_size": size,
        "frame_index": frame,
    }


def test_the_text_itself() -> None:
    assert (
        build_source_ref("é.tar", "m", 512, 7)
        == '{"path": "\\u00e9.tar", "member": "m", "byte_offset": 512, "byte_size": 7}'
    )
    assert "frame_index" not in json.loads(build_source_ref("a"))
    assert json.loads(build_source_ref("a", frame_index=0))["frame_index"] == 0


@pytest.mark.parametrize("text", [None, "", "{}"])
def test_nothing_gives_nothing(text: str | None) -> None:
    assert set(parse_source_ref(text).values()) == {None}


def test_unknown_keys_are_ignored() -> None:
    ref = parse_source_ref('{"path": "p", "_src_x": 1, "content_path": "old"}')
    assert ref["path"] == "p"
    assert "_src_x" not in ref


@pytest.mark.parametrize("text", ["[1]", "5", '"x"', "null", "true"])
def test_what_is_no_object_is_a_type_error(text: str) -> None:
    with pytest.raises(TypeError, match="must be a JSON object"):
        parse_source_ref(text)


def test_what_is_no_json_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        parse_source_ref("{")
