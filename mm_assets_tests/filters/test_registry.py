"""What settings turn on: filters, actions, presets, measures."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_assets.filters import ACTIONS, Filter, SampleFilter, TextFilter
from mm_assets.filters.contamination import ContaminatedTexts
from mm_assets.filters.measures import known_measures, selected_measures
from mm_assets.filters.registry import (
    FILTERS,
    PRESETS,
    AspectRatioFilter,
    LanguageFilter,
    QrAreaFilter,
    SharpnessFilter,
    chain_of,
    filters_of,
    measures_for,
    settings_of,
)
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.filters.texts import TextScore
from mm_assets.settings import Settings, variable

PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()


def test_every_filter_measure_and_preset_is_in_the_documentation() -> None:
    def told(name: str) -> bool:  # the page names scores and bounds of texts as those of samples
        return f"`{name}`" in PAGE or f"`{name.replace('TEXT_', '').replace('text_', '')}`" in PAGE

    assert [known.name for known in settings_of(FILTERS) if not told(variable(known.name))] == []
    assert [name for name in known_measures().names if not told(name)] == []
    assert [name for name in PRESETS if f"| `{name}` |" not in PAGE] == []
    assert [kind.name for kind in FILTERS if not told(kind.name)] == []


def test_actions() -> None:
    values = {"min_sharpness": 3.0, "max_qr_area": 0.5}
    plain, qr = filters_of(FILTERS, values, ["qr_area=drop_sample", "words=flag"])
    assert (plain, qr) == (SharpnessFilter(3.0), QrAreaFilter(0.5, action="drop_sample"))
    assert plain.action == "drop_item"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "sharpnes=flag",
            "MM_FILTER_ACTIONS: 'sharpnes=flag': there is no filter 'sharpnes'; the nearest is sharpness",
        ),
        (
            "sharpness",
            "MM_FILTER_ACTIONS: 'sharpness': the action of sharpness is one of drop_item, drop_sample, flag",
        ),
        (
            "words=drop_item",
            "MM_FILTER_ACTIONS: 'words=drop_item': the action of words is one of drop_sample, flag",
        ),
    ],
)
def test_actions_that_do_not_fit(text: str, line: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        Settings.load({"MM_FILTER_ACTIONS": text})


def test_presets_are_made_of_settings_and_ones_own_come_first() -> None:
    known = {setting.name for setting in settings_of(FILTERS)}
    for preset, values in PRESETS.items():
        assert set(values) <= known, preset
        filters_of(FILTERS, values)
    assert Settings.load({"MM_FILTER_PRESET": "curator"}).active_filters() == (
        AspectRatioFilter(1.0, 2.0),
        SharpnessFilter(100.0),
        QrAreaFilter(0.05),
    )
    mine = Settings.load({"MM_FILTER_PRESET": "curator", "MM_MAX_ASPECT_RATIO": "3", "MM_MIN_SHARPNESS": "0"})
    assert mine.active_filters()[:2] == (AspectRatioFilter(1.0, 3.0), SharpnessFilter(0.0))
    names = "none, curator, mint1t, obelics, mmc4, mmc4_core, datacomp_basic, datacomp_clip, omnicorpus_en"
    with pytest.raises(ValueError, match=f"^MM_FILTER_PRESET must be one of {names}, not 'laion'$"):
        Settings.load({"MM_FILTER_PRESET": "laion"})


def test_scores_that_there_are_not() -> None:
    with pytest.raises(
        ValueError, match="^MM_SCORES: there is no score 'sharpnes' to be measured; the nearest is sharpness$"
    ):
        Settings.load({"MM_SCORES": "sharpnes"})


def test_what_is_measured_is_what_is_asked_for_in_a_fixed_order() -> None:
    filters = filters_of(FILTERS, {"max_qr_area": 0.5, "languages": ("en",), "min_aspect_ratio": 1.0})
    assert measures_for(filters).names == ("qr_area", "language", "language_probability")
    assert measures_for(filters, ["sha256", "sharpness", "qr_area"]).images == tuple(
        measure for measure in known_measures().images if measure.name in ("sharpness", "qr_area", "sha256")
    )
    assert selected_measures([]).names == ()
    chain = chain_of(filters)
    assert chain is not None
    assert ([m.name for m in chain.images], [m.name for m in chain.samples]) == (
        ["aspect_ratio", "qr_area"],
        ["language"],
    )
    assert chain_of([]) is None


def _score(kind: type[Filter[Any]], values: dict[str, Any]) -> Any:
    if issubclass(kind, TextFilter):
        return TextScore({f"text_{name}": np.array([value]) for name, value in values.items()}, 0)
    if issubclass(kind, SampleFilter):
        none = any(map(math.isnan, values.values()))  # a text without words has no share of them
        of_texts = {"text_words": 0 if none else 10, "text_characters": 0 if none else 10}
        of_texts["text_lettered_words"] = 1.0
        if set(kind.scores) & {f"text_{name}" for name in values}:
            of_texts |= {f"text_{name}": value for name, value in values.items()}
            values = {name: np.array([value]) for name, value in of_texts.items()}
        return SampleScore(2, 1, 10, None, values)
    return ImageScore(20, 10, "png", 1, 100, None, values)


BOUNDS = [kind for kind in FILTERS if hasattr(kind, "of")]


@pytest.mark.parametrize("kind", BOUNDS, ids=lambda kind: kind.name)
def test_bounds_are_inclusive_and_what_is_missing_reaches_no_lower_one(kind: Any) -> None:
    given = {kind.of: 5 if kind.of == "characters" else 0.5}
    value = _score(kind, given).value(kind.of)
    known = {name: setting.name for name, setting in kind.settings().items()}
    for name, better in (("least", 1), ("most", -1)):
        if name in known:
            assert kind(**{name: value}).verdict(_score(kind, given)) is None
            beyond = math.nextafter(value, better * math.inf)
            reason = "less than" if name == "least" else "more than"
            refused = kind(**{name: beyond}).verdict(_score(kind, given))
            assert refused == f"{reason} {known[name]}"
    for missing in ({}, {kind.of: math.nan}) if kind.scores and kind.of != "characters" else ():
        if "least" in known:
            assert kind(least=0.1).verdict(_score(kind, missing)) == f"it has no {kind.of}"
        if "most" in known:
            assert kind(most=0.1).verdict(_score(kind, missing)) is None


NO_LANGUAGE = "is no ISO 639-1 code of a language that is told apart"


def test_actions_of_each_filter() -> None:
    for kind in FILTERS:
        assert set(kind.actions) <= set(ACTIONS)
        drops_samples = issubclass(kind, SampleFilter | ContaminatedTexts)
        assert kind.actions[0] == ("drop_sample" if drops_samples else "drop_item")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"MM_LANGUAGES": "english"}, f"MM_LANGUAGES: 'english' {NO_LANGUAGE}; the nearest is en"),
        ({"MM_LANGUAGES": "en de"}, f"MM_LANGUAGES: 'en de' {NO_LANGUAGE}; the nearest is en"),
        ({"MM_LANGUAGES": "en,xx"}, f"MM_LANGUAGES: 'xx' {NO_LANGUAGE}; the nearest is xh"),
        (
            {"MM_LANGUAGES": "??"},
            f"MM_LANGUAGES: '[?][?]' {NO_LANGUAGE}; there are af, am, .*, zh, zu",
        ),
        ({"MM_MIN_LANGUAGE_PROBABILITY": "2"}, "min_language_probability is at most 1, not 2"),
    ],
)
def test_languages_that_would_drop_everything(settings: dict[str, str], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{line}$"):
        Settings.load(settings)
    assert Settings.load({"MM_LANGUAGES": "EN, de"}).active_filters() == (LanguageFilter(("en", "de")),)
