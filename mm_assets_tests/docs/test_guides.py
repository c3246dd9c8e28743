"""The examples of the guides, run exactly as they are printed."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from mm_assets.storage.listing import LEDGER_BESIDE
from mm_assets_tests.cli.commands import REPOSITORY, environment
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.published import account, lost_items, record_in
from tools.demo import make_shards

GUIDES = REPOSITORY / "docs" / "guides"


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)


def _install(page: str, folder: Path) -> None:
    """Write the page's module under the name that the page gives it."""
    (name,) = re.findall(r"Put this into `(\w+\.py)`", (GUIDES / page).read_text())
    (code,) = _blocks(page, "python")
    (folder / name).write_text(code)


def _run(script: str, folder: Path, **variables: str) -> str:
    """Run lines of a shell, as in a terminal in which the project is installed."""
    tools = {"mm-assets": "-m mm_assets.cli", "make": "-m tools.demo"}
    functions = "".join(f'{tool}() {{ "{sys.executable}" {run}; }}\n' for tool, run in tools.items())
    functions = functions.replace("mm_assets.cli;", 'mm_assets.cli "$@";')
    done = subprocess.run(
        ["bash", "-e", "-u", "-c", functions + script],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_filter_on_the_command_line(tmp_path: Path) -> None:
    _install("add_a_filter.md", tmp_path)
    make_shards(tmp_path / "demo" / "raw", members=2, pdf=0, samples=6)
    (script,) = _blocks("add_a_filter.md", "sh")
    told = _run(script, tmp_path)
    (count,) = re.findall(r"filtered: (\d+) image", told)
    folder = tmp_path / "out" / "bright_images"
    tables = [pq.read_table(path) for path in folder.glob("*.parquet")]
    images = [data for table in tables for data in table["binary_content"].to_pylist() if data is not None]
    assert len(tables) == 2
    assert min(map(_brightness, images)) >= 128
    lists = (folder / LEDGER_BESIDE).glob("*.parquet")
    lost = [row for path in lists for row in pq.read_table(path).to_pylist()]
    assert len(lost) == int(count) > 0
    assert {(row["kind"], row["reason"], row["threshold"]) for row in lost} == {
        ("brightness", "darker than min_brightness", "128")
    }
    assert max(row["score"] for row in lost) < 128


def _brightness(data: bytes) -> float:
    return float(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).mean())


def test_both_in_the_graph(tmp_path: Path) -> None:
    for page in ("add_a_filter.md", "add_a_check.md"):
        _install(page, tmp_path)
    documents = {
        "one": {"texts": ["first", None, " \n", None], "images": [None, "a.png", None, "b.png"]},
        "two": {"texts": ["second"], "images": [None]},
    }
    images = {name: picture(number)[1] for name, number in (("a.png", 0), ("b.png", 3))}
    dark, bright = sorted(map(_brightness, images.values()))
    assert dark < bright
    members = [(f"{name}.json", json.dumps(document).encode()) for name, document in documents.items()]
    make_tar(tmp_path / "raw" / "p.tar", [*members, *images.items()])
    (script,) = _blocks("add_a_check.md", "sh")
    (tmp_path / "dagster.yaml").write_bytes((REPOSITORY / "dagster.yaml").read_bytes())
    storage = tmp_path / "storage"
    _run(
        script.replace("MM_PLUGINS=my_checks", "MM_PLUGINS=my_checks,my_filters"),
        tmp_path,
        MM_RAW_SHARDS=str(tmp_path / "raw"),
        MM_STORAGE=str(storage),
        MM_MIN_BRIGHTNESS=str(bright),
    )
    (lost,) = lost_items(storage, "filtered_parquet")
    assert (lost["kind"], lost["score"], lost["threshold"]) == ("brightness", dark, str(bright))
    scores = pq.read_table(storage / "scores").to_pylist()
    assert sorted(row["brightness"] for row in scores) == [dark, bright]
    record = record_in(account(storage, "curated_parquet", "p"))
    (outcome,) = (check for check in record["checks"] if check["name"] == "texts_not_blank")
    assert (outcome["passed"], outcome["metadata"]["summary"]) == (False, "1 of 3 texts are blank")
    assert outcome["metadata"]["first"]["json"] == [
        {"sample_id": "one", "position": 2, "text": "nothing but whitespace"}
    ]
    checks = record_in(account(storage, "filtered_parquet", "p"))["checks"]
    assert "texts_not_blank" not in {check["name"] for check in checks}


def test_documents_of_a_module_are_raw_shards(tmp_path: Path) -> None:
    """The module of the guide on the library, and what it says to type."""
    page = (GUIDES / "best_practices.md").read_text()
    (code,) = (block for block in _blocks("best_practices.md", "python") if "SOURCES" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    assert "put this into `my_books.py`" in page
    (tmp_path / "my_books.py").write_text(code)
    (tmp_path / "dagster.yaml").write_bytes((REPOSITORY / "dagster.yaml").read_bytes())
    (tmp_path / "books").mkdir()
    with sqlite3.connect(tmp_path / "books" / "b.db") as database:
        database.execute("CREATE TABLE page (number, text, cover)")
        rows = [(number, f"Page {number}.", picture(number)[1]) for number in range(3)]
        database.executemany("INSERT INTO page VALUES (?, ?, ?)", rows)
    database.close()
    (script,) = (block for block in _blocks("best_practices.md", "sh") if "my_books" in block)
    storage = tmp_path / "storage"
    told = _run(script, tmp_path, MM_STORAGE=str(storage), PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    assert "proven: every item of 1 shard" in told
    found = pq.read_table(storage / "filtered").to_pylist()
    assert [(row["sample_id"], row["number"]) for row in found if row["position"] == -1] == [
        (f"b-{number}", number) for number in range(3)
    ]
    assert [row["binary_content"] for row in found if row["modality"] == "image"] == [row[2] for row in rows]


def _copy_of_the_project(folder: Path) -> None:
    for name in ("mm_assets", "mm_assets_tests", "examples"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "dagster.yaml"):
        shutil.copy(REPOSITORY / name, folder)


def _append(entry: str, file: Path, table: str) -> None:
    """Put an entry at the end of a table, as the guide says."""
    before, entries, end, after = re.split(
        rf"(\n{table}\b.*?)(\n[)}}]\n)", file.read_text(), maxsplit=1, flags=re.DOTALL
    )
    file.write_text(f"{before}{entries}\n{entry}{end}{after}")


def test_a_format_passes_the_conformance_tests(tmp_path: Path) -> None:
    _copy_of_the_project(tmp_path)
    page = (GUIDES / "add_a_format.md").read_text()
    (block,) = _blocks("add_a_format.md", "python")
    entry = block.removeprefix("from mm_assets.extend import Format\n\n").rstrip() + ","
    (accounted,) = re.findall(r"`(\"zip\": .*)`", page)
    places = re.findall(r"In `(mm_assets/[\w/]+\.py)`, at the end of `([A-Z_]+)`", page)
    for text, (file, table) in zip((entry, accounted), places, strict=True):
        _append(text, tmp_path / file, table)
    (script,) = re.findall(r"`(PYTHONPATH=[^`]* pytest [^`]*)`", page)
    script = script.replace("PYTHONPATH=", f"PYTHONPATH={tmp_path}:")
    told = _run(f'pytest() {{ "{sys.executable}" -m pytest -p no:cacheprovider "$@"; }}\n{script}', tmp_path)
    (passed,) = re.findall(r"(\d+) passed", told)
    assert int(passed) >= 50


def test_links_of_the_guides_lead_somewhere() -> None:
    for page in GUIDES.glob("add_a_*.md"):
        for target in re.findall(r"`(mm_assets/[\w/]+(?:\.py)?)`", page.read_text()):
            assert (REPOSITORY / target).exists() or os.path.isdir(REPOSITORY / target), target
