"""Registry of filters and presets, and all built-in filters but those by a condition.

`FILTERS` is the only list of filters: graph, settings, `mm-assets convert` and ledger know them from it. A
preset (`PRESETS`) is settings of filters that have a name together.

* Filters of images: by the sides and their ratio, the bytes, and other bounds of one score each.
* Filters of texts and of samples: by language, and by bounds of one score each. Those with a row in
  `_OF_TEXTS` are there for both.
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
from mm_assets.filters.measures import LANGUAGES, MeasureSelection, selected_measures
from mm_assets.filters.score_columns import looked_up
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.filters.texts import TextScore
from mm_assets.model.errors import nearest
from mm_assets.settings_file import listed, plugin_fault


class ImageBounds(Bounds[ImageScore], ScoreFilter):
    """Refuses images by the bounds of one score."""


@dataclass(frozen=True)
class ByteSizeFilter(ImageBounds):
    """Refuses images whose file has too few or too many bytes."""

    name = of = "byte_size"

    least: int = minimum("byte_size", int, "least bytes of the images that are kept")
    most: int = maximum("byte_size", int, "most bytes of the images that are kept")


@dataclass(frozen=True)
class LongerSideFilter(ImageBounds):
    """Refuses images by the pixels of the longer side; `ImageSizeFilter` looks at the shorter one."""

    name = of = "longer_side"

    least: int = minimum("longer_side", int, "least pixels of the longer side of the images that are kept")
    most: int = maximum("longer_side", int, "most pixels of the longer side of the images that are kept")


@dataclass(frozen=True)
class SharpnessFilter(ImageBounds):
    """Refuses blurred images: those with little variance of the Laplacian, at native size."""

    name = of = "sharpness"
    scores = ("sharpness",)

    least: float = minimum(
        "sharpness", float, "least sharpness (variance of the Laplacian) of the images that are kept"
    )
    most: float = maximum("sharpness", float, "greatest sharpness of the images that are kept")


@dataclass(frozen=True)
class Sharpness512Filter(ImageBounds):
    """Refuses blurred images by their sharpness when the longer side is scaled down to 512 pixels."""

    name = of = "sharpness_512"
    scores = ("sharpness_512",)

    least: float = minimum(
        "sharpness_512", float, "least sharpness at 512 pixels of the images that are kept"
    )
    most: float = maximum(
        "sharpness_512", float, "greatest sharpness at 512 pixels of the images that are kept"
    )


@dataclass(frozen=True)
class QrAreaFilter(ImageBounds):
    """Refuses images that QR codes cover to a great part."""

    name = of = "qr_area"
    scores = ("qr_area",)

    most: float = maximum("qr_area", float, "greatest share (0..1) of an image that QR codes may cover")


@dataclass(frozen=True)
class EntropyFilter(ImageBounds):
    """Refuses images of few shades, such as blank pages and flat logos."""

    name = of = "entropy"
    scores = ("entropy",)

    least: float = minimum("entropy", float, "least entropy (0..8 bits) of the images that are kept")
    most: float = maximum("entropy", float, "greatest entropy of the images that are kept")


@dataclass(frozen=True)
class ClipSimilarityFilter(ImageBounds):
    """Refuses images that fit none of the texts of their sample, by a CLIP model."""

    name = of = "clip_similarity"
    scores = ("clip_similarity",)

    least: float = minimum(
        "clip_similarity", float, "least similarity (cosine) of an image and the best text of its sample"
    )


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


class SampleBounds(Bounds[SampleScore], SampleFilter):
    """Refuses samples by the bounds of one score."""


@dataclass(frozen=True)
class ImageCountFilter(SampleBounds):
    """Refuses samples with too few or too many images, as the filters of images have left them."""

    name = of = "images"

    least: int = minimum("images", int, "least images of the samples that are kept")
    most: int = maximum("images", int, "most images of the samples that are kept")


@dataclass(frozen=True)
class WordCountFilter(SampleBounds):
    """Refuses samples with too few or too many words in all their texts."""

    name = of = "words"

    least: int = minimum("words", int, "least words of the samples that are kept")
    most: int = maximum("words", int, "most words of the samples that are kept")


@dataclass(frozen=True)
class ImagesPerWordFilter(SampleBounds):
    """Refuses samples by their images for each word; a sample without words counts as one of one word."""

    name = of = "images_per_word"

    least: float = minimum(
        "images_per_word", float, "least images for each word of the samples that are kept"
    )
    most: float = maximum("images_per_word", float, "most images for each word of the samples that are kept")


@dataclass(frozen=True)
class RepetitionFilter(SampleBounds):
    """Refuses samples whose texts repeat themselves."""

    name = of = "repetition"
    scores = ("repetition",)

    most: float = maximum(
        "repetition", float, "greatest share (0..1) of words in passages that occurred before in the sample"
    )


class TextBounds(Bounds[TextScore], TextFilter):
    """Refuses texts by the bounds of one score."""


class _Quantity(NamedTuple):
    """A score of texts and of samples that has filters of both."""

    score: str
    kind: type
    what: str
    is_lower: bool = True
    is_upper: bool = False
    of_both: bool = True


_OF_TEXTS: Final = (
    _Quantity("words", int, "words", True, True, of_both=False),
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


def _bounds(quantity: _Quantity, base: type[Bounds[Any]], prefix: str, one: str) -> type[Bounds[Any]]:
    """Return the filter by the bounds of a quantity.

    Args:
        prefix: begins its name, and those of its settings behind ``min_`` and ``max_``.
        one: what it judges.
    """
    name, kept = prefix + quantity.score, f"{quantity.what} of the {one}s that are kept"
    fields: list[tuple[str, Any, Any]] = []
    if quantity.is_lower:
        fields.append(("least", quantity.kind, minimum(name, quantity.kind, f"least {kept}")))
    if quantity.is_upper:
        fields.append(("most", quantity.kind, maximum(name, quantity.kind, f"greatest {kept}")))
    label = "".join(part.title() for part in f"{one}_{quantity.score}_filter".split("_"))
    namespace = {
        "__module__": __name__,
        "__doc__": f"Refuses {one}s by the {quantity.what}.",
        "name": name,
        "of": quantity.score,
        "scores": (quantity.score,) if base is TextBounds else SampleScore.needed(quantity.score),
    }
    made = make_dataclass(label, fields, bases=(base,), namespace=namespace, frozen=True)
    globals()[label] = made  # where pickle looks for it
    return made


_TEXT_FILTERS = tuple(_bounds(quantity, TextBounds, "text_", "text") for quantity in _OF_TEXTS)
_SAMPLE_FILTERS = tuple(
    _bounds(quantity, SampleBounds, "", "sample") for quantity in _OF_TEXTS if quantity.of_both
)


@dataclass(frozen=True)
class TextCountFilter(SampleBounds):
    """Refuses samples with too few or too many texts, as the filters of texts have left them."""

    name = of = "texts"

    least: int = minimum("texts", int, "least texts of the samples that are kept")
    most: int = maximum("texts", int, "most texts of the samples that are kept")


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
    LongerSideFilter,
    ByteSizeFilter,
    SharpnessFilter,
    Sharpness512Filter,
    QrAreaFilter,
    EntropyFilter,
    ClipSimilarityFilter,
    ImageCondition,
    DuplicateImages,
    *_TEXT_FILTERS,
    TextLanguageFilter,
    TextCondition,
    ImageCountFilter,
    TextCountFilter,
    WordCountFilter,
    ImagesPerWordFilter,
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
