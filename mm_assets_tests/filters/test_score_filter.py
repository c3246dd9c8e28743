"""The frame of filters: what a filter gets from its settings, and how one that fails is told."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import pytest

from mm_assets.cli import main
from mm_assets.extend import SampleFilter, ScoreFilter, maximum, minimum, setting
from mm_assets.filters.registry import (
    FILTERS,
    AspectRatioFilter,
    ImageSizeFilter,
    SharpnessFilter,
    chain_of,
    filters_of,
    settings_of,
)
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.graph import Plan, ShardSet
from mm_assets.settings import describe, variable
from mm_assets_tests.filters.test_aspect_ratio import batch, image


@dataclass(frozen=True)
class FormatFilter(ScoreFilter):
    name = "format"

    wanted: tuple[str, ...] = setting("image_formats", tuple, (), "formats that are kept")
    min_bytes: int = minimum("byte_size", int, "least bytes")
    max_bytes: int = maximum("byte_size", int, "most bytes")

    def verdict(self, score: ImageScore) -> str | None:
        return None if score.format in self.wanted else "of another format"


@dataclass(frozen=True)
class Failing(ScoreFilter):
    name = "failing"

    def verdict(self, score: ImageScore) -> str | None:
        raise KeyError("width")


@pytest.mark.parametrize("kind", FILTERS)
def test_each_filter_is_named_and_set_in_the_same_way_everywhere(
    kind: type[ScoreFilter], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--help"]) == 0
    told = capsys.readouterr().out
    assert re.fullmatch("[a-z][a-z0-9_]*", kind.name)
    assert kind.settings()
    for known in kind.settings().values():
        assert known.meaning == describe()[variable(known.name)]
        assert f"--{known.name.replace('_', '-')} " in told


def test_names_and_settings_are_unique() -> None:
    assert len({kind.name for kind in FILTERS}) == len(FILTERS)
    names = [known.name for known in settings_of(FILTERS)]
    assert len(set(names)) == len(names)


def test_filters_are_made_of_what_is_set() -> None:
    assert filters_of(FILTERS, {}) == ()
    assert filters_of(FILTERS, {"min_aspect_ratio": None, "other": 3}) == ()
    assert filters_of(FILTERS, {"min_aspect_ratio": 0.0}) == (AspectRatioFilter(0, math.inf),)
    assert filters_of(FILTERS, {"max_aspect_ratio": 2.0}) == (AspectRatioFilter(0, 2),)
    assert AspectRatioFilter(0.0, 2.0).threshold == "0..2"
    assert AspectRatioFilter(min_ratio=1.5).threshold == "1.5..inf"


def test_names_and_bounds_of_one_filter() -> None:
    result = FormatFilter(wanted=("png",), min_bytes=5)(batch(image(3, 3, "JPEG"), image(3, 3)))
    assert [(loss.position, loss.kind, loss.score, loss.threshold) for loss in result.losses] == [
        (0, "format", None, "png..5..inf")
    ]
    with pytest.raises(ValueError, match="^format bounds must be 0 <= min <= max, not 5 and 4$"):
        FormatFilter(min_bytes=5, max_bytes=4)
    with pytest.raises(TypeError, match="setting 'x' is of one of float, int, str, tuple"):
        setting("x", dict, None, "a dict")


def test_a_filter_that_fails_is_named_with_its_module() -> None:
    with pytest.raises(ValueError, match=f"^filter 'failing' of {__name__}: KeyError: 'width'$"):
        Failing()(batch(image(3, 3)))


@dataclass(frozen=True)
class Misspelt(ScoreFilter):
    name = "misspelt"

    asked_by: str = setting("asked_by", str, "verdict", "the method that asks for it")

    def verdict(self, score: ImageScore) -> str | None:
        return "too narrow" if self.asked_by == "measure" or score.value("widht") < 5 else None

    def measure(self, score: ImageScore) -> float | None:
        found: float | None = score.value("widht")
        return found


@dataclass(frozen=True)
class MisspeltOfSamples(SampleFilter):
    name = "misspelt_of_samples"
    scores = ("repetition",)

    def verdict(self, score: SampleScore) -> str | None:
        return "repeated" if score.value("repetitoin") > 0.1 else None


@pytest.mark.parametrize("asked_by", ["verdict", "measure"])
def test_a_misspelt_score_is_one_line_with_the_names_that_there_are(asked_by: str) -> None:
    known = "width, height, longer_side, aspect_ratio, format, orientation, byte_size"
    line = (
        f"^filter 'misspelt' of {__name__}: there is no score 'widht', only {known}; "
        "that of a measure is there if the filter's `scores` name it$"
    )
    with pytest.raises(ValueError, match=line):
        Misspelt(asked_by=asked_by)(batch(image(3, 3)))


def test_a_misspelt_score_of_samples_names_those_of_measures_too() -> None:
    chain = chain_of([MisspeltOfSamples()])
    assert chain is not None
    known = "images, texts, words, images_per_word, text_digest, repetition"
    line = f"^filter 'misspelt_of_samples' of {__name__}: there is no score 'repetitoin', only {known}; "
    with pytest.raises(ValueError, match=line):
        chain(batch(image(3, 3)))


def test_a_score_that_an_image_does_not_have_is_none_whoever_measures() -> None:
    chain = chain_of([SharpnessFilter(least=5)])
    assert chain is not None
    (loss,) = chain(batch(image(3, 3))).losses
    assert (loss.kind, loss.reason) == ("sharpness", "less than min_sharpness")
    assert ImageScore(values={"sharpness": None}).value("sharpness") is None


def test_version_and_settings_are_part_of_the_fingerprint() -> None:
    @dataclass(frozen=True)
    class Judge(ScoreFilter):
        name = "judge"

        limit: float = setting("limit", float, 1.0, "a limit")

        def verdict(self, score: ImageScore) -> str | None:
            return None

    before = {Plan(ShardSet("a"), (Judge(limit),)).digest() for limit in (1.0, 2.0)}
    Judge.version = "2"
    after = {Plan(ShardSet("a"), (Judge(limit),)).digest() for limit in (1.0, 2.0)}
    assert len(before | after) == 4


def test_thresholds_are_exact() -> None:
    assert ImageSizeFilter(min_side=12345678).threshold == "12345678..inf"
    assert AspectRatioFilter(1.23456789, 2.0).threshold == "1.23456789..2"


@dataclass(frozen=True)
class OneBound(ScoreFilter):
    name = "one_bound"

    max_bytes: float = maximum("byte_size", float, "most bytes of the images that are kept")

    def verdict(self, score: ImageScore) -> str | None:
        return "too large" if score.byte_size > self.max_bytes else None


@pytest.mark.parametrize("bound", [-5.0, float("nan")])
def test_a_single_bound_is_checked(bound: float) -> None:
    with pytest.raises(ValueError, match="max_byte_size of filter 'one_bound' must be 0 or more"):
        OneBound(bound)
