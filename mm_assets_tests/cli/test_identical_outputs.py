"""The same input gives the same bytes, however many workers share it, in every run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import lance
import pytest

from mm_assets.cli import main
from mm_assets.formats.registry import FORMATS
from tools.demo import make_shards

WORKERS = {"alone": "1", "two": "2", "two again": "2"}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder for each run, with all formats inside."""
    folder = tmp_path_factory.mktemp("identical")
    make_shards(folder / "raw", members=3, pdf=3, samples=4)
    for name, workers in WORKERS.items():
        for kind in FORMATS:
            target = folder / name / kind
            options = [
                "--to",
                kind,
                "--workers",
                workers,
                "--min-aspect-ratio",
                "1",
                "--max-aspect-ratio",
                "2",
            ]
            assert main(["convert", str(folder / "raw"), str(target), *options]) == 0
    return [folder / name for name in WORKERS]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


@pytest.mark.parametrize("kind", ["parquet", "webdataset", "arrow_cache"])
def test_every_file_is_the_same(outputs: list[Path], kind: str) -> None:
    first, *others = [digests(output / kind) for output in outputs]
    assert (
        len(
            [
                name
                for name in first
                if name.endswith((".parquet", ".tar", ".arrow")) and not name.startswith("_")
            ]
        )
        == 6
    )
    assert others == [first, first]


def test_lance_tables_have_the_same_rows_in_the_same_files(outputs: list[Path]) -> None:
    """Lance names its files at random and notes the time of a commit; what is in the data files, and the
    order of the rows, is ours.
    """
    tables = [output / "lance" / "items.lance" for output in outputs]
    first, *others = [sorted(digests(table / "data").values()) for table in tables]
    assert len(set(first)) == 6
    assert others == [first, first]
    rows, *more = [lance.dataset(str(table)).to_table() for table in tables]
    assert [rows.equals(other) for other in more] == [True, True]
