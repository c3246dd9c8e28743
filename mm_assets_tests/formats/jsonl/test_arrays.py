"""Files with one JSON array of documents: brackets tell its entries, and each is parsed by itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets import InterleavedJsonlReader
from mm_assets.formats.jsonl import local_lines
from mm_assets_tests.cli.commands import fine, run

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"\\[]{},é\n'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"]'), inner, max_size=3),
)


def entries(text: str) -> tuple[list[Any], bool]:
    """The entries of a file, and whether it is damaged."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        Path(file.name).write_text(text)
        with local_lines(file.name, "x.json", None) as lines:
            numbers = range(1, len(lines.members) + 1)
            assert [member.name for member in lines.members] == [f"entry {number}" for number in numbers]
            data = text.encode()
            found = [data[member.offset : member.offset + member.size] for member in lines.members]
            return [json.loads(each) for each in found], lines.damage is not None


@given(st.lists(JSON, max_size=4), st.sampled_from([None, 1]), st.booleans(), st.sampled_from(["", " \n"]))
def test_every_entry_is_found(values: list[Any], indent: int | None, is_ascii: bool, blank: str) -> None:
    text = blank + json.dumps(values, indent=indent, ensure_ascii=is_ascii) + blank
    assert entries(text) == (values, False)


@given(st.lists(JSON, min_size=1, max_size=4), st.data())
def test_of_a_cut_array_what_is_whole_is_found(values: list[Any], data: st.DataObject) -> None:
    text = json.dumps(values)
    found, is_damaged = entries(text[: data.draw(st.integers(1, len(text) - 1))])
    assert is_damaged
    assert found == values[: len(found)]


def test_lines_that_are_arrays_stay_lines(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("[1]\n[2]\n")
    with local_lines(str(tmp_path / "x.jsonl"), "x.jsonl", None) as lines:
        assert [member.name for member in lines.members] == ["line 1", "line 2"]


DOCUMENTS = [{"texts": ["a"], "n": 1}, {"texts": ["b", None], "n": None}, {"texts": [], "x": "]},{"}]


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_as_its_lines_would_be(tmp_path: Path, indent: int | None) -> None:
    (tmp_path / "part.json").write_text(json.dumps(DOCUMENTS, indent=indent))
    (tmp_path / "lines").mkdir()
    lines = tmp_path / "lines" / "part.jsonl"
    lines.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))

    def rows(path: Path) -> list[dict[str, Any]]:
        reader = InterleavedJsonlReader(str(path))
        (batch,) = reader
        return batch.data.drop_columns(["source_ref"]).to_pylist()

    assert rows(tmp_path / "part.json") == rows(lines)
    assert {row["sample_id"] for row in rows(lines)} == {"part/1", "part/2", "part/3"}


def test_it_is_converted_and_verified_where_it_is_named_alone(tmp_path: Path) -> None:
    (tmp_path / "part.json").write_text(json.dumps(DOCUMENTS))
    fine(run("convert", tmp_path / "part.json", tmp_path / "out", "--to", "parquet"))
    fine(run("verify", tmp_path / "part.json", tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").glob("*.parquet")] == ["part.parquet"]
    refused = run("convert", tmp_path, tmp_path / "more", "--to", "parquet")
    assert refused.returncode != 0


def test_an_entry_that_is_no_document_goes_alone(tmp_path: Path) -> None:
    (tmp_path / "part.json").write_text('[{"texts": ["a"]}, 7, {"texts": ["b"]}')
    reader = InterleavedJsonlReader(str(tmp_path / "part.json"), quarantine_errors=True)
    stream = reader.open(reader.partitions()[0])
    texts = [text for batch in stream for text in batch.data["text_content"].to_pylist() if text]
    assert texts == ["a", "b"]
    assert [loss.kind for loss in stream.losses] == ["not_an_object", "truncated_tar"]
