"""``mm-assets preview`` leaves out scores that are not those of the rows as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import CURATED
from mm_assets.formats.parquet import publish_table
from mm_assets.formats.raw_shards import RawLocations
from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.cli.scored_storage import fill_scored, record

MEASURE = "measure them: mm-assets run --assets image_scores,sample_scores"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_scored(tmp_path_factory.mktemp("preview"))


def _only_a_is_left_out(storage: Path, reason: str, hint: str = MEASURE, **settings: str) -> None:
    done = run("preview", "--storage", storage, "--set", "min_words=1", **settings)
    assert (done.returncode, done.stderr) == (1, f"mm-assets: shard 'a' left out, {reason}; {hint}\n")
    assert done.stdout.startswith("preview of 2 of 3 shards, from stored scores\n")


def test_scores_of_rows_that_are_no_more_are_left_out(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "storage")
    record(tmp_path / "storage", CURATED.asset, "a", "rows-2", {})
    _only_a_is_left_out(tmp_path / "storage", "whose image_scores are not those of its curated rows")


def test_scores_that_were_changed_are_left_out(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "storage")
    table = pq.read_table(root / "sample_scores" / "a.parquet")
    publish_table(str(tmp_path / "storage" / "sample_scores" / "a.parquet"), table.slice(1))
    _only_a_is_left_out(tmp_path / "storage", "whose sample_scores are not as they were written")


def test_scores_without_a_record_are_left_out(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "storage")
    (tmp_path / "storage" / "ledger" / "accounts" / "image_scores" / "a.parquet").unlink()
    _only_a_is_left_out(tmp_path / "storage", "whose image_scores have no record")


def test_scores_of_a_raw_shard_that_has_changed_are_left_out(root: Path, tmp_path: Path) -> None:
    storage, raw = tmp_path / "storage", root.parent / "raw"
    shutil.copytree(root, storage)
    for shard, found in RawLocations(str(raw)).shards().items():
        version = "another" if shard == "a" else found.version
        record(storage, CURATED.asset, shard, "rows-1", {"raw_shards": version})
    hint = "make them again: mm-assets run --changed --assets curated_parquet,image_scores,sample_scores"
    settings = {"MM_STORAGE": str(storage), "MM_RAW_SHARDS": str(raw)}
    _only_a_is_left_out(storage, "whose raw shard has changed since", hint, **settings)
    flags = ("preview", "--storage", storage, "--set", "min_words=1")
    for other in ({"MM_RAW_SHARDS": f"{tmp_path}/none"}, {"MM_STORAGE": f"{tmp_path}/other"}):
        fine(run(*flags, **{**settings, **other}))


def test_scores_of_a_version_without_sample_scores(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "storage")
    shutil.rmtree(tmp_path / "storage" / "sample_scores")
    flags = ("preview", "--storage", tmp_path / "storage", "--set", "min_words=1")
    for html in ((), ("--html", tmp_path / "page.html")):
        done = run(*flags, *html)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"mm-assets: shard 'a' and 2 more left out, without sample_scores; {MEASURE}\n"
    assert not (tmp_path / "page.html").exists()
