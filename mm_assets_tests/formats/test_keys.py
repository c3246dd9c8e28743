from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.formats.names import partition_filename, sample_key

ENERGON = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


def hashed(sample_id: str) -> str:
    return "=" + hashlib.sha256(sample_id.encode()).hexdigest()


HOSTILE = {
    "https://ex.com/doc.v0.1?q=ü": "https%3A%2F%2Fex%2Ecom%2Fdoc%2Ev0%2E1%3Fq%3D%C3%BC",
    "a/../b": "a%2F%2E%2E%2Fb",
    "x" * 300: hashed("x" * 300),
    ".": "%2E",
    "..": "%2E%2E",
    "__meta__": "%5F_meta__",
    "__init__.py": "%5F_init__%2Epy",
    "sp ace": "sp%20ace",
    "%2E": "%252E",
    "-x": "%2Dx",
    "_": "%5F",
    "~t": "%7Et",
    "a_-~b": "a_-~b",
    "=x&y#z": "%3Dx%26y%23z",
    "{a,b}[c]*?": "%7Ba%2Cb%7D%5Bc%5D%2A%3F",
    "\t\n'\"\0": "%09%0A%27%22%00",
    "😀": "%F0%9F%98%80",
    "漢" * 40: hashed("漢" * 40),
    "漢" * 8: quote("漢" * 8),
    "漢" * 9: hashed("漢" * 9),
    "trailing.": "trailing%2E",
    "A": "A",
    "a": "a",
    "\u00e9": "%C3%A9",
    "e\u0301": "e%CC%81",
    "k" * 80: "k" * 80,
    "k" * 81: hashed("k" * 81),
    "_" + "k" * 77: "%5F" + "k" * 77,
    "_" + "k" * 78: hashed("_" + "k" * 78),
    "": hashed(""),
    hashed(""): "%3D" + hashed("")[1:],
}


@pytest.mark.parametrize("sample_id", HOSTILE)
def test_hostile_ids(sample_id: str) -> None:
    assert sample_key(sample_id) == HOSTILE[sample_id]
    assert partition_filename(sample_id) == HOSTILE[sample_id]


def test_hostile_ids_stay_apart() -> None:
    assert len({sample_key(sample_id) for sample_id in HOSTILE}) == len(HOSTILE)


ids = st.text(st.characters(blacklist_categories=["Cs"]), max_size=120)


@given(ids)
def test_a_key_is_safe_everywhere_and_leads_back(sample_id: str) -> None:
    key = sample_key(sample_id)
    assert re.fullmatch(r"[A-Za-z0-9%=][A-Za-z0-9%_~-]{0,79}", key)
    name = f"{key}.1234567890.tiff"
    match = ENERGON.match(name)
    assert match is not None and match.groups() == (key, "1234567890.tiff") and len(name) <= 100
    assert key == hashed(sample_id) if key.startswith("=") else unquote(key) == sample_id


@given(st.lists(ids, unique=True, max_size=50))
def test_different_ids_have_different_keys(sample_ids: list[str]) -> None:
    assert len({sample_key(sample_id) for sample_id in sample_ids}) == len(sample_ids)


@pytest.mark.parametrize("sample_id", ["\ud800", "a\udcff", "x" * 200 + "\udfff"])
def test_lone_surrogates_have_no_key(sample_id: str) -> None:
    with pytest.raises(ValueError, match="lone surrogates"):
        sample_key(sample_id)


def test_partition_names_of_the_field_stay_readable() -> None:
    assert [partition_filename(n) for n in ("shard-00007", "mint-test_A", "cc/part.0")] == [
        *["shard-00007", "mint-test_A", "cc%2Fpart%2E0"],
    ]
