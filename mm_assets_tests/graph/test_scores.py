"""Scores of a run: measured once, whatever becomes of thresholds, and what filters do with them."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph import counting_measures
from mm_assets_tests.graph.counting_measures import Brightness, Halved, Letters, NewBrightness
from mm_assets_tests.graph.deployment import (
    FILTERED,
    SCORED,
    Deployment,
    failed_checks,
    materialized,
    write_tar,
)
from mm_assets_tests.graph.published import lost_items

Deploy = Callable[..., Deployment]


class Plugin:
    """`counting_measures`, whose measures note their calls in a file of the test."""

    name = counting_measures.__name__

    def __init__(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._log, self._monkeypatch = log, monkeypatch
        self.use(Brightness(str(log)))

    def use(self, brightness: Brightness) -> None:
        measures = (brightness, Halved(), Letters(str(self._log)))
        self._monkeypatch.setattr(counting_measures, "MEASURES", measures)

    def calls(self) -> dict[str, int]:
        return counting_measures.calls(self._log)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    return Plugin(tmp_path / "calls", monkeypatch)


def shards(folder: Path) -> None:
    for name in "pq":
        members: dict[str, bytes] = {}
        for number in range(3):
            images = [f"{name}{number}a.png", f"{name}{number}b.png"]
            document = {
                "sample_id": f"{name}{number}",
                "texts": ["word " * (number + 1), None, None],
                "images": [None, *images],
            }
            members[f"{name}{number}.json"] = json.dumps(document).encode()
            members |= {image: picture(number)[1] for image in images}
        write_tar(folder / "raw" / f"{name}.tar", members)


def table(deployment: Deployment, folder: str) -> list[dict[str, Any]]:
    return pq.read_table(Path(deployment.storage) / folder).to_pylist()


def unchanged(result: Any) -> dict[str, bool]:
    """Return for each asset whether no shard of it was made anew."""
    return {
        asset: all("unchanged" in made.metadata for made in shards.values())
        for asset, shards in materialized(result).items()
        if asset != "raw_shards"
    }


def test_a_changed_threshold_measures_nothing(tmp_path: Path, deploy: Deploy, plugin: Plugin) -> None:
    shards(tmp_path)
    plain = {"MM_PLUGINS": plugin.name, "MM_WORKERS": "2"}

    def run(**settings: str) -> tuple[Any, dict[str, int]]:
        deployment = deploy(**{**plain, **settings})
        result = deployment.run(assets=FILTERED)
        assert result.success, failed_checks(result)
        return result, plugin.calls()

    _, calls = run()
    assert calls == {}
    result, calls = run(MM_MIN_BRIGHTNESS="1", MM_MAX_LETTERS="1000")
    assert calls == {"brightness": 12, "letters": 6}
    assert unchanged(result)["curated_parquet"] is True
    values = sorted(row["brightness"] for row in table(deploy(), "scores"))
    middle = str((values[0] + values[-1]) / 2)
    for settings in (
        {"MM_MIN_BRIGHTNESS": middle, "MM_MAX_LETTERS": "12"},
        {"MM_MIN_BRIGHTNESS": middle, "MM_FILTER_ACTIONS": "brightness=drop_sample"},
        {"MM_MAX_ASPECT_RATIO": "3", "MM_KEEP_IMAGES": f"brightness > {middle}"},
        {"MM_MIN_BRIGHTNESS": "1", "MM_MAX_LETTERS": "1000"},
    ):
        result, calls = run(**settings)
        assert calls == {}
        assert unchanged(result)["curated_parquet"]
        assert not unchanged(result)["filtered_parquet"]


def test_a_new_score_measures_what_is_missing(tmp_path: Path, deploy: Deploy, plugin: Plugin) -> None:
    shards(tmp_path)
    assert deploy(MM_PLUGINS=plugin.name, MM_SCORES="brightness,letters").run(assets=FILTERED).success
    assert plugin.calls() == {"brightness": 12, "letters": 6}
    more = deploy(MM_PLUGINS=plugin.name, MM_SCORES="sha256,entropy,repetition")
    assert more.run(assets=FILTERED).success
    assert plugin.calls() == {}
    (first, *_) = table(more, "scores")
    assert {"brightness", "sha256", "entropy"} < set(first)
    assert all(row["brightness"] > 0 and len(row["sha256"]) == 64 for row in table(more, "scores"))
    assert all(row["letters"] > 0 and row["repetition"] is not None for row in table(more, "sample_scores"))
    # Another version of one measure: it alone is taken again.
    plugin.use(NewBrightness(str(tmp_path / "calls")))
    assert deploy(MM_PLUGINS=plugin.name, MM_SCORES="brightness,letters,sha256").run(assets=FILTERED).success
    assert plugin.calls() == {"brightness": 12}


def test_a_score_made_of_another_one_reads_no_image(tmp_path: Path, deploy: Deploy, plugin: Plugin) -> None:
    shards(tmp_path)
    assert deploy(MM_PLUGINS=plugin.name, MM_SCORES="brightness").run(assets=FILTERED).success
    assert plugin.calls() == {"brightness": 12}
    more = deploy(MM_PLUGINS=plugin.name, MM_SCORES="halved")
    result = more.run(assets=FILTERED)
    assert result.success
    assert plugin.calls() == {}
    assert all(row["halved"] == row["brightness"] / 2 > 0 for row in table(more, "scores"))
    measured = {
        str(made.metadata["measured"].value) for made in materialized(result)["image_scores"].values()
    }
    assert measured == {"halved"}


def test_scores_of_changed_shards_are_measured_again(tmp_path: Path, deploy: Deploy, plugin: Plugin) -> None:
    shards(tmp_path)
    deployment = deploy(MM_PLUGINS=plugin.name, MM_SCORES="brightness,letters")
    assert deployment.run(assets=FILTERED).success
    plugin.calls()
    document = {"sample_id": "p9", "texts": ["other", None], "images": [None, "x.png"]}
    members = {"p9.json": json.dumps(document).encode(), "x.png": picture(3)[1]}
    write_tar(tmp_path / "raw" / "p.tar", members)
    assert deployment.run(assets=FILTERED).success
    assert plugin.calls() == {"brightness": 1, "letters": 1}


def test_damaged_scores_are_measured_again(tmp_path: Path, deploy: Deploy, plugin: Plugin) -> None:
    shards(tmp_path)
    deployment = deploy(MM_PLUGINS=plugin.name, MM_SCORES="brightness,letters")
    assert deployment.run(assets=FILTERED).success
    plugin.calls()
    before = table(deployment, "scores")
    scores = Path(deployment.storage) / "scores" / "p.parquet"
    scores.write_bytes(scores.read_bytes()[:-20])
    assert deployment.run(assets=FILTERED).success
    assert plugin.calls() == {"brightness": 6}
    assert table(deployment, "scores") == before


def test_flags_are_in_the_ledger_and_drop_nothing(tmp_path: Path, deploy: Deploy) -> None:
    shards(tmp_path)
    deployment = deploy(
        MM_MAX_IMAGE_SIDE="1",
        MM_MIN_WORDS="3",
        MM_FILTER_ACTIONS="image_size=flag,words=flag",
    )
    result = deployment.run()
    assert result.success
    assert failed_checks(result) == set()
    curated, filtered = (table(deployment, folder) for folder in ("curated", "filtered"))
    assert [(row["sample_id"], row["position"]) for row in curated] == [
        (row["sample_id"], row["position"]) for row in filtered
    ]
    lost = lost_items(deployment.storage, "filtered_parquet")
    assert Counter((row["outcome"], row["kind"], row["modality"]) for row in lost) == {
        ("flagged", "image_size", "image"): 12,
        ("flagged", "words", "metadata"): 4,
    }
    rows = table(deployment, "ledger/accounts/filtered_parquet")
    assert {row["outcome"] for row in rows} == {"in", "out", "lost", "flagged"}


PARAGRAPHS = ["Too short.", "The cat sat on the mat, and it was warm.", "buy now " * 12, "12 34 56 78 90 ??"]


def test_texts_are_scored_once_and_dropped_by_their_scores(tmp_path: Path, deploy: Deploy) -> None:
    document = {"sample_id": "p0", "texts": [*PARAGRAPHS, None], "images": [None] * 4 + ["x.png"]}
    members = {"p0.json": json.dumps(document).encode(), "x.png": picture(3)[1]}
    write_tar(tmp_path / "raw" / "p.tar", members)
    measured = {"MM_SCORES": "special_characters,stopwords,text_word_repetition"}

    def kept(assets: list[str] = SCORED, **settings: str) -> tuple[dict[str, bool], list[tuple[int, str]]]:
        deployment = deploy(**{**measured, **settings})
        result = deployment.run(assets=assets)
        assert result.success, failed_checks(result)
        rows = table(deployment, "filtered")
        return unchanged(result), [(row["position"], row["modality"]) for row in rows]

    everything = [(-1, "metadata"), *((place, "text") for place in range(4)), (4, "image")]
    assert kept(FILTERED)[1] == everything
    (scores,) = table(deploy(), "sample_scores")
    assert scores["text_position"] == [0, 1, 2, 3]
    assert scores["text_words"] == [2, 10, 24, 6]
    assert scores["text_stopwords"] == [1 / 2, 6 / 10, 1 / 2, None]
    for settings, lost in (
        ({"MM_MIN_TEXT_WORDS": "4"}, {0}),
        ({"MM_MIN_TEXT_WORDS": "7", "MM_MIN_TEXT_STOPWORDS": "0.55"}, {0, 2, 3}),
        ({"MM_KEEP_TEXTS": "words >= 4 and special_characters <= 0.3"}, {0, 3}),
        ({"MM_MAX_TEXT_WORD_REPETITION": "0.1", "MM_MAX_WORDS": "18"}, {2}),
        ({"MM_MAX_TEXT_WORD_REPETITION": "0.1", "MM_MAX_WORDS": "17"}, {-1, 0, 1, 2, 3, 4}),
        ({"MM_MIN_TEXT_WORDS": "4", "MM_MIN_TEXTS": "4"}, {-1, 0, 1, 2, 3, 4}),
        ({"MM_MIN_TEXT_WORDS": "4", "MM_FILTER_ACTIONS": "text_words=drop_sample"}, {-1, 0, 1, 2, 3, 4}),
        ({"MM_MIN_TEXT_WORDS": "4", "MM_FILTER_ACTIONS": "text_words=flag"}, set()),
    ):
        same, rows = kept(**settings)
        assert rows == [place for place in everything if place[0] not in lost], settings
        assert same["sample_scores"] and same["image_scores"], settings
    kept(MM_MIN_TEXT_STOPWORDS="0.55")
    lost_rows = lost_items(Path(deploy().storage), "filtered_parquet")
    assert [(row["position"], row["modality"], row["kind"], row["reason"]) for row in lost_rows] == [
        (0, "text", "text_stopwords", "less than min_text_stopwords"),
        (2, "text", "text_stopwords", "less than min_text_stopwords"),
        (3, "text", "text_stopwords", "it has no stopwords"),
    ]
