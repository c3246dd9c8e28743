"""The table of formats: every entry is whole, and tells its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm_assets.accounting import OUTPUTS
from mm_assets.accounting.canonical import SampleQuery, derive
from mm_assets.accounting.formats import accounted_format, find_sample
from mm_assets.formats.names import FORMATS, SUFFIXES, format_by_suffix, format_of
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import detect_format, other_formats, reader_for, writer_for
from mm_assets_tests.formats.conformance.outputs import N, output, rows
from mm_assets_tests.formats.datasets import batch_of, write


def test_names_and_suffixes_are_of_one_format() -> None:
    assert len(set(FORMATS)) == len(FORMATS)
    assert len(set(SUFFIXES)) == len(SUFFIXES)
    assert {output.kind for output in OUTPUTS} <= set(FORMATS)
    for suffix in SUFFIXES:
        found = format_by_suffix(f"a{suffix}")
        assert found is not None and suffix in found.suffixes


@pytest.mark.parametrize("kind", FORMATS)
def test_an_entry_is_whole(tmp_path: Path, kind: str) -> None:
    """What the table says is what the reader, the writer and accounting do."""
    entry = format_of(kind)
    reader: InterleavedReader = reader_for(kind, [])
    assert reader.suffixes == entry.suffixes
    assert entry.written in entry.suffixes
    assert reader_for(kind, [], **dict.fromkeys(entry.raw_options, None)).suffixes == entry.suffixes
    writer = writer_for(kind, str(tmp_path))
    folder = writer.uri_of("part") if entry.is_table else str(tmp_path)
    assert entry.output(entry.uri(folder, "a/b.c")) == writer.uri_of("a/b.c")
    assert accounted_format(kind).library
    assert (accounted_format(kind).table is not None) == entry.is_table


@pytest.mark.parametrize("kind", FORMATS)
def test_data_are_told_by_their_names(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, batch_of(rows("a"), partition="part"))
    for place in (tmp_path, output(kind, tmp_path)):
        assert detect_format(str(place)) == kind
    assert other_formats(str(tmp_path), kind) == []


def test_a_name_that_is_no_format() -> None:
    for make in (reader_for, writer_for):
        with pytest.raises(ValueError, match=f"one of {', '.join(FORMATS)}, not 'no-format'"):
            make("no-format", "x")
    with pytest.raises(ValueError, match="not 'no-format'"):
        derive("no-format", "x")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_sample_is_found_in_its_partition(tmp_path: Path, kind: str) -> None:
    batches = [batch_of(rows(name, n=1), [N], partition=f"p.{name}") for name in "ab"]
    write(kind, tmp_path, batches)
    folder = str(output(kind, tmp_path)) if format_of(kind).is_table else str(tmp_path)

    def ask(sample_id: str) -> dict[str | None, list[tuple[int, str]]]:
        query = SampleQuery(folder, lambda name: format_of(kind).uri(folder, name), sample_id, ["p.a", "p.b"])
        found = find_sample(kind, query)
        return {
            name: [(row["position"], row["modality"]) for row in rows] for name, rows in found.items() if rows
        }

    assert ask("b") == {"p.b": [(-1, "metadata"), (0, "text"), (2, "image")]}
    assert ask("c") == {}
