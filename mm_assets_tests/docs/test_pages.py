"""What the pages promise about each other and about the project."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets import MODULES
from mm_assets.settings import describe
from mm_assets_tests.docs.pages import README, ROOT, blocks, pages, prose
from mm_assets_tests.formats.raw_tars import make_tar

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchor(heading: str) -> str:
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower()).strip()
    return re.sub(r"[\s-]+", "-", words)


def table(text: str) -> list[list[str]]:
    """The cells of the first table after the given heading or line."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_the_pages_are_short() -> None:
    sizes = {page: page.stat().st_size for page in DOCS.rglob("*.md")}
    assert sum(sizes.values()) <= 200 << 10
    assert sizes[DOCS / "architecture.md"] <= 8 << 10


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if re.match(r"https?:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.+)$", prose(file), re.MULTILINE)
            assert fragment in {anchor(heading) for heading in headings}, target


@pytest.mark.parametrize("page", pages(), ids=name)
def test_make_targets_and_settings_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = "\n".join(block.code for block in blocks(page) if block.language == "sh")
    targets = re.findall(r"^make ([\w-]+)", commands, re.MULTILINE)
    for target in targets + re.findall(r"`make ([\w-]+)`", prose(page)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    code = "\n".join(block.code for block in blocks(page) if block.language == "python")
    bounds = re.findall(r'\b(minimum|maximum)\("(\w+)"', code)
    of_plugins = {f"MM_{bound[:3].upper()}_{quantity.upper()}" for bound, quantity in bounds}
    named = set(re.findall(r"\b(MM_[A-Z_]+[A-Z])\b", page.read_text()))
    assert named <= set(describe()) | of_plugins


def test_the_document_drawn_in_the_readme(tmp_path: Path) -> None:
    """The tar that it shows becomes the rows that it shows."""
    drawn, *_ = [block.code for block in blocks(README) if block.language == "text"]
    document = re.search(r"^ *cats\.json +(\{.*\})$", drawn, re.MULTILINE)
    assert document is not None
    make_tar(tmp_path / "pets.tar", [("cats.json", json.loads(document[1])), ("cats.1.jpg", _picture())])
    command = [sys.executable, "-m", "mm_assets.cli", "convert", tmp_path / "pets.tar", tmp_path / "out"]
    subprocess.run([*command, "--to", "parquet"], check=True, capture_output=True)
    found = pq.read_table(tmp_path / "out" / "pets.parquet").to_pylist()

    header, *rows = table(README.read_text())
    shown = {"the bytes of `cats.1.jpg`": _picture(), "": None}
    wanted = [
        {column: shown.get(cell, cell) for column, cell in zip(header, row, strict=True)} for row in rows
    ]
    assert [{**row, "position": int(row["position"])} for row in wanted] == [
        {column: row[column] for column in header} for row in found
    ]


def _picture() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (6, 4), (200, 100, 50)).save(file, "JPEG")
    return file.getvalue()


def test_every_public_name_is_in_the_reference() -> None:
    """Once, by its name alone: `docs/hooks.py` knows its module."""
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    assert sorted(re.findall(r"^::: (\w+)$", text, re.MULTILINE)) == sorted(MODULES)


def test_guides_and_reference_pages_have_titles() -> None:
    for page in pages():
        assert re.match(r"# \S", page.read_text()), page
