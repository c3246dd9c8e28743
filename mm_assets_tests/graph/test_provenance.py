"""Raw data that say where they are from, the whole way: digests, opt-outs, the summary for the EU."""

from __future__ import annotations

import hashlib
import html
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets.view.report import gather, gather_sources
from mm_assets.view.report_page import eu_summary
from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.formats.parquet_of_others import PICTURES
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.deployment import FILTERED, Deployment
from mm_assets_tests.quick_instance import quick_instance

HOSTS = [f"site{number}.example" for number in range(11)]
NO_OPT_OUT = (
    '("X-Robots-Tag" is null or not regexp_matches("X-Robots-Tag", \'(?i)noai|noimageai\')) '
    "and coalesce(\"tdm-reservation\", 0) <> 1 and domain(url) <> 'site3.example'"
)
SETTINGS = {"MM_WORKERS": "1", "MM_KEEP_SAMPLES": NO_OPT_OUT}


def documents(shard: int) -> list[tuple[str, Any]]:
    members: list[tuple[str, Any]] = []
    for number, host in enumerate(HOSTS):
        key, image = f"{shard}-{number}", PICTURES[number % 3]
        digest = hashlib.sha256(PICTURES[0] if number == 5 else image).hexdigest()
        fields = {
            "url": f"https://www.{host}/{number}|x" if number < 10 else None,
            "license": "CC-BY-4.0" if number % 2 else None,
            "crawl_date": f"2024-0{1 + shard}-1{number % 10}T10:00:00Z",
            "X-Robots-Tag": {1: "noindex", 2: "noimageai, noindex"}.get(number),
            "tdm-reservation": int(number == 4),
            "lang": "en",
            "sha256": digest,
            "texts": ["word " * (100 * number + 5), None, " ünï\n"],
            "images": [None, f"{key}.png", None],
        }
        members += [(f"{key}.json", fields), (f"{key}.png", image)]
    return members


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("provenance")
    for shard, name in enumerate(("web/0.tar", "web/1.tar", "books/2.tar")):
        make_tar(folder / "raw" / name, documents(shard))
    instance = quick_instance(tmp_path_factory.mktemp("home"))
    raw = f"{folder}/raw/web/*.tar {folder}/raw/books/*.tar"
    deployment = Deployment(raw, str(folder / "storage"), instance, SETTINGS)
    deployment.run(assets=[*FILTERED, "quarantine"])
    return deployment


def rows(made: Deployment, folder: str) -> list[dict[str, Any]]:
    return [
        row
        for path in Path(made.storage, folder).rglob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]


def test_an_image_with_another_digest_is_quarantined_with_its_bytes(made: Deployment) -> None:
    found = rows(made, "quarantine")
    assert {row["sample_id"] for row in found} == {"0-5", "1-5", "2-5"}
    assert {row["kind"] for row in found} == {"digest_mismatch"}
    assert {row["raw"] for row in found} == {PICTURES[2]}
    assert all(row["message"].startswith("digest mismatch: its sha256 is ") for row in found)
    assert "5" not in {row["sample_id"][2:] for row in rows(made, "curated")}


def test_filters_by_opt_outs_and_domains(made: Deployment) -> None:
    kept = {row["sample_id"][2:] for row in rows(made, "filtered")}
    assert kept == {"0", "1", "6", "7", "8", "9"}, "10 has no domain: null does not hold"


def test_the_summary_has_the_figures_of_the_files(made: Deployment) -> None:
    filtered = rows(made, "filtered")
    texts = [row["text_content"] for row in filtered if row["modality"] == "text"]
    images = [row["binary_content"] for row in filtered if row["modality"] == "image"]
    words = sum(len(text.split()) for text in texts)
    nbytes: Counter[str] = Counter()
    for row in filtered:
        host = HOSTS[int(row["sample_id"][2:])]
        nbytes[host] += len((row["text_content"] or "").encode()) + len(row["binary_content"] or b"")
    text = html.unescape(eu_summary(gather(made.storage), gather_sources(made.storage)))
    assert (
        f"| text | {words:,} words; tokens: not recorded | less than 1 billion words | not recorded |" in text
    )
    assert f"| image | {len(images)} images of " in text and "| less than 1 million images |" in text
    assert "- latest collection: 03/2024 (by crawl_date)" in text
    assert "- languages: en 18 (by lang)" in text
    assert "- licences: CC-BY-4.0 9, not stated 9 (by license)" in text
    shares = [line.split(" | ") for line in text.splitlines() if line.startswith(("| web", "| books"))]
    assert [(line[0], *line[1:4], line[-1]) for line in shares] == [
        ("| web", "12", "24", "12", "66.7% |"),
        ("| books", "6", "12", "6", "33.3% |"),
    ]
    assert "- period: 01/2024 to 03/2024 (by crawl_date)" in text
    (largest, most) = nbytes.most_common(1)[0]
    assert largest == "site9.example"
    assert "- domains: the largest 10 % of 6 by bytes of texts and images (by url)" in text
    domains = text.partition("| domain | bytes | samples |")[2].partition("\n\n")[0].splitlines()[2:]
    assert domains == [f"| {largest} | {most:,} | 3 |", "| (none) | 0 | 0 |"]
    assert "- requests to erase: 0, 0 items kept out" in text
    assert f"- dropped by keep_samples: 48 items: {NO_OPT_OUT}\n" in text
    assert "(by X-Robots-Tag)" in text and "noindex 3 (by X-Robots-Tag)" in text
    assert "0 18 (by tdm-reservation)" in text
    assert "- images kept out by hash lists: 0" in text
    assert str(Path(made.storage).parent) not in text


def test_facts_that_nobody_recorded_are_named_so(tmp_path: Path) -> None:
    make_tar(tmp_path / "raw" / "a.tar", [("a.json", {"texts": ["two words"], "images": []})])
    deployment = Deployment(
        str(tmp_path / "raw"),
        str(tmp_path / "storage"),
        quick_instance(tmp_path / "home"),
        {"MM_WORKERS": "1"},
    )
    deployment.run(assets=FILTERED[:2])
    text = html.unescape(eu_summary(gather(deployment.storage), gather_sources(deployment.storage)))
    assert "Of curated_parquet: 1 sample with 1 text and 0 images" in text
    assert "Languages and licences are those of 0 of 1 shards." in text
    for what in (
        "latest collection",
        "languages",
        "licences",
        "period",
        "domains",
        "crawlers",
        "other measures",
    ):
        assert f"- {what}: not recorded" in text
    assert "| text | 2 words; tokens: not recorded | less than 1 billion words | not recorded |" in text
    assert "- filters by opt-outs: none" in text
    assert "- opt-outs of the samples that are left: not recorded" in text


def test_rows_that_no_filter_looked_at(tmp_path: Path) -> None:
    make_tar(tmp_path / "raw" / "a.tar", documents(0))
    instance = quick_instance(tmp_path / "home")
    deployment = Deployment(str(tmp_path / "raw"), str(tmp_path / "storage"), instance, {"MM_WORKERS": "1"})
    deployment.run(assets=FILTERED)
    text = eu_summary(gather(deployment.storage), gather_sources(deployment.storage))
    assert "Of filtered_parquet: 10 samples" in text
    assert "- filters by opt-outs: none" in text


def test_the_command(made: Deployment, tmp_path: Path) -> None:
    printed = fine(run("report", "--summary", "eu", "--storage", made.storage))
    assert printed.startswith("# Public summary of training content\n")
    said = fine(run("report", "--summary", "eu", "--storage", made.storage, "--output", tmp_path / "eu.md"))
    assert said == f"{tmp_path / 'eu.md'}\n"
    assert (tmp_path / "eu.md").read_text() == printed
    assert not Path(made.storage, "report").exists()
    assert "(choose from" in run("report", "--summary", "uk", "--storage", made.storage).stderr
