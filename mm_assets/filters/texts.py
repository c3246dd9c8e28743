"""Measures of texts: each takes all texts of a sample, and gives a value for each of them.

Their columns are in the sample scores, as lists with a value for each text, in the order of the texts.

* `TextMeasure`: its subclasses say what is measured of one text, a `Paragraph`. `TEXT_MEASURES` lists them.
* `TextScore`: the values of one text. Filters name them without ``text_``.
* `of_texts`: the same score of a whole sample, from those of the texts that it still has: nothing is measured
  again where a filter drops texts.
* Lists of words are files of the user's. Only a short list of English stopwords is built in.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from mm_assets.filters.measure import (
    Measure,
    MeasureFileError,
    SampleContent,
    SampleMeasure,
    Score,
    file_content,
)
from mm_assets.settings_file import given_settings
from mm_assets.storage.files import absolute

TEXT: Final = "text_"
"""Beginning of the names of these measures."""

LOOKED_AT: Final = 100_000
"""Characters from the beginning of a text that shares are of, a bound on time and memory."""

CHARACTER_GRAM, WORD_GRAM = 10, 5
"""Characters, and words, of an n-gram: those of OBELICS."""

_SPECIAL, _MARK = 1, 2
_FACTORS: Final = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9  # odd: no bit is lost
_OWNER: Final = 0xFF51AFD7ED558CCD


@cache
def _kinds() -> npt.NDArray[np.uint8]:
    """Return which code points are special characters, and which of them punctuation marks."""
    categories = [unicodedata.category(chr(code)) for code in range(0x110000)]
    kinds = [(category[0] not in "LM") * _SPECIAL + (category[0] == "P") * _MARK for category in categories]
    return np.array(kinds, np.uint8)


_ASCII = bytes(range(128))
_ASCII_SPECIAL = "".join(chr(code) for code in _ASCII if not chr(code).isalpha())
_ASCII_KINDS = {
    _SPECIAL: _ASCII_SPECIAL.encode(),
    _MARK: bytes(code for code in _ASCII if unicodedata.category(chr(code))[0] == "P"),
}


def _count(text: str, kind: int) -> int:
    """Return how many characters are of a kind."""
    if text.isascii():
        return len(text) - len(text.encode().translate(None, _ASCII_KINDS[kind]))
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return int(np.count_nonzero(_kinds()[codes] & kind))


def _bare(word: str) -> str:
    """Return a word without the special characters at its ends."""
    word = word.strip(_ASCII_SPECIAL)
    if word.isascii():
        return word
    kinds = _kinds()
    first, end = 0, len(word)
    while first < end and kinds[ord(word[first])]:
        first += 1
    while first < end and kinds[ord(word[end - 1])]:
        end -= 1
    return word[first:end]


class Paragraph:
    """One text, and what is made of it when a measure first asks for it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.beginning = text[:LOOKED_AT]

    @cached_property
    def words(self) -> list[str]:
        """The words of the beginning in lower case, separated by white space."""
        return self.beginning.lower().split()

    @cached_property
    def bare_words(self) -> list[str]:
        """The same without special characters at their ends; what is nothing else is left out."""
        return [bare for word in self.words if (bare := word if word.isalpha() else _bare(word))]


def paragraphs(sample: SampleContent) -> Sequence[Paragraph]:
    """Return the texts of a sample, which its measures share."""
    found: Sequence[Paragraph] | None = sample.once.get("paragraphs")
    if found is None:
        found = sample.once["paragraphs"] = [Paragraph(text) for text in sample.texts]
    return found


def repeated_characters(texts: Sequence[str]) -> list[float]:
    """Return the share of the n-grams of characters of each text that repeat one, as OBELICS has it.

    Of the n-grams that occur more than once, as many are taken as the root of the number of different ones,
    the most frequent first. It is done for all texts at once, in memory of some hundred bytes a character.
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.array([len(text) for text in texts], np.int64)
    grams = np.maximum(lengths - CHARACTER_GRAM + 1, 0)
    if not grams.any():
        return [0.0] * len(texts)
    owners = np.repeat(np.arange(len(texts)), grams)
    before = np.repeat(np.cumsum(lengths) - np.cumsum(grams) - (lengths - grams), grams)
    starts = np.arange(len(owners)) + before
    hashes = _hashes(codes)[starts] + owners.astype(np.uint64) * np.uint64(_OWNER)
    order = np.argsort(hashes)
    again = hashes[order[1:]] == hashes[order[:-1]]
    first, second = order[:-1][again], order[1:][again]
    windows = np.lib.stride_tricks.sliding_window_view(codes, CHARACTER_GRAM)
    is_same = np.array_equal(windows[starts[first]], windows[starts[second]])
    if not (is_same and np.array_equal(owners[first], owners[second])):  # two have one number
        return [_repeated(Counter(_grams(text)).values()) for text in texts]
    runs = np.flatnonzero(np.concatenate([[True], ~again]))
    counts = np.diff(runs, append=len(order))
    owners = owners[order[runs]]
    different = np.bincount(owners, minlength=len(texts))
    several = np.flatnonzero(counts > 1)
    several = several[np.lexsort((-counts[several], owners[several]))]
    of_several = owners[several]
    rank = np.arange(len(several)) - np.searchsorted(of_several, of_several)
    taken = several[rank < np.floor(np.sqrt(different[of_several]))]
    repeated = np.bincount(owners[taken], counts[taken], len(texts))
    return list((repeated / np.maximum(grams, 1)).tolist())


def _grams(text: str) -> Iterator[str]:
    return (text[start : start + CHARACTER_GRAM] for start in range(len(text) - CHARACTER_GRAM + 1))


def _repeated(counts: Collection[int]) -> float:
    repeated = sorted((count for count in counts if count > 1), reverse=True)
    return sum(repeated[: math.isqrt(len(counts))]) / sum(counts) if counts else 0.0


def _hashes(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Return a number for each n-gram of characters, made of those of 2, 4 and 8 characters."""
    one = codes.astype(np.uint64)
    two, four, eight = (np.uint64(factor) for factor in _FACTORS)
    pairs = one[:-1] * two + one[1:]
    fours = pairs[:-2] * four + pairs[2:]
    eights = fours[:-4] * eight + fours[4:]
    return np.asarray(eights[:-2] * four + pairs[8:])


def repeated_words(words: Sequence[str]) -> float:
    """Return the share of the n-grams of words that occur more than once, as OBELICS has it."""
    grams = list(zip(*(words[offset:] for offset in range(WORD_GRAM)), strict=False))
    if len(set(grams)) == len(grams):
        return 0.0
    return sum(count for count in Counter(grams).values() if count > 1) / len(grams)


Values = Mapping[str, Any]


@dataclass(frozen=True)
class TextMeasure(SampleMeasure):
    """A measurement of each text of a sample: `of_text` gets one."""

    of: ClassVar[tuple[str, ...]] = ()
    """Measures of texts whose product is what a share is a share of, such as the words; () for none.

    With them, the share of a sample follows from those of its texts.
    """

    def of_text(self, text: Paragraph, /) -> Any:
        """Return the value for one text; None where there is none. A measure has this or `measure`."""
        raise NotImplementedError

    def measure(self, sample: SampleContent) -> list[Any]:
        return [self.of_text(text) for text in paragraphs(sample)]


def list_of(kind: pa.DataType) -> pa.ListType:
    """Return the type of a column of texts."""
    return pa.list_(pa.field("element", kind))  # as Parquet names it: the digest counts the name


@dataclass(frozen=True)
class TextPosition(TextMeasure):
    """Where a text stands in its sample, so that its values can be joined with its row."""

    name = "text_position"
    type = list_of(pa.int32())
    version = "1"
    meaning = "position of each text"

    def measure(self, sample: SampleContent) -> list[Any]:
        return list(sample.positions or range(len(sample.texts)))


@dataclass(frozen=True)
class TextWords(TextMeasure):
    """Words of a text, separated by white space."""

    name = "text_words"
    type = list_of(pa.int32())
    version = "1"
    meaning = "words of each text, separated by white space"

    def of_text(self, text: Paragraph) -> int:
        return len(text.words if len(text.text) <= LOOKED_AT else text.text.split())


@dataclass(frozen=True)
class TextCharacters(TextMeasure):
    """Characters of a text: code points."""

    name = "text_characters"
    type = list_of(pa.int32())
    version = "1"
    meaning = "characters of each text"

    def of_text(self, text: Paragraph) -> int:
        return len(text.text)


@dataclass(frozen=True)
class WordLength(TextMeasure):
    """Mean characters of a word."""

    name = "text_word_length"
    type = list_of(pa.float64())
    version = "1"
    meaning = "mean characters of a word of each text; null without words"
    of = ("text_words",)

    def of_text(self, text: Paragraph) -> float | None:
        words = text.beginning.split()
        return sum(map(len, words)) / len(words) if words else None


@dataclass(frozen=True)
class LetteredWords(TextMeasure):
    """Share of the words with a letter."""

    name = "text_lettered_words"
    type = list_of(pa.float64())
    version = "1"
    meaning = "share of the words of each text that have a letter, 0 to 1; null without words"
    of = ("text_words",)

    def of_text(self, text: Paragraph) -> float | None:
        return len(text.bare_words) / len(text.words) if text.words else None


@dataclass(frozen=True)
class SpecialCharacters(TextMeasure):
    """Share of the characters that are neither letters nor combining marks: also white space and digits."""

    name = "text_special_characters"
    type = list_of(pa.float64())
    version = "1"
    meaning = (
        "share of the characters of each text that are no letters (white space, digits, punctuation, "
        "emoji …), 0 to 1; null without characters"
    )
    of = ("text_characters",)

    def of_text(self, text: Paragraph) -> float | None:
        beginning = text.beginning
        return _count(beginning, _SPECIAL) / len(beginning) if beginning else None


@dataclass(frozen=True)
class Punctuation(TextMeasure):
    """Share of the punctuation marks among words and marks."""

    name = "text_punctuation"
    type = list_of(pa.float64())
    version = "1"
    meaning = "punctuation marks of each text by its words and marks, 0 to 1; null without words"
    of = ("text_words",)

    def of_text(self, text: Paragraph) -> float | None:
        marks = _count(text.beginning, _MARK)
        return marks / (len(text.words) + marks) if text.words else None


@dataclass(frozen=True)
class TextCharacterRepetition(TextMeasure):
    """Share of n-grams of characters that repeat one."""

    name = "text_character_repetition"
    type = list_of(pa.float64())
    version = "1"
    meaning = f"share of the {CHARACTER_GRAM} characters in a row of each text that repeat others, 0 to 1"

    def measure(self, sample: SampleContent) -> list[float]:
        found: list[float] = []
        texts: list[str] = []
        size = 0
        for text in paragraphs(sample):
            if size + len(text.beginning) > LOOKED_AT:  # a bound on memory
                found += repeated_characters(texts)
                texts, size = [], 0
            texts.append(text.beginning)
            size += len(text.beginning)
        return found + repeated_characters(texts)


@dataclass(frozen=True)
class TextWordRepetition(TextMeasure):
    """Share of n-grams of words that occur more than once."""

    name = "text_word_repetition"
    type = list_of(pa.float64())
    version = "1"
    meaning = f"share of the {WORD_GRAM} words in a row of each text that occur more than once, 0 to 1"

    def of_text(self, text: Paragraph) -> float:
        return repeated_words(text.bare_words)


@dataclass(frozen=True)
class CharacterRepetition(SampleMeasure):
    """Share of n-grams of characters that repeat one, in all texts of a sample as one text."""

    name = "character_repetition"
    type = pa.float64()
    version = "1"
    meaning = (
        f"share of the {CHARACTER_GRAM} characters in a row that repeat others, in the first {LOOKED_AT:,} "
        "characters of the texts, 0 to 1; null without characters"
    )

    def measure(self, sample: SampleContent) -> float | None:
        text = sample.beginning(LOOKED_AT)
        return repeated_characters([text])[0] if text else None


@dataclass(frozen=True)
class WordRepetition(SampleMeasure):
    """Share of n-grams of words that occur more than once, in all texts of a sample as one text."""

    name = "word_repetition"
    type = pa.float64()
    version = "1"
    meaning = (
        f"share of the {WORD_GRAM} words in a row that occur more than once, in the first {LOOKED_AT:,} "
        "characters of the texts, 0 to 1; null without characters"
    )

    def measure(self, sample: SampleContent) -> float | None:
        text = sample.beginning(LOOKED_AT)
        return repeated_words(Paragraph(text).bare_words) if text else None


_MOST_BYTES: Final = 16 << 20

STOPWORDS: Final = frozenset(
    (
        # articles, pronouns
        "a an the i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his "
        "himself she her hers herself it its itself they them their theirs themselves this that these those "
        "who whom whose which what one someone anyone everyone something anything everything nothing each "
        "every either neither some any all both few many much more most several other another such none "
        # verbs that carry no meaning of their own
        "am is are was were be been being have has had having do does did doing can could may might must "
        "shall should will would ought "
        # prepositions
        "about above across after against along among around as at before behind below beneath beside "
        "besides between beyond by despite down during except for from in inside into like near of off on "
        "onto out outside over past per since through throughout till to toward towards under until up upon "
        "via with within without "
        # conjunctions, adverbs
        "and but or nor so yet if unless because although though while whereas whether than then when "
        "whenever where wherever how why not no only just also too very even still again ever never always "
        "here there now once own same "
        # contractions
        "i'm i've i'll i'd you're you've you'll you'd he's he'll he'd she's she'll she'd it's it'll we're "
        "we've we'll we'd they're they've they'll they'd that's there's who's what's isn't aren't wasn't "
        "weren't don't doesn't didn't haven't hasn't hadn't can't couldn't won't wouldn't shouldn't mustn't"
    ).split()
)
"""Function words of English, in lower case, as this project lists them."""


@lru_cache(maxsize=8)
def _listed(file: str, digest: str) -> frozenset[str]:
    """Return the words of a file, loaded once a process."""
    text = file_content(file, _MOST_BYTES, digest).decode("utf-8-sig")
    return frozenset(line.strip().lower() for line in text.splitlines()).difference([""])


@dataclass(frozen=True)
class ListedWords(TextMeasure):
    """Share of the words that a list has. Words without a letter do not count.

    Args:
        words: digest of the list, which identifies the values; empty for the one that is built in.
        file: where it is.
    """

    words: str = ""
    file: str = field(default="", compare=False, repr=False)

    setting: ClassVar[str]
    built_in: ClassVar[frozenset[str]] = frozenset()

    type = list_of(pa.float64())
    version = "1"
    of = ("text_words", "text_lettered_words")

    def configured(self) -> Self:
        given = given_settings()
        location = given.get(self.setting, "")
        if not location and not self.built_in:
            raise MeasureFileError(
                f"score {self.name!r}: set {self.setting} to a file with a word on each line"
            )
        if not location:
            return self
        file = absolute(location)
        try:
            data = file_content(file, _MOST_BYTES)
            data.decode()
        except UnicodeDecodeError as error:
            raise MeasureFileError(f"{given.place(self.setting)}: {file}: it is not UTF-8") from error
        except MeasureFileError as error:
            raise MeasureFileError(f"{given.place(self.setting)}: {error}") from error
        return replace(self, words=xxhash.xxh3_128_hexdigest(data), file=file)

    def of_text(self, text: Paragraph) -> float | None:
        words = text.bare_words
        listed = _listed(self.file, self.words) if self.file else self.built_in
        return sum(map(listed.__contains__, words)) / len(words) if words else None


@dataclass(frozen=True)
class Stopwords(ListedWords):
    """Share of the stopwords: running text has many, lists of names and keywords few."""

    name = "text_stopwords"
    setting = "MM_STOPWORDS"
    built_in = STOPWORDS
    meaning = "share of the words of each text that are stopwords, 0 to 1; null without words of letters"


@dataclass(frozen=True)
class FlaggedWords(ListedWords):
    """Share of the words that are not wanted, by a list of the user's."""

    name = "text_flagged_words"
    setting = "MM_FLAGGED_WORDS"
    meaning = "share of the words of each text that are in a list of yours, 0 to 1; null as for stopwords"


@dataclass(frozen=True)
class CommonWords(ListedWords):
    """Share of the words that are common ones, by a list of the user's."""

    name = "text_common_words"
    setting = "MM_COMMON_WORDS"
    meaning = "share of the words of each text that are in another list of yours, 0 to 1; null as above"


TEXT_MEASURES: tuple[TextMeasure, ...] = (
    TextPosition(),
    TextWords(),
    TextCharacters(),
    WordLength(),
    LetteredWords(),
    SpecialCharacters(),
    Punctuation(),
    Stopwords(),
    FlaggedWords(),
    CommonWords(),
    TextCharacterRepetition(),
    TextWordRepetition(),
)
"""Measures in the order of their columns, but those of the language."""

ALWAYS: Final = ("text_position", "text_words")
"""Measures that are taken where any other of texts is: what joins texts with rows, and adds up."""

_CHARACTERS: Final = "characters"
_PUNCTUATION: Final = "punctuation"
_OF: Final = {_CHARACTERS: TEXT + _CHARACTERS}
_SHARES: Final = {measure.name.removeprefix(TEXT): measure for measure in TEXT_MEASURES if measure.of}

OF_TEXTS: Final[Mapping[str, pa.DataType]] = {_CHARACTERS: pa.int64(), **dict.fromkeys(_SHARES, pa.float64())}
"""Scores of samples that follow from those of their texts, with their types."""


def needed(name: str) -> tuple[str, ...]:
    """Return the measures that a score of a sample is made of: itself, or those of its texts."""
    return (TEXT + name, *_SHARES[name].of) if name in _SHARES else (_OF.get(name, name),)


def of_texts(name: str, values: Values) -> float | None:
    """Return a score of `OF_TEXTS` of a sample; None where there is none.

    Each share is turned back into what was counted, so that the result is that of all texts as one.

    Args:
        values: the values of its texts by measure, as arrays.
    """
    if any(known not in values or values[known] is None for known in needed(name)):
        return None
    if name == _CHARACTERS:
        return int(values[TEXT + name].sum())
    part = total = 0
    columns = [values[known].tolist() for known in needed(name)]
    for share, *factors in zip(*columns, strict=True):
        if share is None or share != share:  # of a text without words: it adds nothing
            continue
        whole = round(math.prod(factors))
        if name == _PUNCTUATION:  # by words and marks: the marks are in what it is a share of
            marks = round(whole * share / (1 - share))
            part, total = part + marks, total + whole + marks
        else:
            part, total = part + round(share * whole), total + whole
    return part / total if total else None


class TextScore(Score):
    """The measurements of one text of a sample.

    Args:
        values: the values of all texts of the sample, as arrays, by measure.
        index: which of the texts it is.
    """

    __slots__ = ("index", "values")

    rows = "text"
    always: ClassVar[Mapping[str, pa.DataType]] = {}

    def __init__(self, values: Values, index: int) -> None:
        self.values = values
        self.index = index

    @classmethod
    def types(cls, measures: Iterable[Measure[Any]]) -> dict[str, pa.DataType]:
        of_texts = (measure for measure in measures if isinstance(measure, TextMeasure))
        types = {measure.name: measure.type.value_type for measure in of_texts}
        return {**types, **{name.removeprefix(TEXT): type_ for name, type_ in types.items()}}

    @classmethod
    def needed(cls, name: str) -> tuple[str, ...]:
        return (name if name.startswith(TEXT) else TEXT + name,)

    def alone(self, names: Iterable[str]) -> TextScore:
        """Return the score without those of other texts, and with the values of these measures only."""
        own = slice(self.index, self.index + 1)
        return TextScore({name: self.values[name][own].copy() for name in names if name in self.values}, 0)

    def get(self, name: str) -> Any:
        column = self.values.get(name if name.startswith(TEXT) else TEXT + name)
        return None if column is None else column.item(self.index)


def text_values(column: pa.ChunkedArray) -> Sequence[Any]:
    """Return the values of a column of texts: an array for each sample."""
    lists = column.combine_chunks()
    flat = lists.flatten()
    values = np.array(flat.to_pylist(), object) if pa.types.is_string(flat.type) else flat.to_numpy(False)
    ends = np.cumsum(np.asarray(lists.value_lengths().fill_null(0)))
    counts = np.diff(ends, prepend=0)
    # Copies: a score that is kept must not keep those of its shard.
    return [values[end - count : end].copy() for end, count in zip(ends, counts, strict=True)]


def text_list(value: Any) -> Any:
    """Return an array of `text_values` as it was measured; other values as they are."""
    if not isinstance(value, np.ndarray):
        return value
    return [None if one != one else one for one in value.tolist()]
