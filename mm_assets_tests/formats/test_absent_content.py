"""Items of which nothing is there are errors, in every format and under every policy; locators alone, and
metadata, are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mm_assets.cli import main
from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.interleaved import InterleavedWebdatasetReader, MaterializeError, build_source_ref
from mm_assets.model.errors import FETCH_FAILED, MISSING_CONTENT, fault_of
from mm_assets.model.losses import POLICIES
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar

pytestmark = pytest.mark.usefixtures("shared_workers")

PNG = picture(0)[1]
ABSENT: dict[str, tuple[dict[str, Any], str]] = {
    "image without bytes and locator": (
        item("s", 1, "image"),
        "an image without bytes and without a locator",
    ),
    "image with a type alone": (
        item("s", 1, "image", content_type="image/png"),
        "an image without bytes and without a locator",
    ),
    "image with a text": (
        item("s", 1, "image", text_content="t"),
        "an image without bytes and without a locator",
    ),
    "image of empty bytes": (item("s", 1, "image", binary_content=b""), "an image of 0 bytes"),
    "image of empty bytes with a locator": (
        item("s", 1, "image", binary_content=b"", source_ref=build_source_ref("raw.tar", "a.png")),
        "an image of 0 bytes",
    ),
    "text without text": (item("s", 1), "a text row without text"),
    "text with bytes": (item("s", 1, binary_content=b"t"), "a text row without text"),
    "text with a locator": (
        item("s", 1, source_ref=build_source_ref("raw.tar", "s.json")),
        "a text row without text",
    ),
}
UNUSABLE = {
    "{}": "missing path",
    "": "missing path",
    '{"path": ""}': "missing path",
    "junk": "Expecting value",
    '{"path": 5}': "no string",
    '{"path": "a", "byte_offset": -1}': "no number of bytes",
    "[1]": "must be a JSON object",
}


def sample(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return [item("before", 0, text_content="t"), item("s"), item("s", 0, text_content="kept"), *rows]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", ABSENT)
@pytest.mark.parametrize("kind", FORMATS)
def test_the_policy_decides(tmp_path: Path, kind: str, case: str, policy: str) -> None:
    row, words = ABSENT[case]
    source = batch_of(sample(row), source_files=("x.tar",))
    message = f"missing content: {words}"
    assert fault_of(message) == MISSING_CONTENT
    if policy == "error":
        with pytest.raises(MaterializeError, match=rf"x\.tar: sample 's', position 1: {message}"):
            write(kind, tmp_path, source)
        assert (
            not list(tmp_path.glob("*.tar")) + list(tmp_path.glob("*.parquet")) + list(tmp_path.glob("part*"))
        )
        return
    report = write(kind, tmp_path, source, on_materialize_error=policy)
    assert [(e.sample_id, e.position, e.message) for e in report.errors] == [("s", 1, message)]
    found = read(kind, tmp_path)
    if policy == "warn":
        same(found, batch_of(sample({**row, "materialize_error": message})).data)
        return
    causes = [(loss.position, loss.kind, loss.reason) for loss in report.losses if loss.is_cause]
    assert causes == [(1, MISSING_CONTENT, message)]
    assert found.num_rows + len(report.losses) == 4
    assert found["sample_id"].to_pylist() == (["before", "s", "s"] if policy == "drop_row" else ["before"])


@pytest.mark.parametrize("kind", FORMATS)
def test_what_was_kept_with_its_error_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    """Written again it has the same rows and digest, and the error is told again."""
    rows = sample(*({**row, "position": at} for at, (row, _) in enumerate(ABSENT.values(), 1)))
    first = write(
        kind, tmp_path / "1", batch_of(rows, partition="p"), on_materialize_error="warn"
    ).partitions[0]
    again = write(
        kind, tmp_path / "2", reader_for(kind, str(tmp_path / "1")), on_materialize_error="warn"
    ).partitions[0]
    assert again.digest == first.digest == again.source_digest
    assert again.errors == first.errors
    assert len(first.errors) == len(ABSENT)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_locator_is_content_enough_where_nothing_is_fetched(tmp_path: Path, kind: str) -> None:
    refs = [
        build_source_ref("gone.tar", "a.png"),
        build_source_ref("s3://b/x.png"),
        '{"path": "a", "theirs": 1}',
    ]
    source = batch_of([item("s"), *(item("s", at, "image", source_ref=ref) for at, ref in enumerate(refs))])
    report = writer_for(kind, str(tmp_path), materialize=False).write(source)
    assert report.errors == ()
    same(read(kind, tmp_path), source.data)


@pytest.mark.parametrize("ref", UNUSABLE)
def test_a_locator_that_can_name_nothing_is_none(tmp_path: Path, ref: str) -> None:
    source = batch_of([item("s", 0, "image", source_ref=ref)])
    with pytest.raises(
        MaterializeError,
        match=f"sample 's', position 0: missing content: .* its locator names none: .*{UNUSABLE[ref]}",
    ):
        write("parquet", tmp_path, source, materialize=False)
    with pytest.raises(MaterializeError, match=f"sample 's', position 0: .*{UNUSABLE[ref]}"):
        write("parquet", tmp_path, source)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_fetched_and_empty_is_no_image(tmp_path: Path, kind: str) -> None:
    raw = make_tar(tmp_path / "x.tar", [("a.png", b"")])
    source = batch_of([item("s", 0, "image", source_ref=build_source_ref(str(raw), "a.png"))])
    with pytest.raises(
        MaterializeError, match="sample 's', position 0: missing content: an image of 0 bytes"
    ):
        write(kind, tmp_path / "out", source)


def test_an_empty_member_of_a_raw_tar(tmp_path: Path) -> None:
    raw = make_tar(tmp_path / "x.tar", [("s.json", {"images": ["a.png"]}), ("a.png", b"")])
    with pytest.raises(
        MaterializeError, match="sample 's', position 0: missing content: an image of 0 bytes"
    ):
        write("parquet", tmp_path / "out", InterleavedWebdatasetReader(str(raw)))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_metadata_row_with_nothing_and_an_empty_text_are_content(tmp_path: Path, kind: str) -> None:
    source = batch_of(
        [item("s"), item("s", 0, text_content=""), item("s", 1, "image", binary_content=PNG), item("t")]
    )
    assert write(kind, tmp_path, source).errors == ()
    same(read(kind, tmp_path), source.data)


def test_rows_that_have_an_error_keep_it(tmp_path: Path) -> None:
    source = batch_of([item("s", 0, "image", materialize_error="theirs"), item("s", 1, materialize_error="")])
    report = write("parquet", tmp_path, source, on_materialize_error="warn")
    assert [error.message for error in report.errors] == ["theirs", ""]
    assert fault_of("theirs") == FETCH_FAILED


def test_a_changed_row_is_told_so_that_digests_are_not_held_against_it(tmp_path: Path) -> None:
    source = batch_of([item("s", 0, "image"), item("s", 1), item("s", 2, text_content="t")])
    (report,) = write("parquet", tmp_path, source, on_materialize_error="drop_row").partitions
    assert report.counts["rows_changed"] == 2


@pytest.mark.parametrize("to", FORMATS)
def test_convert(tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Parquet of a version that let such rows pass, or of others."""
    import pyarrow.parquet as pq

    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.parquet"
    pq.write_table(batch_of(sample(item("s", 1, "image"), item("s", 2))).data, file)
    arguments = ["convert", str(file.parent), str(tmp_path / "out"), "--to", to]
    assert main(arguments) == 1
    out = capsys.readouterr()
    assert (
        "a.parquet: sample 's', position 1: missing content: an image without bytes and without a "
        "locator (and 1 more" in out.err
    )
    assert main([*arguments, "--on-materialize-error", "drop_sample", "--max-loss", "1"]) == 0
    assert "quarantined: 4 items (incomplete_sample 2, missing_content 2)" in capsys.readouterr().out
    ledger = pq.read_table(tmp_path / "out" / "_ledger" / "a.parquet").to_pylist()
    assert [row["kind"] for row in ledger] == [
        "incomplete_sample",
        "incomplete_sample",
        "missing_content",
        "missing_content",
    ]
