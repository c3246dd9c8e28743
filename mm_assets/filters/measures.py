"""Measures of images and samples, and their registry.

* Images: entropy, sharpness, area of QR codes, perceptual hash (PDQ), SHA-256 of the file, and what its
  content credentials (C2PA) say of training. Sharpness is the variance of the Laplacian, at the size of the
  file and at one size for all images. It is computed in little memory and without rounding.
* Samples and their texts: the language, as py3langid tells it, repeated lines and repeated five-word
  sequences; `mm_assets.filters.texts` has the others. `LANGUAGES` are those of py3langid 0.4, which takes
  half a second to say so itself.
* `IMAGE_MEASURES` and `SAMPLE_MEASURES` are the only lists of them; plugins add to them (`known_measures`). A
  measure is only taken if something asks for it (`selected_measures`).
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from mm_assets.filters import FilterSettingError
from mm_assets.filters.clip import ClipEmbedding, ClipSimilarity
from mm_assets.filters.clip_network import clip_networks
from mm_assets.filters.measure import (
    DECODE_ERROR,
    SMALL_SIDE,
    DerivedMeasure,
    ImageContent,
    ImageMeasure,
    Measure,
    SampleContent,
    SampleMeasure,
    scaled_down,
)
from mm_assets.filters.minhash import MinHash
from mm_assets.filters.scores import HEADER_TYPES, SAMPLE_SCORES_SCHEMA, SCORES_SCHEMA, TEXT_TYPES
from mm_assets.filters.texts import (
    ALWAYS,
    OF_TEXTS,
    TEXT_MEASURES,
    CharacterRepetition,
    TextMeasure,
    WordRepetition,
    list_of,
    needed,
)
from mm_assets.formats.images.pixels import Pixels
from mm_assets.model.errors import nearest, require
from mm_assets.settings_file import listed, load_plugins, plugin_fault

if TYPE_CHECKING:
    from zxingcpp import Position


_STRIP: Final = 1 << 20  # pixels: OpenCV counts in 32-bit floating point, which is exact to 2**24


@dataclass(frozen=True)
class Entropy(ImageMeasure):
    """Shannon entropy of the histogram of the luma: 0 for a flat picture, 8 if all levels are as frequent."""

    name = "entropy"
    library = "cv2"
    type = pa.float64()
    version = "1"
    meaning = "Shannon entropy of the histogram of the luma, in bits (0 to 8)"

    def measure(self, image: ImageContent) -> float:
        import cv2

        rows = max(1, _STRIP // image.luma.shape[1])
        counts = np.zeros(256, np.int64)
        for top in range(0, image.luma.shape[0], rows):
            counted = cv2.calcHist([image.luma[top : top + rows]], [0], None, [256], [0, 256])
            counts += counted.ravel().astype(np.int64)
        shares = counts[counts > 0] / image.luma.size
        return float((shares * np.log2(1 / shares)).sum())


STRIP_VALUES: Final = 1 << 20
"""Values (pixels times channels) of a strip: two bytes for each are in memory at once, and one row more."""


def laplacian_variance(picture: Pixels) -> float:
    """Return the variance of the Laplacian over all pixels and channels.

    The Laplacian of a value is the sum of its four neighbours less four times itself; beyond the edges the
    picture is mirrored. It is taken in strips, each with a row of its neighbours, in 16-bit integers, and
    summed as integers.

    Args:
        picture: height x width, or height x width x channels.
    """
    import cv2

    height = picture.shape[0]
    rows = max(1, STRIP_VALUES // (picture.size // height))
    total = squares = 0
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        above, below = int(top > 0), int(bottom < height)
        strip = cv2.Laplacian(picture[top - above : bottom + below], cv2.CV_16S)
        strip = strip[above : above + bottom - top]
        total += round(sum(cv2.sumElems(strip)))
        squares += round(cv2.norm(strip, cv2.NORM_L2SQR))
    return (picture.size * squares - total * total) / picture.size**2


@dataclass(frozen=True)
class PerceptualHash(ImageMeasure):
    """PDQ hash of the picture as displayed.

    Near duplicates, such as an image encoded anew or scaled, differ in few of its 256 bits (31 or less by the
    convention of PDQ), other pictures in about half of them.
    """

    name = "perceptual_hash"
    library = "pdqhash"
    type = pa.string()
    version = "1"
    meaning = "PDQ hash of the picture as displayed, 256 bits as 64 hexadecimal digits"

    def measure(self, image: ImageContent) -> str:
        return image.perceptual[0]


@dataclass(frozen=True)
class PerceptualQuality(ImageMeasure):
    """Quality of the PDQ hash: of pictures with hardly any detail, hashes are alike by chance."""

    name = "perceptual_quality"
    library = "pdqhash"
    type = pa.int32()
    version = "1"
    meaning = "quality of the PDQ hash, 0 to 100; low for flat pictures, whose hash says little"

    def measure(self, image: ImageContent) -> int:
        return image.perceptual[1]


_LONGEST_SIDE: Final = (
    1600  # pixels; the time for a page of nothing but finder patterns grows with its area squared
)


@dataclass(frozen=True)
class QrArea(ImageMeasure):
    """Area of the QR codes that can be read, without their quiet zones, by the area of the picture.

    By ZXing, which reads codes of either polarity: on the pictures of ``python -m benchmarks scores`` it
    found more of them than OpenCV's detector, in less time, and none where there is none. A picture is first
    scaled down to 1600 pixels in its longer side. What is lost: codes too blurred to be read, and in larger
    pictures those whose modules become smaller than about two pixels.
    """

    name = "qr_area"
    library = "zxingcpp"
    type = pa.float64()
    version = "1"
    meaning = "area of the readable QR codes by the area of the picture (0 to 1)"

    def measure(self, image: ImageContent) -> float:
        import zxingcpp

        luma = scaled_down(image.luma, _LONGEST_SIDE)
        codes = zxingcpp.read_barcodes(luma, formats=zxingcpp.BarcodeFormats([zxingcpp.BarcodeFormat.QRCode]))
        return min(1.0, sum((_area(code.position) for code in codes), 0.0) / luma.size)


def _area(position: Position) -> float:
    """Return the area of a quadrilateral, from its diagonals."""
    along = position.bottom_right.x - position.top_left.x, position.bottom_right.y - position.top_left.y
    across = position.bottom_left.x - position.top_right.x, position.bottom_left.y - position.top_right.y
    return float(abs(along[0] * across[1] - along[1] * across[0])) / 2


@dataclass(frozen=True)
class Sha256(ImageMeasure):
    """SHA-256 of the file's bytes: equal for exact copies alone. Nothing is decoded."""

    name = "sha256"
    decodes = False
    type = pa.string()
    version = "1"
    meaning = "SHA-256 of the file's bytes, 64 hexadecimal digits"

    def measure(self, image: ImageContent) -> str:
        return hashlib.sha256(image.data).hexdigest()


_USES: Final = ("notAllowed", "constrained", "allowed")  # the strictest first
_CREDENTIALS: Final = (b"c2pa", b"C2PA")  # one is in every file that has any
_OFFLINE: Final = ("remote_manifest_fetch", "ocsp_fetch", "verify_trust")


@dataclass(frozen=True)
class C2paTraining(ImageMeasure):
    """What the assertions on training and data mining in an image's content credentials (C2PA, CAWG) allow.

    The strictest entry counts, of all but inference, and of the images that it was made of as well. Where the
    file is not as it was signed, they still forbid, but allow nothing. Nothing is fetched: neither manifests
    that lie elsewhere, nor the state of certificates, which are not checked for who they are of.
    """

    name = "c2pa_training"
    library = "c2pa"
    decodes = False
    type = pa.string()
    version = "1"
    meaning = (
        "notAllowed, constrained or allowed: training, by the content credentials of the file; null: not said"
    )

    def measure(self, image: ImageContent) -> str | None:
        data = bytes(image.data)
        if not any(word in data for word in _CREDENTIALS):
            return None
        import c2pa

        off = c2pa.Settings.from_dict({"verify": dict.fromkeys(_OFFLINE, False)})
        try:
            with (
                c2pa.Context(settings=off) as context,
                c2pa.Reader(f"image/{image.info.format}", io.BytesIO(data), context=context) as reader,
            ):
                store = json.loads(reader.json())
        except (c2pa.C2paError, ValueError, RecursionError):  # none, or damaged ones
            return None
        active = store["manifests"].pop(store.get("active_manifest"), {})
        uses = {*_uses(active), *filter(_USES[-1].__ne__, chain(*map(_uses, store["manifests"].values())))}
        found = next((use for use in _USES if use in uses), None)
        return None if found == _USES[-1] and store.get("validation_state") == "Invalid" else found


def _uses(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield the uses that a manifest states. Whoever signed it may have written anything into it."""
    for assertion in manifest.get("assertions", ()):
        if assertion["label"].partition("__")[0].endswith(".training-mining"):
            entries = assertion["data"].get("entries") if isinstance(assertion["data"], dict) else None
            for name, entry in entries.items() if isinstance(entries, dict) else ():
                if isinstance(entry, dict) and not name.endswith(".ai_inference"):
                    yield str(entry.get("use"))


LANGUAGE_CHARACTERS = 2048
"""Characters from the beginning of the texts that are looked at, in half a millisecond; a line is enough."""

LETTERS = 20
"""Least letters of these, counted in bytes of UTF-8.

So 20 Latin letters, 10 Cyrillic or Arabic ones and 7 Chinese ones are enough. Of fewer, one in ten and more
is told wrong.
"""

LEAST = 0.1
"""Least probability of a language that is told; names of products and repeated words stay below it."""

_FOUND = "language"  # in SampleContent.once


@dataclass(frozen=True)
class Language(SampleMeasure):
    """The language, as ISO 639-1 code."""

    name = "language"
    library = "py3langid"
    type = pa.string()
    version = "1"
    meaning = (
        "most probable language of the texts, as ISO 639-1 code such as en or zh, told from their first "
        f"{LANGUAGE_CHARACTERS} characters; "
        "null where they have too few letters, or words of no known language"
    )

    def measure(self, sample: SampleContent) -> str | None:
        found = _language(sample)
        return None if found is None else found[0]


@dataclass(frozen=True)
class LanguageProbability(SampleMeasure):
    """How probable the language is, among all that are known."""

    name = "language_probability"
    library = "py3langid"
    type = pa.float32()
    version = "1"
    meaning = "probability of the language, 0 to 1, in thousandths; null where there is no language"

    def measure(self, sample: SampleContent) -> float | None:
        found = _language(sample)
        return None if found is None else found[1]


def _language(sample: SampleContent) -> tuple[str, float] | None:
    """Return code and probability, found out once for both measures."""
    if _FOUND not in sample.once:
        sample.once[_FOUND] = _identify(sample.beginning(LANGUAGE_CHARACTERS))
    return sample.once[_FOUND]


def _identify(text: str) -> tuple[str, float] | None:
    if not _has_letters(text):
        return None
    code, probability = _identifier().classify(text)
    # Processors differ in the last digits, and equal texts shall have equal scores on all of them.
    probability = round(probability, 3)
    return (code, probability) if probability >= LEAST else None


def _has_letters(text: str) -> bool:
    first = islice(filter(str.isalpha, text), LETTERS)  # each has a byte at least
    return len("".join(first).encode()) >= LETTERS


@cache
def _identifier() -> Any:
    """Return the model, loaded once a process: 0.6 s and 90 MB of memory."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    # Its other labels are dialects and rare languages, for which it takes short texts of large ones.
    identifier.set_languages([label for label in identifier.labels if len(label) == 2])
    # The selection is stored by column, and each text looks up hundreds of rows.
    identifier.nb_ptc = np.ascontiguousarray(identifier.nb_ptc)
    return identifier


LANGUAGES: Final = tuple(
    (
        "af am an ar as az ba be bg bn br bs ca cs cy da de dz el en eo es et eu fa fi fo fr fy ga "
        "gd gl gu ha he hi hr ht hu hy id ig is it ja jv ka kk km kn ko ku ky la lb lg ln lo lt lv "
        "mg mk ml mn mr ms mt my ne nl nn no oc om or pa pl ps pt qu ro ru rw sa se si sk sl sn so "
        "sq sr st sv sw ta te tg th tk tl tr tt ug uk ur uz vi vo wa xh yo zh zu "
    ).split()
)
"""ISO 639-1 codes."""


CHARACTERS = 1_000_000
"""Characters from the beginning of the texts that are looked at, a bound on memory."""


@dataclass(frozen=True)
class RepeatedLines(SampleMeasure):
    """The fraction of characters in duplicate lines.

    Lines are compared without white space at their ends; empty ones do not count. Each text begins a line. A
    line that is equal to an earlier one is a duplicate. The value is the characters of all duplicates divided
    by those of all lines. Gopher (Rae et al. 2021, table A1) drops documents above 0.2.
    """

    name = "repeated_lines"
    type = pa.float32()
    version = "1"
    meaning = (
        "share of the characters that lie in lines which stood before, 0 to 1, in the first "
        f"{CHARACTERS:,} characters of the texts; null where all lines are empty"
    )

    def measure(self, sample: SampleContent) -> float | None:
        seen: set[str] = set()
        repeated = total = 0
        for line in map(str.strip, sample.beginning(CHARACTERS).splitlines()):
            total += len(line)
            if line in seen:
                repeated += len(line)
            else:
                seen.add(line)
        return repeated / total if total else None


WORDS = 5
"""Words of an n-gram."""


@dataclass(frozen=True)
class Repetition(SampleMeasure):
    """The fraction of characters in duplicate 5-grams.

    Words are separated by white space and compared as they are, with case and punctuation. An n-gram is any
    five words in a row, also across lines and texts. One that is equal to an earlier one is a duplicate; the
    first of its kind is none. The value is the characters of all words that lie in a duplicate, each word
    counted once, divided by the characters of all words.

    Gopher (Rae et al. 2021, table A1) has a rule like it and drops documents above 0.15. Texts in scripts
    without spaces have few words: there `RepeatedLines` tells more.
    """

    name = "repetition"
    type = pa.float32()
    version = "1"
    meaning = (
        f"share of the characters of words that lie in {WORDS} words which stood before in the same order, "
        f"0 to 1, in the first {CHARACTERS:,} characters of the texts; null where there is no word"
    )

    def measure(self, sample: SampleContent) -> float | None:
        words = sample.beginning(CHARACTERS).split()
        if not words:
            return None
        seen: set[tuple[str, ...]] = set()
        repeated = 0
        counted = 0  # words up to here are in the sum, or in no duplicate
        for start, gram in enumerate(zip(*(words[offset:] for offset in range(WORDS)), strict=False)):
            if gram in seen:
                repeated += sum(map(len, words[max(start, counted) : start + WORDS]))
                counted = start + WORDS
            else:
                seen.add(gram)
        return repeated / sum(map(len, words))


@dataclass(frozen=True)
class Sharpness(ImageMeasure):
    """Variance of the Laplacian over the red, green and blue of all pixels, at the size of the file.

    A photograph scaled up has less, a photograph scaled down has more; `SharpnessAtOneSize` can be compared
    between sizes.
    """

    name = "sharpness"
    library = "cv2"
    type = pa.float64()
    version = "1"
    meaning = "variance of the Laplacian over red, green and blue at native size, in squared levels of 0..255"

    def measure(self, image: ImageContent) -> float:
        return laplacian_variance(image.pixels)


@dataclass(frozen=True)
class SharpnessAtOneSize(ImageMeasure):
    """Variance of the Laplacian of the luma, scaled down so that the longer side has 512 pixels.

    A smaller image is measured as it is.
    """

    name = "sharpness_512"
    library = "cv2"
    type = pa.float64()
    version = "1"
    meaning = (
        f"variance of the Laplacian of the luma, longer side scaled down to {SMALL_SIDE} pixels, "
        "in squared levels of 0..255"
    )

    def measure(self, image: ImageContent) -> float:
        return laplacian_variance(image.small_luma)


_OF_TEXTS: Final = "languages"  # in SampleContent.once


def _languages(sample: SampleContent) -> list[tuple[str | None, float | None]]:
    """Return code and probability of each text, found out once for both measures."""
    if _OF_TEXTS not in sample.once:
        found = (_identify(text[:LANGUAGE_CHARACTERS]) for text in sample.texts)
        sample.once[_OF_TEXTS] = [one or (None, None) for one in found]
    known: list[tuple[str | None, float | None]] = sample.once[_OF_TEXTS]
    return known


@dataclass(frozen=True)
class TextLanguage(TextMeasure):
    """The language of each text, as ISO 639-1 code."""

    name = "text_language"
    library = "py3langid"
    type = list_of(pa.string())
    version = "1"
    meaning = "most probable language of each text, told as that of a sample"

    def measure(self, sample: SampleContent) -> list[str | None]:
        return [code for code, _ in _languages(sample)]


@dataclass(frozen=True)
class TextLanguageProbability(TextMeasure):
    """How probable the language of each text is."""

    name = "text_language_probability"
    library = "py3langid"
    type = list_of(pa.float64())
    version = "1"
    meaning = "probability of the language of each text, 0 to 1, in thousandths; null where there is none"

    def measure(self, sample: SampleContent) -> list[float | None]:
        return [probability for _, probability in _languages(sample)]


SAMPLE_MEASURES: tuple[SampleMeasure, ...] = (
    Language(),
    LanguageProbability(),
    Repetition(),
    RepeatedLines(),
    CharacterRepetition(),
    WordRepetition(),
    *TEXT_MEASURES,
    TextLanguage(),
    TextLanguageProbability(),
    MinHash(),
)
"""Measures in the order of their columns."""


IMAGE_MEASURES: tuple[ImageMeasure, ...] = (
    Sharpness(),
    SharpnessAtOneSize(),
    QrArea(),
    Entropy(),
    Sha256(),
    C2paTraining(),
    PerceptualHash(),
    PerceptualQuality(),
    ClipSimilarity(),
    ClipEmbedding(),
)
"""Measures in the order of their columns."""


_ALWAYS = {*HEADER_TYPES, *TEXT_TYPES, *SCORES_SCHEMA.names, *SAMPLE_SCORES_SCHEMA.names, DECODE_ERROR}


@dataclass(frozen=True)
class MeasureSelection:
    """Measures of images and of samples, in a fixed order."""

    images: tuple[ImageMeasure, ...] = ()
    samples: tuple[SampleMeasure, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return (*names_of(self.images), *names_of(self.samples))


def known_measures() -> MeasureSelection:
    """Return all measures: those of this project, then those in the lists ``MEASURES`` of plugins.

    Raises:
        PluginError: in one line that names the module, for what is no measure, or has the name of another.
    """
    images, samples = list(IMAGE_MEASURES), list(SAMPLE_MEASURES)
    images += clip_networks({*_ALWAYS, *OF_TEXTS, *names_of(images), *names_of(samples)})
    for module in load_plugins():
        for added in listed(module, "MEASURES"):
            if not isinstance(added, ImageMeasure | SampleMeasure):
                hint = "derive it from ImageMeasure or SampleMeasure"
                raise plugin_fault(module, f"{added!r} in MEASURES is no measure: {hint}")
            taken = {*_ALWAYS, *OF_TEXTS, *names_of(images), *names_of(samples)}
            if added.name in taken:
                raise plugin_fault(module, f"measure {added.name!r}: the name is taken")
            if isinstance(added, ImageMeasure):
                images.append(added)
            else:
                samples.append(added)
    return MeasureSelection(tuple(images), tuple(samples))


def selected_measures(names: Iterable[str]) -> MeasureSelection:
    """Return the measures of these names, with the settings that they depend on.

    Raises:
        FilterSettingError: no measure has one of the names.
        MissingExtra: a library that one needs is not installed.
        ValueError: in one line, for a measure that the settings do not allow.
    """
    known = known_measures()
    wanted = {measure for name in names for measure in needed(name)}
    wanted |= {m.of for m in known.images if m.name in wanted and isinstance(m, DerivedMeasure)}
    if any(measure.name in wanted for measure in known.samples if isinstance(measure, TextMeasure)):
        wanted.update(ALWAYS)
    for name in sorted(wanted.difference(known.names)):
        hint = "it is there in any case: leave it out" if name in _ALWAYS else nearest(name, known.names)
        raise FilterSettingError("scores", f"there is no score {name!r} to be measured; {hint}")
    selected = MeasureSelection(
        tuple(measure.configured() for measure in known.images if measure.name in wanted),
        tuple(measure.configured() for measure in known.samples if measure.name in wanted),
    )
    asked: list[Measure[Any]] = [*selected.images, *selected.samples]
    require(*(measure.library for measure in asked if measure.library))
    return selected


def names_of(measures: Iterable[Any]) -> Collection[str]:
    """Return the names of some measures."""
    return [measure.name for measure in measures]
