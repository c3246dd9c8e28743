"""What a preview says of a set of filters is what the run then drops; what the UI shows of it."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mm_assets.formats.raw_shards import RawLocations
from mm_assets.settings import Settings
from mm_assets.view import INLINE
from mm_assets.view.preview_scores import StoredScores
from mm_assets.view.preview_study import Count, study
from mm_assets_tests.cli.documents import image, sample
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.commands import run
from mm_assets_tests.graph.deployment import Deployment
from mm_assets_tests.graph.published import lost_items
from mm_assets_tests.quick_instance import quick_instance
from tools.demo import make_shards

BOUNDS = {"MM_MAX_ASPECT_RATIO": "2", "MM_MIN_BYTE_SIZE": "6000"}
SETS = {
    "drop_item": BOUNDS,
    "drop_sample": {**BOUNDS, "MM_FILTER_ACTIONS": "byte_size=drop_sample"},
    "flag": {**BOUNDS, "MM_MIN_WORDS": "60", "MM_FILTER_ACTIONS": "aspect_ratio=flag,words=flag"},
    "samples": {"MM_MIN_WORDS": "60", "MM_MAX_IMAGES": "5", "MM_MIN_IMAGES": "1"},
    "both": {**BOUNDS, "MM_MIN_IMAGES": "2", "MM_MAX_IMAGES_PER_WORD": "0.05"},
    "conditions": {
        "MM_KEEP_IMAGES": "width >= 400 and format <> 'gif'",
        "MM_KEEP_SAMPLES": "words > 50 or images > 2",
    },
    "columns": {
        "MM_KEEP_IMAGES": "url like '%/2%' or width < 350",
        "MM_KEEP_SAMPLES": "url is not null and words > 20",
    },
    "listed": {"MM_DROP_IDS": "{lists}/ids.txt,{lists}/images.csv,{lists}/bytes.parquet"},
    "alone": {"MM_KEEP_IDS": "{lists}/images.csv,{lists}/ids.txt", "MM_MAX_ASPECT_RATIO": "2"},
    "told": {"MM_DROP_IDS": "{lists}/images.csv", "MM_FILTER_ACTIONS": "drop_ids=flag", "MM_MIN_WORDS": "60"},
}


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Three shards with their scores; one image cannot be read, and stays as a row with an error."""
    folder = tmp_path_factory.mktemp("preview")
    make_shards(folder / "raw", members=2, pdf=0)
    broken = b"\xff\xd8\xff no picture"
    make_tar(folder / "raw" / "odd.tar", [*sample("odd", image(9, 9)), *sample("broken", broken)])
    environment = {"MM_WORKERS": "2", "MM_ON_MATERIALIZE_ERROR": "warn", "MM_SCORES": "sha256"}
    with quick_instance(tmp_path_factory.mktemp("home")) as instance:
        made = Deployment(str(folder / "raw"), str(folder / "storage"), instance, environment)
        assert made.run(assets=["raw_shards", "curated_parquet", "image_scores", "sample_scores"]).success
        make_lists(Path(made.storage), folder)
        yield made


def make_lists(storage: Path, folder: Path) -> None:
    """Lists of a fifth of the samples, every third image, and of every seventh digest of an image."""
    scores = pa.concat_tables(map(pq.read_table, sorted((storage / "scores").glob("*.parquet"))))
    ids = sorted(set(scores["sample_id"].to_pylist()))
    (folder / "ids.txt").write_text("\n".join([*ids[::5], "nobody"]) + "\n")
    images = scores.select(["sample_id", "position"]).to_pylist()[::3]
    lines = [f"{row['sample_id']},{row['position']},seen before" for row in images]
    (folder / "images.csv").write_text("\n".join(["sample_id,position,reason", *lines]))
    pq.write_table(
        scores.select(["sha256"]).take(list(range(0, len(scores), 7))).drop_null(), folder / "bytes.parquet"
    )


def rows(deployment: Deployment, folder: str) -> pa.Table:
    files = sorted(Path(deployment.storage, folder).glob("*.parquet"))
    columns = ["sample_id", "modality", "binary_content", "materialize_error"]
    return pa.concat_tables([pq.read_table(file, columns=columns) for file in files])


def count(table: pa.Table) -> Count:
    """Bytes are those of images that could be measured."""
    kinds = table["modality"].to_pylist()
    sound = table.filter(pc.is_null(table["materialize_error"]))["binary_content"]
    nbytes = pc.sum(pc.binary_length(sound)).as_py() or 0
    return Count(len(kinds), kinds.count("image"), len(table["sample_id"].unique()), nbytes)


def test_scores_of_a_run_count_until_a_raw_shard_changes(scored: Deployment) -> None:
    listing = RawLocations(scored.raw).shards()
    found = StoredScores(scored.storage, raw_version=lambda key: listing[key].version)
    assert (found.left_out, len(found.shards)) == ({}, len(listing))
    changed = StoredScores(
        scored.storage, raw_version=lambda key: "x" if key == "odd" else listing[key].version
    )
    assert changed.left_out == {"whose raw shard has changed since": ["odd.parquet"]}


@pytest.mark.parametrize("name", SETS)
def test_a_preview_is_what_the_run_drops(scored: Deployment, name: str, tmp_path: Path) -> None:
    lists = Path(scored.raw).parent
    given = {key: text.format(lists=lists) for key, text in SETS[name].items()}
    settings = Settings.load(given)
    said = study(StoredScores(scored.storage), settings.active_filters()).counts
    deployment = scored.copied(tmp_path)
    deployment.environment = {**scored.environment, **given}
    result = deployment.run(assets=["image_scores", "sample_scores", "filtered_parquet"])
    assert result.success
    curated, filtered = count(rows(deployment, "curated")), count(rows(deployment, "filtered"))
    assert said.given == curated
    assert said.given - said.dropped == filtered
    outcomes = [row["outcome"] for row in lost_items(deployment.storage, "filtered_parquet")]
    assert said.dropped.items == outcomes.count("filtered") > 0
    if "flag" in SETS[name].get("MM_FILTER_ACTIONS", ""):
        assert 0 < outcomes.count("flagged") <= sum(found.flagged for found in said.by_filter)
    assert said.unreadable == 1
    for event in result.asset_materializations_for_node("filtered_parquet"):
        shown = {entry: value.value for entry, value in event.metadata.items()}
        assert all(len(str(shown[entry])) <= INLINE for entry in shown if entry.startswith("preview"))
        assert "preview_filters" in shown
        assert ("preview_borderline" in shown) == ("MM_MAX_ASPECT_RATIO" in SETS[name])


def test_the_command_says_it_too_and_the_pictures_are_of_both_sides(scored: Deployment) -> None:
    done = run(scored, "preview", "web-00000", "--set", "max_aspect_ratio=2", "--html", "-")
    assert (done.returncode, done.stderr) == (0, "")
    kept, dropped = done.stdout.split("<h3>Dropped, nearest to the bound first</h3>")

    def ratios(html: str) -> set[bool]:
        found = []
        for data in re.findall(r'src="data:image/[a-z]+;base64,([A-Za-z0-9+/=]+)"', html):
            with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
                found.append(picture.width / picture.height > 2)
        assert 10 < len(found) <= 12
        return set(found)

    assert (ratios(kept), ratios(dropped)) == ({False}, {True})


def test_without_filters_nothing_is_added_to_the_events(scored: Deployment, tmp_path: Path) -> None:
    result = scored.copied(tmp_path).run(assets=["filtered_parquet"])
    assert result.success
    for event in result.asset_materializations_for_node("filtered_parquet"):
        assert not {"preview_filters", "preview_borderline"} & set(event.metadata)
