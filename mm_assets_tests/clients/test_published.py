"""What was published is loaded by Hugging Face datasets, by the card of each folder and by that of all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets_tests.cli.commands import environment, run, run_process
from mm_assets_tests.clients.environment import open_with
from mm_assets_tests.live.browser import screenshot
from mm_assets_tests.live.hub_stand_in import hub_stand_in
from tools.demo import make_shards

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    make_shards(folder / "raw", members=2, pdf=1, samples=4)
    settings = {
        "MM_RAW_SHARDS": str(folder / "raw"),
        "MM_STORAGE": str(folder / "storage"),
        "MM_MIN_ASPECT_RATIO": "1",
        "MM_WORKERS": "1",
        "DAGSTER_HOME": str(folder / "home"),
    }
    done = run("run", **settings)
    assert done.returncode == 0, done.stderr
    with hub_stand_in() as hub:
        for name, outputs in (("both", "filtered,webdataset"), ("tars", "webdataset")):
            target = ("publish", f"hf://datasets/user/{name}", "--outputs", outputs)
            done = run_process(*target, "--storage", folder / "storage", env=environment(**hub.environment))
            assert done.returncode == 0, done.stderr
            # What the stand-in has is what a download of the data set gives.
            for path, data in hub.data_sets[f"user/{name}"].items():
                (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / name / path).write_bytes(data)
    return folder


def test_datasets_loads_it_by_the_card_of_all_and_of_each_folder(published: Path) -> None:
    tables = [pq.read_table(path) for path in (published / "storage" / "filtered").glob("*.parquet")]
    ids = sorted({name for table in tables for name in table["sample_id"].to_pylist()})
    rows, *parquet = open_with("hf_published", published / "both", published / "both/filtered")
    assert [rows] == parquet, "of two formats, the card of all declares the first"
    assert rows["rows"] == sum(table.num_rows for table in tables) and rows["ids"] == ids
    assert "binary_content" in rows["features"]
    samples, *tars = open_with("hf_published", published / "tars", published / "tars/webdataset")
    assert [samples] == tars and (samples["rows"], samples["ids"]) == (len(ids), ids)
    assert "_row_extra" in samples["features"]


def test_datasets_reads_published_tars_as_it_reads_those_here(published: Path) -> None:
    there, here = open_with("hf_datasets", published / "both/webdataset", published / "storage/webdataset")
    assert there == here


def test_the_report_is_shown_in_a_browser(published: Path, tmp_path: Path) -> None:
    """With its pictures, as it is in the documentation (`KEEP_SCREENSHOT` names the place)."""
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    done = run("report", "--storage", published / "storage", "--output", page)
    assert done.returncode == 0, done.stderr
    texts = ["What went where", "= filtered_parquet", "Domains by url", "narrower than min_ratio", "equal"]
    screenshot(page.as_uri(), picture, texts, images=["data:image/"], size=(1000, 1100))
    assert picture.stat().st_size > 20_000
    if keep := os.environ.get("KEEP_SCREENSHOT"):
        shutil.copyfile(picture, keep)
