"""Words for sizes, values and raw bytes of a sample."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mm_assets.view.sample import alike, byte_size, cut
from mm_assets.view.sample import shown_value as value
from mm_assets.view.sample_source import described


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (9_949, "9.9 KB"),
        (34_400, "34 KB"),
        (999_499, "999 KB"),
        (999_500, "1.0 MB"),
        (3_005_232, "3.0 MB"),
        (5_000_000_000, "5.0 GB"),
        (5_000_000_000_000, "5000 GB"),
    ],
)
def test_sizes(nbytes: int, words: str) -> None:
    assert byte_size(nbytes) == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("text", "text"),
        (81.25, "81.25"),
        (1 / 3, "0.333333"),
        (7, "7"),
        (True, "True"),
        (b"\x00\xff", "0x00ff"),
        (bytes(40), f"0x{'00' * 32}…"),
        ([1, 2], "[1, 2]"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, …] (20 values)"),
        ("x" * 101, f"{'x' * 100} … (1 more character)"),
    ],
)
def test_values(given: Any, words: str) -> None:
    assert value(given, 100) == words


def test_long_texts_say_how_much_is_left_out() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcde", 3) == "abc … (2 more characters)"


@pytest.mark.parametrize(
    ("raw", "note", "shown"),
    [
        (b"{nope", None, ("{nope", "5 bytes")),
        (b"x", "the document", ("x", "1 byte of the document")),
        (None, "too large", ("", "too large")),
        (None, None, ("", "no bytes were kept")),
        (b"\xff\xd8", None, ("ff d8", "2 bytes")),
        (b"\xff" * 40, None, (" ".join(["ff"] * 32), "40 bytes, beginning with")),
        (b"a\0b", None, ("61 00 62", "3 bytes")),
        (b"x" * 3000, None, ("x" * 2000, "3000 bytes, beginning with")),
        (b"x" + "é".encode() * 2000, None, ("x" + "é" * 999, "4001 bytes, beginning with")),
        (b"x" * 2500 + b"\xff", None, ("x" * 2000, "2501 bytes, beginning with")),
    ],
)
def test_raw_bytes(raw: bytes | None, note: str | None, shown: tuple[str, str]) -> None:
    assert described(raw, note) == shown


def test_ids_that_contain_another() -> None:
    ids = [pa.chunked_array([["a/X1", "a/x2", "b"]]), pa.chunked_array([["x3", "x3", "x4"]])]
    assert alike(iter(ids), "x") == ["a/X1", "a/x2", "x3"]
    assert alike(iter(ids), "X4") == ["x4"]
    assert alike(iter(ids), "y") == []
    assert alike(iter(ids), "") == []
    assert alike(iter([pa.chunked_array([pa.array(["one", "two"]).dictionary_encode()])]), "TW") == ["two"]
