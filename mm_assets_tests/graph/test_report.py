"""The report over real runs: its figures are the ledger's, its pictures are of kept and dropped images."""

import base64
import io
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mm_assets.automation import sensors
from mm_assets.automation.sensors import report_event, report_sensor
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets.graph.raw import RawShards
from mm_assets.graph.resources import MaintainedStorage
from mm_assets.view import INLINE, report_page
from mm_assets.view.overview import Measures, measure
from mm_assets_tests.graph.deployment import Deployment
from mm_assets_tests.graph.published import table
from mm_assets_tests.quick_instance import quick_instance
from tools.demo import make_shards

PICTURE = re.compile(r"!\[\]\(data:image/webp;base64,([A-Za-z0-9+/=]+)\)")


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Three shards, of which one has a broken json, with a filter."""
    folder = tmp_path_factory.mktemp("report")
    make_shards(folder / "raw", members=2, pdf=1)
    broken = bytearray((folder / "raw" / "web-00001.tar").read_bytes())
    at = broken.index(b'{"')
    broken[at : at + 2] = b"!!"
    (folder / "raw" / "web-00001.tar").write_bytes(broken)
    instance = quick_instance(tmp_path_factory.mktemp("home"))
    bounds = {"MM_WORKERS": "2", "MM_MIN_ASPECT_RATIO": "1", "MM_MAX_ASPECT_RATIO": "2"}
    deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, bounds)
    assert deployment.run().success
    return deployment


def of_ledger(deployment: Deployment, asset: str, entry: str) -> int:
    rows = table(Path(deployment.storage), f"ledger/accounts/{asset}")
    return pc.sum(rows.filter(pc.equal(rows["outcome"], entry))["items"]).as_py() or 0


def values(event: dg.AssetMaterialization | None) -> dict[str, object]:
    assert event is not None
    return {name: value.value for name, value in event.metadata.items()}


def measured(deployment: Deployment, most: int = 400) -> Measures:
    scores = {path.stem: str(path) for path in Path(deployment.storage, "scores").glob("*.parquet")}
    curated = {path.stem: pq.read_table(path) for path in Path(deployment.storage, "curated").glob("*")}
    documents = {key: len(table["sample_id"].unique()) for key, table in curated.items()}
    return measure(deployment.storage, scores, documents, most)


def test_figures_are_those_of_the_ledger(filtered: Deployment) -> None:
    shown = values(report_event(filtered.instance, filtered.storage))
    kept = [pq.read_table(path) for path in Path(filtered.storage, "filtered").glob("*.parquet")]
    images = sum(table["modality"].to_pylist().count("image") for table in kept)
    dropped = of_ledger(filtered, "filtered_parquet", "filtered")
    quarantined = of_ledger(filtered, "curated_parquet", "quarantined")
    assert images > 0 and dropped > 0 and quarantined > 0
    assert shown["images kept"] == images
    assert shown["images dropped"] == dropped
    assert shown["items in quarantine"] == quarantined
    assert shown["documents"] == sum(len(table["sample_id"].unique()) for table in kept)
    assert shown["shards"] == shown["raw shards"] == 3
    assert shown["share of images kept"] == round(images / (images + dropped), 4)
    assert shown["summary"] == (
        f"{images} of {images + dropped} images kept ({images / (images + dropped):.1%}), in "
        f"{shown['documents']} documents of 3 shards. {dropped} images dropped by filters, "
        f"{quarantined} item in quarantine."
    )


def test_histograms_have_every_image_once_where_it_belongs(filtered: Deployment) -> None:
    found = measured(filtered)
    scores = pa.concat_tables([pq.read_table(p) for p in Path(filtered.storage, "scores").glob("*")])
    ratios = [w / h for w, h in zip(scores["width"].to_pylist(), scores["height"].to_pylist(), strict=True)]
    kept = sum(1 <= ratio <= 2 for ratio in ratios)
    assert sum(found.ratios.kept) == kept == sum(found.sides.kept) == sum(found.sizes.kept)
    assert sum(found.ratios.dropped) == len(ratios) - kept == sum(found.sides.dropped)
    # columns of edges 1 to 2: those from 1.0 on, and those up to 2.0
    first, last = found.ratios.edges.index(1.0) + 1, found.ratios.edges.index(2.0) + 1
    assert sum(found.ratios.kept[first : last + 1]) == kept
    assert sum(found.ratios.dropped[:first]) == sum(ratio < 1 for ratio in ratios)
    assert dict(found.formats) == {
        e["values"]: e["counts"] for e in pc.value_counts(scores["format"]).to_pylist()
    }
    by_document = pc.value_counts(scores["sample_id"]).field("counts").to_pylist()
    assert found.in_documents.kept[2] == by_document.count(2)


def test_documents_without_images_are_counted(filtered: Deployment) -> None:
    scores = {path.stem: str(path) for path in Path(filtered.storage, "scores").glob("web-00000.parquet")}
    have = len(set(pq.read_table(scores["web-00000"])["sample_id"].to_pylist()))
    found = measure(filtered.storage, scores, {"web-00000": have + 3})
    assert found.in_documents.kept[0] == 3
    assert sum(found.in_documents.kept) == have + 3


def test_of_many_shards_some_are_measured_and_it_is_said(filtered: Deployment) -> None:
    found = measured(filtered, most=2)
    assert (found.shards, found.of_shards) == (2, 3)


def test_damaged_and_missing_scores_are_left_out(filtered: Deployment, tmp_path: Path) -> None:
    shutil.copytree(filtered.storage, tmp_path / "storage")
    copy = Deployment(filtered.raw, str(tmp_path / "storage"), filtered.instance, filtered.environment)
    scores = tmp_path / "storage" / "scores"
    (scores / "web-00000.parquet").write_bytes(b"no Parquet")
    assert (measured(copy).shards, measured(copy).of_shards) == (2, 3)
    found = measure(copy.storage, {"gone": str(scores / "gone.parquet")}, {})
    assert (found.shards, found.of_shards, found.formats) == (0, 1, {})


def test_pictures_are_of_what_was_kept_and_dropped(filtered: Deployment) -> None:
    event = report_event(filtered.instance, filtered.storage)
    shown = values(event)
    assert event is not None and event.description is not None
    kept, dropped = event.description.split("**Dropped**")
    for name, sheet in (("kept", kept), ("dropped", dropped)):
        strips = PICTURE.findall(sheet)
        assert len(strips) == 3, "one for each shard"
        assert shown[f"pictures of {name} images"] in [
            f"![](data:image/webp;base64,{strip})" for strip in strips
        ]
        for strip in strips:
            with Image.open(io.BytesIO(base64.b64decode(strip))) as picture:
                assert picture.format == "WEBP" and picture.height <= 48
    # of kept images width/height is 1 to 2: scaled down, each is 48 high and all of them are as high
    with Image.open(io.BytesIO(base64.b64decode(PICTURE.findall(kept)[0]))) as picture:
        assert picture.height == 48 and picture.width >= 3 * 48 + 2 * 4


def test_all_pictures_are_shown_without_a_click(filtered: Deployment) -> None:
    event = report_event(filtered.instance, filtered.storage)
    assert event is not None
    markdown = {n: v.value for n, v in event.metadata.items() if isinstance(v, dg.MarkdownMetadataValue)}
    assert set(markdown) == {
        "images",
        "pictures of kept images",
        "pictures of dropped images",
        "drop reasons",
        "quarantine",
        "aspect ratio",
        "pixels of the longer side",
        "bytes of an image",
        "images in a document",
        "image formats",
    }
    assert all(text is not None and 0 < len(text) <= INLINE for text in markdown.values())


def test_sensor_renews_it_when_something_was_made(
    filtered: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = filtered.instance

    def tick(cursor: str | None) -> dg.SensorResult | dg.SkipReason:
        storage, raw = MaintainedStorage(root=filtered.storage), RawShards(locations=filtered.raw)
        resources = {"maintained": storage, "raw": raw}
        context = dg.build_sensor_context(instance, cursor=cursor, resources=resources)
        found = report_sensor(context)
        assert isinstance(found, dg.SensorResult | dg.SkipReason)
        return found

    first = tick(None)
    assert isinstance(first, dg.SensorResult)
    (event,) = first.asset_events
    assert event.asset_key == dg.AssetKey("report") and event.partition is None
    assert tick(first.cursor) == dg.SkipReason("nothing was made since the last report")
    assert filtered.run(assets=["filtered_parquet"]).success
    running = instance.create_run_for_job(dg.job(name="j")(lambda: None), status=dg.DagsterRunStatus.STARTED)
    assert tick(first.cursor) == dg.SkipReason(
        "runs are going on; the report is renewed when they have ended"
    )
    monkeypatch.setattr(sensors, "_SECONDS_BETWEEN", -1)
    assert isinstance(tick(first.cursor), dg.SensorResult), "a long backfill is shown while it goes on"
    second = tick(first.cursor)
    assert isinstance(second, dg.SensorResult)
    monkeypatch.undo()
    instance.report_run_canceled(running)
    third = tick(second.cursor)
    assert isinstance(third, dg.SensorResult), "the run may have failed in some shards"
    assert isinstance(tick(third.cursor), dg.SkipReason)
    assert time.time() - 60 < float(str(first.cursor).rpartition(" ")[2].strip("}"))


def test_without_shards_there_is_none(tmp_path: Path, deploy: Callable[..., Deployment]) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert report_event(instance, str(tmp_path)) is None
        instance.add_dynamic_partitions(str(SHARDS.name), ["a"])
        assert report_event(instance, str(tmp_path)) is None


def test_the_event_tells_where_the_page_is(filtered: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    page = values(report_event(filtered.instance, filtered.storage))["page"]
    assert page == f"{filtered.storage}/report/index.html"
    assert "= filtered_parquet" in Path(str(page)).read_text()
    monkeypatch.setattr(report_page, "_MOST_SHARDS", 2)
    assert values(report_event(filtered.instance, filtered.storage))["page"] == (
        "written by mm-assets report: of more than 2 shards"
    )
