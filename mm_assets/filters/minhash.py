"""MinHash of the texts of a sample: how alike two documents are follows from two short signatures.

The signature stands for the set of all five words in a row. The share of equal values of two signatures is
an estimate of the Jaccard similarity of their sets, with a standard deviation of 0.04 at a similarity of 0.8,
and of 0.03 at 0.9. Each five words are hashed `_HASHES` times; each hash falls into one of 112 bins, and the
least one in each bin is kept (one permutation hashing). A bin that stays empty borrows from another one,
found in an order of its own (optimal densification, Shrivastava 2017).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from mm_assets.filters.measure import SampleContent, SampleMeasure

SIGNATURE: Final = 112
"""Values of a signature, 16 bits each."""

SHINGLE: Final = 5
"""Words in a row that are hashed as one."""

LEAST_WORDS: Final = 25
"""Words of a text that a signature says something about."""

_CHARACTERS: Final = 1_000_000  # from the beginning of the texts, a bound on memory
_HASHES: Final = 8
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_SHIFT: Final = np.uint64(33)
_EMPTY: Final = np.uint64(1 << 32)
_WORDS: Final = bytes(
    code + 32 if 65 <= code <= 90 else 32 if code < 128 and not chr(code).isalnum() else code
    for code in range(256)
)
# Chinese, Japanese, Thai, Lao, Burmese and Khmer put no spaces between words: each character is one.
_WITHOUT_SPACES: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


_SEEDS: Final = np.array(
    [xxhash.xxh3_64_intdigest(number.to_bytes(4, "little")) for number in range(SHINGLE + _HASHES)], np.uint64
)
_FACTORS: Final = _SEEDS[:SHINGLE] | np.uint64(1)  # of the words of a shingle
_SALTS: Final = _SEEDS[SHINGLE:]  # what the hashes differ by


@cache  # 5 ms, for which no import should wait
def _asked() -> npt.NDArray[np.int64]:
    """Return for each bin the order in which it asks the others."""
    asked = [
        sorted(range(SIGNATURE), key=lambda other: xxhash.xxh3_64_intdigest(bytes([bin_, other]), SIGNATURE))
        for bin_ in range(SIGNATURE)
    ]
    return np.array(asked, np.int64)


def words_of(text: str) -> list[bytes]:
    """Return the words of a text in lower case, without the punctuation of ASCII, as UTF-8."""
    if not text.isascii():
        text = _WITHOUT_SPACES.sub(r" \g<0> ", text.lower())
    return text.encode("utf-8", "surrogatepass").translate(_WORDS).split()


def shingles(words: Sequence[bytes], length: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each so many words in a row; of fewer words one of all.

    Args:
        length: of a shingle.
    """
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, words), np.uint64, len(words))
    factors = _FACTORS if length == SHINGLE else _FACTORS[0] ** np.arange(1, length + 1, dtype=np.uint64)
    count = max(len(words) - length + 1, 1)
    found = hashes[:count] * factors[0]
    for place in range(1, min(length, len(words))):
        found += hashes[place : place + count] * factors[place]
    return found


def signature(words: Sequence[bytes]) -> npt.NDArray[np.uint16]:
    """Return the signature of the words of a text: 112 values of 16 bits."""
    hashes = (shingles(words, SHINGLE)[:, None] + _SALTS).ravel()
    hashes ^= hashes >> _SHIFT
    hashes *= np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> _SHIFT
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    hashes ^= hashes >> _SHIFT
    bins = (hashes >> _HALF) * np.uint64(SIGNATURE) >> _HALF
    least = np.full(SIGNATURE, _EMPTY)
    np.minimum.at(least, bins.astype(np.int64), hashes & _LOW)
    is_empty = least == _EMPTY
    if is_empty.any():
        answering = (~is_empty)[_asked()].argmax(axis=1)
        borrowed = least[_asked()[np.arange(SIGNATURE), answering]]
        least = np.where(is_empty, borrowed, least)
    return least.astype(np.uint16)


@dataclass(frozen=True)
class MinHash(SampleMeasure):
    """MinHash signature of the texts of a sample."""

    name = "minhash"
    type = pa.binary(2 * SIGNATURE)
    version = "1"
    meaning = (
        f"MinHash of the texts: {SIGNATURE} values of 16 bits, of all {SHINGLE} words in a row; "
        f"null of fewer than {LEAST_WORDS} words"
    )

    def measure(self, sample: SampleContent) -> bytes | None:
        words = words_of(sample.beginning(_CHARACTERS))
        return signature(words).astype("<u2").tobytes() if len(words) >= LEAST_WORDS else None
