"""The filters of a shard as one step: actions, what they drop together, and that no row is lost unsaid."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from PIL import Image

from mm_assets.filters import DROP_SAMPLE, FLAG, Filter, SampleFilter, TextFilter
from mm_assets.filters.chain import FilterChain, ScoreFilter
from mm_assets.filters.condition import ImageCondition, SampleCondition
from mm_assets.filters.measure import ImageContent, ImageMeasure
from mm_assets.filters.measures import known_measures
from mm_assets.filters.registry import (
    AspectRatioFilter,
    EntropyFilter,
    ImageCountFilter,
    ImageSizeFilter,
    ImagesPerWordFilter,
    WordCountFilter,
    chain_of,
)
from mm_assets.filters.score_columns import text_scores
from mm_assets.filters.scores import ImageScores, SampleScores, score_samples, score_table
from mm_assets.formats.parquet import publish_table
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.digest import ContentDigest
from mm_assets.model.samples import StepResult
from mm_assets_tests.filters.filter_sets import FILTERS, SAMPLES, png, sample
from mm_assets_tests.formats.datasets import batch_of, item


def applied(filters: tuple[Filter[Any], ...], *samples: list[dict[str, Any]]) -> StepResult:
    chain = chain_of(filters)
    assert chain is not None
    return chain(batch_of([row for rows in samples for row in rows]))


def places(table: pa.Table | None) -> list[tuple[str, int]]:
    return [] if table is None else [(r["sample_id"], r["position"]) for r in table.to_pylist()]


WIDE, SQUARE, SMALL = png(90, 10), png(30, 30), png(4, 4)


def test_an_image_takes_its_sample_with_it() -> None:
    result = applied(
        (AspectRatioFilter(0, 2, action=DROP_SAMPLE),), sample("a", "t", WIDE, SQUARE), sample("b", SQUARE)
    )
    assert places(result.batch.data) == [("b", -1), ("b", 0)]
    assert places(result.removed) == [("a", -1), ("a", 0), ("a", 1), ("a", 2)]
    beside = "an image of its sample: wider than max_ratio"
    assert [(x.position, x.modality, x.reason, x.score, x.is_cause) for x in result.losses] == [
        (-1, "metadata", beside, 9, False),
        (0, "text", beside, 9, False),
        (1, "image", "wider than max_ratio", 9, True),
        (2, "image", beside, 9, False),
    ]
    assert {(x.outcome, x.kind, x.threshold) for x in result.losses} == {("filtered", "aspect_ratio", "0..2")}


@pytest.mark.parametrize("turned", [False, True])
def test_an_image_that_another_filter_drops_still_takes_its_sample_with_it(turned: bool) -> None:
    filters = (ImageSizeFilter(min_side=20), AspectRatioFilter(0, 2, action=DROP_SAMPLE))
    result = applied(filters[::-1] if turned else filters, sample("a", "t", WIDE), sample("b", SMALL))
    assert places(result.batch.data) == [("b", -1)]
    assert [(x.sample_id, x.position, x.kind) for x in result.losses] == [
        ("a", -1, "aspect_ratio"),
        ("a", 0, "aspect_ratio"),
        ("a", 1, "aspect_ratio"),
        ("b", 0, "image_size"),
    ]


def test_a_flag_changes_no_row_and_is_listed_with_its_locator() -> None:
    source = batch_of(sample("a", "t", WIDE, SQUARE))
    chain = chain_of([AspectRatioFilter(0, 2, action=FLAG)])
    assert chain is not None
    result = chain(source)
    assert result.batch.data.equals(source.data)
    assert (result.losses, result.removed) == ((), None)
    (flag,) = result.flags
    assert (flag.outcome, flag.kind, flag.position, flag.score) == ("flagged", "aspect_ratio", 1, 9)
    assert (flag.source_ref, flag.is_item) == ("{}", False)


def test_what_is_dropped_has_no_flag() -> None:
    flagging = AspectRatioFilter(0, 2, action=FLAG)
    assert applied((flagging, ImageSizeFilter(min_side=20)), sample("a", WIDE)).flags == ()
    assert applied((flagging, WordCountFilter(1)), sample("a", WIDE)).flags == ()
    assert len(applied((flagging, WordCountFilter(1)), sample("a", "t", WIDE)).flags) == 1


def test_samples_are_judged_by_the_images_that_are_left() -> None:
    filters = (AspectRatioFilter(0, 2), ImageCountFilter(1))
    result = applied(filters, sample("a", "t", WIDE), sample("b", "t", WIDE, SQUARE), sample("c", "t", None))
    assert places(result.batch.data) == [("b", -1), ("b", 0), ("b", 2)]
    assert [(x.sample_id, x.position, x.kind, x.score, x.is_cause) for x in result.losses] == [
        ("a", -1, "images", 0, True),
        ("a", 0, "images", 0, False),
        ("a", 1, "aspect_ratio", 9, True),
        ("b", 1, "aspect_ratio", 9, True),
        ("c", -1, "images", 0, True),
        ("c", 0, "images", 0, False),
        ("c", 1, "images", 0, False),
    ]
    assert {x.reason for x in result.losses} == {"less than min_images", "wider than max_ratio"}


def test_a_flagged_sample_is_listed_once() -> None:
    result = applied((WordCountFilter(3, action=FLAG),), sample("a", "one two", SQUARE), sample("b", "1 2 3"))
    assert result.batch.num_rows == 5
    assert [(x.sample_id, x.position, x.outcome, x.score) for x in result.flags] == [("a", -1, "flagged", 2)]


def test_images_per_word_of_samples_without_words() -> None:
    result = applied(
        (ImagesPerWordFilter(0, 1),), sample("a", SQUARE, SQUARE), sample("b", SQUARE), sample("c")
    )
    assert {name for name, _ in places(result.batch.data)} == {"b", "c"}
    assert result.losses[0].score == 2


def test_conditions() -> None:
    filters = (
        ImageCondition("width >= 20 and format != 'gif' and byte_size < 1000"),
        SampleCondition("words >= 2 or images > 1"),
    )
    result = applied(
        filters, sample("a", "one two", SMALL), sample("b", "one", SQUARE), sample("c", SQUARE, WIDE)
    )
    assert places(result.batch.data) == [("a", -1), ("a", 0), ("c", -1), ("c", 0), ("c", 1)]
    assert Counter((x.kind, x.reason) for x in result.losses) == {
        ("keep_images", "the condition does not hold"): 1,
        ("keep_samples", "the condition does not hold"): 3,
    }
    assert result.losses[0].threshold == "width >= 20 and format != 'gif' and byte_size < 1000"


def test_a_text_and_an_image_at_one_position_are_two_items() -> None:
    rows = sample("a", "t")
    rows.append(item("a", 0, "image", binary_content=WIDE))
    result = applied((AspectRatioFilter(0, 2),), rows)
    assert [(r["position"], r["modality"]) for r in result.batch.data.to_pylist()] == [
        (-1, "metadata"),
        (0, "text"),
    ]


def test_stored_scores_of_other_samples_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "scores.parquet")
    publish_table(uri, score_samples(batch_of(sample("a", "t")).data))
    chain = chain_of([WordCountFilter(1)])
    assert chain is not None
    with pytest.raises(ValueError, match="^sample 'b': no sample score; materialize sample_scores again$"):
        chain.bind({"sample_scores": (uri, None)})(batch_of(sample("b", "t")))


def test_damaged_stored_scores_are_measured_again(tmp_path: Path) -> None:
    uri = tmp_path / "scores.parquet"
    uri.write_bytes(b"PAR1")
    chain = chain_of([WordCountFilter(1)])
    assert chain is not None
    with pytest.warns(UserWarning, match=r"scores.parquet: damaged: .*: samples are measured again"):
        bound = chain.bind({"sample_scores": (str(uri), None)})
    assert places(bound(batch_of(sample("b"))).removed) == [("b", -1)]


@given(SAMPLES, FILTERS)
def test_every_row_is_kept_or_lost_once_and_rightly(
    contents: list[list[Any]], filters: list[Filter[Any]]
) -> None:
    rows = [sample(f"s{number}", *found) for number, found in enumerate(contents)]
    batch = batch_of(list(itertools.chain(*rows)))
    chain = chain_of(filters)
    assert chain is not None
    result = chain(batch)
    kept, removed = result.batch.data, result.removed
    # Each row is in one of both, and the removed ones have their losses in order.
    assert sorted(places(kept) + places(removed)) == sorted(places(batch.data))
    assert [(x.sample_id, x.position) for x in result.losses] == places(removed)
    assert all(x.outcome == "filtered" and x.is_item for x in result.losses)
    assert {(x.sample_id, x.position) for x in result.flags} <= set(places(kept))
    # Together they are the rows of the input, but for those that are found to be no images.
    if not any(b"no image" in found for found in contents):
        digests = [ContentDigest() for _ in range(3)]
        for digest, table in zip(digests, (batch.data, kept, removed), strict=True):
            if table is not None:
                digest.observe(table)
        assert digests[0].hexdigest() == digests[1].plus(digests[2]).hexdigest()
    # What is kept passes every filter that drops; what is lost by its own fault fails the one that it names.
    dropping = [made for made in filters if made.action != FLAG]
    by_name = {made.name: made for made in filters}
    scores = ImageScores(score_table(batch.data))
    for row in kept.to_pylist():
        if row["modality"] == "image" and row["materialize_error"] is None:
            score = scores.get(row["sample_id"], row["position"])
            assert score is not None
            assert all(m.verdict(score) is None for m in dropping if isinstance(m, ScoreFilter))
    left = SampleScores(score_samples(kept, chain.sample_measures))
    for name in {name for name, _ in places(kept)}:
        assert all(m.verdict(left.of(name)) is None for m in dropping if isinstance(m, SampleFilter))
    of_texts = [m for m in dropping if isinstance(m, TextFilter)]
    for text in (text_scores(kept, left) if of_texts else {}).values():
        assert all(m.verdict(text) is None for m in of_texts)
    for loss in result.losses:
        judge = by_name[loss.kind]
        if isinstance(judge, TextFilter) and loss.is_cause:
            (row,) = (
                row
                for row, place in enumerate(places(batch.data))
                if place == (loss.sample_id, loss.position)
            )
            given = text_scores(batch.data, SampleScores(score_samples(batch.data, chain.sample_measures)))
            assert (loss.modality, judge.verdict(given[row])) == ("text", loss.reason)
        if isinstance(judge, ScoreFilter) and loss.is_cause:
            score = scores.get(str(loss.sample_id), loss.position or 0)
            assert score is not None
            assert judge.verdict(score) == loss.reason
    # Neither the cut into batches nor stored scores change anything.
    apart = [chain(batch_of(found)) for found in rows]
    assert [place for part in apart for place in places(part.batch.data)] == places(kept)
    assert [loss for part in apart for loss in part.losses] == list(result.losses)
    assert Counter(flag for part in apart for flag in part.flags) == Counter(result.flags)
    stored = FilterChain(
        chain.images,
        chain.samples,
        image_scores=scores,
        sample_scores=SampleScores(score_samples(batch.data, chain.sample_measures)),
    )
    again = stored(InterleavedBatch(batch.data))
    assert (again.losses, again.flags) == (result.losses, result.flags)
    assert again.batch.data.equals(kept)


BROKEN = png(30, 30)[:-30] + bytes(30)
"""The header of an image of 30 x 30 pixels, which cannot be decoded."""


def test_an_image_that_cannot_be_decoded_is_an_error_for_those_alone_that_decode_it() -> None:
    header, pixels = ImageSizeFilter(min_side=1), EntropyFilter(most=8)
    batch = batch_of(sample("a", "t", BROKEN, SQUARE))
    measured = ImageScores(score_table(batch.data, known_measures().images[:4]))
    for chain in (chain_of([header]), chain_of([header, pixels])):
        assert chain is not None
        fresh = chain(batch)
        stored = replace(chain, image_scores=measured)(batch)
        assert stored.batch.data.equals(fresh.batch.data)
        errors = [row["materialize_error"] for row in fresh.batch.data.to_pylist()]
        assert [error is None for error in errors] == [True, True, not chain.image_measures, True]


def test_what_a_file_says_without_pixels_is_known_of_an_image_that_cannot_be_decoded() -> None:
    measures = [measure for measure in known_measures().images if measure.name in ("entropy", "sha256")]
    (row,) = score_table(batch_of(sample("a", BROKEN)).data, measures).to_pylist()
    assert (row["width"], row["error"], row["entropy"]) == (30, None, None)
    assert row["sha256"] == hashlib.sha256(BROKEN).hexdigest()
    assert row["decode_error"].startswith("unreadable image: ")


def test_large_images_have_no_scores_of_pixels() -> None:
    out = io.BytesIO()
    Image.new("1", (8192, 4097)).save(out, "PNG")
    measures = [measure for measure in known_measures().images if measure.name in ("entropy", "sha256")]
    batch = batch_of(sample("a", out.getvalue()))
    (row,) = score_table(batch.data, measures).to_pylist()
    assert (row["entropy"], row["decode_error"], row["error"]) == (None, None, None)
    assert row["sha256"] == hashlib.sha256(out.getvalue()).hexdigest()
    refused = applied((EntropyFilter(least=0.1),), sample("a", out.getvalue()))
    assert [(x.kind, x.reason) for x in refused.losses] == [("entropy", "it has no entropy")]


def test_images_that_take_too_much_memory_have_no_scores_of_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_assets.filters.measure.MOST_MEMORY", 4 * 30 * 30)
    (row,) = score_table(batch_of(sample("a", png(30, 30))).data, known_measures().images[:4]).to_pylist()
    assert (row["width"], row["sharpness"], row["decode_error"], row["error"]) == (30, None, None, None)
    refused = applied((EntropyFilter(least=0.1),), sample("a", png(30, 30)))
    assert [(x.kind, x.reason) for x in refused.losses] == [("entropy", "it has no entropy")]


@dataclass(frozen=True)
class Failing(ImageMeasure):
    name = "failing"
    type = pa.float64()
    version = "1"
    meaning = "nothing"

    answer: Any = None

    def measure(self, image: ImageContent) -> Any:
        if self.answer is None:
            raise KeyError("x")
        if isinstance(self.answer, type(MemoryError)):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (None, f"^sample 'a', position 0: measure 'failing' of {__name__}: KeyError: 'x'$"),
        ("text", "^measure 'failing': .*'text'"),
        (MemoryError, "^sample 'a', position 0: not enough memory to decode it$"),
    ],
)
def test_measures_that_fail_are_named(answer: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        score_table(batch_of(sample("a", SQUARE)).data, [Failing(answer)])
