"""Classes are in fingerprints by name: what is renamed states its former name, and nothing is made again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from mm_assets import filters
from mm_assets.definitions import SHARDED_ASSETS, build_definitions
from mm_assets.filters import (
    chain,
    clip,
    clip_network,
    condition,
    measure,
    measures,
    readable,
    registry,
    texts,
)
from mm_assets.graph import digest, fingerprint_name, io_manager

FILTERS_AND_MEASURES = """
AspectRatioFilter ByteSizeFilter C2paTraining CharacterRepetition ClipEmbedding ClipNetwork ClipSimilarity
ClipSimilarityFilter CommonWords ContaminatedImages ContaminatedTexts DropIds DuplicateDocuments
DuplicateImages Entropy EntropyFilter FilterChain FlaggedWords ImageCondition ImageCountFilter
ImageSizeFilter ImagesPerWordFilter KeepIds Language LanguageFilter LanguageProbability LetteredWords
LongerSideFilter MinHash PerceptualHash PerceptualQuality Punctuation QrArea QrAreaFilter ReadableImages
RepeatedLines Repetition RepetitionFilter SampleCharacterRepetitionFilter SampleCharactersFilter
SampleCommonWordsFilter SampleCondition SampleFlaggedWordsFilter SampleLetteredWordsFilter
SamplePunctuationFilter SampleSpecialCharactersFilter SampleStopwordsFilter SampleWordLengthFilter
SampleWordRepetitionFilter Sha256 Sharpness Sharpness512Filter SharpnessAtOneSize SharpnessFilter
SpecialCharacters Stopwords TextCharacterRepetition TextCharacterRepetitionFilter TextCharacters
TextCharactersFilter TextCommonWordsFilter TextCondition TextCountFilter TextFlaggedWordsFilter TextLanguage
TextLanguageFilter TextLanguageProbability TextLetteredWordsFilter TextPosition TextPunctuationFilter
TextSpecialCharactersFilter TextStopwordsFilter TextWordLengthFilter TextWordRepetition
TextWordRepetitionFilter TextWords TextWordsFilter WordCountFilter WordLength WordRepetition
"""
IO_MANAGERS = """
ArrowCacheIOManager IngestIOManager LanceIOManager ParquetIOManager QuarantineIOManager SampleScoresIOManager
ScoresIOManager WebdatasetIOManager
"""
BASES = set(
    "BatchedMeasure Bounds ClipMeasure Condition DerivedMeasure Filter ImageBounds ImageMeasure Languages "
    "ListedWords SampleBounds SampleFilter SampleMeasure ScoreFilter TextBounds TextFilter "
    "TextMeasure".split()
)


@dataclass(frozen=True)
class Before:
    least: float


@dataclass(frozen=True)
class After:
    fingerprint_name: ClassVar[str] = "Before"

    least: float


@dataclass(frozen=True)
class Derived(After):
    pass


def test_a_renamed_class_that_states_its_former_name_changes_no_digest() -> None:
    assert digest(After(1.0)) == digest(Before(1.0)) != digest(After(2.0))
    assert digest(Derived(1.0)) != digest(After(1.0))  # the name of a base is not that of its subclass


def test_names_of_filters_and_measures_stay() -> None:
    modules = (filters, chain, clip, clip_network, condition, measure, measures, readable, registry, texts)
    steps = {
        fingerprint_name(known)
        for module in modules
        for known in vars(module).values()
        if isinstance(known, type) and dataclasses.is_dataclass(known) and _is_compared(known)
    }
    assert steps - BASES == set(FILTERS_AND_MEASURES.split())


def _is_compared(known: type) -> bool:
    """Whether it is a step, or a part of one; results and helpers never get into a fingerprint."""
    return (
        any(
            issubclass(known, base)
            for base in (filters.Filter, measure.ImageMeasure, measure.SampleMeasure, chain.FilterChain)
        )
        or known is readable.ReadableImages
    )


def test_names_of_io_managers_stay() -> None:
    resources = build_definitions().resources or {}
    found = {known for known in map(type, resources.values()) if issubclass(known, io_manager.ShardIOManager)}
    assert {fingerprint_name(known) for known in found} == set(IO_MANAGERS.split())
    assert len(found) == len(SHARDED_ASSETS)
