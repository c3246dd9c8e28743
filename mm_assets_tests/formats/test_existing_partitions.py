"""Partitions that are there already: replaced, refused or left alone, by where they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.formats.writer import ExistingPartitions, PartitionsExist
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write

ROWS = [item("s0"), item("s0", 0, text_content="first"), item("s1"), item("s1", 0, text_content="second")]


def source(path: Path, *texts: str) -> Any:
    """A reader of a Parquet file with these texts."""
    rows = [
        row
        for number, text in enumerate(texts)
        for row in (item(f"s{number}"), item(f"s{number}", 0, text_content=text))
    ]
    write("parquet", path, batch_of(rows))
    return reader_for("parquet", str(path))


def texts(kind: str, path: Path) -> list[str]:
    return sorted(text for text in read(kind, path).column("text_content").to_pylist() if text is not None)


def listed(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("kind", FORMATS)
def test_another_source_is_refused_unless_asked_for(tmp_path: Path, kind: str) -> None:
    one, other = (
        source(tmp_path / "one" / "p.parquet", "a", "b"),
        source(tmp_path / "other" / "p.parquet", "c"),
    )
    out = tmp_path / "out"
    write(kind, out, one, mode="error")
    before = listed(out)
    for mode in (None, "error"):
        with pytest.raises(PartitionsExist, match="from another source; nothing was written") as refusal:
            write(kind, out, other, mode=mode)
        assert str(out) in str(refusal.value)
        assert listed(out) == before
    assert write(kind, out, other, mode="ignore").partitions == ()
    assert listed(out) == before
    write(kind, out, other, mode="overwrite")
    assert texts(kind, out) == ["c"]
    write(kind, out, other)  # its source now
    with pytest.raises(PartitionsExist):
        write(kind, out, one)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mode", [None, "error", "ignore", "overwrite"])
def test_the_same_source_is_written_again(tmp_path: Path, kind: str, mode: str | None) -> None:
    out = tmp_path / "out"
    write(kind, out, source(tmp_path / "in" / "p.parquet", "a"), mode=mode)
    write(
        kind, out, source(tmp_path / "in" / "p.parquet", "b", "c"), mode=mode
    )  # in its place is another file now
    assert texts(kind, out) == ["b", "c"]


def test_a_partition_of_fewer_files_of_the_source_is_the_same(tmp_path: Path) -> None:
    for name in "ab":
        write(
            "parquet",
            tmp_path / "in" / f"{name}.parquet",
            batch_of([item(name), item(name, 0, text_content=name)]),
        )
    batches = list(reader_for("parquet", str(tmp_path / "in")))
    write("parquet", tmp_path / "p.parquet", batches, mode="error")
    assert texts("parquet", tmp_path / "p.parquet") == ["a", "b"]
    write("parquet", tmp_path / "p.parquet", batches[:1])
    assert texts("parquet", tmp_path / "p.parquet") == ["a"]


@pytest.mark.parametrize("mode", [None, "error"])
def test_an_output_may_be_written_where_it_was_read(tmp_path: Path, mode: str | None) -> None:
    out = tmp_path / "out"
    write("parquet", out, source(tmp_path / "in" / "p.parquet", "a", "b"), mode="error")
    batches = [batch.with_data(batch.data.slice(0, 2)) for batch in reader_for("parquet", str(out))]
    write("parquet", out, batches, mode=mode)
    assert texts("parquet", out) == ["a"]
    write("parquet", out, source(tmp_path / "in" / "p.parquet", "c"), mode="error")  # still its source
    with pytest.raises(PartitionsExist):
        write("parquet", out, source(tmp_path / "other" / "p.parquet", "d"), mode="error")


def test_what_is_killed_before_it_lands_changes_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there is still of the source that it was of."""
    one, other = source(tmp_path / "one" / "p.parquet", "a"), source(tmp_path / "other" / "p.parquet", "b")
    write("parquet", tmp_path / "out", one, mode="error")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mm_assets.storage.files.StagedFile.publish", killed)
        with pytest.raises(KeyboardInterrupt):
            write("parquet", tmp_path / "out", other, mode="overwrite")
    write("parquet", tmp_path / "out", other, mode="ignore")
    assert texts("parquet", tmp_path / "out") == ["a"]
    write("parquet", tmp_path / "out", one)


def test_two_at_the_same_time_do_not_both_land(tmp_path: Path) -> None:
    """The second finds, just before it would publish, that another has noted the name since it looked."""
    one, other = source(tmp_path / "one" / "p.parquet", "a"), source(tmp_path / "other" / "p.parquet", "b")
    files = {reader: reader.partitions()[0].files for reader in (one, other)}
    writer = writer_for("parquet", str(tmp_path / "out"), mode="error")
    existing = {reader: ExistingPartitions(writer, {"p": files[reader]}) for reader in (one, other)}
    first, second = (existing[reader].note_of("p") for reader in (one, other))
    assert first is not None and second is not None
    first.write()
    with pytest.raises(
        ValueError, match="another conversion, from another source, writes it at the same time"
    ):
        second.write()


def test_only_foreign_partitions_are_left_alone(tmp_path: Path) -> None:
    source(tmp_path / "one" / "p.parquet", "a")
    write("parquet", tmp_path / "out", reader_for("parquet", str(tmp_path / "one")), mode="error")
    source(tmp_path / "other" / "p.parquet", "b")
    write(
        "parquet", tmp_path / "other" / "q.parquet", batch_of([item("t"), item("t", 0, text_content="new")])
    )
    report = write("parquet", tmp_path / "out", reader_for("parquet", str(tmp_path / "other")), mode="ignore")
    assert [partition.partition for partition in report.partitions] == ["q"]
    assert texts("parquet", tmp_path / "out") == ["a", "new"]


def test_batches_of_no_file_replace_unless_told_otherwise(tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    write("parquet", out, batch_of(ROWS[:2]))
    write("parquet", out, batch_of(ROWS))
    assert texts("parquet", out) == ["first", "second"]
    with pytest.raises(PartitionsExist, match="from a source that is not recorded"):
        write("parquet", out, batch_of(ROWS[2:]), mode="error")
    write("parquet", out, batch_of(ROWS[2:]), mode="ignore")
    assert texts("parquet", out) == ["first", "second"]


def test_what_came_from_no_file_is_no_more_told_to_be_of_one(tmp_path: Path) -> None:
    reader = source(tmp_path / "in" / "p.parquet", "a")
    write("parquet", tmp_path / "out" / "p.parquet", reader, mode="error")
    write("parquet", tmp_path / "out" / "p.parquet", batch_of(ROWS))
    with pytest.raises(PartitionsExist, match="from a source that is not recorded"):
        write("parquet", tmp_path / "out" / "p.parquet", reader, mode="error")


def test_a_partition_that_fails_keeps_its_source(tmp_path: Path) -> None:
    write("parquet", tmp_path / "out", source(tmp_path / "one" / "p.parquet", "a"), mode="error")
    faulty = batch_of([item("s"), item("s", 0, "image", materialize_error="gone")])
    write("parquet", tmp_path / "other" / "p.parquet", faulty, on_materialize_error="warn")
    other = reader_for("parquet", str(tmp_path / "other"))
    with pytest.raises(ValueError, match="gone"):
        write("parquet", tmp_path / "out", other, mode="overwrite")
    with pytest.raises(PartitionsExist, match="from another source"):
        write("parquet", tmp_path / "out", other)
    write("parquet", tmp_path / "out", reader_for("parquet", str(tmp_path / "one")))


@pytest.mark.parametrize(
    "note", [b"", b"{", b"[]", b'{"places": 1}', b"\xff", b'{"places": ["x"]}', b"[" * 100_000]
)
def test_a_damaged_note_makes_no_source_the_same(tmp_path: Path, note: bytes) -> None:
    reader = source(tmp_path / "in" / "p.parquet", "a")
    write("parquet", tmp_path / "out", reader, mode="error")
    (path,) = (tmp_path / "out" / ".origins").iterdir()
    path.write_bytes(note)
    with pytest.raises(PartitionsExist):
        write("parquet", tmp_path / "out", reader, mode="error")


def test_notes_are_no_data_to_a_client(tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    write("parquet", tmp_path / "out", source(tmp_path / "in" / "p.parquet", "a"), mode="error")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".origins", "p.parquet"]
    assert ds.dataset(str(tmp_path / "out"), format="parquet").to_table().num_rows == 2


def test_without_a_mode_nothing_is_noted_and_what_has_no_note_is_replaced(tmp_path: Path) -> None:
    write("parquet", tmp_path / "out", source(tmp_path / "one" / "p.parquet", "a"))
    write("parquet", tmp_path / "out", source(tmp_path / "other" / "p.parquet", "b"))
    assert texts("parquet", tmp_path / "out") == ["b"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["p.parquet"]


def test_strange_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode must be one of overwrite, error, ignore, not 'append'"):
        write("parquet", tmp_path / "out", batch_of(ROWS), mode="append")
