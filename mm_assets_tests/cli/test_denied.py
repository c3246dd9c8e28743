"""What the deny list keeps out of conversions, and what is said of it."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import mm_assets
from mm_assets.accounting.erasures import Entry, Erasure, ErasureStore, alias_of
from mm_assets.formats.registry import reader_for
from mm_assets_tests.cli.commands import run
from mm_assets_tests.filters.test_contamination import jpeg
from mm_assets_tests.formats.parquet_of_others import documents, image, interleaved
from mm_assets_tests.graph.deployment import write_tar
from mm_assets_tests.graph.samples import document, samples

REFUSED = "mm-assets: warning: {} refused: {}\n"


def erase(root: Path, *entries: Entry) -> str:
    erasure = Erasure.begin(entries)
    ErasureStore(str(root)).write(erasure)
    return erasure.id


def ids(kind: str, path: Path) -> list[str]:
    found = [name for batch in reader_for(kind, str(path)) for name in batch.data["sample_id"].to_pylist()]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("policy", ["error", "warn", "drop_row", "drop_sample"])
def test_convert_takes_out_what_is_erased_under_any_policy(tmp_path: Path, policy: str) -> None:
    """An id that two files have is no duplicate, if it is erased; the list beside the output hides it."""
    write_tar(tmp_path / "raw" / "a.tar", samples(3, "first-"))
    again = document("first-001", sample_id="first-001")
    write_tar(tmp_path / "raw" / "b.tar", {**samples(2, "b"), "x.json": again})
    id_ = erase(tmp_path / "st", Entry.of("sample_id", "first-001"))
    arguments = ("--to", "parquet", "--on-materialize-error", policy)
    result = run("convert", tmp_path / "raw", tmp_path / "out", *arguments, MM_STORAGE=str(tmp_path / "st"))
    assert (result.returncode, result.stderr) == (
        0,
        REFUSED.format("6 items", f"6 erased on request in {tmp_path / 'st'}"),
    )
    assert ids("parquet", tmp_path / "out") == ["first-000", "first-002", "b000", "b001"]
    rows = pq.read_table(tmp_path / "out" / "_ledger").to_pylist()
    assert {(row["sample_id"], row["kind"], row["reason"]) for row in rows} == {
        (alias_of("first-001"), "erased", f"erased on request {id_}")
    }
    assert not any("first-001" in str(row) for row in rows)
    other = run("convert", tmp_path / "raw" / "a.tar", tmp_path / "all", "--to", "parquet", MM_STORAGE="none")
    assert other.stderr == "" and "first-001" in ids("parquet", tmp_path / "all")


def test_hash_lists_and_rows_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """In Python: a listed image of somebody's Parquet goes, with its sample where the policy says so."""
    columns = interleaved([["a", None], ["b", None]], [[None, image(0)], [None, image(1)]])
    documents(tmp_path / "raw" / "p.parquet", columns)
    listed = tmp_path / "known.txt"
    listed.write_text(hashlib.sha256(image(1)["bytes"]).hexdigest())
    monkeypatch.setenv("MM_STORAGE", str(tmp_path / "st"))
    monkeypatch.setenv("MM_HASH_LISTS", str(listed))
    report = mm_assets.read(tmp_path / "raw").write(
        tmp_path / "out", "webdataset", on_materialize_error="drop_row"
    )
    assert (report.samples, report.images, report.texts) == (2, 1, 2)
    assert [(loss.kind, loss.reason) for loss in report.losses] == [
        ("listed_hash", "matches the hash list known.txt")
    ]
    assert [str(each.message) for each in recwarn] == ["1 item refused: 1 in MM_HASH_LISTS"]
    again = mm_assets.read(tmp_path / "raw").write(
        tmp_path / "two", "parquet", on_materialize_error="drop_sample"
    )
    assert (again.samples, sorted(loss.kind for loss in again.losses)) == (
        1,
        ["incomplete_sample", "incomplete_sample", "listed_hash"],
    )


@pytest.mark.parametrize("of", ["id", "bytes"])
def test_reshard_reads_our_tars_only_if_nothing_in_them_is_denied(tmp_path: Path, of: str) -> None:
    members = samples(3, "a")
    members["a001.1.png"] = jpeg(1)
    write_tar(tmp_path / "raw" / "a.tar", members)
    assert run("convert", tmp_path / "raw", tmp_path / "tars", "--to", "webdataset").returncode == 0
    digest = hashlib.sha256(jpeg(1)).hexdigest()
    entry = Entry.of("sample_id", "a001") if of == "id" else Entry.of("sha256", digest)
    erase(tmp_path / "st", entry)
    erase(tmp_path / "other", Entry.of("sample_id", "none"))
    options = ("reshard", tmp_path / "tars")
    result = run(
        *options, tmp_path / "out", "--on-materialize-error", "drop_sample", MM_STORAGE=str(tmp_path / "st")
    )
    assert result.returncode == 0
    refused = "3 items" if of == "id" else "1 item"
    where = f"{refused[0]} erased on request in {tmp_path / 'st'}"
    assert result.stderr == REFUSED.format(refused, where)
    assert ids("webdataset", tmp_path / "out") == ["a000", "a002"]
    result = run(*options, tmp_path / "all", "--no-shuffle", MM_STORAGE=str(tmp_path / "other"))
    assert (result.returncode, result.stderr) == (0, "")
    assert ids("webdataset", tmp_path / "all") == ["a000", "a001", "a002"]


def test_pictures_without_the_extra_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "raw" / "a.tar", samples(1))
    erase(tmp_path / "st", Entry.of("pdq", "ab" * 32))
    monkeypatch.setitem(sys.modules, "pdqhash", None)
    result = run(
        "convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet", MM_STORAGE=str(tmp_path / "st")
    )
    assert result.returncode == 1
    assert result.stderr == "mm-assets: The perceptual hash needs pdqhash: pip install 'mm-assets[scores]'\n"


def test_a_damaged_erasure_is_one_line(tmp_path: Path) -> None:
    write_tar(tmp_path / "raw" / "a.tar", samples(1))
    id_ = erase(tmp_path / "st", Entry.of("sample_id", "x"))
    (tmp_path / "st" / "ledger" / "erasures" / f"{id_}.json").write_text("{}")
    result = run(
        "convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet", MM_STORAGE=str(tmp_path / "st")
    )
    assert result.returncode == 1 and not (tmp_path / "out").exists()
    line, end = result.stderr.split("\n")
    assert f"{id_}.json: damaged, and nobody can tell what may not come in" in line and end == ""


def test_documents_of_code_and_what_only_a_row_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL among the fields of a document takes it, one of an item the item."""
    url = "https://example.org/gone"
    given = [
        mm_assets.Document("a", ["one", jpeg(1)], {"url": url}),
        mm_assets.Document("b", ["two", jpeg(2)], {"url": f"{url}#else", "more": {"links": [url[:-1]]}}),
    ]
    monkeypatch.setenv("MM_STORAGE", str(tmp_path / "st"))
    erase(tmp_path / "st", Entry.of("url", url))
    with pytest.warns(UserWarning, match=r"^3 items refused: 3 erased on request in "):
        report = mm_assets.read(mm_assets.documents(given)).write(tmp_path / "out", "parquet")
    assert ids("parquet", tmp_path / "out") == ["b"]
    assert {loss.sample_id for loss in report.losses} == {alias_of("a")}
