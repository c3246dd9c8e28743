"""PDFs on the command line: conversion to every format, and what is said of what cannot be."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets.formats.names import format_of
from mm_assets_tests.cli.commands import run
from mm_assets_tests.formats.pdf.pdf_files import Page, jpeg, jpeg_picture, lines, pdf, raw_picture
from mm_assets_tests.formats.pdf.reading import files_in, items

RED = jpeg(200, 10, 10)
PAGE = Page(
    lines(["Some", "words"], 50, 700),
    [jpeg_picture(RED, (50, 400, 120, 80)), raw_picture(bytes(range(12)), 2, 2, (50, 200, 50, 50))],
)
WARN = ("--on-materialize-error", "warn")
BOMB = Page(pictures=[raw_picture(bytes(9), 60_000, 60_000, (50, 200, 50, 50))])


@pytest.fixture
def pdfs(tmp_path: Path) -> str:
    files = {"a.pdf": pdf([PAGE, PAGE], "/Title (A)"), "b.pdf": pdf([PAGE]), "x/c.pdf": pdf([PAGE])}
    return files_in(tmp_path, files)


def test_outputs_have_the_same_rows_as_the_pdfs(tmp_path: Path, pdfs: str) -> None:
    """Writers get what a tar would give them: one that writes files, and one of a table."""
    targets = []
    for kind in ("parquet", "lance"):
        target = tmp_path / f"{kind}{format_of(kind).written if format_of(kind).is_table else ''}"
        made = run("convert", pdfs, target, "--to", kind)
        assert (made.returncode, made.stderr) == (0, "")
        assert "2 partitions, 3 samples, 8 images, 4 texts" in made.stdout
        targets.append(target)
    proof = run("verify", pdfs, *targets)
    assert (proof.returncode, proof.stdout.splitlines()[-1]) == (0, "equal")


def test_a_pattern_and_a_file_are_converted_as_they_are_named(tmp_path: Path, pdfs: str) -> None:
    folder = pdfs.removeprefix("pdf=")
    for number, (name, ids) in enumerate({"*.pdf": {"a", "b"}, "b.pdf": {"b"}}.items()):
        made = run("convert", f"{folder}/{name}", tmp_path / f"out{number}", "--to", "parquet")
        assert made.returncode == 0
        table = pq.read_table(tmp_path / f"out{number}" / "docs.parquet")
        assert set(table.column("sample_id").to_pylist()) == ids
    assert items(table.to_pylist())[:2] == ["Some\nwords", RED]


def test_a_bad_pdf_fails_its_folder_or_is_listed(tmp_path: Path, pdfs: str) -> None:
    files_in(tmp_path, {"bad.pdf": b"no pdf", "bomb.pdf": pdf([BOMB])})
    strict = run("convert", pdfs, tmp_path / "strict", "--to", "parquet")
    assert strict.returncode == 1
    assert "docs/bad.pdf: no PDF: it does not begin with %PDF-" in strict.stderr
    assert [file.name for file in (tmp_path / "strict").glob("*.parquet")] == ["x.parquet"]
    flags = ("--to", "parquet", "--on-materialize-error", "drop_sample")
    lenient = run("convert", pdfs, tmp_path / "out", *flags)
    assert lenient.returncode == 0
    table = pq.read_table(tmp_path / "out" / "docs.parquet")
    assert set(table.column("sample_id").to_pylist()) == {"a", "b"}
    ledger = pq.read_table(tmp_path / "out" / "_ledger" / "docs.parquet").to_pylist()
    assert {(row["sample_id"], row["kind"]) for row in ledger if row["is_cause"]} == {
        ("bad", "unreadable_pdf"),
        ("bomb", "decompression_bomb"),
    }


def test_verify_says_what_is_wrong_with_a_pdf(tmp_path: Path, pdfs: str) -> None:
    files_in(tmp_path, {"bomb.pdf": pdf([BOMB])})
    assert run("convert", pdfs, tmp_path / "out", "--to", "parquet", *WARN).returncode == 0
    proof = run("verify", pdfs, tmp_path / "out")
    assert (proof.returncode, proof.stdout.splitlines()[-1]) == (0, "equal")
    files_in(tmp_path, {"bad.pdf": b"no pdf"})
    proof = run("verify", pdfs, tmp_path / "out")
    assert proof.returncode == 1
    assert "docs/bad.pdf: no PDF: it does not begin with %PDF-" in proof.stderr


def test_inspect_shows_pages_and_boxes(pdfs: str) -> None:
    shown = run("inspect", pdfs)
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"{pdfs}: webdataset, 2 partitions, 3 samples, 15 rows")
    assert "  box: list<item: double>" in shown.stdout


def test_a_folder_of_pdfs_has_to_be_named_as_such(tmp_path: Path, pdfs: str) -> None:
    folder = pdfs.removeprefix("pdf=")
    refused = run("convert", folder, tmp_path / "out", "--to", "parquet")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith(f"{folder}: PDFs are named as pdf={folder}\n")
    absent = run("convert", f"{folder}/none.pdf", tmp_path / "out", "--to", "parquet")
    assert (absent.returncode, absent.stderr) == (1, f"mm-assets: {folder}/none.pdf: no such file\n")


def test_one_pdf_is_shown(pdfs: str) -> None:
    shown = run("show", "b", pdfs)
    assert shown.returncode == 0
    told = shown.stdout.splitlines()
    assert told[told.index("[0] text") + 1].startswith("    Some")
    assert any(line.startswith("[1] image ") and line.endswith(f" jpg {len(RED)} B") for line in told)
