"""Languages of texts: ten languages, too few letters, and what costs no time."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from mm_assets.filters import measures
from mm_assets.filters.measure import SampleContent
from mm_assets.filters.measures import LANGUAGE_CHARACTERS, Language, LanguageProbability
from mm_assets.model.errors import MissingExtra, explained

SENTENCES = {
    "en": "Nobody knew why the lights had gone out again.",
    "de": "Niemand wusste, warum das Licht wieder ausgegangen war.",
    "fr": "Personne ne savait pourquoi la lumière s'était encore éteinte.",
    "es": "Nadie sabía por qué se había apagado la luz otra vez.",
    "it": "Nessuno sapeva perché la luce si fosse spenta di nuovo.",
    "pl": "Nikt nie wiedział, dlaczego światło znowu zgasło.",
    "tr": "Işığın neden yine söndüğünü kimse bilmiyordu.",
    "ru": "Никто не знал, почему снова погас свет.",
    "uk": "Ніхто не знав, чому знову згасло світло.",
    "ar": "لم يعرف أحد لماذا انطفأ الضوء مرة أخرى.",
    "he": "איש לא ידע מדוע כבה האור שוב.",
    "zh": "没有人知道灯为什么又灭了。",
    "ja": "なぜまた電気が消えたのか、誰も知らなかった。",
}


def told(*texts: str) -> tuple[str | None, float | None]:
    sample = SampleContent(texts, 0)
    return Language().measure(sample), LanguageProbability().measure(sample)


@pytest.mark.parametrize("code", SENTENCES)
def test_one_sentence_is_enough(code: str) -> None:
    found, probability = told(SENTENCES[code])
    assert found == code
    assert probability is not None and 0.2 <= probability <= 1
    assert probability == round(probability, 3)


def test_texts_are_taken_together() -> None:
    parts = SENTENCES["en"].split()
    assert told(parts[0]) == (None, None)
    assert told(*parts)[0] == "en"
    assert told(SENTENCES["en"].upper())[0] == "en"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t\u00a0\u2003",
        "1234567890 " * 10,
        "😀" * 40,
        "\u0301" * 40,
        "nineteen letters ab",
        "девять бук",
        "六个字的中文",
        "x" * 5_000_000,
        "spam " * 1000,
    ],
)
def test_too_few_letters_and_no_known_words(text: str) -> None:
    assert told(text) == (None, None)


def test_letters_count_by_their_bytes() -> None:
    assert [measures._has_letters(text) for text in ("a" * 19, "a" * 20, "я" * 9, "я" * 10)] == [
        False,
        True,
        False,
        True,
    ]
    assert [measures._has_letters(text) for text in ("字" * 6, "字" * 7)] == [False, True]


def test_only_the_beginning_counts() -> None:
    english = (SENTENCES["en"] + " ") * 100
    assert told(english[:LANGUAGE_CHARACTERS], SENTENCES["ru"] * 1000) == told(english[:LANGUAGE_CHARACTERS])
    assert told(" " * LANGUAGE_CHARACTERS + SENTENCES["en"]) == (None, None)


def test_both_measures_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def identify(text: str) -> None:
        asked.append(text)

    monkeypatch.setattr(measures, "_identify", identify)
    assert told("a", "b") == (None, None)
    assert asked == ["a\nb"]


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "py3langid":
            raise ModuleNotFoundError(f"No module named {name!r}", name="py3langid")
        return real(name, *args, **kwargs)

    measures._identifier.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError) as error:
        told(SENTENCES["en"])
    line = explained(error.value)
    assert isinstance(line, MissingExtra)
    assert str(line) == "Language detection needs py3langid: pip install 'mm-assets[scores]'"
