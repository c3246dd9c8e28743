"""Registry of filters and presets, and all built-in filters but those by a condition.

`FILTERS` is the only list of filters: graph, settings, `mm-assets convert` and ledger know them from it. A
preset (`PRESETS`) is settings of filters that have a name together.

* Filters by the bounds of one score are made of tables: `_OF_IMAGES`, `_COUNTS` of what samples have, and
  `_OF_TEXTS` of texts and samples.
* Others: by the shorter side and the ratio of sides, by language, and by repetition.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from types import ModuleType
from typing import Any, Final, NamedTuple

from mm_assets.filters import (
    Bounds,
    Filter,
    FilterSetting,
    FilterSettingError,
    S,
    SampleFilter,
    TextFilter,
    actions_by_filter,
    maximum,
    minimum,
    setting,
)
from mm_assets.filters.chain import FilterChain, ScoreFilter
from mm_assets.filters.condition import ImageCondition, SampleCondition, TextCondition
from mm_assets.filters.contamination import ContaminatedImages, ContaminatedTexts
from mm_assets.filters.duplicates import DuplicateDocuments, DuplicateImages
from mm_assets.filters.id_list import DropIds, KeepIds
from mm_assets.filters.measure import Score
from mm_assets.filters.measures import LANGUAGES, MeasureSelection, selected_measures
from mm_assets.filters.score_columns import looked_up
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.filters.texts import TextScore
from mm_assets.model.errors import nearest
from mm_assets.settings_file import listed, plugin_fault

_LANGUAGE, _PROBABILITY = "language", "language_probability"


class Languages(Filter[S]):
    """Refuses what is in other languages than the field ``languages`` has, in an unsure one, or in none."""

    scores = (_LANGUAGE, _PROBABILITY)

    languages: tuple[str, ...] = ()
    least: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "languages", tuple(code.lower() for code in self.languages))
        for code in self.languages:
            if code not in LANGUAGES:
                reason = f"{code!r} is no ISO 639-1 code of a language that is told apart"
                reason += f"; {nearest(code[:2], LANGUAGES, 0.5)}"
                raise FilterSettingError(self.settings()["languages"].name, reason)
        if self.least > 1:
            raise ValueError(f"{self.settings()['least'].name} is at most 1, not {self.least:g}")

    def verdict(self, score: S) -> str | None:
        return self.verdicts([score])[0]

    def measure(self, score: S) -> float | None:
        return score.get(_PROBABILITY)  # type: ignore[no-any-return]

    def verdicts(self, scores: Sequence[S]) -> Sequence[str | None]:
        with self._naming():
            return list(map(self._reason, *(looked_up(scores, name) for name in self.scores)))

    def _reason(self, language: str | None, probability: Any) -> str | None:
        if language is None:
            return "of no language that could be told"
        if self.languages and language not in self.languages:
            return "of another language"
        return None if probability >= self.least else f"less than {self.settings()['least'].name}"


@dataclass(frozen=True)
class LanguageFilter(Languages[SampleScore], SampleFilter):
    """Refuses samples by the language of their texts."""

    name = "language"

    languages: tuple[str, ...] = setting(
        "languages", tuple, (), "languages of the samples that are kept: ISO 639-1 codes such as en,de"
    )
    least: float = minimum(
        _PROBABILITY, float, "least probability (0..1) of the language of the samples that are kept"
    )


@dataclass(frozen=True)
class TextLanguageFilter(Languages[TextScore], TextFilter):
    """Refuses texts by their language."""

    name = "text_language"

    languages: tuple[str, ...] = setting(
        "text_languages", tuple, (), "languages of the texts that are kept: ISO 639-1 codes such as en,de"
    )
    least: float = minimum(
        "text_language_probability",
        float,
        "least probability (0..1) of the language of the texts that are kept",
    )


@dataclass(frozen=True)
class AspectRatioFilter(ScoreFilter):
    """Drops images with width/height outside ``min_ratio..max_ratio``.

    Both bounds are inclusive; EXIF orientation is honoured.
    """

    name = "aspect_ratio"

    min_ratio: float = minimum("aspect_ratio", float, "least width/height of the images that are kept")
    max_ratio: float = maximum("aspect_ratio", float, "greatest width/height of the images that are kept")

    def verdict(self, score: ImageScore) -> str | None:
        if score.aspect_ratio < self.min_ratio:
            return "narrower than min_ratio"
        return "wider than max_ratio" if score.aspect_ratio > self.max_ratio else None

    def measure(self, score: ImageScore) -> float:
        return score.aspect_ratio


@dataclass(frozen=True)
class ImageSizeFilter(ScoreFilter):
    """Drops images whose shorter side has fewer pixels than ``min_side`` or more than ``max_side``."""

    name = "image_size"

    min_side: int = minimum("image_side", int, "least pixels of the shorter side of the images that are kept")
    max_side: int = maximum("image_side", int, "most pixels of the shorter side of the images that are kept")

    def verdict(self, score: ImageScore) -> str | None:
        side = self.measure(score)
        if side < self.min_side:
            return "smaller than min_side"
        return "larger than max_side" if side > self.max_side else None

    def measure(self, score: ImageScore) -> int:
        return min(score.width, score.height)


class ImageBounds(Bounds[ImageScore], ScoreFilter):
    """Refuses images by the bounds of one score."""


class TextBounds(Bounds[TextScore], TextFilter):
    """Refuses texts by the bounds of one score."""


class SampleBounds(Bounds[SampleScore], SampleFilter):
    """Refuses samples by the bounds of one score."""


class _Quantity(NamedTuple):
    """A score that has filters of its bounds."""

    score: str
    kind: type
    what: str
    is_lower: bool = True
    is_upper: bool = False


_OF_IMAGES: Final = (
    _Quantity("longer_side", int, "pixels of the longer side", True, True),
    _Quantity("byte_size", int, "bytes", True, True),
    _Quantity("sharpness", float, "sharpness (variance of the Laplacian)", True, True),
    _Quantity("sharpness_512", float, "sharpness at 512 pixels", True, True),
    _Quantity("qr_area", float, "share (0..1) that QR codes cover", False, True),
    _Quantity("entropy", float, "entropy (0..8 bits)", True, True),  # blank pages and flat logos have little
    _Quantity("clip_similarity", float, "similarity (cosine) to the best text of the sample"),
)
_WORDS: Final = _Quantity("words", int, "words", True, True)
_COUNTS: Final = {
    "ImageCountFilter": _Quantity("images", int, "images", True, True),
    "TextCountFilter": _Quantity("texts", int, "texts", True, True),
    "WordCountFilter": _WORDS,
    "ImagesPerWordFilter": _Quantity("images_per_word", float, "images for each word", True, True),
}
"""By the names of their filters, quantities of what the filters of items have left of a sample.

One without words counts as one of one word.
"""
_OF_TEXTS: Final = (
    _Quantity("characters", int, "characters", True, True),
    _Quantity("word_length", float, "mean characters of a word", True, True),
    _Quantity("lettered_words", float, "share (0..1) of words with a letter"),
    _Quantity("special_characters", float, "share (0..1) of characters that are no letters", False, True),
    _Quantity("punctuation", float, "share (0..1) of punctuation marks among words and marks"),
    _Quantity("stopwords", float, "share (0..1) of words that are stopwords"),
    _Quantity("flagged_words", float, "share (0..1) of words in the list of flagged words", False, True),
    _Quantity("common_words", float, "share (0..1) of words in the list of common words"),
    _Quantity("character_repetition", float, "share (0..1) of repeated 10 characters in a row", False, True),
    _Quantity("word_repetition", float, "share (0..1) of repeated 5 words in a row", False, True),
)


def _bounds(
    quantity: _Quantity, base: type[Bounds[Any]], kind: type[Score], label: str = ""
) -> type[Bounds[Any]]:
    """Return the filter by the bounds of a quantity.

    Args:
        kind: what it judges.
        label: name of the class; empty: by what it judges, unless that is images, and the score.
    """
    score, one = quantity.score, kind.rows
    name = f"text_{score}" if kind is TextScore else score
    kept = f"{quantity.what} of the {one}s that are kept"
    fields: list[tuple[str, Any, Any]] = []
    if quantity.is_lower:
        fields.append(("least", quantity.kind, minimum(name, quantity.kind, f"least {kept}")))
    if quantity.is_upper:
        most = "most" if quantity.kind is int else "greatest"
        fields.append(("most", quantity.kind, maximum(name, quantity.kind, f"{most} {kept}")))
    if not label:
        words = f"{score}_filter" if kind is ImageScore else f"{one}_{score}_filter"
        label = words.title().replace("_", "")
    namespace = {
        "__module__": __name__,
        "__doc__": f"Refuses {one}s by the {quantity.what}.",
        "name": name,
        "of": score,
        "scores": (score,) if kind is TextScore else kind.needed(score),
    }
    made = make_dataclass(label, fields, bases=(base,), namespace=namespace, frozen=True)
    globals()[label] = made  # where pickle looks for it
    return made


_IMAGE_FILTERS = tuple(_bounds(quantity, ImageBounds, ImageScore) for quantity in _OF_IMAGES)
_TEXT_FILTERS = tuple(_bounds(quantity, TextBounds, TextScore) for quantity in (_WORDS, *_OF_TEXTS))
_COUNT_FILTERS = tuple(_bounds(known, SampleBounds, SampleScore, label) for label, known in _COUNTS.items())
_SAMPLE_FILTERS = tuple(_bounds(quantity, SampleBounds, SampleScore) for quantity in _OF_TEXTS)


@dataclass(frozen=True)
class RepetitionFilter(SampleBounds):
    """Refuses samples whose texts repeat themselves."""

    name = of = "repetition"
    scores = ("repetition",)

    most: float = maximum(
        "repetition", float, "greatest share (0..1) of words in passages that occurred before in the sample"
    )


NONE: Final = "none"

_MMC4: Final[Mapping[str, Any]] = {
    "min_image_side": 150,
    "min_aspect_ratio": 0.5,
    "max_aspect_ratio": 2.0,
    "min_clip_similarity": 0.15,
    "languages": ("en",),
    "min_language_probability": 0.99,
    "min_images": 1,
}

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    NONE: {},
    "curator": {
        "min_aspect_ratio": 1.0,
        "max_aspect_ratio": 2.0,
        "min_sharpness": 100.0,
        "max_qr_area": 0.05,
    },
    "mint1t": {
        "min_image_side": 150,
        "max_longer_side": 20000,
        "min_aspect_ratio": 0.5,
        "max_aspect_ratio": 2.0,
        "min_images": 1,
        "max_images": 30,
        "languages": ("en",),
        "min_language_probability": 0.65,
    },
    "obelics": {
        "keep_images": "format in ('jpg', 'png', 'webp')",
        "min_image_side": 150,
        "max_longer_side": 20000,
        "min_aspect_ratio": 0.5,
        "max_aspect_ratio": 2.0,
        "min_text_words": 4,
        "max_text_words": 1000,
        "max_text_character_repetition": 0.1,
        "max_text_word_repetition": 0.1,
        "max_text_special_characters": 0.3,
        "min_text_stopwords": 0.3,
        "keep_texts": "words < 12 or punctuation >= 0.001",
        "min_images": 1,
        "max_images": 30,
        "min_words": 10,
        "max_words": 2000,
        "max_character_repetition": 0.1,
        "max_word_repetition": 0.2,
        "max_special_characters": 0.275,
        "min_stopwords": 0.35,
        "min_punctuation": 0.03,
        "languages": ("en",),
        "min_language_probability": 0.8,
    },
    "mmc4": _MMC4,
    "mmc4_core": {**_MMC4, "min_texts": 4, "max_texts": 40, "min_images": 2, "max_images": 15},
    "datacomp_basic": {
        "min_image_side": 200,
        "min_aspect_ratio": 1 / 3,
        "max_aspect_ratio": 3.0,
        "min_images": 1,
        "min_words": 3,
        "min_characters": 6,
        "languages": ("en",),
    },
    "datacomp_clip": {"keep_images": "clip_similarity_percent_rank >= 0.7"},
    "omnicorpus_en": {
        "min_image_side": 150,
        "min_aspect_ratio": 0.5,
        "max_aspect_ratio": 2.0,
        "min_text_words": 5,
        "min_text_characters": 10,
        "min_words": 50,
        "max_words": 100_000,
        "min_word_length": 3.0,
        "max_word_length": 10.0,
        "keep_samples": (
            "lettered_words > 0.8 and stopwords * lettered_words * words >= 1.5 "
            "and (images <= 2 or images_per_word <= 0.02)"
        ),
    },
}
"""Values by setting. `docs/filters.md` has their sources, and what of them scores cannot say.

The filters are applied in the order of `FILTERS`: items first, then what they have left of a sample. That is
the order of each of these recipes.
"""


def with_preset(preset: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a preset, with those over it that are set."""
    return {**PRESETS[preset], **{name: value for name, value in values.items() if value is not None}}


FILTERS: tuple[type[Filter[Any]], ...] = (
    DropIds,
    KeepIds,
    ContaminatedImages,
    ContaminatedTexts,
    AspectRatioFilter,
    ImageSizeFilter,
    *_IMAGE_FILTERS,
    ImageCondition,
    DuplicateImages,
    *_TEXT_FILTERS,
    TextLanguageFilter,
    TextCondition,
    *_COUNT_FILTERS,
    *_SAMPLE_FILTERS,
    LanguageFilter,
    RepetitionFilter,
    SampleCondition,
    DuplicateDocuments,
)
"""Filters in the order of their application; the ledger names the first that drops something."""

_NAME = re.compile("[a-z][a-z0-9_]*")


def known_filters(plugins: Iterable[ModuleType]) -> tuple[type[Filter[Any]], ...]:
    """Return `FILTERS`, then those in the lists ``FILTERS`` of plugins.

    Raises:
        PluginError: in one line that names the module, for an invalid filter.
    """
    known = list(FILTERS)
    for module in plugins:
        for added in listed(module, "FILTERS"):
            if (fault := _fault(added, known)) is not None:
                raise plugin_fault(module, fault)
            known.append(added)
    return tuple(known)


def settings_of(filters: Iterable[type[Filter[Any]]]) -> list[FilterSetting]:
    """Return the settings of some filters; one that several share is there once."""
    found = (known for kind in filters for known in kind.settings().values())
    return list({known.name: known for known in found}.values())


def filters_of(
    filters: Iterable[type[Filter[Any]]], values: Mapping[str, Any], actions: Sequence[str] = ()
) -> tuple[Filter[Any], ...]:
    """Return the filters that are turned on by these values (by setting); a filter without values is off.

    Args:
        actions: what filters do with what they refuse, each as ``filter=action``.

    Raises:
        ValueError: in one line, for values or actions that do not fit.
    """
    filters = tuple(filters)
    action_of = actions_by_filter(filters, actions)
    made = (kind.from_settings(values, action_of.get(kind.name, "")) for kind in filters)
    return tuple(found for found in made if found is not None)


def opened(filters: Iterable[Filter[Any]], statistics: str = "") -> tuple[Filter[Any], ...]:
    """Return filters with what the files say that their settings name.

    Args:
        statistics: folder with the set-wide statistics of the storage; empty: there is none.

    Raises:
        FilterSettingError: a file cannot be used.
    """
    return tuple(made.opened(statistics) for made in filters)


def measures_for(filters: Iterable[Filter[Any]], scores: Iterable[str] = ()) -> MeasureSelection:
    """Return the measures that filters look at, and those of further scores.

    Raises:
        ValueError: in one line, for a score that cannot be measured.
    """
    return selected_measures({*scores, *(name for made in filters for name in made.needs())})


def chain_of(filters: Iterable[Filter[Any]]) -> FilterChain | None:
    """Return filters with their measures as one step; None where there is no filter.

    Raises:
        FilterSettingError: a file that a setting names cannot be used.
    """
    filters = opened(filters)
    if not filters:
        return None
    return FilterChain.of(filters, measures_for(filters))


def _fault(added: Any, known: Iterable[type[Filter[Any]]]) -> str | None:
    """Return why an object cannot be a filter beside the ``known`` ones, or None."""
    if not (inspect.isclass(added) and issubclass(added, ScoreFilter | SampleFilter)):
        return f"{added!r} in FILTERS is no class of filters: derive it from ScoreFilter or SampleFilter"
    label = f"filter {added.__qualname__}"
    if inspect.isabstract(added):
        return f"{label} has no verdict"
    name = getattr(added, "name", None)
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        return f"{label} needs a name of lower-case letters, digits and underscores, not {name!r}"
    if "__dataclass_params__" not in vars(added):
        return f"{label} must be a dataclass: put @dataclass(frozen=True) above it"
    if not added.settings():
        return f"{label} has no settings: nothing could turn it on"
    defaults = [f.name for f in dataclasses.fields(added) if f.default is dataclasses.MISSING]
    if defaults:
        return f"{label}: the field {defaults[0]!r} has no default; declare it by setting()"
    for other in known:
        if other.name == name:
            return f"{label}: the name {name!r} is taken by {other.__module__}.{other.__qualname__}"
    used = {setting.name for setting in settings_of(known)}
    names = [setting.name for setting in added.settings().values()]
    for taken in names:
        if not _NAME.fullmatch(taken) or taken in used or names.count(taken) > 1:
            return f"{label}: the setting {taken!r} is taken, or no name of lower-case letters"
    return None
