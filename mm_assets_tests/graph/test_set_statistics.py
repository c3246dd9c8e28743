"""Conditions on set-wide statistics: refused until these are computed, then the same in run and preview."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets_tests.cli.documents import sample
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.commands import ok, run
from mm_assets_tests.graph.deployment import FILTERED, Deployment, materialized

Deploy = Callable[..., Deployment]
SCORED = [name for name in FILTERED if name != "filtered_parquet"]
NOT_COMPUTED = "was not computed: `mm-assets statistics` computes it, once scores of all shards are stored"


def add_shard(deployment: Deployment, name: str, urls: list[str | None]) -> None:
    """A document for each URL; those of one number of words have the same."""
    samples = [sample(f"{name}{n}", url=url) for n, url in enumerate(urls)]
    make_tar(Path(deployment.raw, f"{name}.tar"), [member for members in samples for member in members])


def conditions(deployment: Deployment) -> dict[str, str]:
    return {name: value for name, value in deployment.environment.items() if name.startswith("MM_KEEP_")}


def kept(deployment: Deployment) -> list[str]:
    found = Path(deployment.storage, "filtered").glob("*.parquet")
    return sorted({row for path in found for row in pq.read_table(path)["sample_id"].to_pylist()})


@pytest.fixture
def deployment(deploy: Deploy) -> Deployment:
    deployment = deploy(MM_KEEP_SAMPLES="url_occurrences <= 2 or url is null")
    add_shard(deployment, "a", ["u", "v", "w", None])
    add_shard(deployment, "b", ["v", "w", "w"])
    return deployment


def test_statistics_are_of_all_shards_and_stay_until_they_are_computed_again(deployment: Deployment) -> None:
    result = deployment.run(assets=FILTERED)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert failed.step_key == "filtered_parquet"
    condition = deployment.environment["MM_KEEP_SAMPLES"]
    line = f"keep_samples: {condition!r}: sample: url_occurrences {NOT_COMPUTED}"
    assert failed.step_failure_data.user_failure_data.description == line

    told = ok(deployment, "statistics", **conditions(deployment))
    assert told == "sample: url_occurrences: 6 values of 2 shards\n"
    assert deployment.run(assets=FILTERED).success
    assert kept(deployment) == ["a0", "a1", "a3", "b0"]

    # Those of before judge a new shard, until they are computed again: then of all shards what changes.
    add_shard(deployment, "c", ["v", "x"])
    made = materialized(deployment.run(assets=FILTERED))["filtered_parquet"]
    assert {key: "unchanged" in event.metadata for key, event in made.items()} == {
        "a": True,
        "b": True,
        "c": False,
    }
    assert kept(deployment) == ["a0", "a1", "a3", "b0", "c0", "c1"]
    ok(deployment, "statistics", **conditions(deployment))
    assert deployment.run(assets=FILTERED).success
    assert kept(deployment) == ["a0", "a3", "c1"]


def test_a_preview_says_what_a_run_drops(deployment: Deployment) -> None:
    assert deployment.run(assets=SCORED).success
    setting = ("--set", "keep_samples=url_occurrences = 1")
    refused = run(deployment, "preview", *setting)
    assert refused.returncode != 0
    assert refused.stderr == (
        f"mm-assets: keep_samples: 'url_occurrences = 1': sample: url_occurrences {NOT_COMPUTED}\n"
    )
    ok(deployment, "statistics", **conditions(deployment))
    assert "1 (14.3%) samples" in ok(deployment, "preview", *setting)


def test_a_percent_rank_of_a_score_and_a_count_of_bytes(deployment: Deployment) -> None:
    deployment.environment |= {
        "MM_KEEP_SAMPLES": "words_percent_rank >= 0",
        "MM_KEEP_IMAGES": "sha256_occurrences > 100",
    }
    assert deployment.run(assets=SCORED).success
    told = ok(deployment, "statistics", **conditions(deployment)).splitlines()
    assert told == [
        "image: sha256_occurrences: 14 values of 2 shards",
        "sample: words_percent_rank: 7 values of 2 shards",
    ]
    assert deployment.run(assets=FILTERED).success
    rows = [pq.read_table(path) for path in Path(deployment.storage, "filtered").glob("*.parquet")]
    assert {kind for table in rows for kind in table["modality"].to_pylist()} == {"metadata", "text"}


@pytest.mark.parametrize(
    ("condition", "line"),
    [
        ("urll_occurrences > 1", "no shard has a column 'urll'; the nearest is url"),
        ("url_percent_rank > 0", "sample: url_percent_rank: it is computed of numbers, not of string"),
    ],
)
def test_what_has_no_statistic(deployment: Deployment, condition: str, line: str) -> None:
    deployment.environment["MM_KEEP_SAMPLES"] = condition
    result = deployment.run(assets=SCORED)
    if result.success:
        refused = run(deployment, "statistics", **conditions(deployment))
        assert refused.returncode != 0
        assert refused.stderr == f"mm-assets: {line}\n"
    else:
        (failed,) = (event for event in result.all_events if event.is_step_failure)
        assert line in str(failed.step_failure_data.user_failure_data.description)


def test_a_conversion_has_no_statistics(deployment: Deployment, tmp_path: Path) -> None:
    flags = ("--to", "parquet", "--keep-samples", "url_occurrences = 1")
    refused = run(deployment, "convert", deployment.raw, tmp_path / "out", *flags)
    assert refused.returncode != 0
    assert refused.stderr == (
        f"mm-assets: keep_samples: 'url_occurrences = 1': sample: url_occurrences {NOT_COMPUTED}\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_text_that_many_documents_have_goes_alone(deploy: Deploy) -> None:
    deployment = deploy(MM_KEEP_TEXTS="text_content_occurrences <= 2")
    for name, texts in {
        "a": ["own", "cookies?", "menu"],
        "b": ["cookies?", "menu"],
        "c": ["cookies?"],
    }.items():
        make_tar(Path(deployment.raw, f"{name}.tar"), [(f"{name}.json", {"texts": texts})])
    assert deployment.run(assets=SCORED).success
    assert ok(deployment, "statistics", **conditions(deployment)) == (
        "text: text_content_occurrences: 6 values of 3 shards\n"
    )
    told = ok(deployment, "preview", **conditions(deployment))
    assert deployment.run(assets=FILTERED).success
    rows = [pq.read_table(path) for path in sorted(Path(deployment.storage, "filtered").glob("*.parquet"))]
    texts = [text for table in rows for text in table["text_content"].to_pylist() if text is not None]
    assert texts == ["own", "menu", "menu"]
    assert "all together" in told
    assert "3 (33.3%)" in told
