"""The report over real runs on hostile shards: its sums are those of the files, and its page is harmless."""

from __future__ import annotations

import base64
import io
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mm_assets.filters.clip import ClipEmbedding
from mm_assets.filters.measure import column_of
from mm_assets.view import report as report_module
from mm_assets.view.report import NOTHING, Report, gather
from mm_assets.view.report_page import card, publish_report, report_page
from mm_assets.view.shard_report import Amounts
from mm_assets_tests.cli.commands import run
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar, tar_members
from mm_assets_tests.graph.deployment import Deployment
from mm_assets_tests.quick_instance import quick_instance
from tools.demo import make_shards

HOST = "<script>alert(1).example"
SETTINGS = {
    "MM_WORKERS": "2",
    "MM_MIN_ASPECT_RATIO": "1",
    "MM_MAX_ASPECT_RATIO": "2",
    "MM_MIN_WORDS": "10",
    "MM_SCORES": "sharpness",
}


def _hostile(folder: Path) -> None:
    """A shard with markup in ids, domains and licences, bad JSON, lost and damaged images; one is cut."""
    wide, narrow = picture(0)[1], picture(3)[1]
    members: list[tuple[str, object]] = []
    for number in range(12):
        key = f"<b>{number}&"
        document = {
            "url": f"https://user:secret@{HOST}:8080/{number}",
            "license": ["CC-BY-4.0", "<i>odd</i>", None][number % 3],
            "language_id_whole_page_fasttext": {"de": 0.9, "en": 0.1},
            "texts": ["word " * (20 if number % 4 else 2), None, None],
            "images": [None, f"{key}a.png", f"{key}b.png"],
        }
        members.append((f"{key}.json", b"{bad" if number == 7 else document))
        members.append((f"{key}a.png", wide))
        if number != 5:
            members.append((f"{key}b.png", b"no image" if number == 9 else narrow))
    make_tar(folder / "hostile.tar", members)
    whole = (folder / "web-00001.tar").read_bytes()
    (folder / "web-00001.tar").write_bytes(whole[: len(whole) * 2 // 3 // 512 * 512])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("hostile")
    make_shards(folder / "raw", members=2, pdf=1)
    _hostile(folder / "raw")
    instance = quick_instance(tmp_path_factory.mktemp("home"))
    deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, SETTINGS)
    deployment.run()
    return deployment


@pytest.fixture(scope="module")
def report(hostile: Deployment) -> Report:
    return gather(hostile.storage)


def rows(storage: str, folder: str) -> pa.Table:
    names = ["sample_id", "position", "modality", "binary_content"]
    return pa.concat_tables(
        pq.read_table(path, columns=names) for path in Path(storage, folder).glob("*.parquet")
    )


def amounts(table: pa.Table) -> Amounts:
    counts = Counter(table["modality"].to_pylist())
    nbytes = pc.sum(pc.binary_length(table["binary_content"])).as_py() or 0
    samples = len(table["sample_id"].unique())
    return Amounts(table.num_rows, counts["image"], samples, nbytes, counts["text"])


def test_every_item_is_in_the_funnel_once(hostile: Deployment, report: Report) -> None:
    curated, filtered = rows(hostile.storage, "curated"), rows(hostile.storage, "filtered")
    stages = report.stages
    assert stages["curated_parquet"].written == amounts(curated)
    assert stages["filtered_parquet"].given == amounts(curated)
    assert stages["filtered_parquet"].written == amounts(filtered)
    for asset in ("final_tars", "lance_table", "arrow_cache"):
        assert stages[asset].given == stages[asset].written == amounts(filtered)
    assert {stage.asset: stage.unaccounted for stage in stages.values()} == dict.fromkeys(stages, NOTHING)
    # What was dropped, by the rows themselves: each kind of loss is there, and they are all of it.
    lost = sum(stages["filtered_parquet"].lost.values(), NOTHING)
    assert lost == amounts(curated) - amounts(filtered)
    kinds = {kind for _, kind in stages["filtered_parquet"].lost}
    assert kinds == {"aspect_ratio", "words"} == {kind for kind, _ in report.reasons}
    assert stages["filtered_parquet"].lost["filtered", "words"].samples > 0
    assert sum(report.reasons.values()) == lost.items
    faulty = {kind: loss.items for (_, kind), loss in stages["curated_parquet"].lost.items()}
    assert faulty["bad_json"] == faulty["missing_member"] == faulty["undecodable_image"] == 1
    assert faulty["incomplete_sample"] > 0 and "truncated_tar" in report.faults


def test_distributions_have_every_image_and_sample_once(hostile: Deployment, report: Report) -> None:
    curated, filtered = (report.stages[name].written for name in ("curated_parquet", "filtered_parquet"))
    assert report.scored_shards == report.raw_shards == 4
    for name in ("aspect ratio", "longer side", "bytes of an image", "sharpness"):
        _, kept, dropped = report.spreads[name].counts()
        assert (kept.sum(), kept.sum() + dropped.sum()) == (filtered.images, curated.images)
    for name in ("images of a document", "texts of a document", "words of a document"):
        _, kept, dropped = report.spreads[name].counts()
        assert (kept.sum(), kept.sum() + dropped.sum()) == (filtered.samples, curated.samples)
    values, kept, dropped = report.spreads["aspect ratio"].counts()
    assert not kept[(values < 0.98) | (values > 2)].any()
    formats = report.formats.before
    assert sum(formats.values()) == curated.images and set(formats) >= {"png", "tiff"}


def test_domains_languages_and_licences_are_of_samples(report: Report) -> None:
    curated = report.stages["curated_parquet"].written.samples
    assert {what: labels.columns for what, labels in report.labels.items()} == {
        "languages": {"language_id_whole_page_fasttext"},
        "domains": {"url"},
        "licences": {"license"},
    }
    for labels in report.labels.values():
        assert sum(labels.before.values()) == curated
    assert report.labels["domains"].before[HOST.lower()] == 9
    assert report.labels["languages"].before["de"] == 9
    licences = report.labels["licences"].before
    assert (licences["CC-BY-4.0"], licences["<i>odd</i>"]) == (3, 3)
    assert licences["not stated"] == curated - 6, "also of shards without the column"


def test_the_page_is_one_harmless_file(hostile: Deployment, report: Report) -> None:
    page = report_page(report)
    assert "<script" not in page and "<i>odd" not in page and "<b>" + "0&" not in page
    assert "&lt;script&gt;alert(1).example" in page
    assert "secret" not in page, "a login in the URLs of the data"
    assert str(Path(hostile.storage).parent) not in page, "no folder of this machine"
    assert "default-src 'none'; img-src data:" in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    pictures = re.findall(r'<img src="data:image/[a-z]+;base64,([A-Za-z0-9+/=]+)"', page)
    assert len(pictures) == sum(map(len, report.picks.values())) > 4
    for data in pictures:
        Image.open(io.BytesIO(base64.b64decode(data))).load()
    assert "It adds up" in page and "does not add up" not in page


def test_what_does_not_add_up_is_said(hostile: Deployment) -> None:
    report = gather(hostile.storage)
    stage = report.stages["filtered_parquet"]
    stage.written += Amounts(items=-2, images=-2, nbytes=-1000)
    assert stage.unaccounted == Amounts(items=2, images=2, nbytes=1000)
    page = report_page(report)
    assert "filtered_parquet does not add up: 2 images, 1.0 KB bytes of images, 2 items" in page
    assert "It adds up" not in page


def test_shards_that_wait_and_those_of_earlier_rows_have_lines(hostile: Deployment, tmp_path: Path) -> None:
    copy = hostile.copied(tmp_path)
    make_shards(tmp_path / "raw", members=3, pdf=0, seed="other")
    members = tar_members(tmp_path / "raw" / "web-00000.tar")
    removed = sorted(name for name in members if name.endswith(".json"))[0]
    make_tar(tmp_path / "raw" / "web-00000.tar", [(n, d) for n, d in members.items() if n != removed])
    copy.run(assets=["raw_shards", "curated_parquet"])
    found = gather(copy.storage)
    filtered = found.stages["filtered_parquet"]
    assert filtered.waiting_shards == 2, "one is new, of the other there are older rows"
    assert filtered.waiting != NOTHING and filtered.earlier != NOTHING
    assert {stage.unaccounted for stage in found.stages.values()} == {NOTHING}
    page = report_page(found)
    assert "− of 2 shards not made of these rows yet" in page and "+ of shards made of earlier rows" in page
    assert found.scored_shards == 3


def test_raw_shards_that_were_not_made_are_counted(hostile: Deployment, tmp_path: Path) -> None:
    copy = hostile.copied(tmp_path)
    copy.environment["MM_MAX_LOSS"] = "0"
    (document,) = ({"texts": ["t", None], "images": [None, "missing.png"]},)
    make_tar(
        tmp_path / "raw" / "bad.tar", [("x.json", document), ("y.json", {"texts": ["u"], "images": [None]})]
    )
    copy.run(keys=["bad"], assets=["raw_shards", "curated_parquet"])
    found = gather(copy.storage)
    assert (found.raw_shards, found.stages["curated_parquet"].waiting_shards) == (5, 1)
    assert found.stages["curated_parquet"].waiting == Amounts(items=5, images=1, samples=2, nbytes=0, texts=2)
    assert {stage.unaccounted for stage in found.stages.values()} == {NOTHING}


def test_embeddings_are_a_map(hostile: Deployment, tmp_path: Path) -> None:
    copy = hostile.copied(tmp_path)
    field, rng = column_of(ClipEmbedding()), random.Random(0)
    total = 0
    for path in Path(copy.storage, "scores").glob("*.parquet"):
        table = pq.read_table(path)
        axis = [rng.choice([-1.0, 1.0]) for _ in range(table.num_rows)]
        vectors = [[5 * one, 2 * rng.gauss(0, 1), *(rng.gauss(0, 0.01) for _ in range(6))] for one in axis]
        pq.write_table(table.append_column(field, pa.array(vectors, field.type)), path)
        total += table.num_rows
    cloud = gather(copy.storage).cloud
    assert cloud is not None and (len(cloud.points), cloud.of) == (total, total)
    assert cloud.share > 0.99 and np.abs(cloud.points).max() == 1
    assert set(np.sign(cloud.points[:, 0]).tolist()) == {-1.0, 1.0}, "the direction in which they differ most"
    kept = gather(copy.storage).stages["filtered_parquet"].written.images
    assert np.count_nonzero(~cloud.is_dropped) == kept
    assert "map of clip_embedding" in report_page(replace(gather(copy.storage), cloud=cloud))


def test_scores_that_are_damaged_are_left_out_and_named(hostile: Deployment, tmp_path: Path) -> None:
    copy = hostile.copied(tmp_path)
    Path(copy.storage, "scores", "hostile.parquet").write_bytes(b"no Parquet")
    found = gather(copy.storage)
    assert found.scored_shards == 3
    assert len(found.notes) == 1 and found.notes[0].startswith("left out: scores/hostile.parquet: damaged")
    assert {stage.unaccounted for stage in found.stages.values()} == {NOTHING}
    done = run("report", "--storage", copy.storage)
    assert done.returncode == 1 and "scores/hostile.parquet" in done.stderr, (
        "the page is written all the same"
    )
    assert Path(copy.storage, "report", "index.html").is_file()


def test_command_writes_the_page_where_it_is_told(
    hostile: Deployment, report: Report, tmp_path: Path
) -> None:
    done = run("report", "--storage", hostile.storage, "--output", tmp_path / "x.html")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, str(tmp_path / "x.html"))
    written = report.stages["curated_parquet"].written
    assert done.stdout.splitlines()[1].startswith(f"{written.samples} samples with {written.texts} texts and")
    page = (tmp_path / "x.html").read_text()
    same = run("report", "--storage", hostile.storage, "--output", "-").stdout
    minute = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
    assert minute.sub("", same) == minute.sub("", page) == minute.sub("", report_page(report))
    refused = run("report", "--storage", tmp_path)
    assert refused.returncode == 1 and refused.stderr.startswith(
        f"mm-assets: {tmp_path}: no output of the graph"
    )


def test_card_has_the_figures_of_the_page_and_no_markup_of_the_data(report: Report) -> None:
    text = card(report, ["filtered_parquet", "final_tars"])
    assert "<" not in text and "`" not in text
    filtered = report.stages["filtered_parquet"].written
    cells = f"| {filtered.samples} | {filtered.texts} | {filtered.images} |"
    assert f"| filtered_parquet {cells}" in text and f"| final_tars {cells}" in text
    assert "| bad_json | 1 |" in text and "&#60;i&#62;odd" in text


def test_without_filters_there_is_a_page(tmp_path: Path, deploy: Callable[..., Deployment]) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=2)
    deployment = deploy()
    deployment.run(assets=["raw_shards", "curated_parquet"])
    page = Path(publish_report(deployment.storage)).read_text()
    assert "= curated_parquet" in page
    assert "No shard with filtered rows has scores" in page


def test_of_many_shards_some_are_read_for_scores_and_all_add_up(
    hostile: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "MOST_SCORED", 1)
    found = gather(hostile.storage)
    assert (found.scored_shards, found.raw_shards) == (1, 4)
    assert {stage.unaccounted for stage in found.stages.values()} == {NOTHING}, "also in bytes"
    assert "Of 1 of 4 shards" in report_page(found)


def test_tables_scroll_and_keep_their_first_column_where_the_screen_is_narrow(report: Report) -> None:
    html = report_page(report)
    frames = re.findall(r"(<[^<]*>)<table", html)
    assert len(frames) == html.count("<table") > 5
    assert all(frame.startswith('<div class="wide') for frame in frames)
    assert ".wide { overflow-x: auto; }" in html and "td:first-child { min-width: 9rem; }" in html
